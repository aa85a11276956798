"""What operators and producers want of jobs and queues, against a stand-in for the cluster."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from client_fake_cluster import FakeCluster, FakeJob, eventually, queue_on_shard

import pyq
from pyq.codec import unpack
from pyq.errors import Status
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


def stored(cluster: FakeCluster, job: pyq.Job) -> FakeJob:
    return cluster.jobs[job._id]


def answering(verb: Verb, *answers: Any) -> Any:
    left = list(answers)
    return lambda header, body: left.pop(0) if header.verb == verb and left else None


def some_dead(cluster: FakeCluster, queue: pyq.Queue, count: int = 5) -> list[pyq.Job]:
    """Add jobs and let them die: those with an even number exhausted, the others stalled."""
    jobs = [queue.add("even" if n % 2 == 0 else "odd", n) for n in range(count)]
    for n, job in enumerate(jobs):
        fake = stored(cluster, job)
        fake.reason = "exhausted" if n % 2 == 0 else "stalled"
        cluster._end(fake, "dead")
    return jobs


# --- adding -----------------------------------------------------------------------------------


def test_only_what_is_given_travels(cluster: FakeCluster, queue: pyq.Queue) -> None:
    queue.add("a")
    queue.add("b", attempts=3, ttl=None, priority=0)
    queue.add("c", unique="k", on_conflict="extend", unique_ttl=9, tags=["x"], meta={"n": 1})

    sent = [body[0] for _, body in cluster.seen(Verb.PUSH)]
    assert sent == [
        None,
        {"attempts": 3, "priority": 0},
        {
            "unique": "k",
            "on_conflict": "extend",
            "unique_ttl_ms": 9_000,
            "tags": ("x",),
            "meta": b"\x81\xa1n\x01",
        },
    ]


def test_a_held_key_gives_the_job_that_holds_it(cluster: FakeCluster, queue: pyq.Queue) -> None:
    first = queue.add("sync", 1, unique="user-7")
    again = queue.add("sync", 2, unique="user-7")
    replacing = queue.add("sync", 3, unique="user-7", on_conflict="replace")

    assert (again, again.deduplicated, again.forgotten) == (first, True, False)
    assert not replacing.deduplicated
    assert first.wait(timeout=5) == "replaced"
    assert [view["data"] for view in queue.jobs("waiting")] == [3]


@pytest.mark.parametrize(
    ("word", "forgotten"),
    [("active", False), ("dead", False), ("cancelled", True), ("moved", True), ("forgotten", True)],
)
def test_a_taken_name_may_belong_to_a_job_that_is_gone(
    word: str, forgotten: bool, cluster: FakeCluster, queue: pyq.Queue
) -> None:
    known = queue.add("a")
    answer = [1, [[0, Status.OK, ["exists", known._id, word, False]]]]
    cluster.script = answering(Verb.PUSH, (Status.OK, answer))
    again = queue.add("a", job_id="mine")

    assert (again, again.deduplicated, again.forgotten) == (known, True, forgotten)


def test_in_a_bulk_keys_belong_to_items_and_own_options_are_laid_over_common_ones(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    for name in ("job_id", "unique"):
        options: Any = {name: "x"}
        with pytest.raises(pyq.BadOption, match=f"{name} belongs to one job"):
            queue.add_bulk([("a", 1)], **options)
    with pytest.raises(pyq.BulkError) as caught:
        queue.add_bulk(
            [("a", 1, {"unique": "k"}), ("a", 2, {"unique": "k"}), ("a", 3, {"ttl": 5})],
            delay=10,
            durable=True,
        )

    first, second, refused = caught.value.jobs
    assert (second, second.deduplicated, refused) == (first, True, None)
    assert "ttl of 5000 ms ends before the delay of 10000 ms" in str(caught.value)


# --- one job ----------------------------------------------------------------------------------


def test_a_delayed_job_is_promoted_once(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("later", delay=60)
    assert job.state == "delayed"
    assert (job.promote(), job.promote(), job.state) == (True, False, "waiting")
    job.cancel()
    with pytest.raises(pyq.Conflict, match="the job is cancelled"):
        job.promote()


def test_a_job_that_waits_is_changed(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("later", 1)
    job.change(priority=7, delay="2m", data={"n": 2})
    job.change(run_at=datetime(2030, 1, 1, tzinfo=UTC))
    job.change(data=None)

    items = [body[0][0][1:] for _, body in cluster.seen(Verb.UPDATE)]
    assert items[0] == ({"priority": 7, "delay_ms": 120_000}, b"\x81\xa1n\x02")
    assert items[1] == ({"run_at": 1_893_456_000_000}, None)
    assert (items[2][0], unpack(items[2][1])) == (None, None)
    cluster._end(stored(cluster, job), "completed")
    with pytest.raises(pyq.Conflict, match="the job is completed, not waiting"):
        job.change(priority=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "nothing to change; give priority, delay, run_at or data"),
        ({"priority": 1_000_001}, "priority 1000001 is not a whole number from -1000000 to"),
        ({"priority": True}, "priority True is not a whole number"),
        ({"delay": -1}, "delay -1 is not a duration from 0 s"),
        ({"run_at": datetime(2030, 1, 1)}, "has no time zone"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "exclude each other"),
    ],
)
def test_wrong_changes_are_refused_before_anything_is_sent(
    changes: Any, sentence: str, cluster: FakeCluster, queue: pyq.Queue
) -> None:
    with pytest.raises(pyq.BadOption) as caught:
        queue.add("a").change(**changes)
    assert sentence in str(caught.value)
    assert not cluster.seen(Verb.UPDATE)


def test_cancel_says_what_became_of_the_job(cluster: FakeCluster, queue: pyq.Queue) -> None:
    waiting, active, dead = queue.add("a"), queue.add("a"), queue.add("a")
    stored(cluster, active).lease()
    cluster._end(stored(cluster, dead), "dead")

    assert (waiting.cancel(), waiting.cancel()) == (True, False)
    assert (active.cancel(), active.cancel(), active.state) == (True, True, "active")
    with pytest.raises(pyq.Conflict, match="the job is dead"):
        dead.cancel()
    assert queue.client.cancel_ids([active._id]) == 1


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("removed", pyq.JobGone), ("cancelled", pyq.JobCancelled), ("expired", pyq.JobExpired),
        ("replaced", pyq.JobGone), ("moved", pyq.JobGone), ("a new word", pyq.JobGone),
        ("dead", pyq.JobFailed), ("result_expired", pyq.ResultExpired),
    ],
)  # fmt: skip
def test_every_end_answers_those_who_wait(
    word: str, kind: Any, cluster: FakeCluster, queue: pyq.Queue
) -> None:
    job = queue.add("a")
    cluster.script = answering(Verb.RESULT, *[(Status.OK, [word, None, ""])] * 2)
    with pytest.raises(kind) as caught:
        job.result()
    assert type(caught.value) is kind
    assert isinstance(caught.value, pyq.JobEnded)
    assert job.wait() == ("completed" if word == "result_expired" else word)


def test_whoever_waits_is_told_of_a_removal_at_once(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("a", delay=60)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            job.result()
        except pyq.PyqError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: cluster.seen(Verb.RESULT))
    job.cancel()
    thread.join(5)

    assert [type(error) for error in raised] == [pyq.JobCancelled]


def test_a_job_that_vanishes_between_two_polls_is_gone(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    job = queue.add("a")
    cluster.script = answering(
        Verb.RESULT,
        (Status.OK, ["active", None, ""]),
        (Status.NOT_FOUND, ["no such job", 0]),
    )
    with pytest.raises(pyq.JobGone, match="is gone"):
        job.result()


def test_a_completed_job_is_retried(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("a")
    cluster._end(stored(cluster, job), "completed")
    assert (job.retry(), job.retry(), job.state) == (True, False, "waiting")


def test_log_lines_come_page_by_page(cluster: FakeCluster, queue: pyq.Queue) -> None:
    job = queue.add("a")
    stored(cluster, job).lines = [[n, 1_000 + n, 1, f"line {n}"] for n in range(1, 6)]
    lines = list(job.logs())

    assert [line.text for line in lines] == [f"line {n}" for n in range(1, 6)]
    assert lines[0] == pyq.LogLine(number=1, at=1_001, attempt=1, text="line 1")
    assert [body[1] for _, body in cluster.seen(Verb.LOGS)] == [0, 2, 4]
    del cluster.jobs[job._id]
    with pytest.raises(pyq.NotFound):
        next(job.logs())


# --- a whole queue ----------------------------------------------------------------------------


def test_drain_removes_what_waits_page_by_page(cluster: FakeCluster, queue: pyq.Queue) -> None:
    queue.add_bulk([("a", n) for n in range(5)])
    later = queue.add("a", delay=60)

    assert (queue.drain(), queue.drain()) == (5, 0)
    assert later.state == "delayed"
    assert queue.drain(delayed=True) == 1
    assert [body for _, body in cluster.seen(Verb.DRAIN)][:3] == [
        (False, 0, 1_000), (False, 1, 1_000), (False, 2, 1_000),
    ]  # fmt: skip


def test_clean_removes_one_state_and_no_more_than_asked(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    some_dead(cluster, queue, 7)
    waiting = queue.add("a")

    assert queue.clean("dead", older_than="1h", limit=3) == 3
    assert queue.clean("dead", limit=0) == 0
    assert queue.clean("dead") == 4
    assert waiting.state == "waiting"
    asked = [body for _, body in cluster.seen(Verb.CLEAN)]
    assert asked[:2] == [("dead", 3_600_000, 0, 3), ("dead", 3_600_000, 1, 1)]


def test_obliterate_needs_force_while_jobs_run(cluster: FakeCluster, queue: pyq.Queue) -> None:
    jobs = queue.add_bulk([("a", n) for n in range(5)])
    stored(cluster, jobs[0]).lease()
    with pytest.raises(pyq.Conflict, match="jobs are active"):
        queue.obliterate()
    assert queue.obliterate(force=True) == 5


def test_a_removal_whose_answer_is_lost_is_asked_again(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    queue.add_bulk([("a", n) for n in range(3)])
    cluster.script = answering(Verb.DRAIN, (Status.RETRY, ["the shard restarted", 0]))
    assert queue.drain() == 3


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda queue: queue.drain(delayed=1), "delayed 1 is neither true nor false"),
        (lambda queue: queue.obliterate(force="yes"), "force 'yes' is neither true nor false"),
        (lambda queue: queue.clean("active"), "state 'active' is not waiting, delayed, completed"),
        (lambda queue: queue.clean("ready"), "state 'ready' is not one of active, blocked"),
        (lambda queue: queue.clean("dead", older_than=-1), "older_than -1 is not a duration"),
        (lambda queue: queue.clean("dead", limit=-1), "limit -1 is not a whole number from 0"),
        (lambda queue: queue.jobs(limit=True), "limit True is not a whole number from 0 up"),
        (lambda queue: queue.jobs(["dead"]), "state ['dead'] is not one of"),
        (lambda queue: queue.jobs(name=""), "name '' is not a text of 1 to 256 characters"),
        (lambda queue: queue.jobs(tag="x" * 129), "is not a text of 1 to 128 characters"),
        (lambda queue: queue.jobs(since=5), "since 5 is not a datetime"),
        (lambda queue: queue.jobs(until=datetime(2026, 1, 1)), "has no time zone"),
        (lambda queue: queue.dead.jobs(reason=5), "reason 5 is not a text of 1 to 32"),
        (lambda queue: queue.dead.retry(5), "5 is neither a job, an id, a view nor several"),
        (lambda queue: queue.dead.purge([5]), "5 is neither a job nor an id nor a view"),
    ],
)
def test_misuse_is_refused_by_name(call: Any, sentence: str, queue: pyq.Queue) -> None:
    with pytest.raises(pyq.BadOption) as caught:
        call(queue)
    assert sentence in str(caught.value)


def test_priorities_are_counted_highest_first(queue: pyq.Queue) -> None:
    assert queue.priorities() == {}
    for priority in (0, 5, 0, -1):
        queue.add("a", priority=priority)
    assert list(queue.priorities().items()) == [(5, 1), (0, 2), (-1, 1)]


def test_a_listing_is_narrowed(cluster: FakeCluster, client: pyq.Client) -> None:
    names = [queue_on_shard(0, 2), queue_on_shard(1, 2)]
    for name in names:
        client.queue(name).add("a", 1, tags=["x", "y"], group="g", meta={"trace": "t"})
        client.queue(name).add("b", 2, tags=["y"])
    now = datetime.now(UTC)

    def found(**filters: Any) -> list[Any]:
        return sorted(view["data"] for view in client.jobs(**filters))

    assert found(tag="x") == [1, 1]
    assert found(tag="y", name="b") == [2, 2]
    assert found(group="g", queue=names[0]) == [1]
    assert found(since=now - timedelta(minutes=1), until=now + timedelta(minutes=1)) == [1, 1, 2, 2]
    assert found(since=now + timedelta(minutes=1)) == []
    [view] = client.queue(names[1]).jobs("waiting", tag="x")
    assert (view["tags"], view["meta"]) == (["x", "y"], {"trace": "t"})
    [plain] = client.queue(names[1]).jobs(name="b", payload=False, result=False)
    assert plain["meta"] == {}
    assert cluster.seen(Verb.LIST)[-1][1] == (None, 0, 200, 0, {"name": "b"})


# --- dead letters -----------------------------------------------------------------------------


def test_dead_letters_are_listed_and_narrowed(cluster: FakeCluster, queue: pyq.Queue) -> None:
    some_dead(cluster, queue)
    queue.add("even", "alive")

    assert [view["data"] for view in queue.dead] == [0, 1, 2, 3, 4]
    assert [view["data"] for view in queue.dead.jobs(reason="stalled")] == [1, 3]
    assert [view["data"] for view in queue.dead.jobs(2, name="even")] == [0, 2]
    assert list(queue.dead.jobs(until=datetime(2020, 1, 1, tzinfo=UTC))) == []


def test_one_dead_letter_or_several_start_afresh(cluster: FakeCluster, queue: pyq.Queue) -> None:
    jobs = some_dead(cluster, queue)
    named = queue.add("n", job_id="mine")
    cluster._end(stored(cluster, named), "dead")

    assert queue.dead.retry(jobs[0]) == 1
    assert queue.dead.retry(jobs[1].id) == 1
    assert queue.dead.retry("mine") == 1
    assert queue.dead.retry([next(iter(queue.dead)), jobs[3], jobs[0]]) == 2  # jobs[0] is alive
    assert [job.state for job in jobs] == ["waiting"] * 4 + ["dead"]
    with pytest.raises(pyq.NotFound, match="no job in 'emails' has the id 'nobody'"):
        queue.dead.retry("nobody")
    assert queue.dead.retry([]) == 0


def test_a_refusal_is_raised_for_one_and_listed_for_several(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    held = queue.add("a", unique="k")
    cluster._end(stored(cluster, held), "dead")
    queue.add("a", unique="k")
    [other] = some_dead(cluster, queue, 1)

    with pytest.raises(pyq.Conflict, match="another job holds its unique key"):
        queue.dead.retry(held)
    changed = queue.dead.retry([held, other])
    assert changed == 1
    [(refused_id, error)] = changed.refused
    assert (refused_id, type(error)) == (held.id, pyq.Conflict)
    with pytest.raises(pyq.Conflict, match="is waiting, not dead"):
        queue.dead.purge(other)


def test_all_dead_letters_or_those_of_one_kind(
    cluster: FakeCluster, queue: pyq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyq.deadletters.BATCH_JOBS_MAX", 2)
    jobs = some_dead(cluster, queue, 7)
    held = queue.add("even", unique="k")
    cluster._end(stored(cluster, held), "dead")
    queue.add("even", unique="k")

    assert queue.dead.purge_all(reason="stalled") == 3
    changed = queue.dead.retry_all(name="even")
    assert (changed, [job_id for job_id, _ in changed.refused]) == (4, [held.id])
    assert [job.state for job in jobs[::2]] == ["waiting"] * 4
    assert queue.dead.purge_all() == 1
    assert list(queue.dead) == []
    assert queue.dead.purge_all() == 0


def test_dead_letters_are_counted_by_reason(cluster: FakeCluster, queue: pyq.Queue) -> None:
    assert queue.dead.stats() == {
        "count": 0, "oldest_at": None, "newest_at": None, "by_reason": {},
    }  # fmt: skip
    some_dead(cluster, queue)
    assert queue.dead.stats() == {
        "count": 5, "oldest_at": 5, "newest_at": 9,
        "by_reason": {
            "exhausted": {"count": 3, "oldest_at": 5, "newest_at": 9},
            "stalled": {"count": 2, "oldest_at": 5, "newest_at": 9},
        },
    }  # fmt: skip
