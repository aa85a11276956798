"""A whole cluster with real processes: start, stop, deaths, locks, refusals."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.datadir import find_holder, runtime_of
from cluster.probes import Question, ask
from pyq.process import endpoint
from pyq.wire import Verb
from tests.integration.ledger import is_alive, wait_for

CLI = [sys.executable, "-P", "-m", "cluster.cli"]
START_S = 20.0
STOP_S = 15.0


class Cluster:
    """One data directory, one port, and the `up` commands run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.started: list[subprocess.Popen[str]] = []

    def up(self, *arguments: str, shards: str = "2") -> subprocess.Popen[str]:
        """Start `up`, in a process group of its own; does not wait."""
        log = (self.folder / f"log-{len(self.started)}").open("w")
        argv = [*CLI, "up", "--bind", self.url, "--data", str(self.data), "--shards", shards]
        process = subprocess.Popen(
            [*argv, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=self.folder,
            process_group=0,
        )
        log.close()
        self.started.append(process)
        return process

    def up_and_ready(self) -> subprocess.Popen[str]:
        """Start `up` and wait for its line."""
        process = self.up()
        line = self.line_of(process)
        assert line.startswith("pyq-cluster ready: 2 shards, "), line + self.log()
        return process

    def line_of(self, process: subprocess.Popen[str]) -> str:
        """Return the line that `up` prints, or what it says on stderr if it prints none."""
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_S)
        assert readable, f"`up` said nothing within {START_S} s\n{self.log()}"
        return process.stdout.readline()

    def log(self, at: int = -1) -> str:
        names = sorted(self.folder.glob("log-*"), key=lambda path: int(path.name[4:]))
        return names[at].read_text()

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command on the cluster."""
        environment = {**os.environ, "PYQ_URL": self.url, "PYQ_DATA": str(self.data)}
        return subprocess.run(
            [*CLI, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=30,
        )

    def is_healthy(self) -> bool:
        return self.run("health").returncode == 0

    def processes(self) -> dict[str, dict[str, Any]]:
        """Return name -> what the supervisor says of a process."""
        holder = find_holder(self.data)
        assert holder is not None, self.log()
        answer = ask(endpoint(holder.runtime, "supervisor"), Question(Verb.PROCESSES), 5_000)
        return {entry[0]["name"]: entry[0] for entry in answer.value()}

    def pids(self) -> dict[str, int]:
        return {name: row["pid"] for name, row in self.processes().items()}

    def close(self) -> None:
        """Stop what is left; each by its own pid."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="pyqt-"))
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(runtime_of(found.data), ignore_errors=True)  # a killed cluster leaves it
        shutil.rmtree(folder, ignore_errors=True)


# --- the plain path -----------------------------------------------------------------------------


def test_up_health_status_down(cluster):
    process = cluster.up_and_ready()

    health = cluster.run("health")
    assert health.returncode == 0, health.stdout
    assert [line.split()[:2] for line in health.stdout.splitlines()] == [
        ["router", "ok"],
        ["coordinator", "ok"],
        ["shard-0", "ok"],
        ["shard-1", "ok"],
    ]
    one = cluster.run("health", "--shard", "1", "--json")
    assert one.returncode == 0
    assert [found["name"] for found in json.loads(one.stdout)["processes"]] == ["shard-1"]
    assert cluster.run("health", "--shard", "2").returncode == 2

    status = cluster.run("status", "--json")
    assert status.returncode == 0, status.stderr
    page = json.loads(status.stdout)
    assert {row["name"] for row in page["processes"]} == set(cluster.pids())
    assert {row["state"] for row in page["processes"]} == {"ready"}
    assert [row["shard"] for row in page["shards"]] == [0, 1]
    assert "PROCESSES" in cluster.run("status").stdout

    pids = cluster.pids()
    down = cluster.run("down")
    assert down.returncode == 0, down.stderr
    assert process.wait(STOP_S) == 0
    assert not any(is_alive(pid) for pid in pids.values())
    assert sorted(path.name for path in cluster.data.iterdir()) == [
        "LOCK",
        "meta.json",
        "shard-0",
        "shard-1",
    ]
    assert cluster.run("down").returncode == 4
    assert cluster.run("health").returncode == 4


