"""Dead letters: statistics, age, making room, retry by themselves, and retry of what completed."""

import pytest

from pyq.errors import Status
from pyq.job import COMPLETED, DEAD
from pyq.limits import TEND_MS
from pyq.messages import Fail, Filters, Retry, Stats
from tests.support.sayings import exists, purge, settle_all, statuses
from tests.support.shards import (
    MONO_0,
    WALL_0,
    ack,
    cancel,
    configure,
    counts,
    dead_stats,
    events,
    fail,
    log,
    logs,
    page,
    pull,
    push,
    repeat,
    result,
    retry,
    stall,
    state_of,
    tick,
    view,
)

MINUTE = 60_000


def die(shard, *names, at=None, **options):
    """Push jobs that die of their first failure; returns their ids."""
    pushed = push(shard, *names, at=at, attempts=1, **options)
    for _ in names:
        fail(shard, pull(shard).job)
    return pushed.ids


def dead(shard):
    return "".join(seen["name"] for seen in page(shard, state=DEAD)[0])


# --- lists and statistics -------------------------------------------------------------------------


def test_dead_letters_are_counted_by_reason_and_age(shard, maybe_restart):
    die(shard, *"ab", at=0)
    die(shard, "c", at=5_000)
    push(shard, "d", at=6_000)
    fail(shard, pull(shard).job, unrecoverable=True)
    push(shard, "e", timeout_ms=1, attempts=1)
    pull(shard)
    tick(shard, at=20_000)
    maybe_restart()

    count, by_reason = dead_stats(shard)
    assert count == 5
    assert by_reason == {
        "exhausted": (3, WALL_0, WALL_0 + 5_000),
        "unrecoverable": (1, WALL_0 + 6_000, WALL_0 + 6_000),
        "timeout": (1, WALL_0 + 20_000, WALL_0 + 20_000),
    }
    assert dead_stats(shard, "nobody") == (0, {})


def test_statistics_follow_retry_and_purge(shard, maybe_restart):
    a, b, _ = die(shard, *"abc")
    retry(shard, a)
    purge(shard, b)
    maybe_restart()
    assert dead_stats(shard)[0] == 1
    fail(shard, pull(shard).job, unrecoverable=True)
    assert {reason: row[0] for reason, row in dead_stats(shard)[1].items()} == {
        "exhausted": 1,
        "unrecoverable": 1,
    }


def test_dead_letters_are_listed_by_reason_name_tag_group_and_time(shard, maybe_restart):
    die(shard, "a", at=0, tags=["red"])
    die(shard, "b", at=1_000, group="g", tags=["red", "blue"])
    push(shard, "c", at=2_000, priority=9, tags=["red"])
    fail(shard, pull(shard).job, unrecoverable=True)
    push(shard, "a", tags=["red"])
    maybe_restart()

    def listed(**filters):
        views, _ = page(shard, state=DEAD, filters=Filters(**filters))
        return "".join(seen["name"] for seen in views)

    assert listed() == "abc"
    assert listed(reason="exhausted") == "ab"
    assert listed(name="a") == "a"
    assert listed(tag="red") == "abc"
    assert listed(tag="blue", reason="exhausted") == "b"
    assert listed(group="g") == "b"
    assert listed(since=WALL_0 + 1_000) == "bc"
    assert listed(until=WALL_0 + 1_000) == "a"
    assert listed(since=WALL_0 + 1_000, until=WALL_0 + 2_000) == "b"
    assert listed(reason="stalled") == ""
    views, _ = page(shard, filters=Filters(reason="exhausted"))
    assert "".join(seen["name"] for seen in views) == "ab", "only dead jobs have a reason"


def test_a_dead_letter_says_why_and_what_happened(shard, maybe_restart):
    push(shard, "a", attempts=2, backoff=[0, 1, 0, 0, []])
    fail(shard, pull(shard).job, error="first")
    stall(shard, pull(shard).job)
    fail(shard, pull(shard).job, error="last", traceback="line 1")
    maybe_restart()
    (seen,) = page(shard, state=DEAD)[0]
    assert (seen["reason"], seen["error"], seen["traceback"]) == ("exhausted", "last", "line 1")
    assert [error.split(":")[0] for _, _, error in seen["history"]] == ["first", "stalled", "last"]


# --- retry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "dead"])
def test_an_ended_job_starts_afresh(shard, end, maybe_restart):
    push(shard, "a", attempts=2, backoff=[0, 1, 0, 0, []], job_id="order-1")
    fail(shard, pull(shard).job, error="first", result=b"exit 1")
    job = pull(shard).job
    ack(shard, job, result=b"r") if end == "completed" else fail(shard, job, error="last")
    maybe_restart()
    assert retry(shard, job.id).accepted
    maybe_restart()

    seen = view(shard, job.id)
    assert [seen[name] for name in ("state", "attempt", "failures", "stalls")] == [
        "waiting", 0, 0, 0,
    ]  # fmt: skip
    assert (seen["result"], seen["reason"], seen["error"]) == (None, None, None)
    assert seen["history"][0][2] == "first"
    assert exists(push(shard, "a", job_id="order-1")) == (job.id, "waiting")
    assert counts(shard)["emails"] == {"waiting": 1}
    again = pull(shard).job
    assert (again.attempt, again.failures) == (1, 0)
    assert again.fence > job.fence
    assert ack(shard, again, result=b"second").accepted
    assert result(shard, job.id).body == ("completed", b"second", "")


