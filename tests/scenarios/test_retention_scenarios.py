"""What is forgotten, when, and what answers for it afterwards."""

import pytest

from pyq.job import COMPLETED
from pyq.limits import (
    AGING_MS,
    COMPLETED_KEPT_DEFAULT,
    COMPLETED_MS_MIN,
    RETENTION_JOBS_MAX,
    TOMBSTONE_MS_MAX,
    TOMBSTONES_MAX,
)
from tests.support.shards import (
    MONO_0,
    REPEAT,
    WALL_0,
    a_shard,
    ack,
    counts,
    fail,
    page,
    pull,
    push,
    repeat,
    tick,
    view,
)


def complete(shard, count, queue="emails", **options):
    """Complete many jobs; returns their ids in order of their end."""
    done = []
    while count:
        some = min(count, 1_000)
        push(shard, *["x"] * some, queue=queue, payload=b"", **options)
        jobs = pull(shard, queue, jobs_max=some).jobs
        ack(shard, *jobs)
        done += [job.id for job in jobs]
        count -= some
    return done


def completed_ids(shard, queue="emails"):
    found, after = [], 0
    while after is not None:
        views, after = page(shard, queue=queue, state=COMPLETED, after=after, limit=1_000)
        found += [seen["id"] for seen in views]
    return found


def test_a_queue_keeps_its_last_thousand_completed_jobs():
    shard = a_shard(checked=False)
    done = complete(shard, COMPLETED_KEPT_DEFAULT + 10)
    tick(shard, at=COMPLETED_MS_MIN + 1_000)

    assert completed_ids(shard) == done[10:]
    assert counts(shard)["emails"] == {"completed": COMPLETED_KEPT_DEFAULT}
    shard.checked = True
    shard.restart()


def test_no_completed_job_is_forgotten_in_its_first_minute():
    shard = a_shard(checked=False)
    complete(shard, COMPLETED_KEPT_DEFAULT + 10)
    for at in range(0, COMPLETED_MS_MIN + 1, 1_000):
        tick(shard, at=at)
    assert counts(shard)["emails"] == {"completed": COMPLETED_KEPT_DEFAULT + 10}


def test_what_is_not_over_the_bound_is_kept_for_ever():
    shard = a_shard(checked=False)
    done = complete(shard, COMPLETED_KEPT_DEFAULT)
    tick(shard, at=100 * COMPLETED_MS_MIN)

    assert completed_ids(shard) == done
    assert shard.shard.next_wakeup(shard.clock.now()) is None


def test_each_queue_keeps_its_own():
    shard = a_shard(checked=False)
    complete(shard, COMPLETED_KEPT_DEFAULT + 5)
    complete(shard, 7, queue="sms")
    tick(shard, at=COMPLETED_MS_MIN + 1_000)

    assert counts(shard)["emails"] == {"completed": COMPLETED_KEPT_DEFAULT}
    assert counts(shard)["sms"] == {"completed": 7}


def test_a_large_backlog_is_forgotten_in_bounded_passes_that_follow_at_once():
    shard = a_shard(checked=False)
    complete(shard, COMPLETED_KEPT_DEFAULT + 2 * RETENTION_JOBS_MAX + 1)
    shard.clock.at = COMPLETED_MS_MIN + 1_000
    forgotten = []
    for _ in range(4):
        tick(shard)
        forgotten.append(sum(len(effects.forgotten) for effects in shard.effects))

    assert forgotten == [RETENTION_JOBS_MAX, RETENTION_JOBS_MAX, 1, 0]


def test_the_oldest_end_goes_first():
    shard = a_shard(checked=False)
    push(shard, "late", priority=-1)
    complete(shard, COMPLETED_KEPT_DEFAULT)
    shard.clock.at = 5_000
    late = pull(shard).job
    ack(shard, late)
    tick(shard, at=COMPLETED_MS_MIN + 10_000)

    assert late.id in completed_ids(shard), "accepted first, but it ended last"


def test_the_oldest_end_goes_first_after_a_restart_too():
    # Was a bug (I33): recovery.py files completed jobs in order of acceptance, not of their end.
    shard = a_shard(checked=False)
    push(shard, "late", priority=-1)
    complete(shard, COMPLETED_KEPT_DEFAULT)
    shard.clock.at = 5_000
    late = pull(shard).job
    ack(shard, late)
    shard.restart()
    tick(shard, at=COMPLETED_MS_MIN + 10_000)

    assert late.id in completed_ids(shard)


def test_dead_jobs_and_jobs_that_can_still_run_are_never_forgotten():
    shard = a_shard(checked=False)
    dead = push(shard, "a", attempts=1)
    fail(shard, pull(shard).job)
    push(shard, "b", queue="other")
    complete(shard, COMPLETED_KEPT_DEFAULT + 5)
    for _ in range(3):
        tick(shard, at=shard.clock.at + 30 * 24 * 3_600_000)

    assert view(shard, dead.id)["state"] == "dead"
    assert pull(shard, "other").names == "b"


def test_a_job_that_is_not_kept_leaves_at_once():
    shard = a_shard()
    push(shard, "a", keep_completed=False)
    ack(shard, pull(shard).job)

    assert counts(shard)["emails"] == {}
    assert page(shard) == ([], None)


