"""PROMOTE and UPDATE: priority, due time and payload of what waits or is delayed."""

import pytest

from pyq.errors import Status
from pyq.messages import Change, Promote, Pull, Update
from tests.support.sayings import a_push, bulk, settle_all, statuses
from tests.support.shards import (
    WALL_0,
    ack,
    cancel,
    counts,
    events,
    fail,
    promote,
    pull,
    push,
    release,
    repeat,
    stall,
    state_of,
    tick,
    update,
    view,
)

NOBODY = b"\1" * 16


# --- promote ------------------------------------------------------------------------------------


def test_a_delayed_job_waits_no_longer(shard, maybe_restart):
    pushed = push(shard, "a", delay_ms=60_000)
    parked = pull(shard, wait_ms=60_000)
    assert promote(shard, pushed.id).accepted
    assert parked.names == "a"
    maybe_restart()
    tick(shard, at=60_000)
    assert counts(shard)["emails"] == {"active": 1}


def test_a_promoted_job_joins_the_tail_of_its_priority(shard, maybe_restart):
    pushed = push(shard, "a", delay_ms=60_000)
    push(shard, *"bc")
    promote(shard, pushed.id)
    maybe_restart()
    assert settle_all(shard) == "bca"
    assert view(shard, pushed.id)["run_at"] is None


def test_a_backoff_may_be_cut_short(shard):
    pushed = push(shard, "a")
    fail(shard, pull(shard).job)
    assert promote(shard, pushed.id).accepted
    assert pull(shard).job.attempt == 2


def test_promotion_is_answered_job_by_job(shard):
    delayed = push(shard, "a", delay_ms=60_000)
    active = push(shard, "b")
    pull(shard)
    done = push(shard, "c")
    ack(shard, pull(shard).job)
    dead = push(shard, "d", attempts=1)
    fail(shard, pull(shard).job)
    gone = push(shard, "e")
    cancel(shard, gone.id)
    answer = promote(shard, delayed.id, delayed.id, active.id, done.id, dead.id, gone.id, NOBODY)
    assert [(index, status) for index, status, _ in answer.exceptions] == [
        (1, Status.OK),
        (2, Status.OK),
        (3, Status.CONFLICT),
        (4, Status.CONFLICT),
        (5, Status.NOT_FOUND),
        (6, Status.NOT_FOUND),
    ]
    assert [answer.exceptions[at][2] for at in (0, 1)] == [
        ("again", "waiting"),
        ("again", "active"),
    ]


def test_a_repeated_promotion_changes_nothing(shard):
    pushed = push(shard, "a", delay_ms=60_000)
    push(shard, "b")
    first = promote(shard, pushed.id)
    assert repeat(shard, first).exceptions == [(0, Status.OK, ("again", "waiting"))]
    assert settle_all(shard) == "ba"


def test_a_promotion_and_a_pull_of_one_turn(shard):
    pushed = push(shard, "a", delay_ms=60_000)
    _, pulled = shard.send(
        Promote(shard.origin("admin"), [(pushed.id,)]),
        Pull(shard.origin("w-1"), "w-1", ("emails",)),
    )
    assert pulled.names == "a"


# --- priority -----------------------------------------------------------------------------------


def test_a_waiting_job_goes_to_its_place_under_another_priority(shard, maybe_restart):
    pushed = push(shard, *"abc")
    bulk(shard, d={"priority": 1}, e={"priority": 1})
    update(shard, pushed.ids[1], priority=1)
    maybe_restart()
    assert settle_all(shard) == "bdeac", "accepted before d and e"


def test_a_priority_may_change_back_and_forth(shard, maybe_restart):
    pushed = push(shard, *"abc")
    for priority in (5, 0, 5, 0):
        update(shard, pushed.ids[1], priority=priority)
    maybe_restart()
    assert settle_all(shard) == "abc"


def test_the_priority_of_a_delayed_job_counts_when_it_is_ready(shard, maybe_restart):
    pushed = push(shard, "a", delay_ms=1_000)
    push(shard, "b")
    update(shard, pushed.id, priority=3)
    maybe_restart()
    tick(shard, at=1_000)
    assert settle_all(shard) == "ab"


