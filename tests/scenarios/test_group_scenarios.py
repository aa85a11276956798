"""FIFO groups: one member runs at a time, in order of first readiness; others flow past."""

import pytest

from pyq.job import ACTIVE, WAITING
from pyq.messages import Ack
from tests.support.sayings import a_push, bulk, settle_all
from tests.support.shards import (
    ack,
    cancel,
    clean,
    configure,
    counts,
    drain,
    fail,
    goodbye,
    obliterate,
    page,
    pause,
    promote,
    pull,
    push,
    release,
    resume,
    retry,
    stall,
    state_of,
    tick,
    undelivered,
    update,
)

AT_ONCE = [0, 1, 0, 0, []]


def runs(shard, **fields):
    return pull(shard, jobs_max=9, **fields)


# --- one at a time, in order ------------------------------------------------------------------


def test_one_member_runs_at_a_time_and_in_order(shard, maybe_restart):
    push(shard, *"abc", group="g")
    maybe_restart()
    for name in "abc":
        leased = runs(shard)
        assert leased.names == name
        maybe_restart()
        assert runs(shard).jobs == []
        ack(shard, leased.job)


def test_other_groups_and_jobs_without_one_flow_past(shard, maybe_restart):
    bulk(shard, a={"group": "g"}, b={"group": "g"}, c={"group": "h"}, d={}, e={"group": "h"})
    maybe_restart()
    assert runs(shard).names == "acd"


def test_groups_of_two_queues_are_not_the_same(shard):
    push(shard, "a", group="g")
    push(shard, "b", group="g", queue="sms")
    assert pull(shard, "emails", "sms", jobs_max=9).names == "ab"


def test_those_behind_count_as_waiting(shard, maybe_restart):
    push(shard, *"abc", group="g", priority=2)
    pull(shard)
    maybe_restart()
    assert counts(shard)["emails"] == {"waiting": 2, "active": 1}
    assert [seen["name"] for seen in page(shard, state=WAITING)[0]] == ["b", "c"]


def test_priority_compares_heads_only(shard, maybe_restart):
    bulk(shard, a={"group": "g"}, b={"group": "g", "priority": 9}, c={"priority": 1}, d={})
    maybe_restart()
    assert settle_all(shard) == "cabd"


def test_a_member_competes_by_the_time_of_its_own_readiness(shard, maybe_restart):
    bulk(shard, a={"group": "g"}, b={}, c={"group": "g"}, d={})
    maybe_restart()
    assert settle_all(shard) == "abcd"


def test_a_parked_pull_gets_the_next_member_when_the_one_before_ends(shard):
    push(shard, *"ab", group="g")
    first = pull(shard).job
    parked = pull(shard, client="w-2", wait_ms=10_000)
    assert parked.waits
    ack(shard, first)
    assert parked.names == "b"


def test_an_ack_and_a_push_of_one_turn(shard):
    push(shard, "a", group="g")
    job = pull(shard).job
    parked = pull(shard, client="w-2", wait_ms=10_000)
    command = Ack(shard.origin("worker-a"), [(job.id, job.token, None)])
    shard.send(command, a_push(shard, b={"group": "g"}, c={"group": "g"}))
    assert parked.names == "b"


# --- what holds a group ---------------------------------------------------------------------------


def test_an_initial_delay_does_not_hold_the_group(shard, maybe_restart):
    bulk(shard, a={"group": "g", "delay_ms": 1_000}, b={"group": "g"}, c={"group": "g"})
    maybe_restart()
    b = runs(shard).job
    assert b.name == "b"
    tick(shard, at=1_000)
    maybe_restart()
    ack(shard, b)
    assert settle_all(shard) == "ca", "by first readiness"


def fails(shard, job):
    fail(shard, job)


def stalls(shard, job):
    stall(shard, job)


def is_released_for_later(shard, job):
    release(shard, job, delay_ms=1_000)


def is_released(shard, job):
    release(shard, job)


def says_goodbye(shard, job):
    goodbye(shard, "worker")


@pytest.mark.parametrize("interrupt", [fails, stalls, is_released_for_later])
def test_a_member_that_comes_again_later_holds_its_place(shard, interrupt, maybe_restart):
    push(shard, *"abc", group="g")
    interrupt(shard, pull(shard).job)
    maybe_restart()
    assert counts(shard)["emails"] == {"waiting": 2, "delayed": 1}
    assert runs(shard).jobs == [], "nobody overtakes it"
    tick(shard, at=shard.clock.at + 10_000)
    maybe_restart()
    assert settle_all(shard) == "abc"