# --- tombstones -------------------------------------------------------------------------


def pretend_many_tombstones(shard, excess):
    """As if a million older jobs had ended on this shard before those of the test."""
    shard.state.tombstones_count += TOMBSTONES_MAX - shard.state.tombstones_count + excess


def test_the_oldest_tombstones_beyond_the_bound_are_trimmed():
    shard = a_shard(checked=False)
    old = push(shard, "a", keep_completed=False)
    a = pull(shard).job
    acked_old = ack(shard, a)
    push(shard, "b", keep_completed=False, at=1_000)
    b = pull(shard).job
    acked_young = ack(shard, b)
    pretend_many_tombstones(shard, excess=1)
    tick(shard, at=2_000)

    assert repeat(shard, acked_old).stale, "nothing is known of it any more"
    assert repeat(shard, acked_young).replayed
    assert repeat(shard, old).exceptions[0][1] != 1, "and it is never accepted again"
    assert shard.state.tombstones_count == TOMBSTONES_MAX


def test_tombstones_of_custom_ids_are_not_trimmed():
    shard = a_shard()
    push(shard, "a", job_id="order-1", keep_completed=False)
    ack(shard, pull(shard).job)
    pretend_many_tombstones(shard, excess=1)
    tick(shard, at=2_000)

    assert push(shard, "a", job_id="order-1").exceptions[0][2][0] == "exists"


def test_tombstones_of_custom_ids_are_not_counted():
    # Was a bug (architecture 5): lifecycle counts them and the trim then takes plain ones in their
    # stead. A shard that completed a million jobs with custom ids since its start trims every
    # plain tombstone within a second: repeats of acks are STALE, those of pushes UNKNOWN.
    shard = a_shard()
    plain = push(shard, "a", keep_completed=False)
    acked = ack(shard, pull(shard).job)
    pretend_many_tombstones(shard, excess=0)
    push(shard, "b", job_id="order-1", keep_completed=False)
    ack(shard, pull(shard).job)
    tick(shard, at=2_000)

    assert repeat(shard, acked).replayed
    assert repeat(shard, plain).exceptions[0][2][0] == "exists"


@pytest.mark.parametrize("ended", ["completed", "dead"])
def test_a_job_whose_record_is_kept_is_found_although_many_ended_after_it(ended):
    # Was a bug (I1, I33): ended jobs are found by way of their tombstones, which are trimmed even
    # while the record is kept: LIST shows the job, GET and RESULT do not know it, and a
    # repeated push of a dead job older than the horizon is UNKNOWN.
    shard = a_shard(checked=False)
    pushed = push(shard, "a", attempts=1)
    job = pull(shard).job
    ack(shard, job) if ended == "completed" else fail(shard, job)
    pretend_many_tombstones(shard, excess=1)
    tick(shard, at=2_000)

    assert [seen["id"] for seen in page(shard)[0]] == [pushed.id]
    assert view(shard, pushed.id)["state"] == ended


def test_trimming_keeps_up_with_jobs_that_are_not_kept():
    # Was a bug (I32): 2,000 tombstones a second at most, so a shard that ends more jobs a second
    # which are not kept grows without bound. Forgetting jobs goes on at once; so should this.
    shard = a_shard(checked=False)
    complete(shard, 1, keep_completed=False)
    pretend_many_tombstones(shard, excess=3 * RETENTION_JOBS_MAX)
    tick(shard, at=2_000)

    wakeup_at = shard.shard.next_wakeup(shard.clock.now())
    assert wakeup_at is not None
    assert wakeup_at <= MONO_0 + 2_000, "there is more to trim"


def test_a_push_after_trimming_still_accepts_what_is_new():
    shard = a_shard(checked=False)
    complete(shard, 3, keep_completed=False)
    pretend_many_tombstones(shard, excess=3)
    tick(shard, at=2_000)
    young = push(shard, "c", flags=REPEAT)

    assert young.accepted
    assert view(shard, young.id)["created_at"] == WALL_0 + 2_000


@pytest.mark.parametrize("job_id", ["", "order-1"])
def test_tombstones_and_custom_ids_are_forgotten_after_seven_days(job_id):
    shard = a_shard(checked=False)
    push(shard, "a", job_id=job_id, keep_completed=False)
    ack(shard, pull(shard).job)
    acked = push(shard, "a", job_id=job_id) if job_id else None
    assert acked is None or not acked.accepted
    tick(shard, at=TOMBSTONE_MS_MAX - 1_000)
    assert len(shard.store._tombstones) == 1
    tick(shard, at=TOMBSTONE_MS_MAX + AGING_MS)

    assert not shard.store._tombstones
    assert not shard.store._custom
    assert push(shard, "a", job_id=job_id).accepted


def test_the_tombstone_of_a_kept_record_never_ages():
    shard = a_shard(checked=False)
    dead = push(shard, "a", attempts=1, job_id="order-1")
    fail(shard, pull(shard).job)
    for days in range(1, 30):
        tick(shard, at=days * 24 * 3_600_000)

    assert view(shard, dead.id)["state"] == "dead"
    assert not push(shard, "a", job_id="order-1").accepted
