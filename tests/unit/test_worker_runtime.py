"""The worker against a stand-in for the cluster: outcomes, stops, timeouts, lost answers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from client_fake_cluster import DROP, FakeCluster, FakeJob, eventually, queue_on_shard

import pyq
from pyq.codec import pack, unpack
from pyq.errors import Status
from pyq.handoff import Handoff
from pyq.wire import Verb


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[pyq.Client]:
    with pyq.connect(cluster.url, timeout=5) as client:
        yield client


@pytest.fixture
def queue(client: pyq.Client) -> pyq.Queue:
    return client.queue("emails")


def a_worker(cluster: FakeCluster, handler: Any, *queues: str, **options: Any) -> pyq.Worker:
    options = {"concurrency": 4, "grace": 5, **options}
    return pyq.Worker(*(queues or ("emails",)), handler=handler, url=cluster.url, **options)


def stored(cluster: FakeCluster, job: pyq.Job) -> FakeJob:
    return cluster.jobs[job._id]


# --- outcomes ---------------------------------------------------------------------------------


def test_what_a_handler_returns_is_the_result(cluster: FakeCluster, queue: pyq.Queue) -> None:
    jobs = queue.add_bulk([("welcome", {"n": n}) for n in range(500)])
    nothing = queue.add("nothing")
    with a_worker(cluster, lambda job: job.data and job.data["n"] * 2):
        assert [job.result(timeout=10) for job in jobs] == [n * 2 for n in range(500)]
        assert nothing.result(timeout=10) is None
    assert stored(cluster, nothing).result is None


def test_the_context_says_what_the_attempt_is(cluster: FakeCluster, queue: pyq.Queue) -> None:
    seen: list[pyq.JobContext] = []
    job = queue.add("welcome", [1], attempts=2, job_id="mine", timeout=60)
    with a_worker(cluster, seen.append):
        job.wait(timeout=10)

    [context] = seen
    assert (context.id, context.queue, context.name) == (job.id, "emails", "welcome")
    assert (context.data, context.job_id, context.created_at) == ([1], "mine", 1_000)
    assert (context.attempt, context.attempts, context.failures) == (1, 2, 0)
    assert context.token == stored(cluster, job).token
    assert context.fence == 1
    assert context.remaining is not None
    assert 50 < context.remaining <= 60
    assert not context.cancelled


def test_what_a_handler_raises_fails_the_attempt(cluster: FakeCluster, queue: pyq.Queue) -> None:
    def handler(job: pyq.JobContext) -> None:
        raise ValueError(f"no such user \ud800 {'x' * 10_000}")

    job = queue.add("welcome", attempts=2)
    with (
        a_worker(cluster, handler),
        pytest.raises(pyq.JobFailed, match="ValueError: no such user"),
    ):
        job.result(timeout=10)

    fake = stored(cluster, job)
    _, _, error, trace, result, unrecoverable, retry_in_ms = fake.fail
    assert fake.failures == 2
    assert len(error.encode()) <= 4_096
    assert error.endswith("[cut] ")
    assert "in handler" in trace or trace.startswith(" [cut] ")
    assert (result, unrecoverable, retry_in_ms) == (None, False, -1)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (pyq.Discard("gone"), ("gone", "", None, True, -1)),
        (pyq.Retry("2s", "busy"), ("busy", "", None, False, 2_000)),
        (pyq.Failed("exit 3", result={"code": 3}), ("exit 3", "", b"\x81\xa4code\x03", False, -1)),
    ],
)
def test_a_handler_may_say_how_it_failed(
    cluster: FakeCluster, queue: pyq.Queue, outcome: Exception, expected: Any
) -> None:
    def handler(job: pyq.JobContext) -> None:
        raise outcome

    job = queue.add("welcome", attempts=1)
    with a_worker(cluster, handler):
        assert job.wait(timeout=10) == "dead"
    assert stored(cluster, job).fail[2:] == expected


def test_a_release_costs_nothing(cluster: FakeCluster, queue: pyq.Queue) -> None:
    released: list[int] = []

    def handler(job: pyq.JobContext) -> str:
        if not released:
            released.append(1)
            raise pyq.Snooze("1.5s")
        return "done"

    job = queue.add("welcome", attempts=1)
    with a_worker(cluster, handler):
        assert job.result(timeout=10) == "done"
    [(_, body)] = cluster.seen(Verb.RELEASE)
    assert body[0][0][2] == 1_500
    assert (stored(cluster, job).attempt, stored(cluster, job).failures) == (1, 0)


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (lambda job: object(), "PayloadError: result: cannot pack <class 'object'>"),
        (lambda job: b"x" * (10 * 1024 * 1024), "TooLarge: result has"),
        (lambda job: sys.exit(3), "SystemExit: 3"),
        ({"other": print}, "this worker has no handler for jobs named 'welcome'"),
    ],
)
def test_nothing_a_handler_does_kills_a_thread(
    cluster: FakeCluster, queue: pyq.Queue, handler: Any, sentence: str
) -> None:
    jobs = queue.add_bulk([("welcome", n) for n in range(5)], attempts=1)
    with a_worker(cluster, handler, concurrency=1):
        for job in jobs:
            with pytest.raises(pyq.JobFailed) as caught:
                job.result(timeout=10)
            assert str(caught.value).startswith(sentence)


def test_data_that_cannot_be_unpacked_fails_clearly(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("welcome", "x", attempts=1, delay=0)
    stored(cluster, job).payload = b"\xc1"
    with (
        a_worker(cluster, lambda job: job.data),
        pytest.raises(pyq.JobFailed, match="PayloadError: data cannot be unpacked"),
    ):
        job.result(timeout=10)


def test_handlers_by_name(cluster: FakeCluster, queue: pyq.Queue) -> None:
    jobs = [queue.add("double", 4), queue.add("negate", 4)]
    handlers = {"double": lambda job: job.data * 2, "negate": lambda job: -job.data}
    with a_worker(cluster, handlers):
        assert [job.result(timeout=10) for job in jobs] == [8, -4]


def test_progress_and_extend_reach_the_cluster(cluster: FakeCluster, queue: pyq.Queue) -> None:
    go_on = threading.Event()

    def handler(job: pyq.JobContext) -> None:
        job.progress({"done": 0.5})
        job.extend("2m")
        go_on.wait(10)

    job = queue.add("welcome")
    with a_worker(cluster, handler):
        eventually(lambda: stored(cluster, job).progress)
        assert job.view()["progress"] == {"done": 0.5}
        [(_, body)] = eventually(lambda: cluster.seen(Verb.EXTEND))
        assert body[0][0][2] == 120_000
        go_on.set()
        job.wait(timeout=10)


def test_log_lines_are_in_order_and_before_the_end(cluster: FakeCluster, queue: pyq.Queue) -> None:
    def handler(job: pyq.JobContext) -> None:
        for n in range(200):
            job.log(f"line {n}")
        job.log({"any": "thing"})
        job.log("x" * 2_000 + "\ud800")

    jobs = queue.add_bulk([("chatty", n) for n in range(5)])
    with a_worker(cluster, handler):
        for job in jobs:
            job.wait(timeout=10)
    lines = [line.text for line in jobs[0].logs()]

    assert lines[:200] == [f"line {n}" for n in range(200)]
    assert lines[200] == "{'any': 'thing'}"
    assert (len(lines[201]), lines[201][-6:]) == (1_024, "[cut] ")
    assert len(lines) == 202
    assert [len(stored(cluster, job).lines) for job in jobs] == [202] * 5
    assert sum(len(body[0]) for _, body in cluster.seen(Verb.LOG)) < 1_010  # several per item


def test_log_lines_whose_answer_is_lost_are_not_doubled(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    dropped: list[int] = []

    def script(header: Any, body: Any) -> Any:
        if header.verb == Verb.LOG and not dropped:
            dropped.append(1)
            cluster._on_log([], header, body)  # it was taken; the answer says "again"
            return (Status.RETRY, ["the shard restarted", 0])
        return None

    def handler(job: pyq.JobContext) -> None:
        job.log(f"attempt {job.attempt}, line 1")
        eventually(lambda: len(cluster.seen(Verb.LOG)) >= 2 * job.attempt)
        job.log(f"attempt {job.attempt}, line 2")
        if job.attempt == 1:
            raise ValueError("once more")

    cluster.script = script
    job = queue.add("chatty")
    with a_worker(cluster, handler):
        job.wait(timeout=10)
    assert [(line.attempt, line.text) for line in job.logs()] == [
        (n, f"attempt {n}, line {m}") for n in (1, 2) for m in (1, 2)
    ]


def test_threads_of_a_handler_may_log_at_once(cluster: FakeCluster, queue: pyq.Queue) -> None:
    def handler(job: pyq.JobContext) -> None:
        threads = [
            threading.Thread(target=lambda n=n: [job.log(f"{n}") for _ in range(100)])  # type: ignore[misc]
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    job = queue.add("chatty")
    with a_worker(cluster, handler):
        job.wait(timeout=10)
    assert len(stored(cluster, job).lines) == 400


# --- pulling ----------------------------------------------------------------------------------


def test_never_more_jobs_than_free_slots_are_asked_for(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    at_once: list[int] = []
    running: set[str] = set()

    def handler(job: pyq.JobContext) -> None:
        running.add(job.id)
        at_once.append(len(running))
        time.sleep(0.002)
        running.discard(job.id)

    jobs = queue.add_bulk([("welcome", n) for n in range(60)])
    with a_worker(cluster, handler, concurrency=3):
        for job in jobs:
            job.wait(timeout=10)

    assert max(at_once) == 3
    assert max(body[2] for _, body in cluster.seen(Verb.PULL)) == 3
    assert not cluster.seen(Verb.RELEASE)


def test_all_slots_run_at_once_when_handlers_block(cluster: FakeCluster, queue: pyq.Queue) -> None:
    meeting = threading.Barrier(20)
    jobs = queue.add_bulk([("welcome", n) for n in range(20)])
    with a_worker(cluster, lambda job: meeting.wait(10) and None, concurrency=20):
        assert {job.wait(timeout=10) for job in jobs} == {"completed"}


def test_a_fast_job_is_acked_while_a_slow_one_runs(cluster: FakeCluster, queue: pyq.Queue) -> None:
    go_on = threading.Event()
    jobs = queue.add_bulk([("fast", n) for n in range(10)] + [("slow", 0)] * 2)
    handlers = {"fast": lambda job: None, "slow": lambda job: go_on.wait(10) and None}
    with a_worker(cluster, handlers, concurrency=12):
        assert {job.wait(timeout=5) for job in jobs[:10]} == {"completed"}
        go_on.set()


def test_queues_of_two_shards_and_what_exceeds_the_slots_is_given_back(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    names = [queue_on_shard(0, 2), queue_on_shard(1, 2)]
    jobs = [job for name in names for job in client.queue(name).add_bulk([("n", 1)] * 20)]
    with a_worker(cluster, lambda job: time.sleep(0.001), *names, concurrency=2):
        assert {job.wait(timeout=10) for job in jobs} == {"completed"}

    assert {body[1] for _, body in cluster.seen(Verb.PULL)} == {(names[0],), (names[1],)}
    assert {fake.attempt for fake in cluster.jobs.values()} == {1}


def test_a_lost_pull_reply_is_told_by_the_next_pull(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("welcome")
    with a_worker(cluster, lambda job: "ok"):
        job.result(timeout=10)
        pulls = eventually(lambda: len(seen := cluster.seen(Verb.PULL)) >= 2 and seen)
    sequence = int.from_bytes(pulls[0][0].request_id[8:], "big")
    assert [pull[1][5] for pull in pulls[:2]] == [0, sequence]


def test_a_pull_reply_nobody_waits_for_is_given_back(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    with a_worker(cluster, lambda job: "ok"):
        eventually(lambda: cluster._parked)
        _, sender, header, _ = cluster._parked[0]
        job = queue.add("welcome")
        job.result(timeout=10)
        stray = FakeJob("emails", (os.urandom(14) + b"\x04\x5c", "late", b"\xc0", None))
        stray_lease = stray.lease()
        cluster.jobs[stray.id] = stray
        cluster.script = _sending_stray(cluster, sender, header, stray_lease)
        queue.add("welcome").result(timeout=10)
        eventually(lambda: stray.state == "completed")  # released, then pulled properly
    assert stray.releases == 1


def _sending_stray(cluster: FakeCluster, sender: Any, header: Any, lease: Any) -> Any:
    sent: list[int] = []

    def script(request: Any, body: Any) -> Any:
        if request.verb == Verb.PULL and not sent:
            sent.append(1)
            cluster.reply(sender, header, [15_000, [["emails", [lease]]]])
        return None

    return script


def test_the_same_leases_answered_twice_run_once(cluster: FakeCluster, queue: pyq.Queue) -> None:
    real_reply = cluster.reply

    def twice(sender: Any, header: Any, body: Any, status: int = 1) -> None:
        real_reply(sender, header, body, status)
        if header.verb == Verb.PULL and body[1]:
            real_reply(sender, header, body, status)

    cluster.reply = twice  # type: ignore[method-assign]
    runs: list[str] = []
    job = queue.add("welcome")
    with a_worker(cluster, lambda job: (runs.append(job.id), time.sleep(0.1))[1]):
        job.wait(timeout=10)

    assert runs == [job.id]
    assert stored(cluster, job).releases == 0


# --- heartbeats -------------------------------------------------------------------------------


def test_heartbeats_carry_leases_and_registration(cluster: FakeCluster, queue: pyq.Queue) -> None:
    go_on = threading.Event()
    job = queue.add("welcome")
    with a_worker(cluster, lambda job: go_on.wait(10) and None, lease=0.3, name="w-1"):
        held = (job._id, eventually(lambda: stored(cluster, job).token))
        eventually(lambda: sum(held in body[0] for _, body in cluster.seen(Verb.HEARTBEAT)) >= 3)
        go_on.set()
        job.wait(timeout=10)

    worker = cluster.seen(Verb.HEARTBEAT)[0][1][1]
    assert (worker[0], worker[2], worker[3], worker[5]) == ("w-1", os.getpid(), 4, ("emails",))
    assert [body for _, body in cluster.seen(Verb.GOODBYE)] == [("w-1",)]
    names = [name for name, _, _ in cluster.requests]
    assert "HEARTBEAT" not in names[names.index("GOODBYE") :]


def test_a_lost_lease_flags_the_context(cluster: FakeCluster, queue: pyq.Queue) -> None:
    flags: list[bool] = []

    def handler(job: pyq.JobContext) -> None:
        stored_job.token = b"x" * 20  # leased to somebody else
        eventually(lambda: job.lost)
        flags.append(job.cancelled)

    stored_job = stored(cluster, queue.add("welcome"))
    with a_worker(cluster, handler, lease=0.3):
        eventually(lambda: flags)
    assert flags == [True]


def test_the_directive_stops_the_worker(cluster: FakeCluster, queue: pyq.Queue) -> None:
    worker = a_worker(cluster, lambda job: None, lease=0.3).start()
    eventually(lambda: cluster.seen(Verb.HEARTBEAT))
    cluster.directives = ["stop"]
    eventually(lambda: not worker.running)


def test_a_cancel_request_flags_the_context_and_any_end_confirms(
    cluster: FakeCluster, queue: pyq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def until_cancelled(job: pyq.JobContext) -> Any:
        eventually(lambda: job.cancel_requested)
        assert job.cancelled
        if job.data == "raises":
            raise ValueError("stopped")
        if job.data == "releases":
            raise pyq.Release()
        return job.data

    jobs = [queue.add("long", end) for end in ("returns", "raises", "releases")]
    with a_worker(cluster, until_cancelled):  # a lease of 15 s: only an early answer is in time
        for job in jobs:
            eventually(lambda job=job: job.state == "active")  # type: ignore[misc]
        begin = time.monotonic()
        for job in jobs:
            assert job.cancel()
        for job in jobs:
            with pytest.raises(pyq.JobCancelled):
                job.result(timeout=10)
        assert time.monotonic() - begin < 3
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_job_taken_back_before_its_thread_is_free_is_not_run(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    ran: list[Any] = []
    context_of: dict[Any, pyq.JobContext] = {}
    go_on = threading.Event()

    def handler(job: pyq.JobContext) -> None:
        ran.append(job.data)
        go_on.wait(10)

    handoff = Handoff()
    for n, job in enumerate(["first", "second"]):
        lease = (bytes(16), bytes(20), 1, "n", pack(job), 0, 3, 0, 1_000, None, 1)
        context_of[n] = pyq.JobContext(handoff, "emails", lease, 15_000)
        handoff.ready.put(context_of[n])
    context_of[1].cancel_requested = True
    handoff.ready.put(None)
    go_on.set()
    handoff.work(handler)

    assert ran == ["first"]
    assert [verb for _, verb, _, _ in handoff.notes] == [Verb.ACK, Verb.RELEASE]
    handoff.close()


def test_a_shorter_lease_than_asked_for_is_kept_to_at_once(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    go_on = threading.Event()
    cluster.granted_lease_ms = 300
    with a_worker(cluster, lambda job: go_on.wait(10) and None, lease=60):
        eventually(lambda: any(wait[2].verb == Verb.HEARTBEAT for wait in cluster._waits))
        begin = time.monotonic()
        job = queue.add("slow")
        held = (job._id, eventually(lambda: stored(cluster, job).token))

        def beats() -> list[Any]:
            return [body for _, body in cluster.seen(Verb.HEARTBEAT) if held in body[0]]

        eventually(beats)
        assert time.monotonic() - begin < 0.3  # though a heartbeat of 20 s was parked
        eventually(lambda: len(beats()) >= 5)
        assert time.monotonic() - begin < 1.5
        assert {body[2] for body in beats()} == {100}
        go_on.set()
        job.wait(timeout=10)


# --- timeouts ---------------------------------------------------------------------------------


def test_a_timeout_fails_the_attempt_and_loses_the_slot_until_the_handler_returns(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    go_on = threading.Event()
    contexts: list[pyq.JobContext] = []

    def slow(job: pyq.JobContext) -> str:
        contexts.append(job)
        go_on.wait(10)
        return "too late"

    job = queue.add("slow", timeout=0.05, attempts=1)
    worker = a_worker(cluster, {"slow": slow, "fast": lambda job: 1}, concurrency=2)
    with worker:
        with pytest.raises(pyq.JobFailed, match=r"timeout after 0.05 s"):
            job.result(timeout=10)
        assert contexts[0].timed_out
        assert queue.add("fast").result(timeout=10) == 1  # the other thread works on
        go_on.set()
        fetcher = worker._fetcher
        assert fetcher is not None
        eventually(lambda: fetcher._lost == 0)
        jobs = queue.add_bulk([("fast", n) for n in range(10)])
        assert {job.wait(timeout=10) for job in jobs} == {"completed"}


_SCRIPT = """
import sys, threading, pyq
def handler(job):
    print("started", flush=True)
    threading.Event().wait(job.data)
