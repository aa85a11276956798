"""Every command and every reply as plain data, and the shapes of their bodies.

`parse` turns a checked body into a command; the functions at the end build bodies for
those who ask. Says what a message is, never what to do about it: the core does that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from pyq.errors import BadOption, Status
from pyq.ids import slot_of_id
from pyq.job import STATE_WORDS, JobState
from pyq.limits import (
    BATCH_JOBS_MAX,
    DELAY_MS_MAX,
    ERROR_BYTES_MAX,
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LIST_JOBS_MAX,
    PAYLOAD_BYTES_MAX,
    PROGRESS_BYTES_MAX,
    PULL_QUEUES_MAX,
    REGISTRATION_CHARACTERS_MAX,
    WAIT_MS_MAX,
    WORKER_NAME_MAX,
)
from pyq.options import Options, check_name, check_options, check_queue, shown
from pyq.routes import slot_of
from pyq.wire import Header, Verb, WireError

ID_BYTES = 16
PAYLOAD_AT = 4  # place of the payload in a leased job's row
TOKEN_BYTES = 20  # shard epoch (4 bytes, big-endian) and 16 random bytes

# What GET and LIST add to a job's view.
WANT_PAYLOAD = 1
WANT_RESULT = 2

# What the reply to a HEARTBEAT may tell a worker.
DIRECTIVE_STOP = "stop"


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
class Retry:
    origin: Origin
    items: Sequence[tuple[bytes]]  # ids of dead jobs


@dataclass(slots=True)
class Cancel:
    origin: Origin
    items: Sequence[tuple[bytes]]  # ids of waiting or delayed jobs


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


@dataclass(slots=True)
class List:
    """A page of jobs in order of acceptance; of one queue, or of all (empty)."""

    origin: Origin
    queue: str = ""
    state: JobState | None = None
    after: int = 0
    limit: int = 100
    want: int = 0


@dataclass(slots=True)
class Counts:
    """Of one queue, or a page of all (empty): those with a number above `after`."""

    origin: Origin
    queue: str = ""
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
    | Retry | Cancel | Purge | Get | List | Counts | Result
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


def parse(header: Header, origin: Origin, body: Any) -> Command:
    """Return the command that a header and an unpacked body stand for.

    Raises WireError with a status and a sentence for whatever does not fit.
    """
    parser = _PARSERS.get(header.verb)
    if parser is None:
        raise WireError(Status.UNSUPPORTED, f"verb {header.verb} is not known here")
    if type(body) is not tuple:
        raise WireError(Status.BAD_REQUEST, "a body is an array")
    try:
        return parser(header, origin, body)
    except BadOption as error:
        raise WireError(Status.BAD_OPTION, str(error)) from None
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        verb = Verb(header.verb).name
        raise WireError(
            Status.BAD_REQUEST, f"the body of {verb} has the wrong shape: {error}"
        ) from None


def batch_answer(count: int, exceptions: list[Any]) -> list[Any]:
    """Return the body that answers `count` items: every item not in `exceptions` is plainly OK.

    An exception is [index, status, detail].
    """
    return [count, exceptions]


def error_body(message: str, retry_after_ms: int = 0) -> list[Any]:
    """Return the body of any reply that is not OK."""
    return [message, retry_after_ms]


# --- one parser per verb; a refusal names what is wrong -------------------------------------


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _int(value: Any, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is not a whole number from {low} to {high}")
    return value


def _text(value: Any, longest: int, what: str) -> str:
    if type(value) is not str or len(value) > longest:
        raise ValueError(f"{what} is not a text of at most {longest} characters")
    return value


def _blob(value: Any, longest: int, what: str) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{what} is not bytes")
    if len(value) > longest:
        raise WireError(Status.TOO_LARGE, f"{what} has {len(value)} bytes, the limit is {longest}")
    return value


def _items(body: tuple[Any, ...]) -> tuple[Any, ...]:
    items = body[0]
    if type(items) is not tuple:
        raise ValueError("items are not an array")
    if len(items) > BATCH_JOBS_MAX:
        raise WireError(Status.TOO_LARGE, f"a batch has at most {BATCH_JOBS_MAX} items")
    return items


def _job_id(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != ID_BYTES:
        raise ValueError("an id is not 16 bytes")
    return value


def _holding(item: Any, length: int) -> None:
    """Check the id and token in front of an item about a lease."""
    if type(item) is not tuple or len(item) != length:
        raise ValueError(f"an item is not an array of {length}")
    job_id, token = item[0], item[1]
    if type(job_id) is not bytes or len(job_id) != ID_BYTES:
        raise ValueError("an id is not 16 bytes")
    if type(token) is not bytes or len(token) != TOKEN_BYTES:
        raise ValueError(f"a token is not {TOKEN_BYTES} bytes")


def _push(header: Header, origin: Origin, body: tuple[Any, ...]) -> Push:
    items = _items((body[1],))
    check_queue(header.queue)
    slot = slot_of(header.queue)
    common = check_options(_options_map(body[0]))
    jobs: list[NewJob] = []
    names: set[str] = set()  # checked once per message, not once per job
    for item in items:
        if type(item) is not tuple or len(item) != 4:
            raise ValueError("a job is not an array of 4")
        job_id, name, payload, own = item
        if type(job_id) is not bytes or len(job_id) != ID_BYTES:
            raise ValueError("an id is not 16 bytes")
        if slot_of_id(job_id) != slot:
            raise ValueError("an id does not carry its queue's slot")
        if name not in names:
            names.add(check_name(name))
        if type(payload) is not bytes or len(payload) > PAYLOAD_BYTES_MAX:
            _blob(payload, PAYLOAD_BYTES_MAX, "a payload")
        options = common if own is None else check_options(_options_map(own), common)
        jobs.append((job_id, name, payload, options))
    return Push(origin, header.queue, jobs)


def _options_map(value: Any) -> dict[str, Any] | None:
    _need(value is None or type(value) is dict, "options are neither nil nor a map")
    options: dict[str, Any] | None = value
    return options


def _pull(header: Header, origin: Origin, body: tuple[Any, ...]) -> Pull:
    worker, queues, jobs_max, wait_ms, lease_ms, last_received = body
    _need(
        type(queues) is tuple and 1 <= len(queues) <= PULL_QUEUES_MAX,
        "queues are not an array of names",
    )
    return Pull(
        origin,
        _text(worker, WORKER_NAME_MAX, "worker"),
        tuple(check_queue(queue) for queue in queues),
        _int(jobs_max, 1, BATCH_JOBS_MAX, "jobs_max"),
        _int(wait_ms, 0, WAIT_MS_MAX, "wait_ms"),
        _int(lease_ms, LEASE_MS_MIN, LEASE_MS_MAX, "lease_ms"),
        _int(last_received, 0, (1 << 64) - 1, "last_received"),
    )


def _unpull(header: Header, origin: Origin, body: tuple[Any, ...]) -> Unpull:
    return Unpull(origin, _job_id(body[0]))


def _return(header: Header, origin: Origin, body: tuple[Any, ...]) -> Return:
    return Return(origin)


def _ack(header: Header, origin: Origin, body: tuple[Any, ...]) -> Ack:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        if item[2] is not None:
            _blob(item[2], PAYLOAD_BYTES_MAX, "a result")
    return Ack(origin, items)


def _fail(header: Header, origin: Origin, body: tuple[Any, ...]) -> Fail:
    items = _items(body)
    for item in items:
        _holding(item, 7)
        _, _, error, traceback, result, unrecoverable, retry_in_ms = item
        _text(error, ERROR_BYTES_MAX, "error")
        _text(traceback, ERROR_BYTES_MAX, "traceback")
        if result is not None:
            _blob(result, PAYLOAD_BYTES_MAX, "a result")
        _need(type(unrecoverable) is bool, "unrecoverable is neither true nor false")
        _int(retry_in_ms, -1, DELAY_MS_MAX, "retry_in_ms")
    return Fail(origin, items)


def _release(header: Header, origin: Origin, body: tuple[Any, ...]) -> Release:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        _int(item[2], 0, DELAY_MS_MAX, "delay_ms")
    return Release(origin, items)


def _heartbeat(header: Header, origin: Origin, body: tuple[Any, ...]) -> Heartbeat:
    items = _items(body)
    for item in items:
        _holding(item, 2)
    return Heartbeat(origin, items, _worker(body[1]), _int(body[2], 0, WAIT_MS_MAX, "wait_ms"))


def _worker(value: Any) -> Worker | None:
    if value is None:
        return None
    worker_id, host, pid, concurrency, started_at, queues = value
    _need(
        type(queues) is tuple and len(queues) <= PULL_QUEUES_MAX, "queues are not an array of names"
    )
    return Worker(
        check_name(worker_id, "worker", WORKER_NAME_MAX),
        _text(host, WORKER_NAME_MAX, "host"),
        _int(pid, 0, 1 << 31, "pid"),
        _int(concurrency, 1, 1 << 20, "concurrency"),
        _int(started_at, 0, 1 << 53, "started_at"),
        _first_names(queues),
    )


def _first_names(queues: tuple[Any, ...]) -> tuple[str, ...]:
    """Return as many of a worker's queues as a shard keeps: a registration is only to look at."""
    names = [check_queue(queue) for queue in queues]
    lengths = accumulate(map(len, names))
    kept = [
        n for n, total in zip(names, lengths, strict=True) if total <= REGISTRATION_CHARACTERS_MAX
    ]
    return tuple(kept)


