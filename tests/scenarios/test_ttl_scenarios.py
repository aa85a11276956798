"""TTL: a job that waited for its first lease too long is gone, by timer, to the millisecond."""

import pytest

from pyq.errors import Status
from pyq.job import WAITING
from tests.support.sayings import bulk, exists, settle_all, statuses
from tests.support.shards import (
    MONO_0,
    WALL_0,
    ack,
    cancel,
    clean,
    configure,
    counts,
    events,
    fail,
    page,
    pause,
    promote,
    pull,
    push,
    release,
    repeat,
    result,
    resume,
    retry,
    stall,
    state_of,
    tick,
    update,
    view,
)


def test_a_job_expires_to_the_millisecond(shard, maybe_restart):
    pushed = push(shard, "a", ttl_ms=1_000, at=500)
    maybe_restart()
    tick(shard, at=1_499)
    assert state_of(shard, pushed.id) == "waiting"
    tick(shard, at=1_500)
    assert counts(shard)["emails"] == {}
    assert result(shard, pushed.id).body == ("expired", None, "")
    maybe_restart()
    assert result(shard, pushed.id).body == ("expired", None, "")


def test_it_expires_by_timer_not_only_when_somebody_looks_at_the_head(shard, maybe_restart):
    push(shard, *"ab", priority=9)
    push(shard, "c", ttl_ms=1_000)
    maybe_restart()
    assert shard.shard.next_wakeup(shard.clock.now()) <= MONO_0 + 1_000
    tick(shard, at=1_000)
    assert [seen["name"] for seen in page(shard)[0]] == ["a", "b"]


def test_whoever_waits_for_it_is_told_at_once(shard):
    pushed = push(shard, "a", ttl_ms=1_000)
    waiting = result(shard, pushed.id, wait_ms=5_000)
    tick(shard, at=1_000)
    assert waiting.body == ("expired", None, "")


def test_an_event_says_so(shard):
    cursor = events(shard).body
    push(shard, "a", ttl_ms=1_000)
    tick(shard, at=1_000)
    told = events(shard, epoch=cursor[0], after=cursor[1]).body[3]
    assert [(row[1], row[6]) for row in told] == [("added", None), ("removed", ("expired",))]


def test_a_pull_of_the_moment_it_expires_gets_nothing(shard):
    push(shard, "a", ttl_ms=1_000)
    assert pull(shard, at=1_000).jobs == []


def test_a_pull_just_before_gets_it_and_it_never_expires_again(shard, maybe_restart):
    push(shard, "a", ttl_ms=1_000)
    job = pull(shard, at=999).job
    maybe_restart()
    tick(shard, at=5_000)
    assert ack(shard, job).accepted


def is_released(shard, job):
    release(shard, job)


def fails(shard, job):
    fail(shard, job)


def stalls(shard, job):
    stall(shard, job)


@pytest.mark.parametrize("interrupt", [is_released, fails, stalls])
def test_a_job_that_was_leased_once_never_expires(shard, interrupt, maybe_restart):
    pushed = push(shard, "a", ttl_ms=1_000)
    interrupt(shard, pull(shard).job)
    maybe_restart()
    tick(shard, at=shard.clock.at + 100_000)
    assert state_of(shard, pushed.id) == "waiting"
    assert view(shard, pushed.id)["expires_at"] is None


def test_a_dead_job_that_is_retried_never_expires(shard, maybe_restart):
    pushed = push(shard, "a", ttl_ms=1_000, attempts=1)
    fail(shard, pull(shard).job)
    retry(shard, pushed.id, at=500)
    maybe_restart()
    tick(shard, at=100_000)
    assert settle_all(shard) == "a"


def test_a_delayed_job_may_expire_after_its_time_came(shard, maybe_restart):
    pushed = push(shard, "a", ttl_ms=1_000, delay_ms=999)
    tick(shard, at=999)
    assert state_of(shard, pushed.id) == "waiting"
    maybe_restart()
    tick(shard, at=1_000)
    assert result(shard, pushed.id).body[0] == "expired"


