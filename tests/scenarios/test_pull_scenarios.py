"""PULL: leases now, or as soon as there is something; a repeat never leases twice."""

import pytest

from pyq.errors import Status
from pyq.limits import BATCH_BYTES_MAX, KIB, MIB
from pyq.messages import Ack, Origin, Pull
from tests.support.shards import (
    MONO_0,
    REPEAT,
    a_shard,
    ack,
    counts,
    fail,
    goodbye,
    heartbeat,
    pull,
    push,
    release,
    repeat,
    stall,
    state_of,
    tick,
    undelivered,
    unpull,
    view,
)


def test_a_pull_leases_what_waits():
    shard = a_shard()
    pushed = push(shard, "a", payload=b"data", attempts=5, timeout_ms=60_000, job_id="order-1")
    job = pull(shard, client="w-1", at=7).job

    assert (job.id, job.name, job.payload, job.queue) == (pushed.id, "a", b"data", "emails")
    assert (job.attempt, job.failures, job.attempts) == (1, 0, 5)
    assert (job.timeout_ms, job.job_id) == (60_000, "order-1")
    assert len(job.token) == 20
    assert view(shard, pushed.id)["worker"] == "w-1"
    assert state_of(shard, pushed.id) == "active"


def test_a_pull_that_will_not_wait_is_answered_empty():
    pulled = pull(a_shard(), lease_ms=1_234)
    assert pulled.body == (1_234, ())


def test_no_job_is_leased_twice():
    shard = a_shard()
    push(shard, "a", "b")

    assert pull(shard, client="one").names + pull(shard, client="two").names == "ab"
    assert pull(shard, client="three").names == ""


def test_every_lease_has_a_token_of_its_own():
    shard = a_shard()
    push(shard, *"abcdef")
    jobs = pull(shard, jobs_max=3, client="one").jobs + pull(shard, jobs_max=3, client="two").jobs

    assert len({job.token for job in jobs}) == 6


def test_two_pulls_of_one_turn_get_different_tokens():
    shard = a_shard()
    push(shard, "a", "b")
    pulls = [Pull(shard.origin(client), client, ("emails",)) for client in ("one", "two")]
    one, two = shard.send(*pulls)

    assert one.job.token != two.job.token


# --- waiting ----------------------------------------------------------------------------


def test_a_push_wakes_the_pull_that_waits():
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000)
    assert parked.waits

    push(shard, "a", at=500)
    assert parked.names == "a"


def test_a_due_job_wakes_the_pull_that_waits():
    shard = a_shard()
    push(shard, "a", delay_ms=1_000)
    parked = pull(shard, wait_ms=10_000)
    tick(shard, at=999)
    assert parked.waits

    tick(shard, at=1_000)
    assert parked.names == "a"


def test_a_released_job_wakes_the_pull_that_waits():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard, client="one").job
    parked = pull(shard, client="two", wait_ms=10_000)
    release(shard, job)

    assert parked.job.fence > job.fence


def test_a_retried_job_wakes_the_pull_that_waits():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard, client="one").job
    parked = pull(shard, client="two", wait_ms=10_000)
    fail(shard, job, retry_in_ms=0)

    assert parked.job.failures == 1


def test_who_waits_longest_is_served_first():
    shard = a_shard()
    parked = [pull(shard, client=client, wait_ms=10_000) for client in ("one", "two", "three")]
    push(shard, "a", "b")

    assert [call.names for call in parked[:2]] == ["a", "b"]
    assert parked[2].waits


def test_a_parked_pull_takes_all_that_one_push_brings():
    shard = a_shard()
    first = pull(shard, client="one", jobs_max=3, wait_ms=10_000)
    second = pull(shard, client="two", jobs_max=3, wait_ms=10_000)
    push(shard, *"abcde")

    assert (first.names, second.names) == ("abc", "de")


def test_a_pull_that_waited_in_vain_is_answered_empty():
    shard = a_shard()
    parked = pull(shard, wait_ms=1_000)
    tick(shard, at=999)
    assert parked.waits

    tick(shard, at=1_000)
    assert parked.jobs == []
    push(shard, "a", at=1_001)
    assert pull(shard).names == "a", "nobody else got it"


