"""Priority: the higher first. Ties by readiness; lifo jobs before those, the newest first."""

from pyq.limits import PRIORITY_MAX
from pyq.messages import Change, Counts, Update
from tests.support.sayings import bulk, settle_all
from tests.support.shards import (
    ack,
    cancel,
    configure,
    fail,
    goodbye,
    pause,
    promote,
    pull,
    push,
    release,
    retry,
    stall,
    tick,
    update,
)

LIFO = {"lifo": True}


def priorities(shard):
    """How many wait under each priority, highest first, as COUNTS says it."""
    ((_, counted, by_priority),) = shard.send(
        Counts(shard.origin("admin"), "emails", priorities=True)
    )[0].body[0]
    assert sum(count for _, count in by_priority) == counted.get("waiting", 0)
    return [tuple(pair) for pair in by_priority]


# --- priority -------------------------------------------------------------------------------------


def test_the_higher_priority_runs_first_and_ties_run_in_order(shard, maybe_restart):
    bulk(
        shard,
        a={},
        b={"priority": -1},
        c={"priority": PRIORITY_MAX},
        d={},
        e={"priority": 1},
        f={"priority": -PRIORITY_MAX},
        g={"priority": 1},
    )
    maybe_restart()
    assert settle_all(shard) == "cegadbf"


def test_ties_are_decided_by_readiness_not_by_acceptance(shard, maybe_restart):
    push(shard, "a", delay_ms=100)
    push(shard, "b")
    tick(shard, at=100)
    maybe_restart()
    push(shard, "c")
    assert settle_all(shard) == "bac"


def test_one_pull_takes_across_priorities_in_order(shard):
    bulk(shard, a={}, b={"priority": 2}, c={"priority": 1})
    assert pull(shard, jobs_max=9).names == "bca"


def test_waiting_jobs_are_counted_by_priority(shard, maybe_restart):
    bulk(
        shard,
        a={},
        b={"priority": 5},
        c={"priority": 5, "group": "g"},
        d={"priority": 7, "group": "g"},
        e={"priority": 9, "delay_ms": 100},
        f={"priority": -3, "group": "h"},
    )
    pause(shard, group="h")
    maybe_restart()
    assert priorities(shard) == [(7, 1), (5, 2), (0, 1), (-3, 1)]
    pull(shard, jobs_max=2)
    assert priorities(shard) == [(7, 1), (0, 1), (-3, 1)], "d is behind, f is paused: both wait"


# --- lifo -----------------------------------------------------------------------------------------


def test_lifo_jobs_run_newest_first(shard, maybe_restart):
    push(shard, *"ab", **LIFO)
    maybe_restart()
    push(shard, *"cd", **LIFO)
    assert settle_all(shard) == "dcba"


def test_lifo_jobs_run_before_the_others_of_their_priority_only(shard, maybe_restart):
    bulk(shard, a={}, b=LIFO, c={"priority": 1}, d={"priority": -1, **LIFO}, e={}, f=LIFO)
    maybe_restart()
    assert settle_all(shard) == "cfbaed"


def test_lifo_counts_from_readiness(shard, maybe_restart):
    push(shard, "a", delay_ms=100, **LIFO)
    push(shard, "b", **LIFO)
    tick(shard, at=100)
    maybe_restart()
    assert settle_all(shard) == "ab"


def test_lifo_jobs_that_come_again_join_at_the_front(shard, maybe_restart):
    push(shard, *"ab", backoff=[100, 1, 100, 0, []], **LIFO)
    fail(shard, pull(shard).job)
    push(shard, "c", **LIFO)
    maybe_restart()
    tick(shard, at=100)
    maybe_restart()
    assert settle_all(shard) == "bca"


def test_a_lifo_job_that_is_given_back_keeps_its_place(shard, maybe_restart):
    push(shard, *"abc", **LIFO)
    c = pull(shard).job
    push(shard, "d", **LIFO)
    release(shard, c)
    maybe_restart()
    assert settle_all(shard) == "dcba"


def test_several_lifo_jobs_given_back_at_once_keep_their_order(shard, maybe_restart):
    push(shard, *"abcd", **LIFO)
    pull(shard, client="w-1", jobs_max=3)
    goodbye(shard, "w-1")
    maybe_restart()
    assert settle_all(shard) == "dcba"


def test_a_retried_dead_lifo_job_joins_at_the_front(shard, maybe_restart):
    a = push(shard, "a", attempts=1, **LIFO)
    fail(shard, pull(shard).job)
    push(shard, "b", **LIFO)
    retry(shard, a.id)
    maybe_restart()
    assert settle_all(shard) == "ab"


def test_lifo_across_a_stall_and_a_promotion(shard, maybe_restart):
    a = push(shard, "a", delay_ms=9_000_000, **LIFO)
    push(shard, "b", **LIFO)
    stall(shard, pull(shard).job)
    tick(shard, at=shard.clock.at + 5_000)
    promote(shard, a.id)
    maybe_restart()
    push(shard, "c", **LIFO)
    assert settle_all(shard) == "cab"


def test_a_lifo_job_changes_its_priority(shard, maybe_restart):
    pushed = push(shard, *"abc", **LIFO)
    push(shard, "d", priority=1)
    update(shard, pushed.ids[0], priority=1)
    maybe_restart()
    assert settle_all(shard) == "adcb"


def test_a_cancelled_lifo_job_leaves_the_rest_in_order(shard, maybe_restart):
    pushed = push(shard, *"abc", **LIFO)
    cancel(shard, pushed.ids[1])
    maybe_restart()
    push(shard, "d", **LIFO)
    assert settle_all(shard) == "dca"


def test_lifo_and_fifo_of_one_message_and_a_limit(shard, maybe_restart):
    configure(shard, concurrency=1)
    bulk(shard, a={}, b=LIFO, c={"group": "g"}, d=LIFO, e={"group": "g"})
    maybe_restart()
    assert settle_all(shard) == "dbace"


def test_many_priorities_set_back_and_forth_leave_a_clean_line(shard):
    shard.checked = False
    pushed = push(shard, *"x" * 100)
    last = push(shard, "y", priority=-5)
    for priority in (3, 0, 4, 0):
        items = [Change(job_id, priority=priority) for job_id in pushed.ids]
        shard.send(Update(shard.origin("admin"), items))
    shard.checked = True
    update(shard, last.id, priority=1)
    assert pull(shard).names == "y"
    assert shard.state.queues["emails"].line.entries_count() < 250
    ack(shard, *pull(shard, jobs_max=999).jobs)
    assert pull(shard).jobs == []