def test_a_delayed_job_that_was_put_off_beyond_its_time_expires_while_delayed(shard, maybe_restart):
    pushed = push(shard, "a", ttl_ms=1_000, delay_ms=500)
    update(shard, pushed.id, delay_ms=50_000)
    maybe_restart()
    tick(shard, at=1_000)
    assert result(shard, pushed.id).body[0] == "expired"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"run_at": WALL_0 + 999}, False),
        ({"run_at": WALL_0 + 1_000}, True),
        ({"run_at": WALL_0 + 5_000}, True),
        ({"delay_ms": 999}, False),
    ],
)
def test_a_ttl_that_ends_before_the_job_may_run_is_refused(shard, options, refused):
    answer = bulk(shard, a={"ttl_ms": 1_000, **options}, b={})
    assert statuses(answer) == ([(0, Status.BAD_OPTION)] if refused else [])
    assert "ttl" in str(answer.exceptions) or not refused


def test_a_refused_job_leaves_nothing_behind(shard):
    answer = push(shard, "a", ttl_ms=10, run_at=WALL_0 + 20, job_id="one", unique="key", group="g")
    assert statuses(answer) == [(0, Status.BAD_OPTION)]
    shard.restart()
    again = push(shard, "a", ids=answer.ids, job_id="one", unique="key", group="g")
    assert again.accepted


def test_a_repeat_is_known_although_its_ttl_would_be_refused_now(shard):
    first = push(shard, "a", ttl_ms=1_000, run_at=WALL_0 + 900)
    assert exists(repeat(shard, first, at=500)) == (first.id, "delayed")
    tick(shard, at=1_000)
    assert exists(repeat(shard, first)) == (first.id, "expired")


def test_a_job_of_a_paused_queue_expires(shard, maybe_restart):
    pause(shard)
    push(shard, "a", ttl_ms=1_000)
    maybe_restart()
    tick(shard, at=1_000)
    resume(shard)
    assert pull(shard).jobs == []


def test_a_job_behind_a_limit_expires_and_the_next_is_served(shard, maybe_restart):
    configure(shard, concurrency=1)
    bulk(shard, a={"priority": 1}, b={"ttl_ms": 1_000}, c={})
    a = pull(shard).job
    maybe_restart()
    parked = pull(shard, client="w-2", wait_ms=30_000)
    tick(shard, at=1_000)
    ack(shard, a)
    assert parked.names == "c"


def test_members_of_a_paused_group_expire(shard, maybe_restart):
    bulk(shard, a={"group": "g", "ttl_ms": 100}, b={"group": "g"}, c={"group": "g", "ttl_ms": 200})
    pause(shard, group="g")
    maybe_restart()
    tick(shard, at=150)
    tick(shard, at=200)
    resume(shard, group="g")
    assert settle_all(shard) == "b"


def test_a_job_whose_priority_changed_expires_once(shard, maybe_restart):
    pushed = push(shard, "a", ttl_ms=1_000)
    update(shard, pushed.id, priority=5)
    promote(shard, pushed.id)
    maybe_restart()
    tick(shard, at=1_000)
    assert result(shard, pushed.id).body[0] == "expired"
    assert counts(shard)["emails"] == {}


@pytest.mark.parametrize("leave", [lambda s, i: cancel(s, i), lambda s, i: clean(s, WAITING)])
def test_a_job_that_left_before_does_not_expire(shard, leave):
    pushed = push(shard, "a", ttl_ms=1_000)
    leave(shard, pushed.id)
    word = result(shard, pushed.id).body[0]
    tick(shard, at=1_000)
    assert result(shard, pushed.id).body[0] == word != "expired"


def test_a_shard_that_was_down_expires_what_is_due_when_it_starts(shard):
    pushed = push(shard, *"ab", ttl_ms=1_000)
    shard.restart(at=5_000)
    assert pull(shard, jobs_max=9).jobs == []
    assert {result(shard, job_id).body[0] for job_id in pushed.ids} == {"expired"}


def test_what_expires_is_shown_before(shard):
    pushed = push(shard, "a", ttl_ms=1_000, at=50)
    assert view(shard, pushed.id)["expires_at"] == WALL_0 + 1_050
