"""Unique keys: one live holder per queue and key; who holds it, how long, and who frees it."""

import pytest

from pyq.errors import Status
from pyq.job import COMPLETED, DELAYED, WAITING
from pyq.messages import Ack
from tests.support.sayings import a_push, bulk, exists, purge, settle_all, statuses
from tests.support.shards import (
    REPEAT,
    WALL_0,
    ack,
    cancel,
    clean,
    counts,
    drain,
    fail,
    goodbye,
    obliterate,
    promote,
    pull,
    push,
    release,
    repeat,
    result,
    retry,
    stall,
    state_of,
    sweep,
    tick,
    update,
    view,
)

LATER = 100_000


def held(shard, **options):
    """Who holds `key` now, as a push is told; None: it is free, and taken by that push."""
    answer = push(shard, "z", unique="key", **options)
    return None if answer.accepted else exists(answer)


# --- held until the end -----------------------------------------------------------------------


def test_a_key_has_one_holder_per_queue(shard):
    first = push(shard, "a", unique="key")
    assert exists(push(shard, "b", unique="key")) == (first.id, "waiting")
    assert push(shard, "c", unique="other").accepted
    assert push(shard, "d", unique="key", queue="sms").accepted
    assert counts(shard)["emails"] == {"waiting": 2}


def test_another_job_under_a_held_key_is_no_mismatch(shard):
    push(shard, "a", unique="key", payload=b"123")
    answer = push(shard, "b", unique="key", payload=b"4")
    assert answer.exceptions[0][2][3] is False


def test_a_custom_id_is_looked_at_before_the_key(shard):
    named = push(shard, "a", job_id="order-1")
    holder = push(shard, "b", unique="key")
    answer = push(shard, "c", job_id="order-1", unique="key", on_conflict="replace")

    assert exists(answer) == (named.id, "waiting")
    assert state_of(shard, holder.id) == "waiting"


def test_a_key_is_held_whatever_happens_before_the_end(shard, maybe_restart):
    """Never free during a backoff, never trimmed."""
    first = push(shard, "a", unique="key", delay_ms=1_000, attempts=9)

    def assert_held(state):
        maybe_restart()
        assert held(shard) == (first.id, state)

    assert_held("delayed")
    promote(shard, first.id)
    assert_held("waiting")
    job = pull(shard).job
    assert_held("active")
    fail(shard, job)
    assert_held("delayed")
    job = pull(shard, at=10_000).job
    release(shard, job)
    assert_held("waiting")
    job = pull(shard).job
    stall(shard, job)
    assert_held("delayed")
    update(shard, first.id, priority=3)
    assert_held("delayed")


def test_the_late_ack_of_a_stalled_holder_frees_the_key(shard):
    push(shard, "a", unique="key")
    job = pull(shard).job
    stall(shard, job)
    ack(shard, job)
    assert held(shard) is None


def by_ack(shard, job_id):
    ack(shard, pull(shard).job)


def by_death(shard, job_id):
    fail(shard, pull(shard).job, unrecoverable=True)


def by_cancel(shard, job_id):
    cancel(shard, job_id)


def by_confirmed_cancel(shard, job_id):
    job = pull(shard).job
    cancel(shard, job_id)
    assert held(shard) == (job_id, "active")
    release(shard, job)


def by_drain(shard, job_id):
    drain(shard)


def by_clean(shard, job_id):
    clean(shard, WAITING)


def by_obliteration(shard, job_id):
    obliterate(shard)


ENDS = (by_ack, by_death, by_cancel, by_confirmed_cancel, by_drain, by_clean,
        by_obliteration)  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_the_end_frees_the_key(shard, end, maybe_restart):
    first = push(shard, "a", unique="key")
    end(shard, first.id)
    maybe_restart()
    assert held(shard) is None


def test_the_end_and_the_next_holder_may_share_a_turn(shard):
    push(shard, "a", unique="key")
    job = pull(shard).job
    acked, pushed = shard.send(
        Ack(shard.origin("worker-a"), [(job.id, job.token, None)]),
        a_push(shard, b={"unique": "key"}),
    )
    assert acked.accepted
    assert pushed.accepted
    shard.restart()
    assert settle_all(shard) == "b"


def test_only_the_present_owner_frees_it(shard):
    """Was a failure elsewhere: an old holder that ends frees the key of the new one."""
    old = push(shard, "a", unique="key", unique_ttl_ms=1_000)
    job = pull(shard).job
    new = push(shard, "b", unique="key", at=1_000)
    assert new.accepted, "its time is over, although it is alive"
    ack(shard, job)
    assert state_of(shard, old.id) == "completed"
    assert held(shard) == (new.id, "waiting")
    shard.restart()
    assert held(shard) == (new.id, "waiting")


