"""Jobs as rows and back: what the stores keep, in one place for all of them.

A row is a tuple of plain values, so a store that keeps rows keeps copies.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgpack

from pyq.job import COMPLETED, DELAYED, WAITING, JobState
from pyq.options import DEFAULT_OPTIONS, Options, check_options
from shardnode.core.effects import Tombstone
from shardnode.core.state import Detail, Grant, Job, LeaseEnd, QueueState, new_job, new_lease

JobRow: TypeAlias = tuple[int, bytes, int, str, int, int, int, bytes | None]
StateRow: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, bytes | None, int | None, bytes | None, bytes | None
]
TombstoneRow: TypeAlias = tuple[bytes, int, int, bytes, int, int, str | None]

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


def tombstone_row(job: Job) -> TombstoneRow:
    """Return what stays of an ended job: id, verdict, ended_at, digest, seq, queue, job_id."""
    lease = job.lease
    return (
        job.id,
        job.state,
        job.updated_at,
        b"" if lease is None else lease.token[4:12],
        job.seq,
        job.queue.number,
        job.options.job_id or None,
    )


def read_tombstone(row: TombstoneRow) -> Tombstone:
    """Return the tombstone of a row."""
    return Tombstone(row[0], JobState(row[1]), *row[2:])


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
            if not options.job_id and len(self._options) < 1_000:
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
        (detail.error, detail.traceback, detail.reason, detail.history, detail.progress)
    )
    return packed


def _read_detail(packed: bytes) -> Detail:
    detail = Detail()
    detail.error, detail.traceback, detail.reason, history, detail.progress = msgpack.unpackb(
        packed
    )
    detail.history = [(attempt, at, error) for attempt, at, error in history]
    return detail