def test_a_completed_job_may_be_retried_again_and_again(shard):
    push(shard, "a")
    for _ in range(3):
        job = pull(shard).job
        ack(shard, job)
        assert retry(shard, job.id).accepted
    assert counts(shard)["emails"] == {"waiting": 1}
    assert page(shard, state=COMPLETED)[0] == []


@pytest.mark.parametrize("settle", [ack, fail])
def test_old_tokens_of_a_retried_job_change_nothing(shard, settle, maybe_restart):
    push(shard, "a", attempts=1)
    job = pull(shard).job
    settled = settle(shard, job)
    retry(shard, job.id)
    maybe_restart()
    repeat(shard, settled)
    assert state_of(shard, job.id) == "waiting"
    new = pull(shard).job
    for answer in (ack(shard, job), fail(shard, job), repeat(shard, settled)):
        assert answer.stale
    assert ack(shard, new).accepted


def test_whoever_waits_for_a_retried_job_hears_its_new_end(shard):
    (job_id,) = die(shard, "a")
    retry(shard, job_id)
    waiting = result(shard, job_id, wait_ms=MINUTE)
    ack(shard, pull(shard).job, result=b"r")
    assert waiting.body == ("completed", b"r", "")


def test_a_retried_job_may_be_cancelled_and_is_gone(shard, maybe_restart):
    (job_id,) = die(shard, "a", job_id="order-1")
    retry(shard, job_id)
    cancel(shard, job_id)
    maybe_restart()
    assert dead(shard) == ""
    assert result(shard, job_id).body[0] == "cancelled"
    assert exists(push(shard, "a", job_id="order-1")) == (job_id, "cancelled")


def test_retry_and_its_repeat_of_a_job_that_died_again(shard):
    (job_id,) = die(shard, "a")
    retried = retry(shard, job_id)
    assert repeat(shard, retried).exceptions == [(0, Status.OK, ("again", "waiting"))]


def test_a_retried_job_of_the_same_turn_as_its_death(shard):
    push(shard, "a", attempts=1)
    job = pull(shard).job
    failed, retried = shard.send(
        Fail(shard.origin("worker-f"), [(job.id, job.token, "boom", "", None, False, -1)]),
        Retry(shard.origin("admin"), [(job.id,)]),
    )
    assert failed.accepted
    assert retried.accepted
    shard.restart()
    assert dead(shard) == ""
    assert settle_all(shard) == "a"


# --- purge ----------------------------------------------------------------------------------------


def test_a_purged_job_is_remembered_as_dead(shard, maybe_restart):
    (job_id,) = die(shard, "a", job_id="order-1")
    purge(shard, job_id)
    maybe_restart()
    assert result(shard, job_id).body == ("dead", None, "")
    assert exists(push(shard, "a", job_id="order-1")) == (job_id, "forgotten")
    assert statuses(retry(shard, job_id)) == [(0, Status.NOT_FOUND)]


def test_only_dead_jobs_are_purged(shard):
    push(shard, "a")
    job = pull(shard).job
    assert statuses(purge(shard, job.id)) == [(0, Status.CONFLICT)]
    ack(shard, job)
    assert statuses(purge(shard, job.id)) == [(0, Status.CONFLICT)]


# --- age and room -----------------------------------------------------------------------------


def test_dead_letters_older_than_the_queue_says_are_purged(shard, maybe_restart):
    configure(shard, dead_ms=MINUTE)
    a, b = die(shard, "a", at=0) + die(shard, "b", at=30_000)
    maybe_restart()
    tick(shard, at=MINUTE)
    assert dead(shard) == "ab", "not older yet"
    tick(shard, at=MINUTE + TEND_MS)
    assert dead(shard) == "b"
    maybe_restart()
    tick(shard, at=95_001)
    assert dead(shard) == ""
    assert [result(shard, job_id).body[0] for job_id in (a, b)] == ["dead", "dead"]


def test_the_shard_wakes_up_for_its_dead_letters(shard):
    configure(shard, dead_ms=MINUTE)
    die(shard, "a")
    wakeup_at = shard.shard.next_wakeup(shard.clock.now())
    assert wakeup_at is not None
    assert wakeup_at <= MONO_0 + shard.clock.at + TEND_MS


def test_beyond_the_cap_nothing_is_dropped_silently(shard, maybe_restart):
    """Elsewhere a bounded list loses the oldest: here there is a warning."""
    configure(shard, dead_max=2)
    die(shard, *"abcd")
    maybe_restart()
    tick(shard, at=60_000)
    assert dead(shard) == "abcd"
    stats = shard.send(Stats(shard.origin("admin")))[0].body[0]
    assert stats["dead_over"] == ("emails",)