@pytest.mark.parametrize("new_options", [{}, {"unique_ttl_ms": 9_000}])
def test_cancelling_a_former_owner_frees_nothing(shard, new_options):
    old = push(shard, "a", unique="key", unique_ttl_ms=1_000)
    new = push(shard, "b", unique="key", at=1_000, **new_options)
    cancel(shard, old.id)
    assert held(shard) == (new.id, "waiting")


# --- replace ----------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [0, 5_000])
def test_replace_takes_the_place_of_a_holder_that_does_not_run(shard, delay_ms):
    old = push(shard, "a", unique="key", delay_ms=delay_ms)
    waiting = result(shard, old.id, wait_ms=5_000)
    new = push(shard, "b", unique="key", on_conflict="replace")

    assert new.accepted
    assert waiting.body == ("replaced", None, "")
    shard.restart()
    assert result(shard, old.id).body == ("replaced", None, "")
    assert exists(repeat(shard, old)) == (old.id, "replaced")
    assert held(shard) == (new.id, "waiting")
    assert settle_all(shard) == "b"


def test_replace_of_a_running_holder_returns_it(shard):
    old = push(shard, "a", unique="key")
    job = pull(shard).job
    assert held(shard, on_conflict="replace") == (old.id, "active")
    assert ack(shard, job).accepted


def test_a_holder_between_two_attempts_is_replaced(shard):
    push(shard, "a", unique="key")
    job = pull(shard).job
    fail(shard, job)
    assert push(shard, "b", unique="key", on_conflict="replace").accepted
    tick(shard, at=10_000)
    assert settle_all(shard) == "b"


def test_the_last_holder_of_a_replaced_job_cannot_complete_it(shard):
    push(shard, "a", unique="key")
    job = pull(shard).job
    stall(shard, job)
    push(shard, "b", unique="key", on_conflict="replace")
    assert ack(shard, job).stale


def test_the_last_of_a_message_stays_when_each_replaces_the_one_before(shard):
    answer = push(shard, *"abcd", unique="key", on_conflict="replace")
    assert answer.accepted
    shard.restart()

    assert [result(shard, job_id).body[0] for job_id in answer.ids] == ["replaced"] * 3 + [
        "waiting"
    ]
    assert counts(shard)["emails"] == {"waiting": 1}
    assert settle_all(shard) == "d"


def test_replacement_within_a_message_of_unlike_jobs(shard):
    answer = bulk(
        shard,
        a={"unique": "key", "group": "g", "job_id": "one"},
        b={"group": "g"},
        c={"unique": "key", "on_conflict": "replace", "delay_ms": 50},
        d={"unique": "key"},
        e={"unique": "key", "on_conflict": "replace", "group": "g", "ttl_ms": 900},
    )
    assert [(index, detail[2]) for index, _, detail in answer.exceptions] == [(3, "delayed")]
    shard.restart()
    assert counts(shard)["emails"] == {"waiting": 2}
    assert settle_all(shard) == "be"


def test_the_custom_id_of_a_job_that_was_replaced_in_the_same_message_is_known(shard):
    answer = bulk(
        shard,
        a={"unique": "key", "job_id": "order-1"},
        b={"unique": "key", "on_conflict": "replace"},
        c={"job_id": "order-1"},
    )
    assert exists(answer) == (answer.ids[0], "replaced")


def test_the_custom_id_of_a_job_that_this_message_replaces_is_known(shard):
    old = push(shard, "a", unique="key", job_id="order-1")
    answer = bulk(shard, b={"unique": "key", "on_conflict": "replace"}, c={"job_id": "order-1"})
    assert exists(answer) == (old.id, "replaced")


def test_a_replaced_member_leaves_its_group(shard):
    push(shard, "a", unique="key", group="g")
    push(shard, "b", group="g")
    push(shard, "c", unique="key", group="g", on_conflict="replace")
    assert settle_all(shard) == "bc"


def test_a_repeat_of_a_replacing_push_changes_nothing(shard):
    push(shard, "a", unique="key")
    new = push(shard, "b", unique="key", on_conflict="replace")
    assert exists(repeat(shard, new)) == (new.id, "waiting")
    ack(shard, pull(shard).job)
    later = push(shard, "c", unique="key")
    assert exists(repeat(shard, new)) == (new.id, "completed")
    assert held(shard) == (later.id, "waiting")


def test_nothing_is_replaced_by_a_job_that_is_not_accepted(shard):
    """A repeat while the disk is full: the old holder must not go before the new one comes."""
    old = push(shard, "a", unique="key")
    shard.disk_low = True
    answer = push(shard, "b", unique="key", on_conflict="replace", flags=REPEAT)
    assert statuses(answer) == [(0, Status.DISK_FULL)]
    assert state_of(shard, old.id) == "waiting"