@pytest.mark.parametrize("interrupt", [is_released, says_goodbye])
def test_a_member_that_is_given_back_is_next(shard, interrupt, maybe_restart):
    push(shard, *"abc", group="g")
    interrupt(shard, pull(shard).job)
    maybe_restart()
    assert settle_all(shard) == "abc"


def test_an_undelivered_member_is_next(shard):
    push(shard, *"ab", group="g")
    undelivered(shard, pull(shard, client="w-1"))
    assert runs(shard).names == "a"


def test_a_retried_member_keeps_its_number_among_the_others_of_the_queue(shard, maybe_restart):
    bulk(shard, a={"group": "g", "backoff": [100, 1, 100, 0, []]}, b={}, c={"group": "g"})
    fails(shard, pull(shard).job)
    maybe_restart()
    tick(shard, at=200)
    maybe_restart()
    assert settle_all(shard) == "abc", "an ungrouped job would be at the tail"


def test_a_promoted_member_that_failed_goes_on_to_hold_its_group(shard, maybe_restart):
    a = push(shard, "a", group="g")
    push(shard, "b", group="g")
    fails(shard, pull(shard).job)
    promote(shard, a.id)
    maybe_restart()
    assert settle_all(shard) == "ab"


def test_a_promoted_member_that_never_ran_joins_the_tail(shard, maybe_restart):
    a = push(shard, "a", group="g", delay_ms=9_000)
    push(shard, "b", group="g")
    promote(shard, a.id)
    maybe_restart()
    assert settle_all(shard) == "ba"


def completes(shard, job):
    ack(shard, job)


def dies(shard, job):
    fail(shard, job, unrecoverable=True)


def is_cancelled(shard, job):
    cancel(shard, job.id)
    assert runs(shard, client="w-2").jobs == [], "two of a group never run together"
    release(shard, job)


def completes_late(shard, job):
    stall(shard, job)
    ack(shard, job)


@pytest.mark.parametrize("end", [completes, dies, is_cancelled, completes_late])
def test_the_end_of_a_member_exposes_the_next(shard, end, maybe_restart):
    push(shard, *"abc", group="g")
    end(shard, pull(shard).job)
    maybe_restart()
    assert settle_all(shard) == "bc"


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_waiting_member_that_is_taken_away_leaves_the_rest_in_order(shard, which, maybe_restart):
    pushed = push(shard, *"abc", group="g")
    cancel(shard, pushed.ids[which])
    maybe_restart()
    assert settle_all(shard) == "abc".replace("abc"[which], "")


def test_a_member_that_expires_leaves_the_rest_in_order(shard, maybe_restart):
    bulk(shard, a={"group": "g"}, b={"group": "g", "ttl_ms": 100}, c={"group": "g"})
    a = pull(shard).job
    tick(shard, at=100)
    maybe_restart()
    ack(shard, a)
    assert settle_all(shard) == "c"


def test_a_drain_leaves_the_one_that_runs(shard, maybe_restart):
    push(shard, *"abc", group="g")
    a = pull(shard).job
    assert drain(shard) == 2
    maybe_restart()
    push(shard, "d", group="g")
    assert runs(shard).jobs == []
    ack(shard, a)
    assert settle_all(shard) == "d"


def test_a_clean_in_small_pages_leaves_the_next_in_order(shard):
    push(shard, *"abcd", group="g")
    assert clean(shard, WAITING, limit=1) == 4
    push(shard, "e", group="g")
    assert settle_all(shard) == "e"


def test_a_dead_member_that_is_retried_joins_the_tail(shard, maybe_restart):
    bulk(shard, a={"group": "g", "attempts": 1}, b={"group": "g"})
    a = pull(shard).job
    fail(shard, a)
    push(shard, "c", group="g")
    retry(shard, a.id)
    maybe_restart()
    assert settle_all(shard) == "bca"


def test_a_completed_member_that_is_retried_joins_the_tail(shard, maybe_restart):
    pushed = push(shard, *"ab", group="g")
    ack(shard, pull(shard).job)
    maybe_restart()
    retry(shard, pushed.ids[0])
    assert settle_all(shard) == "ba"


# --- changes --------------------------------------------------------------------------------------


def test_a_waiting_member_that_is_put_off_leaves_its_group(shard, maybe_restart):
    pushed = push(shard, *"abc", group="g")
    update(shard, pushed.ids[0], delay_ms=1_000)
    maybe_restart()
    b = runs(shard).job
    assert b.name == "b"
    tick(shard, at=1_000)
    ack(shard, b)
    assert settle_all(shard) == "ca"


def test_a_member_behind_that_is_put_off_leaves_its_group(shard, maybe_restart):
    pushed = push(shard, *"abc", group="g")
    update(shard, pushed.ids[1], delay_ms=1_000)
    maybe_restart()
    ack(shard, runs(shard).job)
    assert runs(shard).names == "c"