def test_on_request_the_longest_dead_make_room(shard, maybe_restart):
    configure(shard, dead_max=2, drop_oldest=True)
    push(shard, "z", attempts=1)
    z = pull(shard).job
    die(shard, "a", at=1_000)
    die(shard, "b", at=2_000)
    fail(shard, z)
    maybe_restart()
    tick(shard, at=20_000)
    assert dead(shard) == "zb", "a died first, although z was accepted before it"
    maybe_restart()
    tick(shard, at=30_000)
    assert dead(shard) == "zb"


def test_age_and_room_together(shard):
    configure(shard, dead_max=2, drop_oldest=True, dead_ms=MINUTE)
    die(shard, *"ab", at=0)
    die(shard, *"cdef", at=50_000)
    tick(shard, at=70_000)
    assert dead(shard) == "ef"


def test_a_setting_taken_back_lets_them_lie(shard, maybe_restart):
    configure(shard, dead_ms=MINUTE)
    die(shard, "a")
    configure(shard, dead_ms=None)
    maybe_restart()
    tick(shard, at=10 * MINUTE)
    assert dead(shard) == "a"
    assert shard.shard.next_wakeup(shard.clock.now()) is None


def test_an_event_tells_of_each_that_was_purged(shard):
    configure(shard, dead_ms=MINUTE)
    die(shard, "a")
    epoch, after, _, _ = events(shard).body
    tick(shard, at=2 * MINUTE)
    told = events(shard, epoch=epoch, after=after).body[3]
    assert [(row[1], row[5]) for row in told] == [("removed", "a")]


# --- auto-retry -----------------------------------------------------------------------------------


def die_at(shard, at):
    """The job that waits now is leased and fails for good; returns how often it was retried."""
    fail(shard, pull(shard, at=at).job, unrecoverable=True)


def test_dead_letters_are_retried_after_an_interval_that_doubles(shard, maybe_restart):
    configure(shard, auto_retry_ms=10_000, auto_retry_max=3)
    (job_id,) = die(shard, "a", at=0)
    ticks = iter(range(TEND_MS, 400_001, TEND_MS))
    died_at, retried_after = 0, []
    for at in ticks:
        tick(shard, at=at)
        maybe_restart()
        if state_of(shard, job_id) == "waiting":
            retried_after.append(at - died_at)
            die_at(shard, at)
            died_at = at
    assert retried_after == [10_000, 20_000, 40_000], "and no fourth time"
    assert [error for _, _, error in view(shard, job_id)["history"]] == ["boom"] * 4
    assert retry(shard, job_id).accepted, "somebody may still ask for it"


def test_an_auto_retry_is_never_early(shard):
    configure(shard, auto_retry_ms=7_000, auto_retry_max=1)
    (job_id,) = die(shard, "a", at=0)
    for at in range(1_000, 7_000, 1_000):
        tick(shard, at=at)
    assert state_of(shard, job_id) == "dead"
    tick(shard, at=7_000 + TEND_MS)
    assert state_of(shard, job_id) == "waiting"


def test_somebody_who_waits_gets_what_is_retried(shard):
    configure(shard, auto_retry_ms=10_000, auto_retry_max=1)
    die(shard, "a")
    parked = pull(shard, wait_ms=MINUTE)
    for at in (5_000, 10_000, 15_000):
        tick(shard, at=at)
    assert parked.names == "a"


def test_a_dead_letter_whose_key_has_another_holder_is_left_dead(shard, maybe_restart):
    configure(shard, auto_retry_ms=10_000, auto_retry_max=1)
    (job_id,) = die(shard, "a", unique="key")
    holder = push(shard, "b", unique="key", delay_ms=1_000_000)
    maybe_restart()
    tick(shard, at=30_000)
    assert state_of(shard, job_id) == "dead"
    cancel(shard, holder.id)
    tick(shard, at=40_000)
    assert state_of(shard, job_id) == "waiting"


def test_of_two_dead_letters_with_one_key_one_is_retried(shard):
    configure(shard, auto_retry_ms=10_000, auto_retry_max=1)
    first, second = die(shard, "a", unique="key") + die(shard, "b", unique="key")
    tick(shard, at=15_000)
    assert [state_of(shard, job_id) for job_id in (first, second)] == ["waiting", "dead"]


def test_what_is_too_old_is_purged_and_not_retried(shard):
    configure(shard, auto_retry_ms=MINUTE, auto_retry_max=9, dead_ms=MINUTE)
    die(shard, "a")
    tick(shard, at=2 * MINUTE)
    assert counts(shard)["emails"] == {}


def test_the_log_of_a_dead_letter_goes_on_when_it_is_retried(shard, maybe_restart):
    push(shard, "a", attempts=1)
    job = pull(shard).job
    log(shard, job, "one")
    fail(shard, job)
    retry(shard, job.id)
    maybe_restart()
    log(shard, pull(shard).job, "two")
    assert [(line[0], line[2], line[3]) for line in logs(shard, job.id)] == [
        (1, 1, "one"),
        (2, 1, "two"),
    ]
