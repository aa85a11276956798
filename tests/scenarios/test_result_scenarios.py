"""RESULT: whoever asks how a job ended is answered when it ends, whatever the end."""

import pytest

from pyq.errors import Status
from pyq.limits import COMPLETED_KEPT_DEFAULT, COMPLETED_MS_MIN
from shardnode.core.lifecycle import RESULT_LINGER_MS
from tests.support.shards import (
    MONO_0,
    a_shard,
    ack,
    fail,
    pull,
    push,
    result,
    stall,
    tick,
)

AT_ONCE = [0, 2.0, 0, 0.0, []]


def test_who_waits_is_told_when_the_job_completes():
    shard = a_shard()
    pushed = push(shard, "a")
    waiting = result(shard, pushed.id, wait_ms=10_000)
    assert waiting.waits

    ack(shard, pull(shard).job, result=b"42")
    assert waiting.body == ("completed", b"42", "")


def test_everybody_who_waits_is_told():
    shard = a_shard()
    pushed = push(shard, "a")
    waiting = [result(shard, pushed.id, wait_ms=10_000) for _ in range(3)]
    ack(shard, pull(shard).job)

    assert [call.body for call in waiting] == [("completed", None, "")] * 3


def test_who_waits_is_told_when_the_job_dies():
    shard = a_shard()
    pushed = push(shard, "a", attempts=2, backoff=AT_ONCE)
    waiting = result(shard, pushed.id, wait_ms=10_000)
    fail(shard, pull(shard).job, error="first")
    assert waiting.waits, "it will be tried again"

    fail(shard, pull(shard).job, error="second")
    assert waiting.body == ("dead", None, "second")


def test_who_waits_is_told_of_a_death_by_stalls():
    shard = a_shard()
    pushed = push(shard, "a", backoff=AT_ONCE)
    waiting = result(shard, pushed.id, wait_ms=60_000_000)
    for _ in range(4):
        stall(shard, pull(shard, lease_ms=1_000).job)

    assert waiting.body == ("dead", None, "stalled: no heartbeat from worker worker")


def test_who_waited_in_vain_is_told_where_the_job_is():
    shard = a_shard()
    pushed = push(shard, "a", delay_ms=60_000)
    waiting = result(shard, pushed.id, wait_ms=1_000)
    tick(shard, at=1_000)

    assert waiting.body == ("delayed", None, "")
    assert result(shard, pushed.id).body == ("delayed", None, "")


def test_a_wait_ends_at_the_callers_deadline():
    shard = a_shard()
    pushed = push(shard, "a")
    waiting = result(shard, pushed.id, wait_ms=60_000, deadline_ms=MONO_0 + 500)
    tick(shard, at=500)

    assert waiting.body == ("waiting", None, "")


def test_a_wait_that_is_over_is_not_answered_again_by_the_end():
    shard = a_shard()
    pushed = push(shard, "a")
    early = result(shard, pushed.id, wait_ms=1_000)
    late = result(shard, pushed.id, wait_ms=10_000)
    tick(shard, at=1_000)
    ack(shard, pull(shard).job)

    assert early.body[0] == "waiting"
    assert late.body[0] == "completed"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_result_of_a_job_that_ended_before_is_read_from_its_record(restarted):
    shard = a_shard()
    done, dead = push(shard, "a", "b", attempts=1).ids
    a, b = pull(shard, jobs_max=2).jobs
    ack(shard, a, result=b"42")
    fail(shard, b, error="boom")
    if restarted:
        shard.restart()

    assert result(shard, done, wait_ms=1_000).body == ("completed", b"42", "")
    assert result(shard, dead, wait_ms=1_000).body == ("dead", None, "boom")


def test_a_result_that_is_not_kept_lingers_for_some_seconds():
    shard = a_shard()
    pushed = push(shard, "a", keep_completed=False)
    waiting = result(shard, pushed.id, wait_ms=10_000)
    ack(shard, pull(shard).job, result=b"42")

    assert waiting.body == ("completed", b"42", "")
    late = result(shard, pushed.id, at=RESULT_LINGER_MS - 1)
    assert late.body == ("completed", b"42", "")
    assert result(shard, pushed.id, at=RESULT_LINGER_MS).body == ("result_expired", None, "")
    assert not shard.state.lingering


def test_after_a_restart_a_result_that_is_not_kept_is_gone():
    shard = a_shard()
    pushed = push(shard, "a", keep_completed=False)
    ack(shard, pull(shard).job, result=b"42")
    shard.restart()

    assert result(shard, pushed.id).body == ("result_expired", None, "")


def test_the_result_of_a_forgotten_job_has_expired():
    shard = a_shard(checked=False)
    ids = []
    for _ in range(3):
        ids += push(shard, *"x" * 500).ids
        ack(shard, *pull(shard, jobs_max=500).jobs)
    tick(shard, at=COMPLETED_MS_MIN + 1_000)

    assert result(shard, ids[-COMPLETED_KEPT_DEFAULT]).body[0] == "completed"
    assert result(shard, ids[0]).body[0] == "result_expired"


def test_an_unknown_job_is_not_found():
    shard = a_shard()
    asked = result(shard, shard.an_id("emails"), wait_ms=10_000)

    assert asked.status is Status.NOT_FOUND


def test_a_late_ack_tells_who_waits():
    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job
    waiting = result(shard, pushed.id, wait_ms=600_000)
    stall(shard, job)
    ack(shard, job, result=b"late")

    assert waiting.body == ("completed", b"late", "")


def test_asked_and_acked_in_one_turn_nobody_is_missed():
    from pyq.messages import Ack, Result  # only here the order inside a turn matters

    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job
    acked = Ack(shard.origin("worker-a"), [(job.id, job.token, b"42")])
    before = Result(shard.origin("asker"), pushed.id, 1_000)
    after = Result(shard.origin("asker"), pushed.id, 1_000)
    first, _, last = shard.send(before, acked, after)

    assert first.body == last.body == ("completed", b"42", "")
