"""How long completed jobs are kept: by the job, else by its queue; never under a minute."""

import pytest

from pyq.errors import Status
from pyq.job import COMPLETED
from pyq.limits import COMPLETED_MS_MIN
from tests.support.sayings import bulk, statuses
from tests.support.shards import (
    ack,
    clean,
    configure,
    counts,
    fail,
    log,
    logs,
    obliterate,
    page,
    pull,
    push,
    repeat,
    result,
    retry,
    tick,
    view,
)

MINUTE = COMPLETED_MS_MIN
# Ends are remembered by the second, and looked at each second.
SOON = MINUTE + 2_000


def complete(shard, *names, at=None, **options):
    """Push jobs and complete them one after the other; returns their ids."""
    pushed = push(shard, *names, at=at, **options)
    for _ in names:
        ack(shard, pull(shard).job, result=b"r")
    return pushed.ids


def kept(shard):
    return "".join(seen["name"] for seen in page(shard, state=COMPLETED)[0])


# --- the settings of a queue ----------------------------------------------------------


def test_a_queue_keeps_as_many_as_it_says(shard, maybe_restart):
    configure(shard, keep_count=2)
    complete(shard, *"abcd")
    maybe_restart()
    tick(shard, at=MINUTE - 1)
    assert kept(shard) == "abcd", "never in the first minute"
    tick(shard, at=SOON)
    assert kept(shard) == "cd"
    maybe_restart()
    assert counts(shard)["emails"] == {"completed": 2}


def test_a_queue_may_keep_none(shard, maybe_restart):
    configure(shard, keep_count=0)
    job_ids = complete(shard, *"ab")
    maybe_restart()
    tick(shard, at=MINUTE - 1)
    assert kept(shard) == "ab"
    tick(shard, at=SOON)
    assert kept(shard) == ""
    assert result(shard, job_ids[0]).body[0] == "result_expired"


def test_a_queue_keeps_as_long_as_it_says(shard, maybe_restart):
    configure(shard, keep_ms=2 * MINUTE)
    complete(shard, "a", at=0)
    complete(shard, "b", at=30_000)
    maybe_restart()
    tick(shard, at=2 * MINUTE - 1)
    assert kept(shard) == "ab"
    tick(shard, at=2 * MINUTE + 2_000)
    assert kept(shard) == "b"
    maybe_restart()
    tick(shard, at=2 * MINUTE + 32_000)
    assert kept(shard) == ""


def test_a_count_and_an_age_hold_together(shard):
    configure(shard, keep_ms=3 * MINUTE, keep_count=2)
    complete(shard, *"abc", at=0)
    tick(shard, at=SOON)
    assert kept(shard) == "bc"
    tick(shard, at=3 * MINUTE + 2_000)
    assert kept(shard) == ""


def test_a_setting_holds_for_what_has_ended_already(shard):
    complete(shard, *"abcd")
    tick(shard, at=SOON)
    assert kept(shard) == "abcd"
    configure(shard, keep_count=1)
    tick(shard, at=SOON + 1_000)
    assert kept(shard) == "d"


def test_a_wider_setting_keeps_what_is_still_there(shard):
    configure(shard, keep_count=1)
    complete(shard, *"ab")
    configure(shard, keep_count=9)
    tick(shard, at=SOON)
    assert kept(shard) == "ab"


def test_an_age_leaves_an_empty_queue_alone(shard):
    """Nothing to forget: nothing to wake up for each second."""
    configure(shard, keep_ms=2 * MINUTE)
    push(shard, "a")
    tick(shard, at=2_000)
    assert shard.shard.next_wakeup(shard.clock.now()) is None


# --- the options of a job -------------------------------------------------------------


def test_a_job_may_be_kept_for_its_own_time(shard, maybe_restart):
    configure(shard, keep_count=0)
    complete(shard, "a", keep_ms=3 * MINUTE)
    complete(shard, "b")
    maybe_restart()
    tick(shard, at=SOON)
    assert kept(shard) == "a", "regardless of the setting of its queue"
    tick(shard, at=3 * MINUTE - 1)
    assert kept(shard) == "a"
    tick(shard, at=3 * MINUTE + 1_000)
    assert kept(shard) == ""
    maybe_restart()


def test_a_time_of_its_own_may_be_shorter_than_that_of_the_queue(shard):
    configure(shard, keep_ms=10 * MINUTE)
    complete(shard, "a", keep_ms=MINUTE)
    tick(shard, at=MINUTE - 1)
    assert kept(shard) == "a"
    tick(shard, at=MINUTE + 1_000)
    assert kept(shard) == ""


def test_a_job_may_be_kept_until_so_many_later_ones_completed(shard, maybe_restart):
    complete(shard, "a", keep_count=3)
    complete(shard, "b", keep_count=1)
    complete(shard, "c")
    maybe_restart()
    tick(shard, at=SOON)
    assert kept(shard) == "ac", "one later than b, two later than a"
    complete(shard, "d")
    tick(shard, at=2 * SOON)
    assert kept(shard) == "cd"


def test_those_that_completed_later_count_also_when_they_are_forgotten(shard):
    complete(shard, "a", keep_count=3)
    complete(shard, "b", keep_count=1)
    complete(shard, "c")
    tick(shard, at=SOON)
    assert kept(shard) == "ac"
    shard.restart()
    complete(shard, "d")
    tick(shard, at=2 * SOON)
    assert kept(shard) == "acd", "after a restart only records that are still there are later"
    complete(shard, "e")
    tick(shard, at=3 * SOON)
    assert kept(shard) == "cde", "c, d and e are later than a"


