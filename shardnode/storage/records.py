"""Jobs as rows and back: what the stores keep, in one place for all of them.

A row is a tuple of plain values, so a store that keeps rows keeps copies.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgpack

from pyq.cron import Cron
from pyq.job import COMPLETED, DEAD, DELAYED, GONE, WAITING, JobState, Verdict
from pyq.messages import Filters
from pyq.options import DEFAULT_OPTIONS, Options, check_options
from pyq.schedule import Schedule
from pyq.settings import DEFAULT_SETTINGS, Settings, check_settings
from shardnode.core.effects import Effects, Tombstone
from shardnode.core.state import Detail, Grant, Job, LeaseEnd, QueueState, new_job, new_lease

JobRow: TypeAlias = tuple[int, bytes, int, str, int, int, int, bytes | None]
StateRow: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, bytes | None, int | None, bytes | None, bytes | None
]
TombstoneRow: TypeAlias = tuple[bytes, int, int, bytes, int, int, str | None]
DeadRow: TypeAlias = tuple[int, int, int, str]
ScheduleRow: TypeAlias = tuple[str, str, str, int, int, int, int, int, bytes, bytes, bytes]
TickRow: TypeAlias = tuple[str, int, int, int, bytes]

_packer = msgpack.Packer()


def job_row(job: Job) -> JobRow:
    """Return the immutable part: seq, id, queue, name, created_at, run_at, size, options."""
    options = job.options
    return (
        job.seq,
        job.id,
        job.queue.number,
        job.name,
        job.created_at,
        job.run_at,
        job.size,
        None if options is DEFAULT_OPTIONS else _packed_options(options),
    )


def state_row(job: Job) -> StateRow:
    """Return the mutable part, in the order of the table `states`."""
    lease = job.lease
    detail = job.detail
    return (
        job.seq,
        job.state,
        job.ready,
        job.run_at,
        job.attempt,
        job.failures,
        job.stalls,
        job.updated_at,
        None if lease is None else lease.token,
        None if lease is None else lease.end,
        None if lease is None else lease.grant.packed or _packed_grant(lease.grant),
        None if detail is None else _packed_detail(detail),
    )


def tombstone_row(job: Job, verdict: int) -> TombstoneRow:
    """Return what stays of an ended job: id, verdict, ended_at, digest, seq, queue, job_id."""
    lease = job.lease
    return (
        job.id,
        verdict,
        job.updated_at,
        b"" if lease is None else lease.token[4:12],
        job.seq,
        job.queue.number,
        job.options.job_id or None,
    )


def tombstone_rows(effects: Effects) -> list[TombstoneRow]:
    """Return the tombstones that effects leave."""
    ended = effects.ended.values()
    rare = effects.maybe_rare
    if rare is None or not rare.verdicts:  # of the two enumerations, GONE is REMOVED
        return [tombstone_row(job, job.state) for job in ended]
    known = rare.verdicts
    return [
        tombstone_row(job, known.get(job.id, Verdict.REMOVED) if job.state is GONE else job.state)
        for job in ended
    ]


def read_tombstone(row: TombstoneRow) -> Tombstone:
    """Return the tombstone of a row."""
    return Tombstone(row[0], Verdict(row[1]), *row[2:])


def dead_row(job: Job) -> DeadRow:
    """Return a dead letter as the list of them has it: seq, queue, died_at, reason."""
    # Without a detail it was retried since, in the same turn.
    reason = "" if job.detail is None else job.detail.reason
    return job.seq, job.queue.number, job.updated_at, reason


def pack_settings(settings: Settings) -> bytes | None:
    """Return what differs from the defaults, or None if nothing does."""
    wire = settings.to_wire()
    if not wire:
        return None
    packed: bytes = _packer.pack(wire)
    return packed


def read_settings(packed: bytes | None) -> Settings:
    """Return settings from their packed form."""
    if packed is None:
        return DEFAULT_SETTINGS
    return check_settings(msgpack.unpackb(packed, use_list=False), DEFAULT_SETTINGS)


def schedule_row(schedule: Schedule) -> ScheduleRow:
    """Return what was said of a schedule, in the order of the table `schedules`."""
    return (
        schedule.name,
        schedule.queue,
        schedule.job,
        int(schedule.paused),
        schedule.changed_at,
        schedule.anchor_at,
        schedule.since,
        schedule.removed_at,
        _packer.pack(schedule.cron.to_wire()),
        _packer.pack(dict(schedule.options)),
        schedule.payload,
    )


def tick_row(schedule: Schedule) -> TickRow:
    """Return how far a schedule has come, in the order of the table `ticks`."""
    return (
        schedule.name,
        schedule.last_tick,
        schedule.fired_count,
        schedule.skipped_count,
        schedule.last_job,
    )


def read_schedule(row: ScheduleRow, tick: TickRow) -> Schedule:
    """Return the schedule of two rows.

    Its times are not checked again: a zone may be missing in the data of another release, and
    a shard starts all the same.
    """
    name, queue, job, paused, changed_at, anchor_at, since, removed_at, cron, options, payload = row
    return Schedule(
        name,
        Cron(**msgpack.unpackb(cron, use_list=False)),
        queue,
        job,
        payload,
        msgpack.unpackb(options, use_list=False),
        bool(paused),
        changed_at,
        anchor_at,
        since,
        removed_at,
        *tick[1:],
    )


def matches(job: Job, filters: Filters) -> bool:
    """True if a listing narrowed to `filters` shows the job."""
    return (
        (not filters.name or job.name == filters.name)
        and (not filters.tag or filters.tag in job.options.tags)
        and (not filters.group or job.options.group == filters.group)
        and (not filters.reason or _died_of(job, filters.reason))
        and (not filters.since or job.created_at >= filters.since)
        and (not filters.until or job.created_at < filters.until)
    )


def tag_mark(tag: str) -> bytes:
    """Return bytes that are in the packed options of every job with this tag, if in few others."""
    return _packer.pack(tag) if tag else b""


def group_mark(group: str) -> bytes:
    """Return bytes that are in the packed options of every job of this group: key and value."""
    return _packer.pack("group") + _packer.pack(group) if group else b""


def _died_of(job: Job, reason: str) -> bool:
    return job.state is DEAD and job.detail is not None and job.detail.reason == reason


class RowReader:
    """Turns rows into jobs; equal options and grants become one object."""

    def __init__(self, queues: Mapping[int, QueueState]) -> None:
        self._queues = queues
        self._options: dict[bytes, Options] = {}
        self._grants: dict[bytes, Grant] = {}

    def job(
        self, row: JobRow, state: tuple[Any, ...] | None, completed_at: int | None = None
    ) -> Job:
        """Return the job of a row and its state row (None: as it was accepted).

        A completed job's state row says what it was before: its tombstone alone tells that it
        is completed, and when. One row less to write for every job that ends well.
        """
        seq, job_id, queue, name, created_at, run_at, size, options = row
        job = new_job(
            seq,
            job_id,
            self._queues[queue],
            name,
            DEFAULT_OPTIONS if options is None else self._read_options(options),
            size,
            created_at,
            run_at,
            DELAYED if run_at else WAITING,
        )
        if state is not None:
            self._read_state(job, state)
        if completed_at is not None:
            job.state = COMPLETED
            job.updated_at = completed_at
            job.run_at = 0
            if job.lease is not None:
                job.lease.end = LeaseEnd.ACKED
        return job

    def _read_state(self, job: Job, row: tuple[Any, ...]) -> None:
        (_, state, ready, run_at, attempt, failures, stalls, updated_at) = row[:8]
        token, lease_end, grant, detail = row[8:12]
        job.state = JobState(state)
        job.ready = ready
        job.run_at = run_at
        job.attempt = attempt
        job.failures = failures
        job.stalls = stalls
        job.updated_at = updated_at
        if token is not None:
            job.lease = new_lease(token, self._read_grant(grant), 0)
            job.lease.end = LeaseEnd(lease_end)
        if detail is not None:
            job.detail = _read_detail(detail)

    def _read_options(self, packed: bytes) -> Options:
        options = self._options.get(packed)
        if options is None:
            options = check_options(msgpack.unpackb(packed, use_list=False))
            shared = not options.job_id and not options.unique  # those belong to one job
            if shared and len(self._options) < 1_000:
                self._options[packed] = options
        return options

    def _read_grant(self, packed: bytes) -> Grant:
        grant = self._grants.get(packed)
        if grant is None:
            grant = self._grants[packed] = Grant(*msgpack.unpackb(packed))
            grant.packed = packed
        return grant


class _LastOptions:
    """The options packed last: all jobs of one message share them."""

    options: Options = DEFAULT_OPTIONS
    packed: bytes | None = None


def _packed_options(options: Options) -> bytes | None:
    if options is not _LastOptions.options:
        wire = options.to_wire()
        _LastOptions.packed = None if wire is None else _packer.pack(wire)
        _LastOptions.options = options
    return _LastOptions.packed


def _packed_grant(grant: Grant) -> bytes:
    grant.packed = _packer.pack(
        (
            grant.request_id,
            grant.worker,
            grant.queue,
            grant.lease_ms,
            grant.granted_at,
            grant.fence,
        )
    )
    return grant.packed


def _packed_detail(detail: Detail) -> bytes:
    packed: bytes = _packer.pack(
        (
            detail.error,
            detail.traceback,
            detail.reason,
            detail.history,
            detail.progress,
            detail.cancel_requested,
            detail.auto_retries,
            detail.retried_by,
            detail.settled,
            detail.lines_count,
            detail.lines_fence,
            detail.lines_taken,
        )
    )
    return packed


def _read_detail(packed: bytes) -> Detail:
    detail = Detail()
    (
        detail.error,
        detail.traceback,
        detail.reason,
        history,
        detail.progress,
        detail.cancel_requested,
        detail.auto_retries,
        detail.retried_by,
        detail.settled,
        detail.lines_count,
        detail.lines_fence,
        detail.lines_taken,
    ) = msgpack.unpackb(packed)
    detail.history = [(attempt, at, error) for attempt, at, error in history]
    return detail