def _extend(header: Header, origin: Origin, body: tuple[Any, ...]) -> Extend:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        _int(item[2], LEASE_MS_MIN, LEASE_MS_MAX, "lease_ms")
    return Extend(origin, items)


def _progress(header: Header, origin: Origin, body: tuple[Any, ...]) -> Progress:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        _blob(item[2], PROGRESS_BYTES_MAX, "progress")
    return Progress(origin, items)


def _ids(body: tuple[Any, ...]) -> tuple[Any, ...]:
    items = _items(body)
    for item in items:
        _need(type(item) is tuple and len(item) == 1, "an item is not an array of 1")
        _job_id(item[0])
    return items


def _retry(header: Header, origin: Origin, body: tuple[Any, ...]) -> Retry:
    return Retry(origin, _ids(body))


def _cancel(header: Header, origin: Origin, body: tuple[Any, ...]) -> Cancel:
    return Cancel(origin, _ids(body))


def _purge(header: Header, origin: Origin, body: tuple[Any, ...]) -> Purge:
    return Purge(origin, _ids(body))


def _get(header: Header, origin: Origin, body: tuple[Any, ...]) -> Get:
    job_id, custom, want = body
    _need((job_id is None) != (custom is None), "one of id and job_id is nil")
    return Get(
        origin,
        None if job_id is None else _job_id(job_id),
        "" if custom is None else check_name(custom, "job_id", 512),
        header.queue,
        _int(want, 0, 3, "want"),
    )


