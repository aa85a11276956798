"""CANCEL of a running job: its worker is told at once, and keeps lease, slot, key and group
until it confirms or its lease ends; then nothing of the job is kept."""

import pytest

from pyq.errors import Status
from pyq.messages import Ack, Cancel, Heartbeat, Pull
from tests.support.sayings import exists, settle_all, statuses
from tests.support.shards import (
    REPEAT,
    ack,
    cancel,
    configure,
    counts,
    events,
    fail,
    get,
    goodbye,
    heartbeat,
    page,
    promote,
    pull,
    push,
    release,
    repeat,
    result,
    retry,
    stall,
    sweep,
    tick,
    undelivered,
    update,
    view,
)

REQUESTED = [(0, Status.OK, "cancel_requested")]
CANCELLED = [(0, Status.OK, "cancelled")]


def a_running_job(shard, **options):
    """A job leased by `w-1`, and the pull that leased it."""
    push(shard, "a", **options)
    pulled = pull(shard, client="w-1")
    return pulled.job, pulled


# --- the request ------------------------------------------------------------------------------


def test_a_running_job_is_only_marked(shard, maybe_restart):
    job, _ = a_running_job(shard)
    assert cancel(shard, job.id).exceptions == REQUESTED
    maybe_restart()
    seen = view(shard, job.id)
    assert (seen["state"], seen["cancel_requested"]) == ("active", True)
    assert counts(shard)["emails"] == {"active": 1}
    assert cancel(shard, job.id).exceptions == REQUESTED, "as often as somebody asks"
    assert cancel(shard, job.id, flags=REPEAT).exceptions == REQUESTED


def test_one_message_may_cancel_jobs_in_any_state(shard):
    job, _ = a_running_job(shard)
    delayed = push(shard, "b", delay_ms=60_000)
    waiting = push(shard, "c")
    done = push(shard, "d", priority=1)
    ack(shard, pull(shard).job)
    dead = push(shard, "e", priority=1, attempts=1)
    fail(shard, pull(shard).job)
    answer = cancel(shard, delayed.id, job.id, done.id, waiting.id, dead.id, job.id, waiting.id)

    assert [(index, status) for index, status, _ in answer.exceptions] == [
        (1, Status.OK),
        (2, Status.CONFLICT),
        (4, Status.CONFLICT),
        (5, Status.OK),
        (6, Status.OK),
    ]
    assert [answer.exceptions[at][2] for at in (0, 3, 4)] == [
        "cancel_requested",
        "cancel_requested",
        "gone",
    ]
    assert counts(shard)["emails"] == {"active": 1, "completed": 1, "dead": 1}


# --- the worker is told -----------------------------------------------------------------------


def test_the_parked_heartbeat_is_told_to_beat_again_at_once(shard):
    job, _ = a_running_job(shard)
    parked = heartbeat(shard, job, worker="w-1", wait_ms=5_000)
    other = heartbeat(shard, worker="w-2", wait_ms=5_000)
    cancel(shard, job.id)
    assert parked.body == (1, (), ("beat",))
    assert other.waits
    assert heartbeat(shard, job, worker="w-1", wait_ms=5_000).exceptions == REQUESTED


def test_what_was_said_is_said_again_but_no_reason_to_hurry(shard):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    assert heartbeat(shard, job, worker="w-1", wait_ms=5_000).exceptions == REQUESTED
    later = heartbeat(shard, job, worker="w-1", wait_ms=5_000)
    assert later.waits
    cancel(shard, job.id)
    tick(shard, at=5_000)
    assert later.exceptions == REQUESTED


def test_a_second_job_that_is_cancelled_is_a_reason_to_hurry(shard):
    push(shard, *"ab")
    jobs = pull(shard, client="w-1", jobs_max=2).jobs
    cancel(shard, jobs[0].id)
    heartbeat(shard, *jobs, worker="w-1", wait_ms=5_000)
    parked = heartbeat(shard, *jobs, worker="w-1", wait_ms=5_000)
    assert parked.waits
    cancel(shard, jobs[1].id)
    assert parked.body[2] == ("beat",)
    assert statuses(heartbeat(shard, *jobs, worker="w-1", wait_ms=5_000)) == [
        (0, Status.OK),
        (1, Status.OK),
    ]