def test_a_member_that_ran_and_is_put_off_holds_its_group(shard, maybe_restart):
    pushed = push(shard, *"ab", group="g")
    release(shard, pull(shard).job)
    update(shard, pushed.ids[0], delay_ms=1_000)
    maybe_restart()
    assert runs(shard).jobs == []
    tick(shard, at=1_000)
    assert settle_all(shard) == "ab"


def test_a_retried_member_that_is_put_off_does_not_hold_its_group(shard, maybe_restart):
    """It starts afresh: as if it had never run."""
    a = push(shard, "a", group="g", attempts=1)
    fail(shard, pull(shard).job)
    push(shard, "b", group="g")
    retry(shard, a.id)
    update(shard, a.id, delay_ms=1_000)
    maybe_restart()
    push(shard, "c", group="g")
    assert settle_all(shard) == "bc"
    tick(shard, at=1_000)
    assert settle_all(shard) == "a"


def test_a_changed_priority_leaves_the_order_in_the_group(shard, maybe_restart):
    pushed = push(shard, *"abc", group="g")
    push(shard, "d")
    update(shard, pushed.ids[1], priority=9)
    update(shard, pushed.ids[0], priority=-1)
    maybe_restart()
    assert settle_all(shard) == "dabc"


def test_a_priority_may_change_back_and_forth(shard, maybe_restart):
    pushed = push(shard, *"ab", group="g")
    push(shard, "c")
    for priority in (5, 0, 5, 0):
        update(shard, pushed.ids[0], priority=priority)
    maybe_restart()
    assert settle_all(shard) == "abc"


# --- more than one at a time --------------------------------------------------------------------


def test_as_many_run_as_the_queue_says(shard, maybe_restart):
    configure(shard, group_concurrency=2)
    push(shard, *"abcd", group="g")
    maybe_restart()
    a, b = runs(shard).jobs
    assert runs(shard).jobs == []
    ack(shard, b)
    maybe_restart()
    assert runs(shard).names == "c"
    ack(shard, a)
    assert runs(shard).names == "d"


def test_raising_the_number_lets_the_next_run_at_once(shard):
    push(shard, *"abc", group="g")
    pull(shard)
    parked = pull(shard, client="w-2", jobs_max=9, wait_ms=10_000)
    configure(shard, group_concurrency=3)
    assert parked.names == "bc"


def test_lowering_the_number_hides_those_that_wait(shard, maybe_restart):
    configure(shard, group_concurrency=3)
    push(shard, *"abcd", group="g")
    configure(shard, group_concurrency=1)
    maybe_restart()
    a = runs(shard).job
    assert runs(shard).jobs == []
    ack(shard, a)
    assert settle_all(shard) == "bcd"


def test_the_number_may_change_back_and_forth(shard, maybe_restart):
    push(shard, *"abc", group="g")
    for number in (3, 1, 2, 1, 3, 1):
        configure(shard, group_concurrency=number)
    maybe_restart()
    assert settle_all(shard) == "abc"


@pytest.mark.parametrize("interrupt", [is_released, is_released_for_later, fails])
def test_after_lowering_the_number_no_new_lease_exceeds_it(shard, interrupt, maybe_restart):
    """Two run when the number becomes one: what one of them gives back waits for the other."""
    configure(shard, group_concurrency=2)
    push(shard, *"ab", group="g")
    a, b = runs(shard).jobs
    configure(shard, group_concurrency=1)
    interrupt(shard, b)
    maybe_restart()
    shard.clock.at += 5_000
    assert runs(shard).jobs == []
    ack(shard, a)
    assert settle_all(shard) == "b"


def test_lowering_the_number_leaves_the_order_to_those_that_ran(shard, maybe_restart):
    """The first waits hidden, while the second holds the group in its backoff."""
    configure(shard, group_concurrency=2)
    push(shard, *"ab", group="g")
    a, b = runs(shard).jobs
    fail(shard, b, retry_in_ms=500)
    release(shard, a)
    configure(shard, group_concurrency=1)
    maybe_restart()
    tick(shard, at=500)
    assert len(runs(shard).jobs) == 1, "and a restart would expose the same one"


def test_a_member_hidden_after_it_ran_may_be_put_off(shard, maybe_restart):
    configure(shard, group_concurrency=2)
    pushed = push(shard, *"ab", group="g")
    release(shard, *runs(shard).jobs)
    configure(shard, group_concurrency=1)
    update(shard, pushed.ids[1], delay_ms=1_000)
    maybe_restart()
    ack(shard, runs(shard).job)
    tick(shard, at=1_000)
    assert settle_all(shard) == "b"


# --- pauses -----------------------------------------------------------------------------------


