"""PUSH: every job is accepted once, however often it is sent, and waits in its place."""

import pytest

from pyq.errors import Status
from pyq.ids import time_of_id
from pyq.limits import PAYLOAD_BYTES_MAX, QUEUES_MAX, TOMBSTONES_MAX
from pyq.messages import Push
from pyq.options import check_options
from pyq.routes import shard_of, slot_of
from tests.support.shards import (
    REPEAT,
    WALL_0,
    a_shard,
    ack,
    counts,
    fail,
    get,
    new_job,
    pull,
    push,
    repeat,
    result,
    state_of,
    tick,
    view,
)


def test_a_pushed_job_waits():
    shard = a_shard()
    pushed = push(shard, "a", payload=b"\xc1\x00\xff")

    assert pushed.accepted
    seen = view(shard, pushed.id)
    assert (seen["state"], seen["queue"], seen["name"]) == ("waiting", "emails", "a")
    assert seen["payload"] == b"\xc1\x00\xff", "payload bytes out are payload bytes in (I39)"
    assert seen["created_at"] == WALL_0


def test_many_jobs_are_leased_in_the_order_in_which_they_were_pushed():
    shard = a_shard()
    push(shard, "a", "b", "c")
    push(shard, "d")

    assert pull(shard, jobs_max=10).names == "abcd"


def test_an_empty_batch_is_answered():
    pushed = push(a_shard())
    assert pushed.body == (0, ())


def test_a_job_pushed_again_while_it_lives_exists_once():
    shard = a_shard()
    first = push(shard, "a")
    again = push(shard, "a", ids=first.ids)

    assert again.exceptions == [(0, Status.OK, ("exists", first.id, "waiting", False))]
    assert counts(shard)["emails"] == {"waiting": 1}


def test_the_answer_for_an_existing_job_says_where_it_is_and_if_it_is_another():
    shard = a_shard()
    first = push(shard, "a")
    pull(shard)
    again = push(shard, "b", payload=b"longer than before", ids=first.ids)

    assert again.exceptions == [(0, Status.OK, ("exists", first.id, "active", True))]


def test_a_batch_that_names_one_job_twice_accepts_it_once():
    shard = a_shard()
    job_id = shard.an_id("emails")
    pushed = push(shard, "a", "a", ids=[job_id, job_id])

    assert pushed.exceptions == [(1, Status.OK, ("exists", job_id, "waiting", False))]
    assert pull(shard, jobs_max=2).names == "a"


def test_each_item_of_a_batch_is_answered_for_itself():
    shard = a_shard()
    known = push(shard, "b")
    jobs = [new_job(shard, "a", "emails"), *known.command.jobs, new_job(shard, "c", "emails")]
    (pushed,) = shard.send(Push(shard.origin("producer"), "emails", jobs))

    assert pushed.body[0] == 3
    assert [index for index, _, _ in pushed.exceptions] == [1]
    assert pull(shard, jobs_max=9).names == "bac"


def test_a_repeat_of_a_completed_job_meets_its_record():
    shard = a_shard()
    pushed = push(shard, "a")
    ack(shard, pull(shard).job)

    again = repeat(shard, pushed)
    assert again.exceptions == [(0, Status.OK, ("exists", pushed.id, "completed", False))]
    assert pull(shard).names == ""


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeat_of_a_forgotten_job_meets_its_tombstone(restarted):
    shard = a_shard()
    pushed = push(shard, "a", keep_completed=False)
    ack(shard, pull(shard).job)
    assert get(shard, pushed.id) == []
    if restarted:
        shard.restart()

    again = repeat(shard, pushed)
    assert again.exceptions == [(0, Status.OK, ("exists", pushed.id, "forgotten", False))]
    assert pull(shard).names == ""


def test_a_repeat_of_a_dead_job_is_not_a_new_job():
    shard = a_shard()
    pushed = push(shard, "a", attempts=1)
    fail(shard, pull(shard).job)

    assert repeat(shard, pushed).exceptions[0][2][2] == "dead"
    assert pull(shard).names == ""


def test_a_repeat_that_never_arrived_before_is_accepted():
    shard = a_shard()
    pushed = push(shard, "a", flags=REPEAT)

    assert pushed.accepted
    assert pull(shard).names == "a"


