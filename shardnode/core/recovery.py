"""From records to memory: what a shard knows after a start is what it knew before.

Leases keep their tokens and get one fresh lease time, so a worker that survived finishes
normally. Everything else in memory is a function of the records.
"""

from collections.abc import Iterable

from pyq.job import ACTIVE, COMPLETED, DEAD, DELAYED, WAITING
from pyq.limits import TIMEOUT_GRACE_MS
from shardnode.core.effects import Now
from shardnode.core.retention import note_finished
from shardnode.core.state import Job, LeaseEnd, Puller, ShardState


def restore(state: ShardState, jobs: Iterable[Job], now: Now) -> None:
    """Put stored jobs, in order of acceptance, back into the indexes of an empty state."""
    waiting: list[Job] = []
    completed: list[Job] = []
    for job in jobs:
        job.queue.counts[job.state] += 1
        if job.state is COMPLETED:
            completed.append(job)
            continue
        if job.state is DEAD:
            job.queue.dead[job.seq] = None
            continue
        state.jobs[job.id] = job
        if job.options.job_id:
            job.queue.custom[job.options.job_id] = job
        if job.state is WAITING:
            waiting.append(job)
        elif job.state is DELAYED:
            state.timers.delay(job)
        elif job.state is ACTIVE:
            _restore_lease(state, job, now)
    completed.sort(key=lambda job: job.updated_at)
    for job in completed:
        job.queue.finished.add(job.updated_at, (job.seq,))
        note_finished(state, job.queue)
    waiting.sort(key=lambda job: job.ready)
    for job in waiting:
        job.queue.line.add([job])
    state.sweep_at = now.mono_ms + state.sweep_period_ms


def _restore_lease(state: ShardState, job: Job, now: Now) -> None:
    lease = job.lease
    assert lease is not None, "an active job has a lease"
    lease.end = LeaseEnd.HELD
    lease.beat_at = now.mono_ms
    grant = lease.grant
    if grant.jobs_count == 0:
        state.grants[grant.request_id] = []
        key = (grant.request_id[:8], grant.queue)
        puller = state.pullers.setdefault(key, Puller())
        puller.grants.append(grant)
        puller.newest = max(puller.newest, int.from_bytes(grant.request_id[8:], "big"))
    grant.jobs_count += 1
    state.grants[grant.request_id].append(job)
    state.processing[job.seq] = job
    if job.options.timeout_ms:
        state.timers.limit(now.mono_ms + job.options.timeout_ms + TIMEOUT_GRACE_MS, job, lease)