def test_the_shard_asks_to_be_woken_when_a_wait_is_over():
    shard = a_shard()
    pull(shard, wait_ms=1_000)
    assert shard.shard.next_wakeup(shard.clock.now()) == MONO_0 + 1_000


def test_nobody_gets_a_lease_after_his_deadline():
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000, deadline_ms=MONO_0 + 3_000)
    push(shard, "a", at=3_000)

    assert parked.jobs == []
    assert counts(shard)["emails"] == {"waiting": 1}


def test_a_pull_that_comes_after_its_deadline_does_nothing():
    shard = a_shard()
    push(shard, "a")
    pulled = pull(shard, at=5_000, deadline_ms=MONO_0 + 5_000)

    assert pulled.waits
    assert counts(shard)["emails"] == {"waiting": 1}


# --- several queues, bounds -------------------------------------------------------------


def test_queues_are_tried_in_the_order_in_which_they_are_named():
    shard = a_shard()
    push(shard, "a", "b", queue="low")
    push(shard, "c", queue="high")
    pulled = pull(shard, "high", "low", jobs_max=2)

    assert [(job.queue, job.name) for job in pulled.jobs] == [("high", "c"), ("low", "a")]


def test_a_pull_waits_on_all_its_queues_and_is_answered_once():
    shard = a_shard()
    parked = pull(shard, "one", "two", jobs_max=5, wait_ms=10_000)
    push(shard, "a", queue="two")
    push(shard, "b", queue="one")

    assert parked.names == "a"
    assert pull(shard, "one").names == "b"


def test_jobs_max_bounds_the_sum_over_queues():
    shard = a_shard()
    push(shard, "a", "b", queue="one")
    push(shard, "c", "d", queue="two")

    assert pull(shard, "one", "two", jobs_max=3).names == "abc"


