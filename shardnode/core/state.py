"""Every noun a shard owns, on one page.

Jobs that can still run are in memory; ended ones are on disk only. Indexes here are a
function of the records: rebuilt on start, and equal to what was in memory before.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from pyq.ids import slot_of_id
from pyq.job import GONE, JobState
from pyq.limits import (
    DISK_RESERVE_BYTES,
    EVENTS_MAX,
    MIB,
    SETTLED_MAX,
    SWEEP_MS_MAX,
    SWEEP_MS_MIN,
    TOMBSTONE_MS_MAX,
)
from pyq.messages import Events, Heartbeat, Outbox, Pull, Result, Row, Schedules, Worker
from pyq.options import Options
from pyq.routes import shard_of
from pyq.schedule import Schedule
from pyq.settings import DEFAULT_SETTINGS, Settings
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
    RETRIED = 6  # the job has started afresh since: the token is void


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

    __slots__ = ("beat_at", "end", "graces_count", "grant", "suspect", "token", "told")

    token: bytes
    grant: Grant
    beat_at: int  # monotonic; the lease lasts lease_ms from here
    suspect: bool
    graces_count: int  # fresh lease times given after router outages, since the last beat
    told: bool  # the holder knows that the job shall be cancelled
    end: LeaseEnd


def new_lease(token: bytes, grant: Grant, beat_at: int) -> Lease:
    """Return a lease that is held. A function: it costs half of what a constructor does."""
    lease = Lease()
    lease.token = token
    lease.grant = grant
    lease.beat_at = beat_at
    lease.suspect = False
    lease.graces_count = 0
    lease.told = False
    lease.end = HELD
    return lease


def sweep_period(lease_ms: int) -> int:
    """Return the milliseconds between two sweeps where no lease is shorter than `lease_ms`."""
    return min(max(lease_ms // 4, SWEEP_MS_MIN), SWEEP_MS_MAX)


class Detail:
    """What most jobs never have: errors, history, progress, log lines, a wish to cancel it."""

    __slots__ = (
        "auto_retries",
        "cancel_requested",
        "error",
        "history",
        "lines_count",
        "lines_fence",
        "lines_taken",
        "progress",
        "reason",
        "retried_by",
        "settled",
        "traceback",
    )

    def __init__(self) -> None:
        self.error = ""
        self.traceback = ""
        self.reason = ""  # why it is dead: exhausted, unrecoverable, timeout, stalled
        self.history: list[tuple[int, int, str]] = []  # attempt, wall ms, error
        self.progress = b""
        self.cancel_requested = False  # active, and to be removed when its lease ends
        self.settled = b""  # a byte per dependency: 0 or its verdict (or DEAD)
        self.retried_by = b""  # the last RETRY of it, so that its repeat is known
        self.auto_retries = 0  # how often it was retried by the queue's setting
        self.lines_count = 0  # of its log, ever
        self.lines_fence = 0  # the lease that wrote last
        self.lines_taken = 0  # ... and the number of its last line


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

    @property
    def cancel_requested(self) -> bool:
        """True if the job is removed as soon as its lease ends."""
        return self.detail is not None and self.detail.cancel_requested

    @property
    def may_expire(self) -> bool:
        """True if its time to live counts: it was neither leased nor, after its death, retried."""
        died_before = self.detail is not None and bool(self.detail.history)
        return bool(self.options.ttl_ms) and self.lease is None and not died_before

    def twin(self) -> "Job":
        """Return a copy that takes the place of this object, which is gone from then on."""
        twin = Job()
        for name in Job.__slots__:
            setattr(twin, name, getattr(self, name))
        self.state = GONE
        return twin


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
    job.ready = -seq if options.lifo else seq  # the newest stands first
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

    def discard(self, seq: int, ended_at: int) -> None:
        """Take out one job that left in another way."""
        for number, (started_at, seqs) in enumerate(self._groups):
            if started_at <= ended_at < started_at + 1_000:
                skip = 0 if number else self._taken
                if seq in seqs[skip:]:
                    del seqs[seqs.index(seq, skip)]
                    self.count -= 1
                    return
        raise AssertionError("a completed job is among the finished of its queue")

    @property
    def oldest_at(self) -> int | None:
        """A wall millisecond at or before the end of the oldest, or None."""
        return self._groups[0][0] if self._groups else None

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
            part = seqs[self._taken : self._taken + count].tolist()
            self._taken += count
            taken += part
            self.count -= len(part)
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


class ParkedOutbox:
    """A relay that waits for rows to carry to other shards."""

    __slots__ = ("command", "done")

    def __init__(self, command: Outbox) -> None:
        self.command = command
        self.done = False


class Awaited:
    """A job that others depend on, here or on other shards, whether or not it has ended."""

    __slots__ = ("asked", "jobs", "queue", "seq", "shards")

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}  # live dependents of this shard, by seq
        self.shards: dict[int, None] = {}  # that have some
        self.asked = False  # it lives on another shard, which is going to tell
        self.seq = 0  # of its record, once it has completed here and for as long as it is kept
        self.queue: QueueState | None = None  # ... and its queue


class Ended:
    """The end of a job, and the dependents that have not been told yet, the next one last."""

    __slots__ = ("error", "id", "left", "verdict")

    def __init__(self, job_id: bytes, verdict: int, error: str, left: list[Job]) -> None:
        self.id = job_id
        self.verdict = verdict
        self.error = error
        self.left = left


class Mailbag:
    """Rows for one other shard that it has not confirmed yet, numbered without gaps."""

    __slots__ = ("rows", "sent")

    def __init__(self) -> None:
        self.rows: deque[tuple[int, Row]] = deque()
        self.sent = 0  # number of the last row ever posted


class ParkedEvents:
    """A reader who waits for the next event."""

    __slots__ = ("command", "done")

    def __init__(self, command: Events) -> None:
        self.command = command
        self.done = False


class ParkedSchedules:
    """The coordinator, waiting for a schedule to be added, changed or removed."""

    __slots__ = ("command", "done")

    def __init__(self, command: Schedules) -> None:
        self.command = command
        self.done = False


class Timetable:
    """The schedules of a shard, those removed of late among them, in order of their last change."""

    __slots__ = ("_changes", "_records", "bytes_count", "changed", "forget_at", "readers")

    def __init__(self) -> None:
        self._records: dict[str, Schedule] = {}
        self._changes: dict[str, int] = {}  # number of the last change of each, in order
        self.changed = 0  # number of the last change
        self.bytes_count = 0  # of payloads
        self.forget_at: int | None = None  # wall: when the first of those removed is forgotten
        self.readers: list[ParkedSchedules] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._records.values())

    def get(self, name: str) -> Schedule | None:
        return self._records.get(name)

    def put(self, schedule: Schedule) -> None:
        """A schedule is as this record says from now on, and readers shall know."""
        self.drop(schedule.name)
        self._records[schedule.name] = schedule
        self.bytes_count += len(schedule.payload)
        self.changed += 1
        self._changes[schedule.name] = self.changed
        if schedule.removed_at:
            forget_at = schedule.removed_at + TOMBSTONE_MS_MAX
            self.forget_at = min(self.forget_at or forget_at, forget_at)

    def advance(self, schedule: Schedule) -> None:
        """A schedule has come further, which readers need not know."""
        self._records[schedule.name] = schedule

    def drop(self, name: str) -> None:
        """Forget a schedule, if it is known."""
        known = self._records.pop(name, None)
        if known is not None:
            self.bytes_count -= len(known.payload)
            del self._changes[name]

    def since(self, after: int) -> list[tuple[int, Schedule]]:
        """Return number and record of those changed after a number, in order."""
        found: list[tuple[int, Schedule]] = []
        for name, number in reversed(self._changes.items()):
            if number <= after:
                break
            found.append((number, self._records[name]))
        return found[::-1]


class EventLog:
    """The last events of a shard, numbered; recorded only while somebody reads them.

    What one command did to several jobs is one entry, taken apart when it is read: on the
    hot path an event costs nothing if nobody reads, and little if somebody does.
    """

    __slots__ = ("began", "entries", "first", "idle_at", "next", "on", "readers", "told")

    def __init__(self) -> None:
        self.on = False
        self.next = 1  # number of the next event
        self.told = 1  # ... when the readers were last looked at
        self.first = 1  # number of the oldest one kept
        self.began = 1  # number of the first one recorded since somebody reads
        # Number of the first, kind, wall ms, whom it concerns, and a detail for each.
        self.entries: deque[EventEntry] = deque()
        self.idle_at = 0  # monotonic; recording ends if nobody reads until then
        self.readers: list[ParkedEvents] = []

    def record(
        self,
        kind: str,
        wall_ms: int,
        jobs: "Sequence[Job]",
        details: Sequence[object] | None = None,
    ) -> None:
        """Something happened to jobs. Call it only while `on`."""
        if jobs:
            self._add((self.next, kind, wall_ms, jobs, details), len(jobs))

    def record_of_queue(self, kind: str, wall_ms: int, queue: "QueueState", detail: object) -> None:
        """Something happened to a queue. Call it only while `on`."""
        self._add((self.next, kind, wall_ms, (queue,), (detail,)), 1)

    def _add(self, entry: "EventEntry", count: int) -> None:
        self.entries.append(entry)
        self.next += count
        while self.next - self.first > EVENTS_MAX and len(self.entries) > 1:
            self.entries.popleft()
            self.first = self.entries[0][0]


EventEntry: TypeAlias = (
    "tuple[int, str, int, Sequence[Job] | Sequence[QueueState], Sequence[object] | None]"
)


class Group:
    """A FIFO group of a queue: who may run now or holds it, and who is behind.

    `exposed` are as many of its jobs as may run at once (one, unless set otherwise): in
    line, active, or delayed after a run, which holds the group. The others wait `behind`
    them, in order of their first readiness, and are not in line.
    """

    __slots__ = ("behind", "exposed", "paused", "stale_count")

    def __init__(self, paused: bool) -> None:
        self.exposed: dict[int, Job] = {}  # by seq
        self.behind: deque[Job] = deque()
        self.stale_count = 0  # of those behind who left in another way
        self.paused = paused


class TimedKey(NamedTuple):
    """A unique key that is held until a time, whatever becomes of its job."""

    id: bytes  # of the job that took it
    seq: int
    until: int  # wall


class Window:
    """When leases were granted, as far back as the rate limit of the queue looks."""

    __slots__ = ("_grants", "count")

    def __init__(self) -> None:
        self._grants: deque[tuple[int, int]] = deque()  # monotonic ms, leases
        self.count = 0

    def add(self, mono_ms: int, count: int) -> None:
        """Leases were granted."""
        self._grants.append((mono_ms, count))
        self.count += count

    def room(self, mono_ms: int, rate_max: int, per_ms: int) -> int:
        """Return how many leases may be granted now: at most `rate_max` in any `per_ms`."""
        grants = self._grants
        # A grant of the same millisecond, one window ago, may be less than a window ago.
        while grants and mono_ms - grants[0][0] > per_ms:
            self.count -= grants.popleft()[1]
        return rate_max - self.count

    def opens_at(self, per_ms: int) -> int:
        """Return the monotonic millisecond at which the oldest grant stops to count."""
        return self._grants[0][0] + per_ms + 1


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
    """One queue: its line of waiting jobs, who waits for them, its keys, groups and counts."""

    __slots__ = (
        "by_count",
        "completed_count",
        "counts",
        "custom",
        "finished",
        "groups",
        "kept",
        "limited",
        "line",
        "name",
        "number",
        "parked",
        "settings",
        "timed_keys",
        "unique",
        "window",
        "window_at",
    )

    def __init__(self, number: int, name: str, settings: Settings = DEFAULT_SETTINGS) -> None:
        self.number = number  # stands for the name in the records
        self.name = name
        self.settings = settings
        self.limited = settings.limited  # a look at the settings is needed before a lease
        self.line = ReadyLine()
        self.groups: dict[str, Group] = {}
        self.parked: dict[bytes, ParkedPull] = {}  # by request id, in order of arrival
        self.custom: dict[str, Job] = {}  # live jobs by custom id
        self.unique: dict[str, Job] = {}  # live jobs by the key they hold until their end
        self.timed_keys: dict[str, TimedKey] = {}
        self.window = Window()
        self.window_at: int | None = None  # when a timer looks at the window again
        self.finished = Finished()
        # Completed jobs that say themselves how long they are kept: seq -> wall ms, or the
        # completed_count at which it goes; for those there is a heap of (count, seq, ended_at).
        self.kept: dict[int, int] = {}
        self.by_count: list[tuple[int, int, int]] = []
        self.completed_count = 0  # kept records of completed jobs, ever
        self.counts = [0] * (GONE + 1)  # jobs per state, indexed by JobState


class ShardState:
    """All a shard knows. Built empty, or from records by `recovery.py`."""

    def __init__(self, shard: int, shards_count: int, epoch: int) -> None:
        self.shard = shard
        self.shards_count = shards_count
        self.epoch = epoch
        self.counter = 0  # last acceptance or ready number given out
        self.queues: dict[str, QueueState] = {}
        self.queues_made = 0  # the highest number of a queue; none is given out twice
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
        self.events = EventLog()
        self.awaited: dict[bytes, Awaited] = {}  # by the id of the job that others depend on
        # Ended jobs whose record is kept for their dependents; True if it is due otherwise.
        self.pinned: dict[int, bool] = {}
        self.fallout: deque[Ended] = deque()  # ends that not all dependents have been told yet
        self.settle_left = SETTLED_MAX  # how many more may be told in this turn
        self.unsettled: list[Job] = []  # blocked, and to be looked at before the turn ends
        self.unasked: dict[bytes, None] = {}  # dependencies to be asked about (again)
        self.mail: dict[int, Mailbag] = {}  # by target shard
        self.received: dict[int, int] = {}  # number of the last row applied, by source shard
        self.relays: list[ParkedOutbox] = []
        self.has_mail = False  # posted since the relays were last looked at
        self.rewatch_at = 0
        self.schedules = Timetable()
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
        self.overfull: dict[QueueState, None] = {}  # hold completed jobs that may have to go
        # Queues that look after their dead letters by themselves: acceptance number of the next.
        self.tended: dict[QueueState, int] = {}
        self.tend_at = 0

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

    def add_queue(
        self, number: int, name: str, settings: Settings = DEFAULT_SETTINGS
    ) -> QueueState:
        """Make a queue known under its number."""
        queue = QueueState(number, name, settings)
        self.queues_made = max(self.queues_made, number)
        self.queues[name] = queue
        self.queues_by_number[number] = queue
        return queue