def test_a_cluster_can_be_started_again_on_its_data(cluster):
    cluster.up_and_ready().send_signal(signal.SIGTERM)
    assert cluster.started[0].wait(STOP_S) == 0
    identity = (cluster.data / "meta.json").read_text()
    cluster.up_and_ready()
    assert (cluster.data / "meta.json").read_text() == identity


def test_ctrl_c_reaches_the_supervisor_only_and_stops_everything_with_0(cluster):
    process = cluster.up_and_ready()
    pids = cluster.pids()
    assert all(os.getpgid(pid) != process.pid for pid in pids.values())
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(STOP_S) == 0
    assert not any(is_alive(pid) for pid in pids.values())
    assert "process_died" not in cluster.log()


def test_a_second_signal_stops_at_once_even_if_a_shard_hangs(cluster):
    process = cluster.up_and_ready()
    pids = cluster.pids()
    os.kill(pids["shard-0"], signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in cluster.log(), 5)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) == 0
    assert time.monotonic() - began < 2
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_signal_right_after_the_start_stops_too(cluster):
    process = cluster.up()
    wait_for(lambda: "process_started" in cluster.log(), START_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) == 0
    assert find_holder(cluster.data) is None


def test_processes_of_ours_are_not_shadowed_by_files_in_the_current_folder(cluster):
    for name in ("router.py", "shardnode.py", "cluster.py", "pyq.py"):
        (cluster.folder / name).write_text("raise SystemExit('shadowed')")
    cluster.up_and_ready()


# --- refusals -----------------------------------------------------------------------------------


def test_a_second_up_names_the_holder_and_exits_73_at_once(cluster):
    first = cluster.up_and_ready()
    began = time.monotonic()
    second = cluster.up()
    assert second.wait(5) == 73
    assert time.monotonic() - began < 2
    assert f"pid {first.pid}" in cluster.log()
    assert cluster.url in cluster.log()
    assert cluster.is_healthy()


def test_of_several_up_at_once_exactly_one_wins(cluster):
    rivals = [cluster.up() for _ in range(4)]
    wait_for(lambda: sum(rival.poll() is not None for rival in rivals) == 3, START_S)
    assert sorted(rival.poll() or 0 for rival in rivals) == [0, 73, 73, 73]
    wait_for(cluster.is_healthy, START_S)


def test_a_port_in_use_is_69_before_any_shard_opens_a_file(cluster):
    host, _, port = cluster.url.removeprefix("tcp://").rpartition(":")
    with socket.create_server((host, int(port))):
        process = cluster.up()
        assert process.wait(10) == 69
    assert f"something else listens at {cluster.url} already" in cluster.log()
    assert not list(cluster.data.glob("shard-*/*"))
    assert find_holder(cluster.data) is None


def test_a_place_that_cannot_be_written_is_74(cluster):
    (cluster.folder / "file").write_text("")
    cluster.data = cluster.folder / "file" / "data"
    assert cluster.up().wait(10) == 74
    cluster.data = Path("/proc/pyq-data")
    assert cluster.up().wait(10) == 74
    assert len(cluster.log().splitlines()) == 1


def test_another_shard_count_is_64(cluster):
    cluster.up_and_ready()
    assert cluster.run("down").returncode == 0
    assert cluster.up(shards="4").wait(10) == 64
    assert "has 2 shards, not 4" in cluster.log()


# --- deaths -------------------------------------------------------------------------------------


def test_kill_9_of_the_supervisor_leaves_nothing_behind_and_up_works_at_once(cluster):
    first = cluster.up_and_ready()
    pids = cluster.pids()
    first.kill()
    second = cluster.up()
    wait_for(lambda: not any(is_alive(pid) for pid in pids.values()), 1)
    assert cluster.line_of(second).startswith("pyq-cluster ready"), cluster.log()
    assert cluster.is_healthy()


