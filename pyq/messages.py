"""Every command and every reply as plain data, and the shapes of their bodies.

Says what a message is, never what to do about it: the core does that. `parsing.py` makes
commands out of what arrives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from pyq.cron import Cron
from pyq.job import JobState
from pyq.limits import LEASE_MS_DEFAULT, LOG_LINES_MAX, REMOVED_MAX, SCHEDULES_PAGE_MAX
from pyq.options import Options
from pyq.wire import Verb

ID_BYTES = 16
PAYLOAD_AT = 4  # place of the payload in a leased job's row
TOKEN_BYTES = 20  # shard epoch (4 bytes, big-endian) and 16 random bytes

# What GET and LIST add to a job's view.
WANT_PAYLOAD = 1
WANT_RESULT = 2

# What the reply to a HEARTBEAT may tell a worker: as a directive, and of one lease.
DIRECTIVE_STOP = "stop"
DIRECTIVE_BEAT = "beat"  # again, at once: there is something to hear
CANCEL_REQUESTED = "cancel_requested"


@dataclass(slots=True)
class Origin:
    """Where a command came from, and so where its reply goes."""

    request_id: bytes
    verb: int = Verb.PING
    flags: int = 0
    deadline_ms: int = 1 << 62  # absolute, CLOCK_MONOTONIC
    sender: tuple[bytes, ...] = ()  # frames in front of the reply; opaque to everyone but the shell
    through_router: bool = False

    @property
    def client(self) -> bytes:
        """The incarnation of the client: the first half of the request id."""
        return self.request_id[:8]

    @property
    def sequence(self) -> int:
        """The number of the request within its client."""
        return int.from_bytes(self.request_id[8:], "big")


@dataclass(slots=True)
class Worker:
    """What a worker says of itself with each heartbeat; kept in memory only."""

    id: str
    host: str
    pid: int
    concurrency: int
    started_at: int  # wall milliseconds
    queues: tuple[str, ...]

    def to_wire(self) -> list[Any]:
        return [self.id, self.host, self.pid, self.concurrency, self.started_at, list(self.queues)]


NewJob: TypeAlias = tuple[bytes, str, bytes, Options]  # id, name, payload, options


@dataclass(slots=True)
class Push:
    origin: Origin
    queue: str
    jobs: Sequence[NewJob]
    # As they arrived, for a queue that has default options: what all jobs share, and the jobs.
    common: Mapping[str, Any] | None = None
    given: Sequence[tuple[bytes, str, bytes, Mapping[str, Any] | None]] = ()


@dataclass(slots=True)
class Pull:
    origin: Origin
    worker: str
    queues: Sequence[str]  # all of one shard; tried in this order
    jobs_max: int = 1
    wait_ms: int = 0
    lease_ms: int = LEASE_MS_DEFAULT
    last_received: int = 0  # sequence of the last pull whose reply this client received


@dataclass(slots=True)
class Unpull:
    origin: Origin
    request_id: bytes  # of the pull to withdraw


@dataclass(slots=True)
class Return:
    """A pull reply that could not be delivered. The header's request id is that of the pull."""

    origin: Origin


@dataclass(slots=True)
class Ack:
    origin: Origin
    items: Sequence[tuple[bytes, bytes, bytes | None]]  # id, token, result


@dataclass(slots=True)
class Fail:
    origin: Origin
    # id, token, error, traceback, result, unrecoverable, retry_in_ms (-1: by backoff)
    items: Sequence[tuple[bytes, bytes, str, str, bytes | None, bool, int]]


@dataclass(slots=True)
class Release:
    origin: Origin
    items: Sequence[tuple[bytes, bytes, int]]  # id, token, delay_ms


@dataclass(slots=True)
class Heartbeat:
    origin: Origin
    items: Sequence[tuple[bytes, bytes]]  # id, token
    worker: Worker | None = None
    wait_ms: int = 0


@dataclass(slots=True)
class Extend:
    origin: Origin
    items: Sequence[tuple[bytes, bytes, int]]  # id, token, lease_ms from now on


@dataclass(slots=True)
class Progress:
    origin: Origin
    items: Sequence[tuple[bytes, bytes, bytes]]  # id, token, progress


@dataclass(slots=True)
class Log:
    """Lines that the holder of a lease writes; numbered per lease, so that a repeat adds none."""

    origin: Origin
    items: Sequence[tuple[bytes, bytes, int, Sequence[str]]]  # id, token, number of first, lines


