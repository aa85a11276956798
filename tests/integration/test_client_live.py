"""The client and the worker against a real cluster, with its processes killed under them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import pyq
from pyq.routes import shard_of, slot_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHARDS = 2
_names = iter(range(1_000_000))


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a cluster for all tests of this file."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    url = f"tcp://127.0.0.1:{port}"
    folder = tmp_path_factory.mktemp("cluster")
    log = (folder / "log").open("w")
    command = [sys.executable, "-P", "-m", "cluster.cli", "up", "--bind", url]
    command += ["--data", str(folder / "data"), "--shards", str(SHARDS)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with pyq.connect(url, timeout=20) as client:
            eventually(lambda: len(client.stats(partial=True)) == SHARDS, 20)
        yield url
    finally:
        process.terminate()
        process.wait(15)
        log.close()


@pytest.fixture
def client(url: str) -> Iterator[pyq.Client]:
    with pyq.connect(url, timeout=10) as client:
        yield client


@pytest.fixture
def queue(client: pyq.Client) -> pyq.Queue:
    return client.queue(f"queue-{next(_names)}")


def eventually(condition: Callable[[], Any], within: float = 15.0) -> Any:
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)
    return value


def a_worker(queue: pyq.Queue, handler: Any, *more: pyq.Queue, **options: Any) -> pyq.Worker:
    names = [one.name for one in (queue, *more)]
    return pyq.Worker(*names, handler=handler, url=queue.client.url, **options)


# --- jobs -------------------------------------------------------------------------------------


def test_a_job_comes_back_with_its_result(queue: pyq.Queue) -> None:
    job = queue.add("welcome", {"to": "a@example.org"}, durable=True)
    assert job.state == "waiting"
    with a_worker(queue, lambda job: f"sent to {job.data['to']}"):
        assert job.result(timeout=10) == "sent to a@example.org"
    view = job.view()

    assert (view["state"], view["attempt"], view["data"]) == (
        "completed",
        1,
        {"to": "a@example.org"},
    )
    assert queue.counts()["completed"] == 1


def nested(depth: int) -> Any:
    value: Any = "down"
    for _ in range(depth):
        value = [value]
    return value


PAYLOADS = {
    "nothing": None,
    "empty bytes": b"",
    "empty text": "",
    "empty map": {},
    "bytes with NUL": b"a\0b\xff",
    "a mebibyte": bytes(range(256)) * 4_096,
    "nine megabytes": b"x" * 9_000_000,
    "four hundred levels": nested(400),
    "emoji": {"\N{PILE OF POO}": "\N{SNOWMAN}"},
}


@pytest.mark.parametrize("what", PAYLOADS)
def test_payloads_and_results_come_back_bit_for_bit(queue: pyq.Queue, what: str) -> None:
    job = queue.add("echo", PAYLOADS[what])
    with a_worker(queue, lambda job: job.data):
        assert job.result(timeout=20) == PAYLOADS[what]


def test_names_are_any_unicode(client: pyq.Client) -> None:
    queue = client.queue("\N{ROCKET} and \u202eback")
    job = queue.add("\N{SNOWMAN}", 1, job_id="invoice \N{PILE OF POO}/..")
    assert [view["queue"] for view in client.find("invoice \N{PILE OF POO}/..")] == [queue.name]
    assert job.view()["name"] == "\N{SNOWMAN}"


def test_what_cannot_be_sent_is_refused_before_it_is(queue: pyq.Queue) -> None:
    with pytest.raises(pyq.PayloadError):
        queue.add("deep", nested(5_000))
    with pytest.raises(pyq.TooLarge):
        queue.add("large", bytes(10 * 1024 * 1024 + 1))
    assert sum(queue.counts().values()) == 0


def test_a_bulk_is_complete_and_in_order(queue: pyq.Queue) -> None:
    jobs = queue.add_bulk([("welcome", n) for n in range(3_000)], attempts=1)
    seen: list[int] = []
    with a_worker(queue, lambda job: seen.append(job.data), concurrency=1):
        assert jobs[-1].wait(timeout=20) == "completed"

    assert seen == list(range(3_000))


def test_higher_priority_and_delay(queue: pyq.Queue) -> None:
    seen: list[str] = []
    jobs = [
        queue.add("later", delay="300ms"),
        queue.add("normal"),
        queue.add("urgent", priority=9),
    ]
    with a_worker(queue, lambda job: seen.append(job.name), concurrency=1):
        for job in jobs:
            job.wait(timeout=10)

    assert seen == ["urgent", "normal", "later"]
    view = jobs[0].view()
    assert view["started_at"] - view["created_at"] >= 300


def test_failures_are_retried_and_then_the_job_is_dead(queue: pyq.Queue) -> None:
    def handler(job: pyq.JobContext) -> None:
        raise ValueError(f"attempt {job.attempt}")

    job = queue.add("welcome", attempts=3, backoff="20ms")
    with a_worker(queue, handler), pytest.raises(pyq.JobFailed, match="ValueError: attempt 3"):
        job.result(timeout=10)
    view = job.view()

    assert (view["state"], view["failures"], view["reason"]) == ("dead", 3, "exhausted")
    assert "ValueError: attempt 3" in view["traceback"]


def test_a_dead_job_is_retried(queue: pyq.Queue) -> None:
    job = queue.add("flaky", 1, attempts=1)
    with a_worker(queue, lambda job: 1 // 0):
        assert job.wait(timeout=10) == "dead"
    assert job.retry()
    assert not job.retry()
    with a_worker(queue, lambda job: "better"):
        assert job.result(timeout=10) == "better"
    assert job.retry(), "a completed job is retried as well"
    with a_worker(queue, lambda job: "once more"):
        assert job.result(timeout=10) == "once more"


def test_a_waiting_job_is_cancelled_and_a_dead_one_purged(queue: pyq.Queue) -> None:
    job = queue.add("later", 1, delay=60)
    assert job.cancel()
    with pytest.raises(pyq.JobGone):
        job.result(timeout=5)
    dead = queue.add("flaky", 1, attempts=1)
    with a_worker(queue, lambda job: 1 // 0):
        assert dead.wait(timeout=10) == "dead"
    with pytest.raises(pyq.Conflict, match="the job is dead, not waiting, delayed or active"):
        dead.cancel()
    assert queue.client.purge_ids([dead._id]) == 1
    named = queue.add("later", 1, delay=60, job_id="once")
    assert named.cancel()
    again = queue.add("later", 1, job_id="once")
    assert (again.deduplicated, again.forgotten, again.id) == (True, True, named.id)
    assert list(queue.jobs()) == []


def test_outcomes(queue: pyq.Queue) -> None:
    def handler(job: pyq.JobContext) -> Any:
        if job.name == "discard":
            raise pyq.Discard("no such user")
        if job.name == "retry" and job.failures == 0:
            raise pyq.Retry("20ms")
        if job.name == "snooze" and not snoozed:
            snoozed.append(job.id)
            raise pyq.Snooze("20ms")
        if job.name == "failed":
            raise pyq.Failed("exit 3", result={"code": 3})
        return (job.attempt, job.failures)

    snoozed: list[str] = []
    with a_worker(queue, handler):
        with pytest.raises(pyq.JobFailed, match="no such user"):
            queue.add("discard").result(timeout=10)
        assert queue.add("retry").result(timeout=10) == [2, 1]
        assert queue.add("snooze").result(timeout=10)[1] == 0
        failed = queue.add("failed", attempts=1)
        assert failed.wait(timeout=10) == "dead"
        assert failed.view()["result"] == {"code": 3}


def test_a_custom_id_is_one_job_per_queue(client: pyq.Client, queue: pyq.Queue) -> None:
    other = client.queue(queue.name + "-other")
    custom = f"invoice-{queue.name}"
    first, again = queue.add("a", 1, job_id=custom), queue.add("a", 1, job_id=custom)
    elsewhere = other.add("a", 1, job_id=custom)

    assert (again.deduplicated, again) == (True, first)
    assert not elsewhere.deduplicated
    assert {row["queue"] for row in client.find(custom)} == {queue.name, other.name}
    assert queue.get(custom) == first
    assert queue.get("nobody") is None
    assert [row["id"] for row in client.find(first.id)] == [first.id]


def test_listing_and_counting_over_all_shards(client: pyq.Client, queue: pyq.Queue) -> None:
    other = _queue_on_the_other_shard(client, queue)
    for one in (queue, other):
        one.add_bulk([("n", n) for n in range(450)])

    rows = [row for row in client.jobs(state="waiting") if row["queue"] in (queue.name, other.name)]
    assert len(rows) == len({row["id"] for row in rows}) == 900
    assert [row["data"] for row in other.jobs(limit=250)] == list(range(250))
    counts = client.counts()
    assert counts[queue.name]["waiting"] == counts[other.name]["waiting"] == 450


def _queue_on_the_other_shard(client: pyq.Client, queue: pyq.Queue) -> pyq.Queue:
    own = shard_of(slot_of(queue.name), SHARDS)
    names = (f"{queue.name}-{n}" for n in range(100))
    return client.queue(next(n for n in names if shard_of(slot_of(n), SHARDS) != own))


def test_refusals_of_the_shard_are_sentences(queue: pyq.Queue) -> None:
    with pytest.raises(pyq.BadOption, match="priority 1000001"):
        queue.add("a", priority=1_000_001)
    with pytest.raises(pyq.NotFound):
        pyq.Job(
            queue, bytes(6) + b"\x70" + bytes(7) + slot_of(queue.name).to_bytes(2, "big"), "a"
        ).view()


# --- workers ----------------------------------------------------------------------------------


def test_one_worker_on_two_shards(client: pyq.Client, queue: pyq.Queue) -> None:
    other = _queue_on_the_other_shard(client, queue)
    jobs = [job for one in (queue, other) for job in one.add_bulk([("n", n) for n in range(200)])]
    runs: list[str] = []
    with a_worker(queue, lambda job: runs.append(job.id), other, concurrency=3):
        assert {job.wait(timeout=20) for job in jobs} == {"completed"}

    assert sorted(runs) == sorted(job.id for job in jobs)


def test_workers_are_listed_and_can_be_told_to_stop(client: pyq.Client, queue: pyq.Queue) -> None:
    name = f"worker-{queue.name}"
    worker = a_worker(queue, print, name=name, concurrency=2).start()
    [row] = eventually(lambda: [row for row in client.workers() if row["id"] == name])
    assert (row["pid"], row["concurrency"], row["queues"]) == (os.getpid(), 2, [queue.name])
    assert client.stop_workers(name) == 1
    eventually(lambda: not worker.running)
    assert not [row for row in client.workers() if row["id"] == name]


def test_progress_is_seen_while_the_job_runs(queue: pyq.Queue) -> None:
    go_on = threading.Event()

    def handler(job: pyq.JobContext) -> None:
        job.progress(0.5)
        go_on.wait(10)

    job = queue.add("welcome")
    with a_worker(queue, handler):
        eventually(lambda: job.view()["progress"] == 0.5)
        go_on.set()
        assert job.wait(timeout=10) == "completed"


def test_a_stop_gives_back_what_does_not_finish_and_another_worker_takes_it(
    queue: pyq.Queue,
) -> None:
    go_on = threading.Event()
    started = threading.Event()
    job = queue.add("slow", attempts=1)
    first = a_worker(queue, lambda job: started.set() or (go_on.wait(10) and None)).start()
    started.wait(10)
    first.stop(grace=0.1)
    with a_worker(queue, lambda job: job.failures):
        assert job.result(timeout=10) == 0
    go_on.set()


def test_long_jobs_keep_their_lease(queue: pyq.Queue) -> None:
    job = queue.add("slow")
    over_at = time.monotonic() + 2.0

    def handler(job: pyq.JobContext) -> int:
        eventually(lambda: time.monotonic() > over_at)
        return int(job.attempt)

    with a_worker(queue, handler, lease=0.5):
        assert job.result(timeout=20) == 1
    assert job.view()["stalls"] == 0


# --- kill -9 ----------------------------------------------------------------------------------


def shard_pid(client: pyq.Client, queue: pyq.Queue) -> int:
    shard = shard_of(slot_of(queue.name), SHARDS)
    return int(next(row["pid"] for row in client.stats() if row["shard"] == shard))


@pytest.mark.parametrize("victim", ["shard", "router"])
def test_adding_and_running_survive_a_killed_process(
    client: pyq.Client, queue: pyq.Queue, victim: str
) -> None:
    accepted: list[str] = []
    runs: list[str] = []

    def produce() -> None:
        for n in range(30):
            accepted.extend(job.id for job in queue.add_bulk([("n", n)] * 50))

    producer = threading.Thread(target=produce)
    with a_worker(queue, lambda job: runs.append(job.id), concurrency=20):
        producer.start()
        eventually(lambda: len(runs) > 100)
        pid = shard_pid(client, queue) if victim == "shard" else client.ping()["pid"]
        os.kill(pid, signal.SIGKILL)
        producer.join(60)
        assert not producer.is_alive()
        eventually(lambda: set(runs) >= set(accepted), 30)
        eventually(lambda: queue.counts()["active"] == 0)

    assert len(accepted) == 1_500
    assert sorted(runs) == sorted(accepted)  # each ran, and ran once
    assert queue.counts()["dead"] == 0


def test_a_waiting_result_survives_a_killed_router(client: pyq.Client, queue: pyq.Queue) -> None:
    job = queue.add("welcome")
    results: list[Any] = []
    waiter = threading.Thread(target=lambda: results.append(job.result(timeout=30)))
    waiter.start()
    os.kill(client.ping()["pid"], signal.SIGKILL)
    with a_worker(queue, lambda job: "ok"):
        waiter.join(30)
    assert results == ["ok"]


def test_a_missing_shard_is_named(client: pyq.Client, queue: pyq.Queue) -> None:
    pid = shard_pid(client, queue)
    os.kill(pid, signal.SIGKILL)
    counts = client.counts(partial=True)
    assert counts.missing in ((), (shard_of(slot_of(queue.name), SHARDS),))
    assert isinstance(client.counts(), dict)  # without partial it waits until all answer