def test_a_repeat_older_than_the_oldest_tombstone_is_unknown_and_never_accepted():
    shard = a_shard()
    push(shard, "a", keep_completed=False)
    ack(shard, pull(shard).job)
    shard.state.tombstones_count += TOMBSTONES_MAX
    tick(shard, at=2_000)
    old = new_job(shard, "b", "emails")
    old = ((WALL_0 - 1).to_bytes(6, "big") + old[0][6:], *old[1:])
    origin = shard.origin("producer", flags=REPEAT)
    (pushed,) = shard.send(Push(origin, "emails", [old]))

    ((index, status, _),) = pushed.exceptions
    assert (index, status) == (0, Status.UNKNOWN)
    assert pull(shard).names == ""

    young = push(shard, "c", flags=REPEAT)
    assert time_of_id(young.id) > WALL_0
    assert young.accepted


# --- custom ids -------------------------------------------------------------------------


def test_a_custom_id_names_one_job_of_its_queue():
    shard = a_shard()
    first = push(shard, "a", job_id="order-1")
    second = push(shard, "a", job_id="order-1")

    assert second.exceptions == [(0, Status.OK, ("exists", first.id, "waiting", False))]
    assert counts(shard)["emails"] == {"waiting": 1}
    elsewhere = push(shard, "a", queue="sms", job_id="order-1")
    assert elsewhere.accepted, "a custom id is unique per queue, not per shard"


def test_a_custom_id_twice_in_one_batch():
    shard = a_shard()
    pushed = push(shard, "a", "b", job_id="order-1")

    assert pushed.exceptions == [(1, Status.OK, ("exists", pushed.ids[0], "waiting", True))]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_custom_id_holds_after_completion(restarted):
    shard = a_shard()
    first = push(shard, "a", job_id="order-1")
    ack(shard, pull(shard).job)
    if restarted:
        shard.restart()

    second = push(shard, "a", job_id="order-1")
    assert second.exceptions == [(0, Status.OK, ("exists", first.id, "completed", False))]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_custom_id_holds_after_its_job_was_forgotten(restarted):
    shard = a_shard()
    push(shard, "a", job_id="order-1", keep_completed=False)
    ack(shard, pull(shard).job)
    if restarted:
        shard.restart()

    ((index, status, detail),) = push(shard, "a", job_id="order-1").exceptions
    assert (index, status, detail[0], detail[2]) == (0, Status.OK, "exists", "forgotten")
    assert pull(shard).names == ""


def test_the_answer_for_a_forgotten_custom_id_names_the_job_that_had_it():
    # Was a bug (P10): push.py answers a tombstone under a custom id with the id of the *new* job,
    # which was never accepted, so the producer holds a handle of a job that never was.
    shard = a_shard()
    first = push(shard, "a", job_id="order-1", keep_completed=False)
    ack(shard, pull(shard).job)

    ((_, _, detail),) = push(shard, "a", job_id="order-1").exceptions
    assert detail[1] == first.id


def test_another_payload_under_the_custom_id_of_a_completed_job_is_a_mismatch():
    # Was a bug (P10): of a live job name and size were compared, of a stored one the name.
    shard = a_shard()
    push(shard, "a", payload=b"short", job_id="order-1")
    ack(shard, pull(shard).job)

    ((_, _, detail),) = push(shard, "a", payload=b"much longer", job_id="order-1").exceptions
    assert detail[3] is True


def test_a_custom_id_dies_with_a_dead_job_only_on_paper():
    shard = a_shard()
    first = push(shard, "a", job_id="order-1", attempts=1)
    fail(shard, pull(shard).job)

    second = push(shard, "a", job_id="order-1")
    assert second.exceptions == [(0, Status.OK, ("exists", first.id, "dead", False))]


# --- delay, priority --------------------------------------------------------------------


def test_a_delayed_job_is_not_leased_before_its_time():
    shard = a_shard()
    pushed = push(shard, "a", delay_ms=5_000)

    assert state_of(shard, pushed.id) == "delayed"
    assert pull(shard, at=4_999).names == ""
    assert pull(shard, at=5_000).names == "a"


def test_run_at_is_a_time_of_the_wall():
    shard = a_shard()
    pushed = push(shard, "a", run_at=WALL_0 + 5_000)
    assert view(shard, pushed.id)["run_at"] == WALL_0 + 5_000
    assert pull(shard, at=4_999).names == ""

    shard.clock.wall_shift = 1
    assert pull(shard).names == "a", "somebody set the clock forward, so it is due"


def test_a_run_at_in_the_past_means_now():
    shard = a_shard()
    pushed = push(shard, "a", run_at=1)

    assert state_of(shard, pushed.id) == "waiting"
    assert pull(shard).names == "a"