def test_a_reply_stops_at_the_byte_bound_but_carries_at_least_one_job():
    shard = a_shard(checked=False)
    push(shard, "a", "b", "c", payload=bytes(BATCH_BYTES_MAX // 2))
    push(shard, "d", payload=bytes(9 * MIB))
    push(shard, "e", payload=b"")

    assert pull(shard, jobs_max=9).names == "ab"
    assert pull(shard, jobs_max=9).names == "c"
    assert pull(shard, jobs_max=9).names == "d"
    assert pull(shard, jobs_max=9).names == "e"


def test_the_byte_bound_holds_over_several_queues():
    shard = a_shard(checked=False)
    push(shard, "a", "b", queue="one", payload=bytes(BATCH_BYTES_MAX // 2))
    push(shard, "c", queue="two", payload=bytes(KIB))

    assert pull(shard, "one", "two", jobs_max=3).names == "ab"
    assert pull(shard, "one", "two", jobs_max=3).names == "c"


@pytest.mark.parametrize("large_one_in", ["one", "two"])
def test_a_pull_reply_never_breaks_the_connection(large_one_in):
    # Was a bug (I32): payloads are bounded, but not what surrounds them, and the last job may bring
    # 10 MiB, in this queue or from the next. A reply of more than a frame may
    # have makes the router's socket drop the shard's connection, each time it is repeated.
    shard = a_shard(checked=False)
    for number in range(999):
        custom = f"{number:03}" + "\N{MUSICAL SYMBOL G CLEF}" * 509
        name = "\N{MUSICAL SYMBOL G CLEF}" * 256
        push(shard, name, queue="one", payload=bytes(4_190), job_id=custom)
    push(shard, "z", queue=large_one_in, payload=bytes(10 * MIB))

    pulled = pull(shard, "one", "two", jobs_max=1_000)  # the rig refuses a frame too large
    assert pulled.jobs


# --- repeats ----------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_pull_gets_the_same_leases_again(restarted):
    shard = a_shard()
    push(shard, *"abc")
    first = pull(shard, jobs_max=2)
    if restarted:
        shard.restart()
    again = repeat(shard, first, at=50)

    assert again.jobs == first.jobs
    assert pull(shard, client="other", jobs_max=9).names == "c"


def test_a_repeated_pull_gets_only_what_it_still_holds():
    shard = a_shard()
    push(shard, "a", "b")
    first = pull(shard, jobs_max=2)
    ack(shard, first.jobs[0])

    assert repeat(shard, first).jobs == first.jobs[1:]


def test_a_repeated_pull_keeps_the_order_of_its_leases_over_a_restart():
    # Was a bug (P7, minor): after a restart a pull's leases are listed in order of acceptance.
    shard = a_shard()
    push(shard, "b")
    push(shard, "a", priority=1)
    first = pull(shard, jobs_max=2)
    assert first.names == "ab"
    shard.restart()

    assert repeat(shard, first).names == "ab"


def test_a_repeat_takes_over_the_place_of_a_parked_pull():
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000)
    again = repeat(shard, parked, sender=(b"new-address",))
    push(shard, "a")

    assert parked.waits, "nobody listens there any more"
    assert again.names == "a"


def test_a_repeat_with_less_time_is_not_served_after_it():
    # Was a bug (architecture 4, minor): the parked entry takes over the origin of the repeat but
    # keeps the timer of the first sending, so this lease goes to nobody who waits.
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000, deadline_ms=MONO_0 + 10_000)
    repeat(shard, parked, at=1_000, deadline_ms=MONO_0 + 3_000)
    push(shard, "a", at=5_000)

    assert counts(shard)["emails"] == {"waiting": 1}


def test_a_pull_older_than_the_newest_is_superseded():
    shard = a_shard()
    push(shard, *"abc")
    pull(shard, sequence=5)
    late = pull(shard, sequence=4, flags=REPEAT)

    assert late.status is Status.SUPERSEDED
    assert counts(shard)["emails"] == {"waiting": 2, "active": 1}


def test_a_newer_pull_takes_the_place_of_the_one_that_waits():
    shard = a_shard()
    old = pull(shard, wait_ms=10_000)
    new = pull(shard, wait_ms=10_000)
    push(shard, "a")

    assert old.status is Status.SUPERSEDED
    assert new.names == "a"


def test_other_clients_and_other_queues_do_not_supersede():
    shard = a_shard()
    parked = [
        pull(shard, "emails", client="one", sequence=1, wait_ms=10_000),
        pull(shard, "emails", client="two", sequence=2, wait_ms=10_000),
        pull(shard, "sms", client="one", sequence=3, wait_ms=10_000),
    ]
    assert all(call.waits for call in parked)


def test_leases_of_a_reply_that_never_arrived_are_freed_by_the_next_pull():
    shard = a_shard()
    push(shard, "a", "b")
    lost = pull(shard, sequence=1, jobs_max=2)
    following = pull(shard, sequence=2, last_received=0, jobs_max=2)

    assert following.names == "ab", "they kept their places"
    assert [job.attempt for job in following.jobs] == [1, 1]
    assert [job.failures for job in following.jobs] == [0, 0], "nothing is charged"
    assert ack(shard, *lost.jobs).stale


def test_leases_that_the_client_knows_stay_with_it():
    shard = a_shard()
    push(shard, *"abc")
    first = pull(shard, sequence=1)
    second = pull(shard, sequence=2, last_received=1)
    lost = pull(shard, sequence=3, last_received=2)
    fourth = pull(shard, sequence=4, last_received=2)

    assert (first.names, second.names, lost.names, fourth.names) == ("a", "b", "c", "c")
    assert ack(shard, first.job, second.job, fourth.job).accepted


@pytest.mark.parametrize("first_queue", ["emails", "sms"])
def test_lost_leases_are_freed_after_a_restart_too(first_queue):
    # Was a bug for "sms" (P7): recovery.py files the grants of a puller under the queue of the job,
    # pull.py under the first queue that the pull names.
    shard = a_shard()
    push(shard, "a", queue="emails")
    queues = (first_queue, "emails")
    lost = pull(shard, *queues, sequence=1)
    assert lost.names == "a"
    shard.restart()

    assert pull(shard, *queues, sequence=2, last_received=0).names == "a"


# --- UNPULL, RETURN ---------------------------------------------------------------------


def test_a_withdrawn_pull_is_answered_empty():
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000)

    assert unpull(shard, parked).body == (1,)
    assert parked.jobs == []
    push(shard, "a")
    assert counts(shard)["emails"] == {"waiting": 1}


def test_a_pull_that_was_served_before_it_was_withdrawn_stays_served():
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000)
    push(shard, "a")

    assert unpull(shard, parked).body == (0,)
    assert ack(shard, parked.job).accepted


