"""Schedules on a real cluster: on time, one job per tick whoever is killed, and by command."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

import pyq
from cluster.local import LocalCluster
from cluster.probes import Question, ask
from pyq.wire import COORDINATOR, Verb
from tests.integration.ledger import kill, wait_for

pytestmark = pytest.mark.slow

LATE_MS = 50  # promised of an idle machine; what tests allow beside their own load is more
LOADED_MS = 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(shards=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[pyq.Client]:
    with pyq.connect(cluster.url) as client:
        yield client
        for schedule in client.cron.list():
            client.cron.remove(schedule["name"])


def ticks_of(client: pyq.Client, queue: str) -> list[tuple[int, int]]:
    """Tick and time of acceptance of a queue's jobs, in order."""
    views = client.jobs(queue, payload=False, result=False)
    return [(int(view["job_id"].rpartition("/")[2]), view["created_at"]) for view in views]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def coordinator_info(cluster: LocalCluster) -> dict:
    return ask(cluster.url, Question(Verb.PING, COORDINATOR), 2_000).value()[3]


def test_every_second_a_job_on_time_and_none_before(cluster, client):
    wait_for(lambda: coordinator_info(cluster)["healthy"], 5)
    client.cron.add("on-time", "* * * * * *", "on-time", overlap="allow")
    time.sleep(5.2)
    client.cron.remove("on-time")
    ticks = ticks_of(client, "on-time")
    seconds = [tick for tick, _ in ticks]
    assert len(seconds) >= 5
    assert seconds == list(range(seconds[0], seconds[-1] + 1, 1_000))
    late = sorted(at - tick for tick, at in ticks)
    assert late[0] >= 0, "a job came early"
    assert late[len(late) // 2] <= LATE_MS, f"late by {late} ms"


def test_killed_around_the_ticks_each_has_one_job_and_none_is_missing_while_somebody_was_there(
    cluster, client
):
    """C24, live: kill -9 of the coordinator again and again, often right at the tick."""
    dice = random.Random(7)
    client.cron.add("each", "* * * * * *", "each", overlap="allow")
    up_since = now_ms() + 200
    attended: list[tuple[int, int]] = []
    for _ in range(8):
        at = (now_ms() // 1_000 + 2) * 1_000 + dice.choice((0, 1, 2, 3, 5, 8, 13, 500))
        while now_ms() < at:
            time.sleep(0.0005)
        attended.append((up_since, now_ms() - LOADED_MS))
        kill(cluster.processes()["coordinator"]["pid"])
        wait_for(lambda: is_loaded(cluster), 10, cluster.log)
        up_since = now_ms()
    time.sleep(2.5)
    attended.append((up_since, now_ms() - LOADED_MS))
    client.cron.remove("each")
    ticks = [tick for tick, _ in ticks_of(client, "each")]
    assert len(set(ticks)) == len(ticks), "a tick twice"
    expected = [
        tick
        for begin, end in attended
        for tick in range((begin // 1_000 + 1) * 1_000, end + 1, 1_000)
    ]
    assert len(expected) >= 8
    assert set(expected) <= set(ticks), "a tick is missing although the coordinator was up"


def is_loaded(cluster: LocalCluster) -> bool:
    """Whether a coordinator has heard of the schedules since its start."""
    try:
        return coordinator_info(cluster)["cron"]["schedules"] > 0
    except pyq.PyqError:
        return False


@pytest.mark.parametrize("process", ["shard-0", "shard-1", "router"])
def test_any_other_process_killed_delays_ticks_and_loses_none(cluster, client, process):
    queue = f"beside-{process}"
    client.cron.add(queue, "* * * * * *", queue, overlap="allow")
    wait_for(lambda: len(ticks_of(client, queue)) >= 2, 10)
    kill(cluster.processes()[process]["pid"])
    time.sleep(4)
    wait_for(lambda: ticks_of(client, queue)[-1][0] > now_ms() - 1_500, 10, cluster.log)
    client.cron.remove(queue)
    ticks = [tick for tick, _ in ticks_of(client, queue)]
    assert ticks == list(range(ticks[0], ticks[-1] + 1, 1_000))


def test_a_schedule_outlives_the_whole_cluster_and_what_was_missed_is_made_up_for_once(tmp_path):
    with LocalCluster(shards=2, folder=tmp_path) as cluster:
        with pyq.connect(cluster.url) as client:
            client.cron.add("beat", every=1, queue="beat", overlap="allow")
            wait_for(lambda: len(ticks_of(client, "beat")) >= 2, 10)
        cluster.kill()
        down_at = now_ms()
        time.sleep(3)
        up_at = now_ms()
        cluster.start()
        with pyq.connect(cluster.url) as client:
            wait_for(lambda: ticks_of(client, "beat")[-1][0] > up_at + 1_500, 15)
            ticks = [tick for tick, _ in ticks_of(client, "beat")]
            schedule = client.cron.get("beat")
        made_up = [tick for tick in ticks if down_at < tick < up_at]
        assert len(set(ticks)) == len(ticks)
        assert len(made_up) <= 1
        assert schedule["skipped_count"] >= 1
        assert schedule["fired_count"] in (len(ticks), len(ticks) + 1), "one more may have come"


def test_a_daily_schedule_costs_an_idle_coordinator_nothing(cluster, client):
    client.cron.add("daily", "@daily", "daily")
    time.sleep(0.5)
    pid = cluster.processes()["coordinator"]["pid"]
    before = cpu_ticks(pid)
    time.sleep(3)
    used_s = (cpu_ticks(pid) - before) / os.sysconf("SC_CLK_TCK")
    assert used_s <= 0.3, f"{used_s} s of CPU in 3 s"


def cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_coordinator_that_stood_still_catches_up(cluster, client):
    client.cron.add("stopped", "* * * * * *", "stopped", overlap="allow")
    wait_for(lambda: len(ticks_of(client, "stopped")) >= 1, 10)
    pid = cluster.processes()["coordinator"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.2)  # not for so long that the supervisor starts another one
    os.kill(pid, signal.SIGCONT)
    time.sleep(1.5)
    client.cron.remove("stopped")
    ticks = [tick for tick, _ in ticks_of(client, "stopped")]
    assert ticks == list(range(ticks[0], ticks[-1] + 1, 1_000))


# --- the client -------------------------------------------------------------------------


def test_everything_a_client_can_say(client):
    added = client.cron.add(
        "report", "0 6 * * MON-FRI", "reports", "daily-report", {"format": "pdf"},
        zone="Europe/Paris", limit=9, misfire="all", priority=5, timeout="10m", tags=["x"],
        meta={"by": "me"}, unique="report", group="reports", keep_completed="7d",
    )  # fmt: skip
    assert added.outcome == "added"
    assert added.hints == []
    view = client.cron.get("report")
    assert view == added.schedule
    assert (view["queue"], view["job"], view["data"]) == (
        "reports",
        "daily-report",
        {"format": "pdf"},
    )
    assert view["options"]["priority"] == 5
    assert view["options"]["timeout"] == 600
    assert view["options"]["meta"] == {"by": "me"}
    assert view["next_tick"].hour == 6
    assert view["next_tick"] == client.cron.next("report", 1)[0]
    assert [row["name"] for row in client.cron.list()] == ["report"]
    assert client.cron.add("report", "0 7 * * *", "reports").outcome == "changed"


def test_run_now_adds_a_job_beside_the_ticks(client):
    client.cron.add("hand", "@yearly", "by-hand", data=17, priority=3)
    job = client.cron.run_now("hand")
    assert job.name == "hand"
    view = job.view()
    assert (view["data"], view["priority"], view["job_id"]) == (17, 3, None)
    assert client.cron.get("hand")["fired_count"] == 0
    with pytest.raises(pyq.NotFound, match="there is no schedule 'nobody'"):
        client.cron.run_now("nobody")


def test_pause_resume_remove(client):
    client.cron.add("a", every=1, queue="paused", overlap="allow")
    assert client.cron.pause("a")
    assert not client.cron.pause("a")
    assert client.cron.get("a")["next_tick"] is None
    time.sleep(2.5)
    assert ticks_of(client, "paused") == []
    assert client.cron.resume("a")
    wait_for(lambda: ticks_of(client, "paused"), 5)
    assert client.cron.remove("a")
    assert not client.cron.remove("a")
    for ask_for in (client.cron.get, client.cron.pause, client.cron.resume, client.cron.next):
        with pytest.raises(pyq.NotFound):
            ask_for("a")


def test_mistakes_are_told_before_anything_is_sent(client):
    for arguments, options in [
        (("a",), {}),
        (("a", "@daily"), {"every": 5}),
        (("a", "61 * * * *"), {}),
        (("a", "@daily"), {"zone": "Mars"}),
        (("a", "@daily"), {"limit": 0}),
        (("a", "@daily"), {"job_id": "x"}),
        (("a", "@daily"), {"priority": "x"}),
        (("", "@daily"), {}),
        (("a", "@daily", ""), {}),
        (("a",), {"every": 0.5}),
    ]:
        with pytest.raises(pyq.BadOption):
            client.cron.add(*arguments, **options)
    assert client.cron.list() == []


def test_hundreds_of_schedules_are_listed_page_by_page(client):
    for number in range(1_100):
        client.cron.add(f"s-{number:04}", "@yearly", data="x" * 20)
    names = [row["name"] for row in client.cron.list()]
    assert names == [f"s-{number:04}" for number in range(1_100)]


# --- the command line -------------------------------------------------------------------


def test_a_shell_command_by_the_clock(cluster, client):
    added = cluster.run(
        "cron", "add", "hello", "--every", "1s", "--command", "echo $((6 * 7))", "--queue", "sh",
        "--limit", "1", "--timeout", "20",
    )  # fmt: skip
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.startswith("added hello; next: 20")
    worker = cluster.spawn("worker", "start", "--queue", "sh", "--count", "1")
    try:
        wait_for(lambda: client.counts("sh")["sh"]["completed"] == 1, 20, cluster.log)
    finally:
        worker.terminate()
        worker.wait(20)
    (view,) = client.jobs("sh")
    assert view["result"]["output"].strip() == "42"
    assert view["timeout_ms"] == 20_000
    (listed,) = json.loads(cluster.run("cron", "list", "--json").stdout)
    assert (listed["name"], listed["fired_count"], listed["next_tick"]) == ("hello", 1, None)
    assert "every 1s" in cluster.run("cron", "list").stdout


def test_every_command_says_what_it_did(cluster, client):
    def said(*arguments: str) -> tuple[int, str]:
        ran = cluster.run("cron", *arguments)
        return ran.returncode, (ran.stdout or ran.stderr).strip()

    arguments = ("add", "a", "0 6 * * *", "--job", "report", "--payload", '{"n": 1}')
    assert said(*arguments)[1].startswith("added a; next: ")
    assert said(*arguments)[1].startswith("unchanged a; next: ")
    assert said(*arguments, "--zone", "Asia/Tokyo")[1].endswith("06:00:00+09:00")
    assert said("next", "a", "-n", "1")[1].endswith("06:00:00+09:00")
    assert said("run-now", "a")[1].startswith("added job ")
    assert said("pause", "a") == (0, "paused a")
    assert said("pause", "a") == (0, "a is paused already")
    assert said(*arguments)[1] == "changed a; it is paused"
    assert said("resume", "a")[1].startswith("resumed a; next: ")
    assert said("remove", "a") == (0, "removed a")
    assert said("remove", "a") == (3, "pyq-cluster: there is no schedule 'a'")
    assert said("run-now", "a")[0] == 3
    assert said("add", "a", "0 0 31 2 *", "--command", "true")[0] == 2
    hinted = cluster.run("cron", "add", "a", "*/47 * * * *", "--command", "true")
    assert hinted.stderr.startswith("mind: */47 does not divide the 60 minutes")
    (view,) = client.cron.list()
    assert view["data"] == {"command": "true"}
