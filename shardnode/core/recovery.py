"""From records to memory: what a shard knows after a start is what it knew before.

Leases keep their tokens and get one fresh lease time, so a worker that survived finishes
normally. Everything else in memory is a function of the records.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyq.job import ACTIVE, BLOCKED, COMPLETED, DEAD, DELAYED, WAITING
from pyq.limits import TIMEOUT_GRACE_MS
from pyq.messages import Row
from pyq.schedule import Schedule
from pyq.settings import Settings
from shardnode.core.dependencies import pin
from shardnode.core.effects import Now
from shardnode.core.lifecycle import keep_record
from shardnode.core.queues import holds_group, restore_groups
from shardnode.core.state import (
    Awaited,
    Job,
    LeaseEnd,
    Mailbag,
    Puller,
    ShardState,
    TimedKey,
    sweep_period,
)


@dataclass(slots=True)
class Loaded:
    """What a store knew when it was opened, but for its jobs."""

    epoch: int  # of this start: one more than the last, already on disk
    seq: int  # last acceptance or ready number given out
    tombstones_count: int  # without those of custom ids
    queues: list[tuple[int, str, Settings]]  # number, name, settings; by number
    # Queue, leases that counted when the last was granted, and when that was (wall).
    windows: list[tuple[int, int, int]]
    timed_keys: list[tuple[int, str, TimedKey]]  # queue, key
    mail: list[tuple[int, int, Row]]  # target, number; not confirmed yet, by number
    links: list[tuple[int, int, int]]  # other shard, last number sent to it, and received from it
    watchers: list[tuple[bytes, int]]  # job of this shard, shard where others depend on it
    schedules: list[Schedule] = field(default_factory=list)


def restore_queues(state: ShardState, loaded: Loaded, now: Now) -> None:
    """Put what was loaded back into an empty state, before its jobs."""
    state.counter = loaded.seq
    state.tombstones_count = loaded.tombstones_count
    for number, name, settings in loaded.queues:
        queue = state.add_queue(number, name, settings)
        if settings.auto_retry_ms or settings.dead_ms or settings.drop_oldest:
            state.tended[queue] = 0
    for number, leases, granted_at in loaded.windows:
        queue = state.queues_by_number[number]
        if now.wall_ms - granted_at <= queue.settings.rate_per_ms:
            queue.window.add(now.mono_ms, leases)  # as if granted just now: no clock is trusted
    for number, key, timed in loaded.timed_keys:
        queue = state.queues_by_number[number]
        queue.timed_keys[key] = timed
        state.timers.free_key(timed.until, queue, key)
    for other, sent, received in loaded.links:
        state.mail.setdefault(other, Mailbag()).sent = sent
        state.received[other] = received
    for target, number, row in loaded.mail:
        state.mail[target].rows.append((number, row))
    for job_id, shard in loaded.watchers:
        state.awaited.setdefault(job_id, Awaited()).shards[shard] = None
    state.rewatch_at = now.mono_ms
    for schedule in loaded.schedules:
        state.schedules.put(schedule)


def restore_jobs(state: ShardState, jobs: Iterable[Job], now: Now) -> None:
    """Put stored jobs, in order of acceptance, back into the indexes."""
    waiting: list[Job] = []
    grouped: list[Job] = []
    completed: list[Job] = []
    for job in jobs:
        job.queue.counts[job.state] += 1
        if job.state is COMPLETED:
            completed.append(job)
            continue
        if job.state is DEAD:
            continue
        _restore_live(state, job, now)
        for dep_id in job.options.edges:
            state.awaited.setdefault(dep_id, Awaited()).jobs[job.seq] = job
        if job.options.group and holds_group(job):
            grouped.append(job)
        elif job.state is WAITING:
            waiting.append(job)
    completed.sort(key=lambda job: job.updated_at)
    for job in completed:
        job.queue.completed_count += 1
        if job.options.keep_completed:
            keep_record(state, job)
        if job.id in state.awaited:
            pin(state, job, not job.options.keep_completed)
    waiting += restore_groups(grouped)
    waiting.sort(key=lambda job: job.ready)
    for job in waiting:
        job.queue.line.restore(job)
    state.sweep_at = now.mono_ms + state.sweep_period_ms


def _restore_live(state: ShardState, job: Job, now: Now) -> None:
    queue, options = job.queue, job.options
    state.jobs[job.id] = job
    if options.job_id:
        queue.custom[options.job_id] = job
    if options.unique and not options.unique_ttl_ms:
        queue.unique[options.unique] = job
    if job.state is DELAYED:
        state.timers.delay(job)
    elif job.state is BLOCKED and options.dep_timeout_ms:
        state.timers.block(job)
    elif job.state is ACTIVE:
        _restore_lease(state, job, now)
    if job.may_expire:
        state.timers.expire(job)


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
    state.sweep_period_ms = min(state.sweep_period_ms, sweep_period(grant.lease_ms))
    if job.options.timeout_ms:
        state.timers.limit(now.mono_ms + job.options.timeout_ms + TIMEOUT_GRACE_MS, job, lease)
