"""CANCEL of what does not run, and PURGE: what leaves before its time, and what stays of it."""

import pytest

from pyq.errors import Status
from pyq.wire import Flag
from tests.support.sayings import purge
from tests.support.shards import (
    a_shard,
    ack,
    cancel,
    counts,
    fail,
    page,
    pull,
    push,
    repeat,
    result,
    stall,
    tick,
)

NOBODY = b"\1" * 16
AT_ONCE = [0, 1, 0, 0, []]


@pytest.mark.parametrize("delay_ms", [0, 5_000])
def test_a_cancelled_job_never_runs(delay_ms):
    shard = a_shard()
    cancelled = push(shard, "a", delay_ms=delay_ms)
    push(shard, "b")
    assert cancel(shard, cancelled.id).accepted
    shard.restart()
    tick(shard, at=10_000)

    assert pull(shard, jobs_max=9).names == "b"
    assert counts(shard)["emails"] == {"active": 1}
    assert len(page(shard)[0]) == 1


def test_whoever_waits_for_it_is_told():
    shard = a_shard()
    pushed = push(shard, "a")
    waiting = result(shard, pushed.id, wait_ms=10_000)
    cancel(shard, pushed.id)

    assert waiting.body == ("cancelled", None, "")
    assert result(shard, pushed.id).body == ("cancelled", None, "")


def test_a_repeated_push_does_not_revive_it():
    shard = a_shard()
    pushed = push(shard, "a", job_id="order-1")
    cancel(shard, pushed.id)
    again = repeat(shard, pushed)

    assert again.exceptions == [(0, Status.OK, ("exists", pushed.id, "cancelled", False))]
    assert not push(shard, "a", job_id="order-1").accepted


def test_what_has_ended_is_not_cancelled_and_what_runs_is_only_marked():
    shard = a_shard()
    running = push(shard, "a")
    job = pull(shard).job
    assert cancel(shard, running.id).exceptions == [(0, Status.OK, "cancel_requested")]
    ack(shard, job)
    done = push(shard, "b")
    ack(shard, pull(shard).job)
    answer = cancel(shard, running.id, done.id, NOBODY)
    assert [status for _, status, _ in answer.exceptions] == [
        Status.NOT_FOUND,
        Status.CONFLICT,
        Status.NOT_FOUND,
    ]


def test_the_last_holder_of_a_cancelled_job_cannot_complete_it():
    shard = a_shard()
    pushed = push(shard, "a", backoff=AT_ONCE)
    job = pull(shard).job
    stall(shard, job)
    cancel(shard, pushed.id)
    assert ack(shard, job).stale


def test_cancelling_twice_is_harmless():
    shard = a_shard()
    pushed = push(shard, "a")
    assert cancel(shard, pushed.id, pushed.id).exceptions == [(1, Status.OK, "gone")]
    assert cancel(shard, pushed.id, flags=Flag.REPEAT).exceptions == [(0, Status.OK, "gone")]
    assert [status for _, status, _ in cancel(shard, pushed.id).exceptions] == [Status.NOT_FOUND]


def test_many_cancelled_jobs_leave_the_line_clean():
    shard = a_shard(checked=False)
    pushed = push(shard, *"x" * 500)
    push(shard, "y")
    cancel(shard, *pushed.ids)
    assert shard.state.queues["emails"].line.entries_count() < 200
    assert pull(shard, jobs_max=9).names == "y"


def test_a_purged_job_is_forgotten_but_for_its_name():
    shard = a_shard()
    dead = push(shard, "a", attempts=1, job_id="order-1")
    fail(shard, pull(shard).job, result=b"exit 1")
    assert purge(shard, dead.id).accepted
    shard.restart()

    assert counts(shard)["emails"] == {}
    assert page(shard)[0] == []
    again = push(shard, "a", job_id="order-1")
    assert again.exceptions == [(0, Status.OK, ("exists", dead.id, "forgotten", False))]


def test_only_dead_jobs_are_purged():
    shard = a_shard()
    waiting = push(shard, "a")
    dead = push(shard, "b", attempts=1, priority=1)
    fail(shard, pull(shard).job)
    answer = purge(shard, waiting.id, dead.id, dead.id, NOBODY)

    assert [(index, status) for index, status, _ in answer.exceptions] == [
        (0, Status.CONFLICT),
        (2, Status.OK),
        (3, Status.NOT_FOUND),
    ]
    assert purge(shard, dead.id, flags=Flag.REPEAT).exceptions == [(0, Status.OK, "gone")]