url, grace = sys.argv[1], float(sys.argv[2])
pyq.Worker("emails", handler=handler, url=url, concurrency=2, grace=grace).run()
print("clean", flush=True)
"""


def a_process(cluster: FakeCluster, grace: float = 10) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, cluster.url, str(grace)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_worker_whose_threads_are_all_stuck_exits_with_an_error(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    queue.add_bulk([("stuck", 60)] * 2, timeout=0.05, attempts=1)
    process = a_process(cluster)

    assert process.wait(20) == 1
    assert {fake.state for fake in cluster.jobs.values()} == {"dead"}


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_jobs_finish_and_pulls_no_more(
    cluster: FakeCluster, queue: pyq.Queue, number: int
) -> None:
    job = queue.add("slow", 0.5)
    process = a_process(cluster)
    assert read_line(process) == "started"
    eventually(lambda: cluster._parked)  # a pull for the other slot
    process.send_signal(number)
    eventually(lambda: cluster.seen(Verb.UNPULL))
    late = queue.add("slow", 0)

    assert (read_line(process), process.wait(10)) == ("clean", 0)
    assert (job.state, late.state) == ("completed", "waiting")
    assert cluster.seen(Verb.GOODBYE)


def test_a_second_signal_gives_back_what_runs(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("slow", 60)
    process = a_process(cluster, grace=60)
    assert read_line(process) == "started"
    eventually(lambda: cluster._parked)
    process.send_signal(signal.SIGTERM)
    eventually(lambda: cluster.seen(Verb.UNPULL))
    process.send_signal(signal.SIGTERM)

    assert (read_line(process), process.wait(10)) == ("clean", 0)
    assert (job.state, stored(cluster, job).attempt) == ("waiting", 0)


def test_after_the_grace_what_still_runs_is_given_back(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    contexts: list[pyq.JobContext] = []
    go_on = threading.Event()
    job = queue.add("slow")
    worker = a_worker(cluster, lambda job: (contexts.append(job), go_on.wait(10))[0]).start()
    eventually(lambda: contexts)
    worker.stop(grace=0.1)

    assert not worker.running
    assert contexts[0].cancelled
    assert (job.state, stored(cluster, job).releases) == ("waiting", 1)
    go_on.set()


def test_heartbeats_go_on_while_handlers_finish(cluster: FakeCluster, queue: pyq.Queue) -> None:
    go_on = threading.Event()
    job = queue.add("slow")
    worker = a_worker(cluster, lambda job: go_on.wait(10) and None, lease=0.3).start()
    eventually(lambda: stored(cluster, job).state == "active" and cluster._parked)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    eventually(lambda: cluster.seen(Verb.UNPULL))
    beats = len(cluster.seen(Verb.HEARTBEAT))
    eventually(lambda: len(cluster.seen(Verb.HEARTBEAT)) > beats + 2)
    go_on.set()
    stopper.join(10)

    assert job.state == "completed"


def test_a_worker_is_started_once(cluster: FakeCluster) -> None:
    worker = a_worker(cluster, print).start()
    with pytest.raises(pyq.UsageError, match="started before"):
        worker.start()
    worker.stop()


# --- a cluster that comes and goes ------------------------------------------------------------


def test_a_worker_waits_for_a_cluster_that_is_not_there_yet(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    cluster.stop()
    worker = a_worker(cluster, lambda job: "ok").start()
    cluster._open()

    assert queue.add("welcome").result(timeout=20) == "ok"
    worker.stop()


def test_a_worker_stops_though_no_cluster_was_ever_there(cluster: FakeCluster) -> None:
    cluster.stop()
    worker = a_worker(cluster, lambda job: "ok").start()
    worker.stop()

    assert not worker.running
    cluster._open()


def test_a_restarted_router_is_pulled_from_again(cluster: FakeCluster, queue: pyq.Queue) -> None:
    with a_worker(cluster, lambda job: "ok"):
        eventually(lambda: cluster._parked)
        cluster.restart()
        assert queue.add("welcome").result(timeout=20) == "ok"


def test_an_ack_whose_answer_is_lost_is_repeated(cluster: FakeCluster, queue: pyq.Queue) -> None:
    dropped: list[int] = []

    def script(header: Any, body: Any) -> Any:
        if header.verb == Verb.ACK and not dropped:
            dropped.append(1)
            return (Status.RETRY, ["the shard restarted", 0])
        return None

    cluster.script = script
    job = queue.add("welcome")
    with a_worker(cluster, lambda job: "ok"):
        assert job.result(timeout=10) == "ok"
    assert len(cluster.seen(Verb.ACK)) == 2


def test_a_stale_ack_is_logged_and_dropped(
    cluster: FakeCluster, queue: pyq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(job: pyq.JobContext) -> None:
        fake.token = b"x" * 20

    fake = stored(cluster, queue.add("welcome"))
    with a_worker(cluster, handler) as worker:
        eventually(lambda: "ACK of" in caplog.text)
        fetcher = worker._fetcher
        assert fetcher is not None
        eventually(lambda: not fetcher.held)
    assert "StaleToken" in caplog.text


def test_silence_is_said_once(
    cluster: FakeCluster, queue: pyq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    refusals: list[int] = []

    def script(header: Any, body: Any) -> Any:
        if header.verb == Verb.PULL and len(refusals) < 3:
            refusals.append(1)
            return (Status.DISK_FULL, ["free some space", 0])
        return DROP if header.verb == Verb.HEARTBEAT else None

    cluster.script = script
    with a_worker(cluster, lambda job: "ok"):
        assert queue.add("welcome").result(timeout=10) == "ok"
    assert caplog.text.count("cannot pull") == 1


# --- options ----------------------------------------------------------------------------------


async def _coroutine(job: pyq.JobContext) -> None: ...


@pytest.mark.parametrize(
    ("queues", "options", "sentence"),
    [
        ((), {}, "at least one queue"),
        (("",), {}, "queue '' is not a text"),
        (("q",), {"concurrency": 0}, "concurrency 0 is not a whole number from 1 to 1000"),
        (("q",), {"concurrency": True}, "concurrency True"),
        (("q",), {"lease": 0.01}, "lease 0.01 is not a duration from 0.1 s to 3600 s"),
        (("q",), {"grace": -1}, "grace -1 is not a duration"),
        (("q",), {"name": "x" * 129}, "name 'xxx"),
        (("q",), {"handler": 5}, "handler 5 cannot be called"),
        (("q",), {"handler": _coroutine}, "coroutine function"),
        (("q",), {"url": "localhost"}, "does not start with tcp://"),
    ],
)
def test_wrong_options_are_refused_by_name(queues: Any, options: Any, sentence: str) -> None:
    with pytest.raises(pyq.UsageError) as caught:
        pyq.Worker(*queues, **{"handler": print, **options})

    assert sentence in str(caught.value)


def test_results_come_back_as_they_were_packed(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("welcome")
    with a_worker(cluster, lambda job: {"at": [1, b"2", None]}):
        job.wait(timeout=10)
    assert unpack(stored(cluster, job).result or b"") == {"at": [1, b"2", None]}