def test_a_stale_token_is_answered_at_once_beside_what_was_said(shard):
    push(shard, *"ab")
    a, b = pull(shard, client="w-1", jobs_max=2).jobs
    cancel(shard, a.id)
    heartbeat(shard, a, b, worker="w-1", wait_ms=5_000)
    ack(shard, b)
    answer = heartbeat(shard, a, b, worker="w-1", wait_ms=5_000)
    assert statuses(answer) == [(0, Status.OK), (1, Status.STALE_TOKEN)]


def test_a_worker_that_does_not_register_hears_it_with_its_next_heartbeat(shard):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    assert heartbeat(shard, job).exceptions == REQUESTED
    assert heartbeat(shard, job).exceptions == REQUESTED


def test_the_request_survives_a_restart_and_is_said_again_at_once(shard):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    heartbeat(shard, job, worker="w-1", wait_ms=5_000)
    shard.restart()
    assert heartbeat(shard, job, worker="w-1", wait_ms=5_000).exceptions == REQUESTED
    assert heartbeat(shard, job, worker="w-1", wait_ms=5_000).waits


def test_a_heartbeat_and_a_cancel_of_one_turn(shard):
    job, _ = a_running_job(shard)
    worker = heartbeat(shard, worker="w-1").command.worker
    beat = Heartbeat(shard.origin("worker-h"), [(job.id, job.token)], worker, 5_000)
    beating, cancelled = shard.send(beat, Cancel(shard.origin("admin"), [(job.id,)]))
    assert beating.body[2] == ("beat",)
    assert cancelled.exceptions == REQUESTED


def test_a_pull_and_a_cancel_of_one_turn(shard):
    pushed = push(shard, "a")
    pulled, cancelled = shard.send(
        Pull(shard.origin("w-1"), "w-1", ("emails",)),
        Cancel(shard.origin("admin"), [(pushed.id,)]),
    )
    assert cancelled.exceptions == REQUESTED
    assert ack(shard, pulled.job).exceptions == CANCELLED


# --- confirmations ------------------------------------------------------------------------------


def by_ack(shard, job, pulled):
    assert ack(shard, job, result=b"r").exceptions == CANCELLED


def by_fail(shard, job, pulled):
    assert fail(shard, job, error="stopped", result=b"r").exceptions == CANCELLED


def by_unrecoverable_fail(shard, job, pulled):
    assert fail(shard, job, unrecoverable=True).exceptions == CANCELLED


def by_release(shard, job, pulled):
    assert release(shard, job).exceptions == CANCELLED


def by_late_release(shard, job, pulled):
    assert release(shard, job, delay_ms=5_000).exceptions == CANCELLED


def by_stall(shard, job, pulled):
    stall(shard, job)


def by_timeout(shard, job, pulled):
    tick(shard, at=6_000)


def by_goodbye(shard, job, pulled):
    goodbye(shard, "w-1")


def by_undelivered_reply(shard, job, pulled):
    undelivered(shard, pulled)


def by_a_newer_pull(shard, job, pulled):
    pull(shard, client="w-1", last_received=0)


CONFIRMATIONS = (by_ack, by_fail, by_unrecoverable_fail, by_release, by_late_release, by_stall,
                 by_timeout, by_goodbye, by_undelivered_reply, by_a_newer_pull)  # fmt: skip


@pytest.mark.parametrize("confirm", CONFIRMATIONS)
def test_nothing_is_kept_once_it_is_confirmed_or_the_lease_ends(shard, confirm, maybe_restart):
    job, pulled = a_running_job(shard, timeout_ms=1_000, job_id="order-1", unique="key")
    waiting = result(shard, job.id, wait_ms=60_000)
    cancel(shard, job.id)
    assert waiting.waits
    confirm(shard, job, pulled)

    assert waiting.body == ("cancelled", None, "")
    maybe_restart()
    assert counts(shard)["emails"] == {}
    assert page(shard)[0] == []
    assert get(shard, job.id) == []
    assert result(shard, job.id).body == ("cancelled", None, "")
    assert exists(push(shard, "a", job_id="order-1")) == (job.id, "cancelled")
    assert statuses(retry(shard, job.id)) == [(0, Status.NOT_FOUND)]
    assert cancel(shard, job.id, flags=REPEAT).exceptions == [(0, Status.OK, "gone")]
    assert push(shard, "b", unique="key").accepted


