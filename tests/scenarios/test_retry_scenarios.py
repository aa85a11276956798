"""RETRY: a dead letter, or a completed job, starts afresh, once, with its history."""

import pytest

from pyq.errors import Status
from pyq.wire import Flag
from tests.support.shards import a_shard, ack, counts, fail, pull, push, repeat, result, retry, view

NOBODY = b"\x01" * 16


def a_dead_job(shard, **options):
    pushed = push(shard, "a", attempts=1, **options)
    fail(shard, pull(shard).job, error="boom", result=b"exit 1")
    return pushed


@pytest.mark.parametrize("restarted", [False, True])
def test_a_dead_job_waits_again_as_if_it_had_never_run(restarted):
    shard = a_shard()
    dead = a_dead_job(shard, job_id="order-1")
    if restarted:
        shard.restart()
    assert retry(shard, dead.id).accepted

    assert counts(shard)["emails"] == {"waiting": 1}
    seen = view(shard, dead.id)
    assert (seen["state"], seen["attempt"], seen["failures"]) == ("waiting", 0, 0)
    assert (seen["reason"], seen["error"], seen["result"]) == (None, None, None)
    assert [error for _, _, error in seen["history"]] == ["boom"]
    job = pull(shard).job
    assert (job.attempt, job.job_id) == (1, "order-1")
    assert ack(shard, job, result=b"ok").accepted
    assert result(shard, dead.id).body == ("completed", b"ok", "")


def test_it_stands_at_the_tail_of_its_line():
    shard = a_shard()
    dead = a_dead_job(shard)
    push(shard, *"bc")
    retry(shard, dead.id)
    assert pull(shard, jobs_max=9).names == "bca"


def test_somebody_who_waits_gets_it():
    shard = a_shard()
    dead = a_dead_job(shard)
    parked = pull(shard, wait_ms=10_000)
    retry(shard, dead.id)
    assert parked.names == "a"


def test_it_may_die_again():
    shard = a_shard()
    dead = a_dead_job(shard)
    retry(shard, dead.id)
    fail(shard, pull(shard).job, error="again")
    shard.restart()

    assert view(shard, dead.id)["state"] == "dead"
    assert retry(shard, dead.id).accepted


def test_its_name_is_taken_while_it_lives_again():
    shard = a_shard()
    dead = a_dead_job(shard, job_id="order-1")
    retry(shard, dead.id)
    again = push(shard, "a", job_id="order-1")
    assert again.exceptions == [(0, Status.OK, ("exists", dead.id, "waiting", False))]


def test_jobs_are_answered_item_by_item():
    shard = a_shard()
    completed = push(shard, "done")
    ack(shard, pull(shard).job)
    dead = a_dead_job(shard)
    answer = retry(shard, NOBODY, completed.id, dead.id, dead.id)

    assert [(index, status) for index, status, _ in answer.exceptions] == [
        (0, Status.NOT_FOUND),
        (3, Status.OK),
    ]
    assert answer.exceptions[1][2] == ("again", "waiting")
    assert counts(shard)["emails"] == {"waiting": 2}


def test_a_repeat_changes_nothing():
    shard = a_shard()
    dead = a_dead_job(shard)
    retried = retry(shard, dead.id)
    assert repeat(shard, retried).exceptions == [(0, Status.OK, ("again", "waiting"))]
    ack(shard, pull(shard).job)
    shard.restart()
    assert repeat(shard, retried).exceptions == [(0, Status.OK, ("again", "completed"))]
    assert counts(shard)["emails"] == {"completed": 1}


def test_a_repeat_whose_first_sending_was_lost_is_carried_out():
    """As it would be for any request: that the job has completed says nothing about this one."""
    shard = a_shard()
    done = push(shard, "a")
    ack(shard, pull(shard).job)
    assert retry(shard, done.id, flags=Flag.REPEAT).accepted
    assert counts(shard)["emails"] == {"waiting": 1}


def test_another_request_retries_a_job_again():
    shard = a_shard()
    dead = a_dead_job(shard)
    retry(shard, dead.id)
    ack(shard, pull(shard).job)
    assert retry(shard, dead.id).accepted