def test_what_could_not_be_delivered_goes_back_uncharged_to_its_place():
    shard = a_shard()
    push(shard, *"abc")
    lost = pull(shard, jobs_max=2)

    assert undelivered(shard, lost).body == (2,)
    again = pull(shard, client="other", jobs_max=3)
    assert again.names == "abc"
    assert [job.failures for job in again.jobs] == [0, 0, 0]
    assert undelivered(shard, lost).body == (0,), "a second RETURN finds nothing of it"
    assert ack(shard, *lost.jobs).stale


def test_after_a_return_the_same_pull_may_lease_anew():
    shard = a_shard()
    push(shard, "a")
    lost = pull(shard)
    undelivered(shard, lost)
    again = repeat(shard, lost)

    assert again.job.fence > lost.job.fence
    assert ack(shard, lost.job).stale
    assert ack(shard, again.job).accepted


# --- disk low ---------------------------------------------------------------------------


def test_a_full_disk_refuses_pulls_but_takes_acks():
    shard = a_shard()
    push(shard, "a", "b")
    job = pull(shard).job
    shard.disk_low = True

    assert pull(shard).status is Status.DISK_FULL
    assert ack(shard, job).accepted
    shard.disk_low = False
    assert pull(shard).names == "b"


def test_who_waited_while_the_disk_was_full_is_served_when_there_is_space():
    shard = a_shard()
    push(shard, "a", delay_ms=1_000)
    parked = pull(shard, wait_ms=60_000)
    shard.disk_low = True
    tick(shard, at=1_000)
    assert parked.waits
    shard.disk_low = False
    tick(shard, at=2_000)

    assert not parked.waits, "a pull waits although a job does"


def test_a_repeated_pull_gets_its_leases_while_the_disk_is_low():
    # Was a bug (P7, I31): a full disk leases nothing new, but this pull holds its leases already;
    # DISK_FULL says that it holds none, so they stall and are charged.
    shard = a_shard()
    push(shard, "a")
    first = pull(shard)
    shard.disk_low = True

    assert repeat(shard, first).jobs == first.jobs


# --- turns of several commands ----------------------------------------------------------


@pytest.mark.parametrize("keep_completed", [True, False])
def test_a_repeated_pull_and_the_ack_of_its_job_in_one_turn(keep_completed):
    # Was a bug for False (crash): the ack removes the payload in the turn's commit, and the reply
    # to the repeat, encoded after it, wants the payload: KeyError in frames.py ends the shard.
    shard = a_shard()
    push(shard, "a", keep_completed=keep_completed)
    first = pull(shard)
    again = Pull(Origin(first.request_id, flags=REPEAT), "worker", ("emails",))
    done = Ack(shard.origin("worker-a"), [(first.job.id, first.job.token, None)])
    _, acked = shard.send(again, done)

    assert acked.accepted


def test_a_job_pushed_leased_and_released_in_one_turn_is_written_once():
    shard = a_shard()
    parked = pull(shard, wait_ms=10_000)
    push(shard, "a")

    (effects,) = shard.effects
    assert len(effects.accepted) == len(effects.changed) == 1
    assert parked.names == "a"


def test_a_worker_that_says_goodbye_does_not_get_its_job_back():
    # Was a bug: GOODBYE gives the job back, and the same turn leases it to the pull that the same
    # worker still has parked, so it goes to somebody who is known to be leaving.
    shard = a_shard()
    push(shard, "a")
    pull(shard, client="w", worker="w-1")
    heartbeat(shard, worker="w-1")
    parked = pull(shard, client="w", worker="w-1", wait_ms=10_000)
    assert parked.waits
    goodbye(shard, "w-1", client="w")

    assert parked.waits or parked.jobs == []
    assert counts(shard)["emails"] == {"waiting": 1}


def test_a_stalled_lease_is_not_given_again_to_a_repeat():
    shard = a_shard()
    push(shard, "a")
    first = pull(shard)
    stall(shard, first.job)

    assert repeat(shard, first).jobs == [], "it waits for its backoff, for whoever asks then"