@pytest.mark.parametrize("confirm", CONFIRMATIONS[:-1])
def test_slot_key_and_group_are_held_until_then(shard, confirm):
    """So that two jobs of a group never run together."""
    configure(shard, concurrency=1)
    job, pulled = a_running_job(shard, timeout_ms=1_000, group="g", unique="key")
    push(shard, "b", group="g")
    push(shard, "c")
    cancel(shard, job.id)
    parked = pull(shard, client="w-2", wait_ms=60_000)
    assert exists(push(shard, "d", unique="key", on_conflict="replace")) == (job.id, "active")
    assert parked.waits
    confirm(shard, job, pulled)
    assert parked.names == "b"


@pytest.mark.parametrize("confirm", [by_stall, by_timeout])
def test_a_worker_that_comes_later_is_stale(shard, confirm):
    job, pulled = a_running_job(shard, timeout_ms=1_000)
    cancel(shard, job.id)
    confirm(shard, job, pulled)
    for answer in (ack(shard, job), fail(shard, job), release(shard, job), heartbeat(shard, job)):
        assert statuses(answer) == [(0, Status.STALE_TOKEN)]


@pytest.mark.parametrize("settle", [ack, fail, release])
def test_a_repeated_confirmation_is_answered_alike(shard, settle, maybe_restart):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    confirmed = settle(shard, job)
    maybe_restart()
    assert repeat(shard, confirmed).exceptions == CANCELLED


def test_a_confirmation_named_twice_is_answered_twice(shard):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    answer = ack(shard, job, job)
    assert answer.exceptions[0] == CANCELLED[0]
    assert answer.exceptions[1][1] == Status.OK


def test_of_a_batch_only_the_cancelled_ones_are_gone(shard):
    push(shard, *"abc")
    a, b, c = pull(shard, jobs_max=3).jobs
    cancel(shard, b.id)
    assert ack(shard, a, b, c).exceptions == [(1, Status.OK, "cancelled")]
    assert counts(shard)["emails"] == {"completed": 2}


def test_a_cancel_and_an_ack_of_one_turn(shard):
    job, _ = a_running_job(shard)
    cancelled, acked = shard.send(
        Cancel(shard.origin("admin"), [(job.id,)]),
        Ack(shard.origin("worker-a"), [(job.id, job.token, b"r")]),
    )
    assert cancelled.exceptions == REQUESTED
    assert acked.exceptions == CANCELLED
    shard.restart()
    assert counts(shard)["emails"] == {}


def test_an_ack_and_a_cancel_of_one_turn(shard):
    job, _ = a_running_job(shard)
    acked, cancelled = shard.send(
        Ack(shard.origin("worker-a"), [(job.id, job.token, b"r")]),
        Cancel(shard.origin("admin"), [(job.id,)]),
    )
    assert acked.accepted
    assert statuses(cancelled) == [(0, Status.CONFLICT)]


def test_a_stale_token_confirms_nothing(shard):
    push(shard, "a", backoff=[0, 1, 0, 0, []])
    old = pull(shard).job
    stall(shard, old)
    new = pull(shard).job
    cancel(shard, new.id)
    assert ack(shard, old).stale
    assert release(shard, new).exceptions == CANCELLED


def test_a_cancelled_job_is_neither_changed_nor_promoted(shard):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    assert statuses(update(shard, job.id, priority=1)) == [(0, Status.CONFLICT)]
    assert promote(shard, job.id).exceptions == [(0, Status.OK, ("again", "active"))]


def test_suspicion_alone_takes_nothing_away(shard):
    job, _ = a_running_job(shard)
    cancel(shard, job.id)
    sweep(shard, at=16_000)
    assert heartbeat(shard, job).exceptions == REQUESTED
    assert counts(shard)["emails"] == {"active": 1}


def test_an_event_says_that_it_was_cancelled(shard):
    job, _ = a_running_job(shard)
    epoch, after, _, _ = events(shard).body
    cancel(shard, job.id)
    fail(shard, job)
    told = events(shard, epoch=epoch, after=after).body[3]
    assert [(row[1], row[6]) for row in told] == [("removed", ("cancelled",))]


def test_a_job_between_two_attempts_is_gone_at_once(shard):
    job, _ = a_running_job(shard)
    fail(shard, job)
    assert cancel(shard, job.id).accepted
    tick(shard, at=10_000)
    assert settle_all(shard) == ""