def test_nothing_is_replaced_by_a_job_that_is_refused(shard):
    old = push(shard, "a", unique="key")
    answer = push(shard, "b", unique="key", on_conflict="replace", ttl_ms=500, run_at=WALL_0 + 600)
    assert statuses(answer) == [(0, Status.BAD_OPTION)]
    assert state_of(shard, old.id) == "waiting"


# --- extend -------------------------------------------------------------------------------------


def test_extend_pushes_a_delayed_holder_out(shard):
    first = push(shard, "a", unique="key", delay_ms=1_000)
    for at in (500, 1_000, 1_500):
        answer = push(shard, "b", unique="key", delay_ms=1_000, on_conflict="extend", at=at)
        assert exists(answer) == (first.id, "delayed")
    shard.restart()
    assert pull(shard, at=2_499).jobs == []
    assert pull(shard, at=2_500).names == "a"


def test_extend_never_brings_a_holder_forward(shard):
    push(shard, "a", unique="key", delay_ms=5_000)
    push(shard, "b", unique="key", on_conflict="extend")
    push(shard, "b", unique="key", delay_ms=10, on_conflict="extend")
    assert pull(shard, at=4_999).jobs == []
    assert pull(shard, at=5_000).names == "a"


def test_extend_leaves_a_waiting_or_active_holder_alone(shard):
    first = push(shard, "a", unique="key")
    answer = push(shard, "b", unique="key", delay_ms=1_000, on_conflict="extend")
    assert exists(answer) == (first.id, "waiting")
    pull(shard)
    answer = push(shard, "b", unique="key", delay_ms=1_000, on_conflict="extend")
    assert exists(answer) == (first.id, "active")


def test_extend_within_one_message(shard):
    answer = bulk(
        shard,
        a={"unique": "key", "delay_ms": 1_000},
        b={"unique": "key", "delay_ms": 3_000, "on_conflict": "extend"},
        c={"unique": "key", "delay_ms": 2_000, "on_conflict": "extend"},
    )
    assert [detail[1] for _, _, detail in answer.exceptions] == [answer.ids[0]] * 2
    shard.restart()
    assert pull(shard, at=2_999).jobs == []
    assert pull(shard, at=3_000).names == "a"


def test_extend_pushes_out_the_time_of_a_key(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=1_000)
    answer = push(shard, "b", unique="key", unique_ttl_ms=1_000, on_conflict="extend", at=600)
    assert exists(answer) == (first.id, "waiting")
    shard.restart()
    assert held(shard, at=1_599) == (first.id, "waiting")
    assert held(shard, at=1_600) is None


def test_extend_never_shortens_the_time_of_a_key(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000)
    push(shard, "b", unique="key", unique_ttl_ms=10, on_conflict="extend")
    assert held(shard, at=4_999) == (first.id, "waiting")


def test_extend_gives_no_time_to_a_key_that_has_none(shard):
    first = push(shard, "a", unique="key")
    push(shard, "b", unique="key", unique_ttl_ms=10, on_conflict="extend")
    assert held(shard, at=LATER) == (first.id, "waiting")
    settle_all(shard)
    assert held(shard) is None


def test_extend_pushes_out_the_time_of_a_key_whose_job_has_ended(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=1_000)
    ack(shard, pull(shard).job)
    answer = push(shard, "b", unique="key", unique_ttl_ms=1_000, on_conflict="extend", at=900)
    assert exists(answer) == (first.id, "completed")
    assert held(shard, at=1_899) == (first.id, "completed")
    assert held(shard, at=1_900) is None


# --- keys with a time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "end", "state"),
    [
        ({}, by_ack, "completed"),
        ({"keep_completed": False}, by_ack, "forgotten"),
        ({}, by_death, "dead"),
    ],
)
def test_a_key_with_a_time_outlives_the_end(shard, options, end, state, maybe_restart):
    """Throttle: neither earlier nor later."""
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000, **options)
    end(shard, first.id)
    maybe_restart()
    assert held(shard, at=4_999) == (first.id, state)
    assert held(shard, at=5_000) is None


def test_a_key_with_a_time_is_free_before_the_end(shard, maybe_restart):
    push(shard, "a", unique="key", unique_ttl_ms=1_000)
    maybe_restart()
    new = push(shard, "b", unique="key", unique_ttl_ms=1_000, at=1_000)
    assert new.accepted
    assert settle_all(shard) == "ab"
    assert held(shard, at=1_999) == (new.id, "completed")


@pytest.mark.parametrize(
    "end", [by_cancel, by_confirmed_cancel, by_drain, by_clean, by_obliteration]
)
def test_a_key_with_a_time_is_free_when_its_job_is_taken_away(shard, end, maybe_restart):
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000)
    end(shard, first.id)
    maybe_restart()
    assert held(shard) is None