@dataclass(slots=True)
class Retry:
    origin: Origin
    items: Sequence[tuple[bytes]]  # ids of dead or completed jobs


@dataclass(slots=True)
class Cancel:
    origin: Origin
    items: Sequence[tuple[bytes]]  # ids of jobs that have not ended


@dataclass(slots=True)
class Promote:
    origin: Origin
    items: Sequence[tuple[bytes]]  # ids of delayed jobs


class Change(NamedTuple):
    """What shall be different about a job that waits or is delayed; None: as it is."""

    id: bytes
    priority: int | None = None
    delay_ms: int | None = None  # from now on; 0: at once
    run_at: int | None = None
    payload: bytes | None = None


@dataclass(slots=True)
class Update:
    origin: Origin
    items: Sequence[Change]


@dataclass(slots=True)
class Purge:
    origin: Origin
    items: Sequence[tuple[bytes]]  # ids of dead jobs


@dataclass(slots=True)
class Get:
    """One job by its id, or by a custom id in `queue` (empty: in every queue of the shard)."""

    origin: Origin
    id: bytes | None
    job_id: str = ""
    queue: str = ""
    want: int = 0


class Filters(NamedTuple):
    """What a listing is narrowed to; empty and zero: anything."""

    name: str = ""
    tag: str = ""
    group: str = ""
    reason: str = ""  # of dead jobs
    since: int = 0  # accepted at or after this wall millisecond
    until: int = 0  # ... and before this one


NO_FILTERS = Filters()


@dataclass(slots=True)
class List:
    """A page of jobs in order of acceptance; of one queue, or of all (empty)."""

    origin: Origin
    queue: str = ""
    state: JobState | None = None
    after: int = 0
    limit: int = 100
    want: int = 0
    filters: Filters = NO_FILTERS


@dataclass(slots=True)
class Counts:
    """Of one queue, or a page of all (empty): those with a number above `after`."""

    origin: Origin
    queue: str = ""
    after: int = 0
    priorities: bool = False  # also how many wait under each priority


@dataclass(slots=True)
class Logs:
    """A page of a job's log lines: those with a number above `after`."""

    origin: Origin
    id: bytes
    after: int = 0
    limit: int = LOG_LINES_MAX


@dataclass(slots=True)
class DeadStats:
    """How many dead letters a queue has, by reason, and how old they are."""

    origin: Origin
    queue: str


@dataclass(slots=True)
class Configure:
    """Change settings of a queue and read them; with None only read."""

    origin: Origin
    queue: str
    changes: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Pause:
    """Pause or resume a queue, or one group of it."""

    origin: Origin
    queue: str
    paused: bool
    group: str = ""


@dataclass(slots=True)
class Drain:
    """Remove what waits (and what is delayed, if asked), a page at a time."""

    origin: Origin
    queue: str
    delayed: bool = False
    after: int = 0
    limit: int = REMOVED_MAX


@dataclass(slots=True)
class Clean:
    """Remove jobs of one state, not active, that have been in it for `older_ms`, by pages."""

    origin: Origin
    queue: str
    state: JobState
    older_ms: int = 0
    after: int = 0
    limit: int = REMOVED_MAX


@dataclass(slots=True)
class Obliterate:
    """Remove a queue with everything in it, a page at a time."""

    origin: Origin
    queue: str
    force: bool = False  # active jobs, too
    after: int = 0
    limit: int = REMOVED_MAX


@dataclass(slots=True)
class Events:
    """Events of one queue, or of all (empty), after a cursor; waits at most `wait_ms`."""

    origin: Origin
    queue: str = ""
    epoch: int = 0
    after: int = -1  # number of the last event known; -1: from now on
    limit: int = 1_000
    wait_ms: int = 0


@dataclass(slots=True)
class Block:
    """The holder of a lease waits for further jobs: blocked, and leased again afterwards."""

    origin: Origin
    items: Sequence[tuple[bytes, bytes, Sequence[bytes]]]  # id, token, ids of the further jobs


GATE_NAME = ":gate"  # of the job that holds a flow back until all of it is there


@dataclass(slots=True)
class Open:
    """A flow is complete: its gate, a delayed job, completes."""

    origin: Origin
    items: Sequence[tuple[bytes]]


@dataclass(slots=True)
class States:
    """Where jobs are, by their ids."""

    origin: Origin
    items: Sequence[tuple[bytes]]