def test_a_count_of_its_own_keeps_a_job_in_a_queue_that_keeps_none(shard):
    configure(shard, keep_count=0)
    complete(shard, "a", keep_count=5)
    complete(shard, "b")
    tick(shard, at=SOON)
    assert kept(shard) == "a"


def test_a_count_of_its_own_is_no_reason_within_the_first_minute(shard):
    complete(shard, "a", keep_count=1)
    complete(shard, *"bcd")
    tick(shard, at=MINUTE - 1)
    assert kept(shard) == "abcd"
    tick(shard, at=SOON)
    assert kept(shard) == "bcd"


def test_jobs_that_are_not_kept_do_not_push_others_out(shard):
    complete(shard, "a", keep_count=1)
    complete(shard, *"bc", keep_completed=False)
    tick(shard, at=SOON)
    assert kept(shard) == "a"


def test_each_job_of_a_message_is_kept_in_its_own_way(shard, maybe_restart):
    bulk(
        shard,
        a={},
        b={"keep_completed": False},
        c={"keep_count": 1},
        d={"keep_ms": 2 * MINUTE},
        e={"keep_count": 1, "group": "g", "unique": "key"},
    )
    ack(shard, *pull(shard, jobs_max=9).jobs)
    maybe_restart()
    assert kept(shard) == "acde"
    tick(shard, at=SOON)
    assert "c" not in kept(shard)
    assert "d" in kept(shard)
    tick(shard, at=2 * MINUTE + 1_000)
    assert "d" not in kept(shard)
    assert "a" in kept(shard)


def test_jobs_of_one_message_complete_in_its_order(shard):
    bulk(shard, a={}, b={"keep_count": 1})
    ack(shard, *pull(shard, jobs_max=9).jobs)
    tick(shard, at=SOON)
    assert kept(shard) == "ab", "nothing completed later than b"


# --- jobs that are not kept -----------------------------------------------------------


def test_the_result_of_a_job_that_is_not_kept_lingers_for_ten_seconds(shard):
    pushed = push(shard, "a", keep_completed=False)
    waiting = result(shard, pushed.id, wait_ms=5_000)
    acked = ack(shard, pull(shard).job, result=b"r")
    assert waiting.body == ("completed", b"r", "")
    assert result(shard, pushed.id, at=9_999).body == ("completed", b"r", "")
    assert result(shard, pushed.id, at=10_000).body == ("result_expired", None, "")
    assert repeat(shard, acked).replayed
    shard.restart()
    assert result(shard, pushed.id).body == ("result_expired", None, "")


def test_a_job_that_is_not_kept_cannot_be_retried(shard):
    (job_id,) = complete(shard, "a", keep_completed=False)
    assert statuses(retry(shard, job_id)) == [(0, Status.NOT_FOUND)]
    assert clean(shard, COMPLETED) == 0


def test_a_dead_job_stays_although_it_would_not_be_kept(shard, maybe_restart):
    pushed = push(shard, "a", keep_completed=False, attempts=1)
    fail(shard, pull(shard).job)
    maybe_restart()
    tick(shard, at=SOON)
    assert view(shard, pushed.id)["state"] == "dead"


# --- together with retry and clean ----------------------------------------------------

KEPT_HOW = [{}, {"keep_count": 1}, {"keep_ms": MINUTE}]


@pytest.mark.parametrize("options", KEPT_HOW)
def test_a_completed_job_that_is_retried_is_not_forgotten_while_it_lives(
    shard, options, maybe_restart
):
    configure(shard, keep_count=0)
    (job_id,) = complete(shard, "a", **options)
    retry(shard, job_id)
    maybe_restart()
    complete(shard, "b", priority=1)
    tick(shard, at=2 * SOON)
    assert view(shard, job_id)["state"] == "waiting"
    assert ack(shard, pull(shard).job).accepted


@pytest.mark.parametrize("options", KEPT_HOW)
def test_a_job_that_completes_again_is_kept_from_its_last_end_on(shard, options):
    configure(shard, keep_count=0)
    (job_id,) = complete(shard, "a", **options)
    retry(shard, job_id, at=30_000)
    ack(shard, pull(shard, at=50_000).job)
    complete(shard, "b", at=55_000)
    tick(shard, at=50_000 + MINUTE - 1)
    assert kept(shard) == "ab"
    tick(shard, at=50_000 + SOON)
    assert kept(shard) == "b"
    tick(shard, at=55_000 + SOON)
    assert kept(shard) == ""


@pytest.mark.parametrize("options", KEPT_HOW)
def test_a_job_that_was_cleaned_is_not_forgotten_twice(shard, options, maybe_restart):
    configure(shard, keep_count=1)
    complete(shard, *"ab", **options)
    assert clean(shard, COMPLETED) == 2
    maybe_restart()
    complete(shard, *"cd")
    tick(shard, at=2 * SOON)
    assert kept(shard) == "d"
    assert counts(shard)["emails"] == {"completed": 1}


def test_a_queue_that_is_obliterated_forgets_nothing_later(shard):
    complete(shard, "a", keep_ms=MINUTE)
    complete(shard, "b", keep_count=1)
    complete(shard, "c")
    obliterate(shard)
    complete(shard, "d")
    tick(shard, at=2 * SOON)
    assert kept(shard) == "d"


def test_the_log_of_a_completed_job_is_kept_with_its_record(shard, maybe_restart):
    configure(shard, keep_count=0)
    pushed = push(shard, "a")
    job = pull(shard).job
    log(shard, job, "one", "two")
    ack(shard, job)
    maybe_restart()
    assert [line[3] for line in logs(shard, pushed.id)] == ["one", "two"]
    tick(shard, at=SOON)
    assert kept(shard) == ""
