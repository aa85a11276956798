"""HEARTBEAT as a long poll, GOODBYE, WORKERS, STOP_WORKERS."""

import pytest

from pyq.errors import Status
from pyq.limits import PAGE_ENTRIES_MAX
from shardnode.core.operations.workers import FORGOTTEN_AFTER_MS
from tests.support.shards import (
    MONO_0,
    WALL_0,
    a_shard,
    ack,
    counts,
    fail,
    goodbye,
    heartbeat,
    pull,
    push,
    stop_workers,
    tick,
    undelivered,
    workers,
)

STOP = ("stop",)


def test_a_heartbeat_without_a_worker_is_answered_at_once():
    assert heartbeat(a_shard(), wait_ms=10_000).body == (0, (), ())


def test_a_heartbeat_waits_until_there_is_something_to_say():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    beat = heartbeat(shard, job, worker="w-1", wait_ms=5_000)
    assert beat.waits

    tick(shard, at=5_000)
    assert beat.body == (1, (), ())


def test_a_heartbeat_waits_no_longer_than_its_deadline():
    shard = a_shard()
    beat = heartbeat(shard, worker="w-1", wait_ms=5_000, deadline_ms=MONO_0 + 700)
    tick(shard, at=700)
    assert beat.body == (0, (), ())


def test_a_stale_item_is_told_at_once():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    ack(shard, job)
    beat = heartbeat(shard, job, worker="w-1", wait_ms=5_000)

    assert [(index, status) for index, status, _ in beat.exceptions] == [(0, Status.STALE_TOKEN)]


def test_the_next_heartbeat_of_a_worker_answers_the_one_before():
    shard = a_shard()
    first = heartbeat(shard, worker="w-1", wait_ms=5_000)
    second = heartbeat(shard, worker="w-1", wait_ms=5_000)

    assert first.body == (0, (), ())
    assert second.waits


def test_a_stop_reaches_a_worker_through_its_waiting_heartbeat():
    shard = a_shard()
    one = heartbeat(shard, worker="w-1", wait_ms=5_000)
    two = heartbeat(shard, worker="w-2", wait_ms=5_000)

    assert stop_workers(shard, "w-1").body == (1, ("w-1",))
    assert one.body == (0, (), STOP)
    assert two.waits
    assert stop_workers(shard).body == (2, ("w-1", "w-2"))
    assert two.body == (0, (), STOP)


def test_a_stop_reaches_a_worker_that_is_not_waiting_just_now():
    shard = a_shard()
    heartbeat(shard, worker="w-1", wait_ms=1_000)
    tick(shard, at=1_000)
    stop_workers(shard)

    assert heartbeat(shard, worker="w-1", wait_ms=1_000).body == (0, (), STOP)


def test_a_stop_reaches_a_worker_that_never_waits():
    # Was a bug: the directive is only put into the answer of a heartbeat that would wait.
    shard = a_shard()
    heartbeat(shard, worker="w-1")
    stop_workers(shard)

    assert heartbeat(shard, worker="w-1").body == (0, (), STOP)


def test_a_stop_reaches_a_worker_together_with_a_stale_item():
    # Was a bug: as above; the answer about the stale item leaves the directive out.
    shard = a_shard()
    push(shard, "a")
    job = pull(shard, client="w-1").job
    heartbeat(shard, job, worker="w-1")
    ack(shard, job)
    stop_workers(shard)

    beat = heartbeat(shard, job, worker="w-1", wait_ms=1_000)
    assert len(beat.exceptions) == 1
    assert beat.body[2] == STOP


def test_nobody_is_there_to_be_stopped():
    assert stop_workers(a_shard(), "nobody").body == (0, ())


def test_workers_are_listed_with_their_leases():
    shard = a_shard()
    push(shard, "a", "b")
    pull(shard, client="w-1", jobs_max=2)
    heartbeat(shard, worker="w-1")
    heartbeat(shard, worker="w-2")

    assert workers(shard) == {"w-1": 2, "w-2": 0}


def test_many_workers_are_listed_in_pages():
    shard = a_shard(checked=False)
    names = {f"w-{number}" for number in range(PAGE_ENTRIES_MAX + 1)}
    for name in names:
        heartbeat(shard, worker=name)
    assert workers(shard) == dict.fromkeys(names, 0)