class Row(NamedTuple):
    """What one shard tells another about one job."""

    kind: str  # WATCH, UNWATCH or RESOLVE
    id: bytes  # of the job that others depend on
    verdict: int = 0  # RESOLVE: how it ended
    error: str = ""


WATCH = "watch"
UNWATCH = "unwatch"
RESOLVE = "resolve"


@dataclass(slots=True)
class Outbox:
    """Rows for other shards, as far as they are on the disk; waits at most `wait_ms`."""

    origin: Origin
    confirmed: Sequence[tuple[int, int]] = ()  # target, number of the last row it has applied
    skipped: Sequence[int] = ()  # targets that cannot be reached now
    limit: int = 1_000
    wait_ms: int = 0


@dataclass(slots=True)
class Deliver:
    """Rows of another shard, numbered without gaps from `first`."""

    origin: Origin
    source: int
    first: int
    rows: Sequence[Row]


@dataclass(slots=True)
class Rewatch:
    """A shard's order to itself: ask again for what its jobs depend on, so many at a time."""

    origin: Origin


@dataclass(slots=True)
class AddSchedule:
    """Add a schedule, or change the one of this name; the same words again change nothing."""

    origin: Origin
    name: str
    cron: Cron
    queue: str
    job: str  # name of its jobs
    payload: bytes
    options: Mapping[str, Any]


@dataclass(slots=True)
class Unschedule:
    origin: Origin
    name: str


@dataclass(slots=True)
class Suspend:
    """Pause a schedule, or let it go on with the ticks to come."""

    origin: Origin
    name: str
    paused: bool


@dataclass(slots=True)
class Fired:
    """A tick had its job, or is skipped with those before it."""

    origin: Origin
    name: str
    tick: int
    job_id: bytes = b""  # of the job created; empty: none was
    skipped: int = 0  # ticks without a job


@dataclass(slots=True)
class Schedules:
    """One schedule by its name, or those changed after a cursor; waits at most `wait_ms`."""

    origin: Origin
    name: str = ""
    epoch: int = 0
    after: int = 0
    limit: int = SCHEDULES_PAGE_MAX
    wait_ms: int = 0


@dataclass(slots=True)
class Tend:
    """A shard's order to itself: look after the dead letters of a queue, a page at a time."""

    origin: Origin
    queue: str
    after: int = 0


@dataclass(slots=True)
class Result:
    """Waits until the job has ended, at most `wait_ms`."""

    origin: Origin
    id: bytes
    wait_ms: int = 0


@dataclass(slots=True)
class Sweep:
    origin: Origin


@dataclass(slots=True)
class Stats:
    origin: Origin


@dataclass(slots=True)
class Ping:
    origin: Origin


@dataclass(slots=True)
class Workers:
    """A page of workers: those with an id above `after`."""

    origin: Origin
    after: str = ""


@dataclass(slots=True)
class StopWorkers:
    origin: Origin
    worker: str = ""  # empty: all


@dataclass(slots=True)
class Goodbye:
    origin: Origin
    worker: str


Command: TypeAlias = (
    Push | Pull | Unpull | Return | Ack | Fail | Release | Heartbeat | Extend | Progress
    | Log | Retry | Cancel | Purge | Promote | Update | Get | List | Counts | Result | Logs
    | DeadStats | Configure | Pause | Drain | Clean | Obliterate | Events | Tend
    | Block | Open | States | Outbox | Deliver | Rewatch
    | AddSchedule | Unschedule | Suspend | Fired | Schedules
    | Sweep | Stats | Ping | Workers | StopWorkers | Goodbye
)  # fmt: skip


@dataclass(slots=True)
class PayloadRef:
    """Stands in a reply for a payload; the shell puts the bytes in its place."""

    seq: int


@dataclass(slots=True)
class ResultRef:
    """Stands in a reply for a result, or nil if there is none."""

    seq: int


@dataclass(slots=True)
class Reply:
    """The one answer to a command.

    `leased` are the rows of jobs inside `body` that carry an acceptance number where
    their payload belongs; the shell replaces it (the core never holds payloads).
    """

    origin: Origin
    status: int
    body: Any
    leased: Sequence[list[object]] = field(default=())


def batch_answer(count: int, exceptions: list[Any]) -> list[Any]:
    """Return the body that answers `count` items: every item not in `exceptions` is plainly OK.

    An exception is [index, status, detail].
    """
    return [count, exceptions]


def error_body(message: str, retry_after_ms: int = 0) -> list[Any]:
    """Return the body of any reply that is not OK."""
    return [message, retry_after_ms]
