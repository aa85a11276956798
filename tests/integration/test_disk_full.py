"""A disk that fills up: new work is refused in words, finished work is taken, space heals it."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyq
from cluster.local import LocalCluster
from pyq.limits import MIB
from pyq.process import ExitCode
from pyq.wire import Verb
from tests.integration.ledger import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")

QUEUE = "emails"


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pyq-disk-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def leave_free(disk: Path, count: int) -> Path:
    """Fill the disk until only `count` bytes are free; return the file to remove."""
    filler = disk / "filler"
    usage = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize - count)
    return filler


def pull(client: pyq.Client, count: int = 1) -> list[tuple[bytes, bytes]]:
    body = ["reader", [QUEUE], count, 0, 60_000, 0]
    _, groups = client.connection().request(Verb.PULL, body, queue=QUEUE).body
    return [(job[0], job[1]) for job in groups[0][1]]


def ack(client: pyq.Client, held: tuple[bytes, bytes], result: bytes | None = None) -> None:
    reply = client.connection().request(Verb.ACK, [[[*held, result]]], queue=QUEUE)
    assert reply.body == (1, ())


def is_accepted(client: pyq.Client) -> bool:
    try:
        client.queue(QUEUE).add("more")
    except (pyq.DiskFull, pyq.Unavailable):
        return False
    return True


def test_below_the_reserve_only_finished_work_is_taken(disk: Path) -> None:
    with LocalCluster(1, disk) as cluster, pyq.connect(cluster.url) as client:
        client.queue(QUEUE).add_bulk([("a", n) for n in range(3)])
        (held,) = pull(client)
        filler = leave_free(disk, 32 * MIB)

        wait_for(lambda: not is_accepted(client), 10)
        with pytest.raises(pyq.DiskFull, match="less than 64 MiB left; free some space"):
            client.queue(QUEUE).add("b")
        with pytest.raises(pyq.DiskFull):
            pull(client)
        ack(client, held)
        health = cluster.run("health")
        assert "its disk is nearly full" in health.stdout

        filler.unlink()
        wait_for(lambda: is_accepted(client), 5)
        ack(client, *pull(client))
        assert cluster.processes()["shard-0"]["restarts"] == 0


def test_a_result_that_does_not_fit_waits_until_it_does(disk: Path) -> None:
    with LocalCluster(1, disk) as cluster, pyq.connect(cluster.url) as client:
        client.queue(QUEUE).add_bulk([("a", n) for n in range(4)])
        held = pull(client, 4)
        filler = leave_free(disk, 20 * MIB)
        wait_for(lambda: not is_accepted(client), 10)

        connection = client.connection()
        items = [[[*held[0], bytes(9 * MIB)]]]
        with pytest.raises(pyq.Busy, match="no room for these results"):
            connection.request(Verb.ACK, items, queue=QUEUE, budget_ms=500)
        ack(client, held[1])

        filler.unlink()
        ack(client, held[0], bytes(9 * MIB))
        assert cluster.processes()["shard-0"]["restarts"] == 0


def test_a_disk_without_a_byte_left_loses_nothing(disk: Path) -> None:
    with LocalCluster(1, disk) as cluster, pyq.connect(cluster.url) as client:
        jobs = client.queue(QUEUE).add_bulk([("a", bytes(1_000)) for _ in range(2_000)])
        held = pull(client, 50)
        filler = leave_free(disk, 0)
        for lease in held:  # until the log, and then the ballast, are used up
            try:
                ack(client, lease)
            except pyq.PyqError:
                break

        filler.unlink()
        wait_for(lambda: is_accepted(client), 15)
        known = {view["id"] for view in client.jobs(QUEUE)}
        assert {job.id for job in jobs} <= known


@pytest.mark.parametrize("existing", [True, False], ids=["known", "new"])
def test_a_read_only_data_directory_is_refused_in_a_sentence(disk: Path, existing: bool) -> None:
    cluster = LocalCluster(1, disk)
    if existing:
        with cluster:
            pass
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    data = disk / ("data" if existing else "other")
    refused = subprocess.run(
        cluster.command_line("up", "--data", str(data), "--bind", cluster.url),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert refused.returncode == ExitCode.IO
    assert str(data) in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr
