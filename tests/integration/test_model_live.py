"""The job model as applications use it: one cluster, real workers, every feature once."""

import itertools
import threading
import time

import pytest

import pyq
from cluster.local import LocalCluster

pytestmark = pytest.mark.slow

WAIT = 20
_names = itertools.count()


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with pyq.connect(cluster.url) as client:
        yield client


@pytest.fixture
def queue(client):
    return client.queue(f"model-{next(_names)}")


def a_worker(queue, handler, **options):
    return pyq.Worker(queue.name, handler=handler, url=queue.client.url, **options)


def soon(condition, within=WAIT):
    """Wait until it holds; returns what it said last."""
    end = time.monotonic() + within
    while not (said := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return said


def test_one_unfinished_job_holds_a_key(queue):
    first = queue.add("sync", 1, unique="sync")
    assert queue.add("sync", 2, unique="sync") == first
    newer = queue.add("sync", 3, unique="sync", on_conflict="replace")
    assert first.wait(WAIT) == "replaced"
    with a_worker(queue, lambda job: job.data):
        assert newer.result(WAIT) == 3
    assert not queue.add("sync", 4, unique="sync").deduplicated


def test_a_debounced_job_is_pushed_out(queue):
    job = queue.add("save", 1, delay=60, unique="doc", on_conflict="extend")
    due = job.view()["run_at"]
    assert queue.add("save", 2, delay=90, unique="doc", on_conflict="extend").deduplicated
    assert job.view()["run_at"] > due
    assert job.promote()
    with a_worker(queue, lambda job: job.data):
        assert job.result(WAIT) == 1


def test_jobs_of_a_group_run_one_at_a_time_in_order(queue):
    running, seen = [], []

    def handler(job):
        group, number = job.data
        running.append(group)
        assert running.count(group) == 1, "two of a group at once"
        seen.append((group, number))
        time.sleep(0.002)
        running.remove(group)

    jobs = queue.add_bulk([("j", [g, n], {"group": g}) for n in range(15) for g in ("a", "b", "c")])
    with a_worker(queue, handler, concurrency=8):
        assert {job.wait(WAIT) for job in jobs} == {"completed"}
    for group in ("a", "b", "c"):
        assert [number for g, number in seen if g == group] == list(range(15))


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(queue):
    queue.pause()
    job = queue.add("later")
    with a_worker(queue, lambda job: "ran"):
        with pytest.raises(TimeoutError):
            job.result(0.3)
        queue.resume()
        assert job.result(WAIT) == "ran"


def test_concurrency_of_a_queue_holds_over_workers(queue):
    queue.configure(concurrency=2)
    lock, running, most = threading.Lock(), [0], [0]

    def handler(job):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    jobs = queue.add_bulk([("j", n) for n in range(40)])
    with a_worker(queue, handler), a_worker(queue, handler):
        assert {job.wait(WAIT) for job in jobs} == {"completed"}
    assert most[0] == 2


def test_a_rate_limit_wakes_workers_when_its_window_opens(queue):
    queue.configure(rate=(5, "200ms"))
    starts = []
    jobs = queue.add_bulk([("j", n) for n in range(15)])
    with a_worker(queue, lambda job: starts.append(time.monotonic())):
        assert {job.wait(WAIT) for job in jobs} == {"completed"}
    assert starts[-1] - starts[0] >= 0.2, "15 jobs take at least two windows more"


def test_a_running_job_is_cancelled(queue):
    started = threading.Event()

    def handler(job):
        started.set()
        soon(lambda: job.cancelled)
        return "whatever"

    job = queue.add("long")
    with a_worker(queue, handler):
        assert started.wait(WAIT)
        assert job.cancel()
        with pytest.raises(pyq.JobCancelled):
            job.result(WAIT)


def test_a_job_expires_that_nobody_takes(queue):
    job = queue.add("stale", ttl="50ms")
    with pytest.raises(pyq.JobExpired):
        job.result(WAIT)


def test_log_lines_are_read_in_order(queue):
    def handler(job):
        for n in range(30):
            job.log(f"line {n}")
        job.progress({"done": 30})

    job = queue.add("talk")
    with a_worker(queue, handler):
        job.wait(WAIT)
    assert [line.text for line in job.logs()] == [f"line {n}" for n in range(30)]
    assert job.view()["progress"] == {"done": 30}


def test_events_tell_the_life_of_a_job(queue):
    def flaky(job):
        if job.failures == 0:
            raise RuntimeError("once")
        return 1

    with pyq.QueueEvents(queue.client, queue.name) as events:
        job = queue.add("j", backoff=0)
        with a_worker(queue, flaky):
            job.result(WAIT)
        kinds = []
        while not kinds or kinds[-1] != "completed":
            kinds.append(events.next(WAIT).kind)
    assert kinds == ["added", "active", "failed", "waiting", "active", "completed"]


def test_dead_letters_are_counted_and_retried_together(queue):
    jobs = queue.add_bulk([("j", n) for n in range(5)], attempts=1)
    with a_worker(queue, lambda job: 1 // 0):
        assert {job.wait(WAIT) for job in jobs} == {"dead"}
    assert queue.dead.stats()["count"] == 5
    assert queue.dead.retry_all() == 5
    with a_worker(queue, lambda job: "better"):
        assert {job.wait(WAIT) for job in jobs} == {"completed"}


def test_defaults_of_a_queue_hold_for_jobs_that_do_not_say_otherwise(queue):
    queue.configure(defaults={"attempts": 1, "priority": 7})
    plain, own = queue.add("a"), queue.add("b", attempts=3)
    assert (plain.view()["attempts"], plain.view()["priority"]) == (1, 7)
    assert (own.view()["attempts"], own.view()["priority"]) == (3, 7)


def test_an_obliterated_queue_leaves_nothing(queue):
    queue.configure(concurrency=3)
    queue.add_bulk([("j", n, {"job_id": f"j-{n}"}) for n in range(2_500)])
    assert queue.obliterate() == 2_500
    assert not any(queue.counts().values())
    assert queue.settings()["concurrency"] is None
    assert not queue.add("j", job_id="j-1").deduplicated


def test_drain_and_clean_remove_what_they_name(queue):
    queue.add_bulk([("j", n) for n in range(1_200)])
    later = queue.add("later", delay=60)
    assert queue.drain() == 1_200
    assert later.state == "delayed"
    assert queue.clean("delayed") == 1


def test_priority_data_and_time_of_a_waiting_job_can_be_changed(queue):
    first, second = queue.add("a", 1), queue.add("b", 2)
    second.change(priority=5, data="new")
    first.change(delay=60)
    assert first.state == "delayed"
    first.change(delay=0)
    order = []
    with a_worker(queue, lambda job: order.append(job.data), concurrency=1):
        first.wait(WAIT)
        second.wait(WAIT)
    assert order == ["new", 1]