def test_a_key_with_a_time_is_free_when_its_job_expires(shard):
    push(shard, "a", unique="key", unique_ttl_ms=5_000, ttl_ms=100)
    assert held(shard, at=100) is None


@pytest.mark.parametrize("state", ["completed", "dead"])
def test_a_key_with_a_time_is_not_freed_by_forgetting_its_ended_job(shard, state):
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000)
    if state == "completed":
        by_ack(shard, first.id)
        clean(shard, COMPLETED)
    else:
        by_death(shard, first.id)
        purge(shard, first.id)
    shard.restart()
    assert held(shard) == (first.id, "forgotten")
    assert held(shard, at=5_000) is None


def test_a_key_with_a_time_is_replaced_with_its_job_and_takes_a_new_time(shard):
    push(shard, "a", unique="key", unique_ttl_ms=5_000)
    new = push(shard, "b", unique="key", unique_ttl_ms=5_000, on_conflict="replace", at=1_000)
    assert new.accepted
    shard.restart()
    assert held(shard, at=5_999) == (new.id, "waiting")
    assert held(shard, at=6_000) is None


def test_a_job_that_has_ended_is_not_replaced(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000)
    by_ack(shard, first.id)
    assert held(shard, on_conflict="replace") == (first.id, "completed")


def test_a_key_with_a_time_within_one_message(shard):
    answer = push(shard, *"abc", unique="key", unique_ttl_ms=500)
    assert [detail[1] for _, _, detail in answer.exceptions] == [answer.ids[0]] * 2
    assert push(shard, *"de", unique="key", unique_ttl_ms=500, at=500).body[0] == 2
    assert counts(shard)["emails"] == {"waiting": 2}


def test_the_time_of_a_key_follows_the_wall_clock_of_its_acceptance(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=1_000, delay_ms=800)
    assert held(shard, at=999) == (first.id, "waiting")
    assert held(shard, at=1_000) is None


# --- retry of a holder ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", [by_ack, by_death])
def test_a_retried_job_takes_its_key_again(shard, end, maybe_restart):
    first = push(shard, "a", unique="key")
    end(shard, first.id)
    maybe_restart()
    assert retry(shard, first.id).accepted
    maybe_restart()
    assert held(shard) == (first.id, "waiting")
    by_ack(shard, first.id)
    assert held(shard) is None


@pytest.mark.parametrize("end", [by_ack, by_death])
@pytest.mark.parametrize("options", [{}, {"unique_ttl_ms": 9_000}])
def test_a_job_whose_key_has_another_holder_is_not_retried(shard, end, options):
    first = push(shard, "a", unique="key")
    end(shard, first.id)
    holder = push(shard, "b", unique="key", **options)
    answer = retry(shard, first.id)

    assert statuses(answer) == [(0, Status.CONFLICT)]
    assert "key" in answer.exceptions[0][2]
    cancel(shard, holder.id)
    assert retry(shard, first.id).accepted


def test_of_two_dead_jobs_with_one_key_the_first_is_retried(shard):
    answer = []
    for name in "ab":
        answer.append(push(shard, name, unique="key"))
        by_death(shard, None)
    assert statuses(retry(shard, *(call.id for call in answer))) == [(1, Status.CONFLICT)]


def test_a_key_that_a_dead_job_still_holds_for_a_time_lets_it_live_again(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000)
    by_death(shard, first.id)
    assert retry(shard, first.id, at=1_000).accepted
    shard.restart()
    assert held(shard, at=4_999) == (first.id, "waiting")
    assert held(shard, at=5_000) is None, "until acceptance and its time, not later"


def test_a_job_retried_after_the_time_of_its_key_does_not_hold_it_again(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=1_000)
    by_death(shard, first.id)
    tick(shard, at=2_000)
    retry(shard, first.id)
    assert held(shard) is None, "held until acceptance + unique_ttl, neither earlier nor later"


def test_a_retried_holder_that_is_cancelled_frees_its_time(shard):
    first = push(shard, "a", unique="key", unique_ttl_ms=5_000)
    by_death(shard, first.id)
    retry(shard, first.id)
    cancel(shard, first.id)
    assert held(shard) is None


def test_a_key_is_kept_while_its_worker_comes_and_goes(shard):
    first = push(shard, "a", unique="key")
    pull(shard, client="w-1")
    goodbye(shard, "w-1")
    assert held(shard) == (first.id, "waiting")
    pull(shard, client="w-2")
    sweep(shard)
    assert held(shard) == (first.id, "active")


def test_clean_of_delayed_jobs_frees_their_keys(shard):
    push(shard, "a", unique="key", delay_ms=5_000)
    assert clean(shard, DELAYED) == 1
    assert held(shard) is None


def test_the_key_of_a_job_is_shown(shard):
    assert view(shard, push(shard, "a", unique="key").id)["unique"] == "key"