def test_a_changed_priority_survives_failure_and_stall(shard, maybe_restart):
    pushed = push(shard, "a")
    update(shard, pushed.id, priority=3)
    fail(shard, pull(shard).job)
    maybe_restart()
    tick(shard, at=5_000)
    stall(shard, pull(shard).job)
    maybe_restart()
    assert view(shard, pushed.id)["priority"] == 3


def test_of_jobs_pushed_together_only_the_named_one_changes(shard, maybe_restart):
    pushed = push(shard, *"ab", tags=["x"])
    update(shard, pushed.ids[0], priority=7)
    maybe_restart()
    assert [view(shard, job_id)["priority"] for job_id in pushed.ids] == [7, 0]


def test_the_late_ack_of_a_job_whose_priority_changed_is_accepted(shard, maybe_restart):
    pushed = push(shard, "a", backoff=[0, 1, 0, 0, []])
    job = pull(shard).job
    stall(shard, job)
    update(shard, pushed.id, priority=3)
    maybe_restart()
    assert ack(shard, job).accepted
    assert pull(shard).jobs == []


def test_a_repeat_of_a_release_is_known_after_a_change(shard):
    pushed = push(shard, "a")
    released = release(shard, pull(shard).job)
    update(shard, pushed.id, priority=3)
    assert repeat(shard, released).replayed


# --- due time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"delay_ms": 5_000}, {"run_at": WALL_0 + 5_000}])
@pytest.mark.parametrize("delay_ms", [0, 1_000, 60_000])
def test_a_job_is_put_off_or_brought_forward(shard, changes, delay_ms, maybe_restart):
    pushed = push(shard, "a", delay_ms=delay_ms)
    update(shard, pushed.id, **changes)
    assert view(shard, pushed.id)["run_at"] == WALL_0 + 5_000
    maybe_restart()
    assert pull(shard, at=4_999).jobs == []
    assert pull(shard, at=5_000).names == "a"


def test_a_job_that_is_put_off_leaves_the_line(shard, maybe_restart):
    pushed = push(shard, *"abc")
    update(shard, pushed.ids[0], delay_ms=1_000)
    maybe_restart()
    assert counts(shard)["emails"] == {"waiting": 2, "delayed": 1}
    assert settle_all(shard) == "bc"
    assert pull(shard, at=1_000).names == "a"


@pytest.mark.parametrize("changes", [{"delay_ms": 0}, {"run_at": WALL_0 + 100}, {"run_at": 1}])
def test_a_time_that_has_come_is_a_promotion(shard, changes):
    pushed = push(shard, "a", delay_ms=60_000)
    parked = pull(shard, wait_ms=60_000)
    update(shard, pushed.id, at=100, **changes)
    assert parked.names == "a"


def test_a_waiting_job_that_is_due_already_keeps_its_place(shard):
    pushed = push(shard, *"ab")
    assert update(shard, pushed.ids[0], delay_ms=0).accepted
    assert settle_all(shard) == "ab"


def test_delay_and_priority_change_together(shard, maybe_restart):
    pushed = push(shard, *"ab")
    update(shard, pushed.ids[0], priority=9, delay_ms=1_000, payload=b"new")
    maybe_restart()
    tick(shard, at=1_000)
    leased = pull(shard, jobs_max=9).jobs
    assert [(job.name, job.payload) for job in leased] == [("a", b"new"), ("b", b"b")]


def test_a_backoff_may_be_made_longer(shard):
    pushed = push(shard, "a")
    fail(shard, pull(shard).job)
    update(shard, pushed.id, delay_ms=50_000)
    assert pull(shard, at=49_999).jobs == []
    assert pull(shard, at=50_000).job.attempt == 2


# --- payload --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [0, 1_000])
def test_the_payload_is_replaced(shard, delay_ms, maybe_restart):
    pushed = push(shard, "a", payload=b"old", delay_ms=delay_ms)
    update(shard, pushed.id, payload=b"something longer")
    assert view(shard, pushed.id)["payload"] == b"something longer"
    maybe_restart()
    assert pull(shard, at=delay_ms).job.payload == b"something longer"


def test_a_payload_may_become_empty(shard, maybe_restart):
    pushed = push(shard, "a", payload=b"old")
    update(shard, pushed.id, payload=b"")
    maybe_restart()
    assert pull(shard).job.payload == b""