def test_a_paused_group_stands_still_and_others_flow_past(shard, maybe_restart):
    push(shard, *"ab", group="g")
    push(shard, "c", group="h")
    pause(shard, group="g")
    maybe_restart()
    push(shard, "d", group="g")
    assert runs(shard).names == "c"
    resume(shard, group="g")
    maybe_restart()
    assert settle_all(shard) == "abd"


def test_a_group_may_be_paused_before_it_has_members(shard, maybe_restart):
    pause(shard, group="g")
    maybe_restart()
    push(shard, "a", group="g")
    parked = pull(shard, wait_ms=10_000)
    assert parked.waits
    resume(shard, group="g")
    assert parked.names == "a"


def test_a_group_paused_while_a_member_runs_hides_the_next(shard, maybe_restart):
    push(shard, *"ab", group="g")
    a = pull(shard).job
    pause(shard, group="g")
    maybe_restart()
    ack(shard, a)
    assert runs(shard).jobs == []
    resume(shard, group="g")
    assert runs(shard).names == "b"


@pytest.mark.parametrize("interrupt", [is_released, is_released_for_later, fails, stalls])
def test_what_is_given_back_to_a_paused_group_waits(shard, interrupt, maybe_restart):
    push(shard, *"ab", group="g")
    a = pull(shard).job
    pause(shard, group="g")
    interrupt(shard, a)
    shard.clock.at += 10_000
    maybe_restart()
    assert runs(shard).jobs == []
    resume(shard, group="g")
    assert settle_all(shard) == "ab"


def test_a_group_may_be_paused_again_and_again(shard, maybe_restart):
    push(shard, *"ab", group="g")
    for _ in range(3):
        pause(shard, group="g")
        resume(shard, group="g")
    maybe_restart()
    assert settle_all(shard) == "ab"


def test_a_released_member_survives_a_pause_of_its_group(shard):
    push(shard, *"ab", group="g")
    release(shard, pull(shard).job)
    pause(shard, group="g")
    resume(shard, group="g")
    assert settle_all(shard) == "ab"


def test_members_of_a_paused_group_may_be_changed_and_taken_away(shard, maybe_restart):
    pushed = push(shard, *"abcd", group="g")
    push(shard, "e")
    pause(shard, group="g")
    update(shard, pushed.ids[0], priority=3)
    update(shard, pushed.ids[1], delay_ms=500)
    cancel(shard, pushed.ids[2])
    maybe_restart()
    assert settle_all(shard) == "e"
    resume(shard, group="g", at=500)
    assert settle_all(shard) == "adb"


# --- all at once --------------------------------------------------------------------------------


def test_group_priority_pause_and_concurrency_together(shard, maybe_restart):
    configure(shard, concurrency=3, group_concurrency=2)
    bulk(
        shard,
        a={"group": "g", "priority": 1},
        b={"group": "g", "priority": 9},
        c={"group": "g", "priority": 9},
        d={"group": "h", "priority": 5},
        e={"priority": 7},
        f={"group": "h"},
    )
    pause(shard, group="h")
    maybe_restart()
    leased = runs(shard)
    assert leased.names == "bea", "two of g, none of h, three in all"
    parked = pull(shard, client="w-2", jobs_max=9, wait_ms=60_000)
    resume(shard, group="h")
    assert parked.waits, "three run"
    b, e, a = leased.jobs
    pause(shard)
    ack(shard, a, e)
    assert parked.waits, "the queue is paused"
    resume(shard)
    assert parked.names == "cd", "c is exposed now; b and these two make three"
    ack(shard, b)
    maybe_restart()
    assert runs(shard).names == "f"


def test_an_obliterated_group_leaves_nothing_behind(shard):
    configure(shard, group_concurrency=2)
    push(shard, *"abc", group="g")
    pause(shard, group="g")
    obliterate(shard)
    push(shard, *"de", group="g")
    assert runs(shard).names == "d", "neither the pause nor the number is left"


def test_many_groups_each_run_their_first(shard):
    shard.checked = False
    names = [f"{n}" for n in range(100)]
    for name in names:
        push(shard, *"ab", group=name)
    leased = pull(shard, jobs_max=1_000)
    assert leased.names == "a" * 100
    ack(shard, *leased.jobs)
    shard.checked = True
    assert pull(shard, jobs_max=1_000).names == "b" * 100


def test_a_member_is_active_only_once_however_often_the_pull_is_sent(shard):
    a = push(shard, *"ab", group="g").ids[0]
    pull(shard, client="w-1", sequence=1, last_received=0)
    pull(shard, client="w-1", sequence=2, last_received=0)
    assert state_of(shard, a) == "active"
    assert len(page(shard, state=ACTIVE)[0]) == 1