def _list(header: Header, origin: Origin, body: tuple[Any, ...]) -> List:
    state, after, limit, want = body
    if state is not None and state not in STATE_WORDS:
        raise BadOption(f"state {shown(state)} is not one of {', '.join(sorted(STATE_WORDS))}")
    return List(
        origin,
        header.queue,
        None if state is None else STATE_WORDS[state],
        _int(after, 0, 1 << 62, "after"),
        _int(limit, 1, LIST_JOBS_MAX, "limit"),
        _int(want, 0, 3, "want"),
    )


def _counts(header: Header, origin: Origin, body: tuple[Any, ...]) -> Counts:
    return Counts(origin, header.queue, _int(body[0] if body else 0, 0, 1 << 62, "after"))


def _result(header: Header, origin: Origin, body: tuple[Any, ...]) -> Result:
    return Result(origin, _job_id(body[0]), _int(body[1], 0, WAIT_MS_MAX, "wait_ms"))


def _workers(header: Header, origin: Origin, body: tuple[Any, ...]) -> Workers:
    return Workers(origin, _text(body[0] if body else "", WORKER_NAME_MAX, "after"))


def _stop_workers(header: Header, origin: Origin, body: tuple[Any, ...]) -> StopWorkers:
    return StopWorkers(origin, _text(body[0], WORKER_NAME_MAX, "worker"))


def _goodbye(header: Header, origin: Origin, body: tuple[Any, ...]) -> Goodbye:
    return Goodbye(origin, check_name(body[0], "worker", WORKER_NAME_MAX))


_PARSERS: dict[int, Callable[[Header, Origin, tuple[Any, ...]], Command]] = {
    Verb.PUSH: _push,
    Verb.PULL: _pull,
    Verb.UNPULL: _unpull,
    Verb.RETURN: _return,
    Verb.ACK: _ack,
    Verb.FAIL: _fail,
    Verb.RELEASE: _release,
    Verb.HEARTBEAT: _heartbeat,
    Verb.EXTEND: _extend,
    Verb.PROGRESS: _progress,
    Verb.GET: _get,
    Verb.LIST: _list,
    Verb.COUNTS: _counts,
    Verb.RESULT: _result,
    Verb.SWEEP: lambda header, origin, body: Sweep(origin),
    Verb.STATS: lambda header, origin, body: Stats(origin),
    Verb.PING: lambda header, origin, body: Ping(origin),
    Verb.WORKERS: _workers,
    Verb.STOP_WORKERS: _stop_workers,
    Verb.GOODBYE: _goodbye,
    Verb.RETRY: _retry,
    Verb.CANCEL: _cancel,
    Verb.PURGE: _purge,
}