def test_the_shard_asks_to_be_woken_when_a_job_is_due():
    shard = a_shard()
    push(shard, "a", delay_ms=5_000)

    now = shard.clock.now()
    assert shard.shard.next_wakeup(now) == now.mono_ms + 5_000


def test_due_jobs_join_the_tail_of_their_priority():
    shard = a_shard()
    push(shard, "d", delay_ms=1_000)
    push(shard, "a")
    tick(shard, at=1_000)
    push(shard, "b")

    assert pull(shard, jobs_max=9).names == "adb"


def test_higher_priority_first_then_order_of_acceptance():
    shard = a_shard()
    for name, priority in [("e", 0), ("f", 0), ("g", -1), ("a", 7), ("c", 3), ("b", 7), ("d", 3)]:
        push(shard, name, priority=priority)

    assert pull(shard, jobs_max=3).names == "abc"
    shard.restart()
    assert pull(shard, jobs_max=9).names == "defg"


def test_a_delayed_job_of_high_priority_overtakes_nobody_before_its_time():
    shard = a_shard()
    push(shard, "a", priority=100, delay_ms=1_000)
    push(shard, "b")

    assert pull(shard).names == "b"
    assert pull(shard, at=1_000).names == "a"


def test_common_options_are_overlaid_by_those_of_a_job():
    shard = a_shard()
    common = check_options({"attempts": 7, "priority": 1})
    own = check_options({"priority": 2}, common)
    jobs = [(shard.an_id("emails"), "a", b"", common), (shard.an_id("emails"), "b", b"", own)]
    shard.send(Push(shard.origin("producer"), "emails", jobs))

    leased = pull(shard, jobs_max=2)
    assert leased.names == "ba"
    assert [job.attempts for job in leased.jobs] == [7, 7]


# --- refusals ---------------------------------------------------------------------------


def test_a_queue_of_another_shard_is_refused_and_leaves_nothing():
    names = [f"queue-{number}" for number in range(20)]
    stranger = next(name for name in names if shard_of(slot_of(name), 2) == 1)
    shard = a_shard(shard=0, shards_count=2)

    assert push(shard, "a", queue=stranger).status is Status.WRONG_SHARD
    assert pull(shard, stranger).status is Status.WRONG_SHARD
    assert counts(shard) == {}


def test_a_full_disk_refuses_pushes_before_they_are_applied():
    shard = a_shard()
    shard.disk_low = True
    pushed = push(shard, "a")

    assert pushed.status is Status.DISK_FULL
    assert pushed.body[1] > 0, "it says when to try again"
    assert counts(shard) == {}
    shard.disk_low = False
    assert push(shard, "a", ids=pushed.ids).accepted


def test_a_repeat_is_not_told_for_sure_that_an_accepted_job_was_refused():
    # Was a bug (P7, I31): DISK_FULL is a definite error ("did not and will not take effect"), but
    # push.py refuses before it looks whether the first sending was accepted.
    shard = a_shard()
    pushed = push(shard, "a")
    shard.disk_low = True

    again = repeat(shard, pushed)
    assert again.status in (Status.OK, Status.RETRY, Status.UNKNOWN)


def test_no_more_queues_than_the_bound():
    shard = a_shard(checked=False)
    for number in range(1, QUEUES_MAX):
        shard.state.queues[f"q{number}"] = None
    assert push(shard, "a", queue="last").accepted
    assert push(shard, "a", queue="one too many").status is Status.BUSY


def test_a_pull_of_many_new_queues_keeps_the_bound_too():
    # Was a bug (I32): pull.py checks the bound per name, before it makes any of them.
    shard = a_shard(checked=False)
    for number in range(1, QUEUES_MAX):
        shard.state.queues[f"q{number}"] = None
    pull(shard, "new-1", "new-2", "new-3", wait_ms=100)
    assert len(shard.state.queues) <= QUEUES_MAX


def test_the_largest_payload_travels_whole():
    shard = a_shard(checked=False)
    payload = bytes(PAYLOAD_BYTES_MAX)
    pushed = push(shard, "a", payload=payload)
    assert pull(shard).job.payload == payload
    assert result(shard, pushed.id).body[0] == "active"


def test_nothing_is_applied_after_the_deadline():
    shard = a_shard()
    origin = shard.origin("producer", deadline_ms=shard.now_ms + 100)
    shard.clock.at = 100
    (pushed,) = shard.send(Push(origin, "emails", [new_job(shard, "a", "emails")]))

    assert pushed.waits
    assert counts(shard) == {}