def test_a_new_payload_and_a_pull_of_one_turn(shard):
    pushed = push(shard, "a", payload=b"old")
    _, pulled = shard.send(
        Update(shard.origin("admin"), [Change(pushed.id, payload=b"new")]),
        Pull(shard.origin("w-1"), "w-1", ("emails",)),
    )
    assert pulled.job.payload == b"new"


def test_no_payload_is_taken_while_the_disk_is_full(shard):
    pushed = push(shard, "a", payload=b"old")
    shard.disk_low = True
    assert statuses(update(shard, pushed.id, payload=b"new")) == [(0, Status.DISK_FULL)]
    assert update(shard, pushed.id, priority=1).accepted
    assert view(shard, pushed.id)["payload"] == b"old"


def test_a_repeated_push_of_a_changed_job_is_known(shard):
    pushed = push(shard, "a", payload=b"old")
    update(shard, pushed.id, payload=b"other size")
    ((_, status, detail),) = repeat(shard, pushed).exceptions
    assert (status, detail[0], detail[1]) == (Status.OK, "exists", pushed.id)


# --- what may not be changed ----------------------------------------------------------------------


def test_changes_are_answered_job_by_job(shard):
    active = push(shard, "b")
    pull(shard)
    done = push(shard, "c")
    ack(shard, pull(shard).job)
    dead = push(shard, "d", attempts=1)
    fail(shard, pull(shard).job)
    gone = push(shard, "e")
    cancel(shard, gone.id)
    waiting = push(shard, "a")
    ids = (active.id, waiting.id, done.id, dead.id, gone.id, NOBODY)
    items = [Change(job_id, priority=5) for job_id in ids]
    answer = shard.send(Update(shard.origin("admin"), items))[0]

    assert statuses(answer) == [
        (0, Status.CONFLICT),
        (2, Status.CONFLICT),
        (3, Status.CONFLICT),
        (4, Status.NOT_FOUND),
        (5, Status.NOT_FOUND),
    ]
    assert [view(shard, job_id)["priority"] for job_id in ids[:4]] == [0, 5, 0, 0]


def test_a_change_of_nothing_is_fine(shard):
    pushed = push(shard, *"ab", priority=2)
    assert update(shard, pushed.ids[0]).accepted
    assert update(shard, pushed.ids[0], priority=2).accepted
    assert settle_all(shard) == "ab"


def test_one_message_may_change_a_job_several_times(shard, maybe_restart):
    pushed = push(shard, *"ab")
    first = pushed.ids[0]
    items = [
        Change(first, priority=3),
        Change(first, delay_ms=1_000),
        Change(first, priority=-3),
        Change(first, run_at=1),
        Change(first, priority=0, payload=b"x"),
    ]
    assert shard.send(Update(shard.origin("admin"), items))[0].accepted
    maybe_restart()
    assert settle_all(shard) == "ba", "it was ready again, so it joined the tail"


def test_a_job_pushed_and_changed_in_one_turn(shard, maybe_restart):
    command = a_push(shard, a={"group": "g"}, b={"group": "g"}, c={"job_id": "one"})
    a, _, c = (job[0] for job in command.jobs)
    shard.send(
        command,
        Update(
            shard.origin("admin"),
            [Change(a, priority=2, payload=b"new"), Change(c, priority=9, delay_ms=50)],
        ),
        Promote(shard.origin("admin"), [(c,)]),
    )
    maybe_restart()
    job = pull(shard, at=50).job
    assert (job.name, job.job_id) == ("c", "one")
    ack(shard, job)
    assert pull(shard).job.payload == b"new"


def test_events_say_what_happened(shard):
    pushed = push(shard, *"ab", delay_ms=60_000)
    epoch, after, _, _ = events(shard).body
    promote(shard, pushed.ids[0])
    update(shard, pushed.ids[0], delay_ms=5_000)
    update(shard, pushed.ids[1], delay_ms=7_000)
    told = events(shard, epoch=epoch, after=after).body[3]
    assert [(row[1], row[5], row[6]) for row in told] == [
        ("waiting", "a", None),
        ("delayed", "a", (WALL_0 + 5_000,)),
        ("delayed", "b", (WALL_0 + 7_000,)),
    ]
    assert state_of(shard, pushed.ids[0]) == "delayed"
