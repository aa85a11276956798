"""PAUSE: nothing is leased, whoever waits goes on to wait; resume serves them."""

import pytest

from pyq.messages import Pause, Release
from tests.support.sayings import a_push, settle_all
from tests.support.shards import (
    ack,
    configure,
    counts,
    events,
    fail,
    goodbye,
    heartbeat,
    obliterate,
    pause,
    pull,
    push,
    release,
    resume,
    retry,
    stall,
    sweep,
    tick,
    undelivered,
    update,
)


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(shard, maybe_restart):
    push(shard, *"ab")
    assert pause(shard).body == (1,)
    maybe_restart()
    push(shard, "c", priority=9)
    assert pull(shard, jobs_max=9).jobs == []
    assert counts(shard)["emails"] == {"waiting": 3}
    maybe_restart()
    assert resume(shard).body == (1,)
    maybe_restart()
    assert settle_all(shard) == "cab"


def test_it_is_said_whether_anything_changed(shard):
    assert resume(shard).body == (0,)
    assert pause(shard).body == (1,)
    assert pause(shard).body == (0,)
    assert pause(shard, group="g").body == (1,)
    assert pause(shard, group="g").body == (0,)
    assert resume(shard, group="h").body == (0,)
    assert resume(shard, group="g").body == (1,)


def test_pulls_stay_parked_through_a_pause_and_are_served_after_it(shard):
    parked = pull(shard, wait_ms=60_000)
    pause(shard)
    later = pull(shard, client="w-2", wait_ms=60_000)
    push(shard, *"ab")
    tick(shard, at=10_000)
    assert parked.waits
    assert later.waits
    resume(shard)
    assert (parked.names, later.names) == ("a", "b")


def test_a_parked_pull_of_a_paused_queue_ends_in_its_time(shard):
    pause(shard)
    push(shard, "a")
    parked = pull(shard, wait_ms=1_000)
    tick(shard, at=1_000)
    assert parked.jobs == []


def test_a_pull_of_several_queues_gets_from_those_that_are_not_paused(shard):
    pause(shard)
    push(shard, "a")
    parked = pull(shard, "emails", "sms", wait_ms=60_000)
    push(shard, "b", queue="sms")
    assert parked.names == "b"


def is_released(shard, job):
    release(shard, job)


def fails(shard, job):
    fail(shard, job, retry_in_ms=0)


def stalls(shard, job):
    stall(shard, job)
    tick(shard, at=shard.clock.at + 5_000)


def is_undelivered(shard, job):
    undelivered(shard, is_undelivered.pulled)


def says_goodbye(shard, job):
    goodbye(shard, "worker")


def is_retried(shard, job):
    fail(shard, job, unrecoverable=True)
    retry(shard, job.id)


@pytest.mark.parametrize(
    "interrupt", [is_released, fails, stalls, is_undelivered, says_goodbye, is_retried]
)
def test_what_comes_back_to_a_paused_queue_waits(shard, interrupt):
    push(shard, "a")
    is_undelivered.pulled = pull(shard)
    job = is_undelivered.pulled.job
    pause(shard)
    parked = pull(shard, client="w-2", wait_ms=60_000)
    interrupt(shard, job)
    assert parked.waits
    resume(shard)
    assert parked.names == "a"


def test_what_runs_may_end_in_a_paused_queue(shard, maybe_restart):
    push(shard, *"ab")
    a, b = pull(shard, jobs_max=2).jobs
    pause(shard)
    maybe_restart()
    assert heartbeat(shard, a).body == (1, (), ())
    assert ack(shard, a).accepted
    stall(shard, b)
    assert ack(shard, b).accepted
    sweep(shard)
    assert counts(shard)["emails"] == {"completed": 2}


def test_delayed_jobs_become_ready_in_a_paused_queue(shard, maybe_restart):
    push(shard, "a", delay_ms=1_000)
    push(shard, "b", delay_ms=500)
    pause(shard)
    maybe_restart()
    tick(shard, at=500)
    tick(shard, at=1_000)
    maybe_restart()
    assert counts(shard)["emails"] == {"waiting": 2}
    resume(shard)
    assert settle_all(shard) == "ba"


def test_a_queue_may_be_paused_before_it_exists(shard, maybe_restart):
    pause(shard, "later")
    maybe_restart()
    push(shard, "a", queue="later")
    assert pull(shard, "later").jobs == []


def test_pause_and_resume_are_settings_like_others(shard):
    pause(shard)
    pause(shard, group="g")
    shown = configure(shard)
    assert (shown["paused"], shown["paused_groups"]) == (True, ("g",))
    push(shard, "a", group="g")
    parked = pull(shard, wait_ms=60_000)
    configure(shard, paused=False)
    assert parked.waits
    configure(shard, paused_groups=[])
    assert parked.names == "a"


def test_a_pause_and_a_push_of_one_turn(shard):
    parked = pull(shard, wait_ms=60_000)
    origin = shard.origin
    shard.send(Pause(origin("admin"), "emails", True), a_push(shard, a={}))
    assert parked.waits
    shard.send(Pause(origin("admin"), "emails", False), Pause(origin("admin"), "emails", True))
    assert parked.names == "a", "it was resumed for a moment"


def test_a_resume_and_a_release_of_one_turn(shard):
    push(shard, *"ab")
    a = pull(shard).job
    pause(shard)
    parked = pull(shard, client="w-2", jobs_max=9, wait_ms=60_000)
    shard.send(
        Release(shard.origin("worker-r"), [(a.id, a.token, 0)]),
        Pause(shard.origin("admin"), "emails", False),
    )
    assert parked.names == "ab"


def test_changes_in_a_paused_queue_hold_when_it_is_resumed(shard, maybe_restart):
    pushed = push(shard, *"abc")
    pause(shard)
    update(shard, pushed.ids[2], priority=1)
    update(shard, pushed.ids[0], delay_ms=1_000)
    maybe_restart()
    resume(shard)
    assert settle_all(shard) == "cb"


def test_a_pause_is_gone_with_its_queue_and_who_waits_is_served(shard):
    pause(shard)
    push(shard, "a")
    parked = pull(shard, wait_ms=60_000)
    obliterate(shard)
    assert parked.waits
    push(shard, "b")
    assert parked.names == "b"


def test_events_say_who_was_paused_and_resumed(shard):
    epoch, after, _, _ = events(shard).body
    pause(shard)
    pause(shard)
    pause(shard, group="g")
    resume(shard)
    resume(shard, group="g")
    told = events(shard, epoch=epoch, after=after).body[3]
    assert [(row[1], *row[3:]) for row in told] == [
        ("paused", "emails", None, None, ("",)),
        ("paused", "emails", None, None, ("g",)),
        ("resumed", "emails", None, None, ("",)),
        ("resumed", "emails", None, None, ("g",)),
    ]