def test_kill_9_during_the_start_leaves_nothing_behind(cluster):
    for _ in range(3):
        process = cluster.up()
        wait_for(lambda: "process_started" in cluster.log(), START_S)
        pids = list(cluster.pids().values())
        process.kill()
        process.wait()
        # A child whose interpreter was still starting notices as soon as that is done.
        wait_for(lambda pids=pids: not any(is_alive(pid) for pid in pids if pid), 10)
    cluster.up_and_ready()


@pytest.mark.parametrize("name", ["router", "coordinator", "shard-0", "shard-1"])
def test_kill_9_of_a_process_is_healed_within_seconds(cluster, name):
    cluster.up_and_ready()
    before = cluster.pids()
    os.kill(before[name], signal.SIGKILL)
    row = wait_for(
        lambda: (row := cluster.processes()[name])["restarts"] and row["state"] == "ready" and row,
        10,
    )
    assert row["restarts"] == 1
    assert row["last_exit"] == -signal.SIGKILL
    wait_for(cluster.is_healthy, 10)
    after = cluster.pids()
    assert {other for other in after if after[other] != before[other]} == {name}


def test_a_shard_that_hangs_fails_health_and_hides_no_other(cluster):
    cluster.up_and_ready()
    pid = cluster.pids()["shard-1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        health = cluster.run("health")
        assert health.returncode == 1
        words = {line.split()[0]: line.split()[1] for line in health.stdout.splitlines()}
        assert words["shard-1"] == "DOWN"
        assert words["shard-0"] == words["router"] == "ok"
        assert cluster.run("health", "--shard", "0").returncode == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(cluster.is_healthy, 10)


def test_a_shard_that_cannot_start_fails_alone(cluster):
    cluster.up_and_ready()
    assert cluster.run("down").returncode == 0
    shutil.rmtree(cluster.data / "shard-1")
    (cluster.data / "shard-1").symlink_to("/proc/self")  # a folder, but nothing can be written
    process = cluster.up()
    assert cluster.line_of(process).startswith("pyq-cluster degraded (without shard-1)")
    assert cluster.processes()["shard-1"]["state"] == "failed"
    assert cluster.run("health").returncode == 1
    assert cluster.run("health", "--shard", "0").returncode == 0
    process.terminate()
    assert process.wait(STOP_S) == 70  # somebody should look


def test_a_paused_supervisor_harms_nobody(cluster):
    process = cluster.up_and_ready()
    before = cluster.pids()
    process.send_signal(signal.SIGSTOP)
    try:
        assert cluster.is_healthy()
    finally:
        process.send_signal(signal.SIGCONT)
    assert cluster.pids() == before


def test_down_never_signals_a_stranger(cluster):
    cluster.data.mkdir()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        holder = {"pid": stranger.pid, "url": cluster.url, "runtime": str(cluster.folder)}
        (cluster.data / "LOCK").write_text(json.dumps(holder))
        assert cluster.run("down").returncode == 4
        assert stranger.poll() is None
        stranger.kill()


# --- without a supervisor -----------------------------------------------------------------------


def test_the_procfile_starts_the_same_processes(cluster):
    procfile = Path(__file__).parents[2] / "Procfile"
    text = procfile.read_text().replace("pyq-cluster ", f"exec {' '.join(CLI)} ")
    (cluster.folder / "Procfile").write_text(text)
    environment = {**os.environ, "PYQ_URL": cluster.url, "PYQ_DATA": str(cluster.data)}
    with (cluster.folder / "log-0").open("w") as log:
        honcho = subprocess.Popen(
            [sys.executable, "-m", "honcho", "start"],
            cwd=cluster.folder,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )
    try:
        wait_for(cluster.is_healthy, START_S)
        assert cluster.up().wait(10) == 73
        assert "pyq-cluster run" in cluster.log()
        assert cluster.run("down").returncode == 4
    finally:
        honcho.terminate()
        honcho.wait(STOP_S)
    wait_for(lambda: not cluster.is_healthy(), 10)