def test_a_worker_that_is_silent_for_a_minute_is_forgotten():
    shard = a_shard()
    heartbeat(shard, worker="w-1")
    heartbeat(shard, worker="w-2", at=1)

    assert workers(shard, at=FORGOTTEN_AFTER_MS) == {"w-1": 0, "w-2": 0}
    assert workers(shard, at=FORGOTTEN_AFTER_MS + 1) == {"w-2": 0}


def test_a_restart_forgets_workers_until_they_beat_again():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard, client="w-1").job
    heartbeat(shard, job, worker="w-1")
    shard.restart()
    assert workers(shard) == {}

    assert heartbeat(shard, job, worker="w-1").accepted
    assert workers(shard) == {"w-1": 1}


def test_goodbye_gives_everything_back_uncharged():
    shard = a_shard()
    push(shard, *"abc")
    held = pull(shard, client="w-1", jobs_max=2).jobs
    other = pull(shard, client="w-2").job
    heartbeat(shard, *held, worker="w-1")

    assert goodbye(shard, "w-1").body == ()
    assert counts(shard)["emails"] == {"waiting": 2, "active": 1}
    assert workers(shard) == {}
    assert ack(shard, *held).stale
    assert ack(shard, other).accepted
    again = pull(shard, client="w-3", jobs_max=9)
    assert again.names == "ab"
    assert [(job.failures, job.attempt) for job in again.jobs] == [(0, 1), (0, 1)]


def test_goodbye_answers_the_waiting_heartbeat():
    shard = a_shard()
    beat = heartbeat(shard, worker="w-1", wait_ms=60_000)
    goodbye(shard, "w-1")
    assert beat.body == (0, (), ())


def test_goodbye_wakes_others_who_wait():
    shard = a_shard()
    push(shard, "a")
    pull(shard, client="w-1")
    parked = pull(shard, client="w-2", wait_ms=10_000)
    goodbye(shard, "w-1")

    assert parked.names == "a"


def test_goodbye_of_a_stranger_is_answered():
    assert goodbye(a_shard(), "nobody").body == ()


def test_goodbye_after_a_return_finds_nothing_more():
    shard = a_shard()
    push(shard, "a")
    pulled = pull(shard, client="w-1")
    undelivered(shard, pulled)
    goodbye(shard, "w-1")
    goodbye(shard, "w-1")

    assert counts(shard)["emails"] == {"waiting": 1}


def test_goodbye_leaves_the_leases_of_another_worker_of_the_same_name():
    # Was a bug: a rolling restart under a fixed name gave away what the new worker ran.
    shard = a_shard()
    push(shard, *"ab")
    old = pull(shard, client="old", worker="mailer").job
    new = pull(shard, client="new", worker="mailer").job
    goodbye(shard, "mailer", client="old")

    assert ack(shard, old).stale
    assert ack(shard, new).accepted


def test_a_stop_is_for_the_process_that_was_told_not_for_the_next_of_its_name():
    # Was a bug: a worker killed after `worker stop` was told to stop again after its restart.
    shard = a_shard()
    heartbeat(shard, worker="mailer")
    stop_workers(shard)

    assert heartbeat(shard, worker="mailer").body[2] == STOP
    assert heartbeat(shard, worker="mailer", started_at=WALL_0 + 1).body[2] == ()


@pytest.mark.parametrize("settle", [ack, fail])
def test_on_a_nearly_full_disk_results_wait_that_do_not_fit(settle):
    # Was a bug: large results of acks ate the reserve, until the shard could not even start.
    shard = a_shard(checked=False)
    push(shard, *"abc")
    small, large, later = pull(shard, jobs_max=3).jobs
    shard.disk_low, shard.disk_room = True, 100
    assert settle(shard, small, result=bytes(60)).accepted
    refused = settle(shard, large, result=bytes(101))

    assert refused.status is Status.BUSY
    assert refused.body[1] > 0, "it says when to try again"
    shard.disk_low = False
    assert settle(shard, large, later, result=bytes(101)).accepted
