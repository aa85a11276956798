"""Every noun a shard owns, on one page.

Jobs that can still run are in memory; ended ones are on disk only. Indexes here are a
function of the records: rebuilt on start, and equal to what was in memory before.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum

from pyq.ids import slot_of_id
from pyq.job import GONE, JobState
from pyq.limits import DISK_RESERVE_BYTES, MIB, SWEEP_MS_MAX
from pyq.messages import Heartbeat, Pull, Result, Worker
from pyq.options import Options
from pyq.routes import shard_of
from shardnode.core.heap import ReadyLine
from shardnode.core.timers import Timers


class LeaseEnd(IntEnum):
    """How the last lease of a job ended; decides what its token may still do."""

    HELD = 0
    STALLED = 1  # the holder's late ack is still accepted
    FAILED = 2  # a repeat of the FAIL is answered OK
    RELEASED = 3  # a repeat of the RELEASE is answered OK
    TIMED_OUT = 4
    ACKED = 5


HELD = LeaseEnd.HELD


class Grant:
    """What all leases of one pull share."""

    __slots__ = (
        "fence",
        "granted_at",
        "jobs_count",
        "lease_ms",
        "packed",
        "queue",
        "request_id",
        "worker",
    )

    def __init__(
        self,
        request_id: bytes,
        worker: str,
        queue: str,
        lease_ms: int,
        granted_at: int,
        fence: int,
    ) -> None:
        self.request_id = request_id
        self.worker = worker
        self.queue = queue  # the first that the pull named: with the client, it tells pullers apart
        self.lease_ms = lease_ms
        self.granted_at = granted_at  # wall
        self.fence = fence  # grows from lease to lease of a job, also across restarts
        self.jobs_count = 0  # leases of this grant still held
        self.packed = b""  # the store's form, made once for all its jobs


class Lease:
    """The right to finish one attempt of a job, alive as long as heartbeats come."""

    __slots__ = ("beat_at", "end", "graces_count", "grant", "suspect", "token")

    token: bytes
    grant: Grant
    beat_at: int  # monotonic; the lease lasts lease_ms from here
    suspect: bool
    graces_count: int  # fresh lease times given after router outages, since the last beat
    end: LeaseEnd


def new_lease(token: bytes, grant: Grant, beat_at: int) -> Lease:
    """Return a lease that is held. A function: it costs half of what a constructor does."""
    lease = Lease()
    lease.token = token
    lease.grant = grant
    lease.beat_at = beat_at
    lease.suspect = False
    lease.graces_count = 0
    lease.end = HELD
    return lease


class Detail:
    """What most jobs never have: errors, history, progress."""

    __slots__ = ("error", "history", "progress", "reason", "traceback")

    def __init__(self) -> None:
        self.error = ""
        self.traceback = ""
        self.reason = ""  # why it is dead: exhausted, unrecoverable, timeout, stalled
        self.history: list[tuple[int, int, str]] = []  # attempt, wall ms, error
        self.progress = b""


class Job:
    """One unit of work. Its payload is not here: the store has it under `seq`."""

    __slots__ = (
        "attempt",
        "created_at",
        "detail",
        "failures",
        "id",
        "lease",
        "name",
        "options",
        "queue",
        "ready",
        "run_at",
        "seq",
        "size",
        "stalls",
        "state",
        "updated_at",
    )

    seq: int  # acceptance number: the order of arrival, and the key of its records
    id: bytes
    queue: "QueueState"
    name: str
    options: Options
    size: int  # bytes of the payload
    created_at: int
    run_at: int  # 0, or the wall time before which it is not leased
    state: JobState
    ready: int  # place in line; a new one each time the job becomes ready again
    attempt: int  # leases so far, without those given back
    failures: int
    stalls: int
    updated_at: int
    lease: Lease | None  # the current one, or the last
    detail: Detail | None

    def need_detail(self) -> Detail:
        """Return the detail, made on first use."""
        if self.detail is None:
            self.detail = Detail()
        return self.detail


def new_job(
    seq: int,
    job_id: bytes,
    queue: "QueueState",
    name: str,
    options: Options,
    size: int,
    created_at: int,
    run_at: int,
    state: JobState,
) -> Job:
    """Return a job as it is accepted. A function: it costs half of what a constructor does."""
    job = Job()
    job.seq = seq
    job.id = job_id
    job.queue = queue
    job.name = name
    job.options = options
    job.size = size
    job.created_at = created_at
    job.run_at = run_at
    job.state = state
    job.ready = seq
    job.attempt = 0
    job.failures = 0
    job.stalls = 0
    job.updated_at = created_at
    job.lease = None
    job.detail = None
    return job


class Finished:
    """Completed jobs of a queue in order of their end: eight bytes each, grouped by second."""

    __slots__ = ("_groups", "_taken", "count")

    def __init__(self) -> None:
        self._groups: deque[tuple[int, array[int]]] = deque()
        self._taken = 0  # of the first group
        self.count = 0

    def add(self, ended_at: int, seqs: Sequence[int]) -> None:
        """Remember that jobs ended at wall time `ended_at`."""
        if not self._groups or not 0 <= ended_at - self._groups[-1][0] < 1_000:
            self._groups.append((ended_at, array("q")))
        self._groups[-1][1].extend(seqs)
        self.count += len(seqs)

    def take(self, keep: int, ended_before: int, limit: int) -> list[int]:
        """Take out the oldest beyond `keep` that ended before `ended_before`, at most `limit`."""
        taken: list[int] = []
        while self._groups and len(taken) < limit and self.count > keep:
            started_at, seqs = self._groups[0]
            if started_at + 1_000 > ended_before:
                break
            count = min(limit - len(taken), self.count - keep, len(seqs) - self._taken)
            taken += seqs[self._taken : self._taken + count]
            self._taken += count
            self.count -= count
            if self._taken == len(seqs):
                self._groups.popleft()
                self._taken = 0
        return taken

    def __iter__(self) -> Iterator[int]:
        skip = self._taken
        for _, seqs in self._groups:
            yield from seqs[skip:]
            skip = 0


class ParkedPull:
    """A pull that waits for a job, in the mailbox of each queue it names."""

    __slots__ = ("command", "done", "queues")

    def __init__(self, command: Pull, queues: "list[QueueState]") -> None:
        self.command = command
        self.queues = queues
        self.done = False  # answered: the entry in the timers is void


class ParkedBeat:
    """A heartbeat whose answer waits for something to tell the worker."""

    __slots__ = ("body", "command", "done")

    def __init__(self, command: Heartbeat, body: list[object]) -> None:
        self.command = command
        self.body = body
        self.done = False


class ParkedResult:
    """Somebody who waits for the end of a job."""

    __slots__ = ("command", "done")

    def __init__(self, command: Result) -> None:
        self.command = command
        self.done = False


class Puller:
    """The newest pull of one client on one set of queues, and the grants it may not know of."""

    __slots__ = ("grants", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self.grants: list[Grant] = []


class WorkerEntry:
    """A registered worker: what it said of itself, when, and whether it was asked to stop."""

    __slots__ = ("beat", "seen_at", "stopping", "worker")

    def __init__(self, worker: Worker, seen_at: int) -> None:
        self.worker = worker
        self.seen_at = seen_at  # monotonic
        self.beat: ParkedBeat | None = None
        self.stopping = False


class QueueState:
    """One queue: its line of waiting jobs, who waits for them, and its counts."""

    __slots__ = ("counts", "custom", "dead", "finished", "line", "name", "number", "parked")

    def __init__(self, number: int, name: str) -> None:
        self.number = number  # stands for the name in the records
        self.name = name
        self.line = ReadyLine()
        self.parked: dict[bytes, ParkedPull] = {}  # by request id, in order of arrival
        self.custom: dict[str, Job] = {}  # live jobs by custom id
        self.finished = Finished()
        self.dead: dict[int, None] = {}  # seqs, in order of death
        self.counts = [0] * (GONE + 1)  # jobs per state, indexed by JobState


class ShardState:
    """All a shard knows. Built empty, or from records by `recovery.py`."""

    def __init__(self, shard: int, shards_count: int, epoch: int) -> None:
        self.shard = shard
        self.shards_count = shards_count
        self.epoch = epoch
        self.counter = 0  # last acceptance or ready number given out
        self.queues: dict[str, QueueState] = {}
        self.queues_by_number: dict[int, QueueState] = {}
        self.jobs: dict[bytes, Job] = {}  # live jobs: waiting, delayed, active
        self.processing: dict[int, Job] = {}  # active jobs by seq
        self.grants: dict[bytes, list[Job]] = {}  # by the request id of their pull
        self.pullers: dict[tuple[bytes, str], Puller] = {}
        self.parked: dict[bytes, ParkedPull] = {}  # by request id
        self.results: dict[bytes, list[ParkedResult]] = {}  # by job id
        self.lingering: dict[bytes, bytes | None] = {}  # results of jobs not kept, for seconds
        self.lingering_bytes = 0
        self.workers: dict[str, WorkerEntry] = {}
        self.timers = Timers()
        self.tombstones_count = 0
        self.parked_count = 0
        self.grants_made = 0  # makes the tokens of several pulls of one turn differ
        self.awake: dict[QueueState, None] = {}  # have new jobs and somebody who waits for them
        self.disk_low = False
        self.disk_reserve_bytes = DISK_RESERVE_BYTES
        self.disk_room = 0  # bytes that results may still take while the disk is low
        # Sweeps and what makes them late, on the monotonic clock.
        self.sweep_at = 0
        self.sweep_period_ms = SWEEP_MS_MAX
        self.late = False  # this turn came late: nobody is confirmed as stalled
        self.router_seen_at: int | None = None
        self.retention_at = 0
        self.aging_at = 0
        self.overfull: dict[QueueState, None] = {}  # hold more completed jobs than they keep

    @property
    def disk_sentence(self) -> str:
        """What is said to who is refused while the disk is low."""
        reserve = f"{self.disk_reserve_bytes // MIB} MiB"
        return f"the disk of shard {self.shard} has less than {reserve} left; free some space"

    def owns(self, job_id: bytes) -> bool:
        """True if a job with this id lives here; its id says so."""
        return shard_of(slot_of_id(job_id), self.shards_count) == self.shard

    def next_number(self) -> int:
        """Return the next acceptance or ready number; they are never used twice."""
        self.counter += 1
        return self.counter

    def add_queue(self, number: int, name: str) -> QueueState:
        """Make a queue known under its number."""
        queue = QueueState(number, name)
        self.queues[name] = queue
        self.queues_by_number[number] = queue
        return queue
