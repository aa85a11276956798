"""A queue as producers see it: jobs go in, handles come out.

Owns how options are written by users and travel on the wire, and how a bulk is cut into
messages. What an option means and its bounds are in `options.py`, checked here first.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from pyq.codec import pack
from pyq.connection import Connection, Pending
from pyq.durations import Duration, duration_ms, moment_ms
from pyq.errors import ERRORS_BY_STATUS, BadOption, BulkError, PyqError, Refused, Status
from pyq.handle import Job
from pyq.ids import id_from_text
from pyq.limits import (
    BACKOFF_BASE_MS_MAX,
    BACKOFF_CAP_MS_MAX,
    BATCH_BYTES_MAX,
    BATCH_JOBS_MAX,
    DELAY_MS_MAX,
    HOUR_MS,
    REQUEST_MS_DEFAULT,
    TIMEOUT_MS_MAX,
)
from pyq.options import Backoff, check_name, check_options, check_queue
from pyq.routes import slot_of
from pyq.wire import Flag, Verb

if TYPE_CHECKING:
    from pyq.client import Client, Jobs

IN_FLIGHT_MAX = 4  # messages of one bulk under way: the shard never waits for the client
_PUSH_BUDGET_MS = REQUEST_MS_DEFAULT

BulkItem: TypeAlias = tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]
BackoffLike: TypeAlias = Backoff | Duration | list[Duration] | tuple[Duration, ...]
_Wire: TypeAlias = dict[str, Any] | None


def exponential(
    base: Duration = 1, *, factor: float = 2.0, cap: Duration = "1h", jitter: float = 0.2
) -> Backoff:
    """Return a backoff: before attempt n+1 it waits min(cap, base x factor^(n-1)), varied by
    +- `jitter` (0 to 1). `base` goes up to a day, `cap` to 365 days, `factor` from 1 to 100.
    """
    return Backoff(
        duration_ms(base, "base", 0, BACKOFF_BASE_MS_MAX),
        factor,
        duration_ms(cap, "cap", 0, BACKOFF_CAP_MS_MAX),
        jitter,
    )


class Queue:
    """One queue of a cluster. Made by `client.queue(name)`; making it asks nothing."""

    def __init__(self, client: "Client", name: str) -> None:
        self.client = client
        self.name = check_queue(name)
        self._slot = slot_of(name)

    def add(
        self,
        name: str,
        data: Any = None,
        /,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int = 0,
        attempts: int = 3,
        backoff: BackoffLike | None = None,
        timeout: Duration | None = None,
        job_id: str | None = None,
        keep_completed: bool = True,
        durable: bool = False,
    ) -> Job:
        """Add a job and return its handle once the cluster has it.

        `name` (1 to 256 characters) is what handlers are chosen by, `data` anything
        `docs/python.md` lists, at most 10 MiB packed.

        - `delay` / `run_at`: not before this duration from now / this aware datetime;
          at most ten years
        - `priority`: higher runs first; -1,000,000 to 1,000,000
        - `attempts`: runs in total, the first included; 1 to 1,000
        - `backoff`: delay before the next attempt: a duration (always the same), a list of
          durations (the last repeats), or `pyq.exponential(...)`, which is the default
          with base 1 s, doubling, cap 1 h
        - `timeout`: longest time for one attempt, up to a day; None: no limit
        - `job_id`: your own id, unique in this queue; when it is taken, the job that has it
          is returned with `deduplicated` True
        - `keep_completed`: False forgets record and result at completion
        - `durable`: return only after the job is synced to disk

        Raises BadOption, PayloadError or TooLarge before anything is sent; Busy, DiskFull or
        Unavailable when the cluster refused; OutcomeUnknown when the job may or may not have
        been added (add it again with the same `job_id` to be sure).
        """
        options = _options_given(
            delay, run_at, priority, attempts, backoff, timeout, job_id, keep_completed
        )
        wire = options_to_wire(options) if options else None
        check_options(wire)
        check_name(name)
        connection = self.client.connection()
        id_bytes = connection.ids.make(self._slot)[0]
        reply = connection.request(
            Verb.PUSH,
            [wire, [(id_bytes, name, pack(data), None)]],
            queue=self.name,
            flags=_durability(durable),
        )
        job = Job(self, id_bytes, name, job_id)
        for _, status, detail in reply.body[1]:
            _apply_exception(job, status, detail)
        return job

    def add_bulk(self, jobs: Iterable[BulkItem], **common_options: Any) -> list[Job]:
        """Add many jobs and return their handles in order.

        An item is `(name, data)` or `(name, data, {options})`; `common_options` are those of
        `add` and hold for all items that do not say otherwise. `job_id` belongs to an item,
        `durable` to all.

        Every item is added or refused on its own, also those refused before sending. If any
        was refused, BulkError carries the handles and the failures; if none could be added
        for one and the same reason, that reason is raised (Unreachable, Unavailable ...).
        """
        return _Bulk(self, common_options).run(jobs)

    def get(self, id: str) -> Job | None:
        """Return the job with this id (a UUID or a custom id) in this queue, or None."""
        views = self.client.find(id, queue=self.name, payload=False, result=False)
        for view in views:
            if view["queue"] == self.name:
                return self._job_of(view)
        return None

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state: {"waiting": 3, "delayed": 0, ...}."""
        return self.client.counts(self.name)[self.name]

    def jobs(self, state: str | None = None, limit: int | None = None) -> "Jobs":
        """Return an iterator over views of this queue's jobs; see `Client.jobs`."""
        return self.client.jobs(self.name, state=state, limit=limit)

    def _job_of(self, view: Mapping[str, Any]) -> Job:
        id_bytes = id_from_text(view["id"])
        assert id_bytes is not None, "the id of a view is a UUIDv7"
        return Job(self, id_bytes, view["name"], view["job_id"])

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} at {self.client.url}>"


# --- options ----------------------------------------------------------------------------------


def options_to_wire(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wire's map for options as users write them; checked one by one.

    Raises BadOption, which names the option, the value and the bound.
    """
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise BadOption("delay and run_at exclude each other; give one of them")
    wire: dict[str, Any] = {}
    for name, value in options.items():
        convert = _CONVERTERS.get(name)
        if convert is None:
            raise BadOption(f"unknown option {name!r}; known are {', '.join(sorted(_CONVERTERS))}")
        wire.update(convert(value))
    check_options(wire)
    return wire


def _options_given(
    delay: Duration | None,
    run_at: datetime | None,
    priority: int,
    attempts: int,
    backoff: BackoffLike | None,
    timeout: Duration | None,
    job_id: str | None,
    keep_completed: bool,
) -> dict[str, Any]:
    """Return the options of `add` that differ from their defaults (True is not 1)."""
    given: dict[str, Any] = {}
    if delay is not None:
        given["delay"] = delay
    if run_at is not None:
        given["run_at"] = run_at
    if priority is not _PRIORITY:
        given["priority"] = priority
    if attempts is not _ATTEMPTS:
        given["attempts"] = attempts
    if backoff is not None:
        given["backoff"] = backoff
    if timeout is not None:
        given["timeout"] = timeout
    if job_id is not None:
        given["job_id"] = job_id
    if keep_completed is not True:
        given["keep_completed"] = keep_completed
    return given


_PRIORITY, _ATTEMPTS = 0, 3  # small integers are one object each; anything else is checked


def _delay(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return {"delay_ms": duration_ms(value, "delay", 0, DELAY_MS_MAX), "run_at": 0}


def _run_at(value: Any) -> dict[str, Any]:
    return {} if value is None else {"run_at": moment_ms(value, "run_at"), "delay_ms": 0}


def _timeout(value: Any) -> dict[str, Any]:
    if value is None:
        return {"timeout_ms": 0}
    return {"timeout_ms": duration_ms(value, "timeout", 1, TIMEOUT_MS_MAX)}


def _custom_id(value: Any) -> dict[str, Any]:
    if value == "":
        raise BadOption("job_id '' is empty; leave it out, or give 1 to 512 characters")
    return {} if value is None else {"job_id": value}


def _backoff(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Backoff):
        return {"backoff": value.to_wire()}
    if isinstance(value, list | tuple):
        if not value:
            raise BadOption("backoff [] is an empty list; give at least one delay")
        steps = [duration_ms(step, "backoff step", 0, BACKOFF_CAP_MS_MAX) for step in value]
        return {"backoff": Backoff(jitter=0.0, steps_ms=tuple(steps)).to_wire()}
    base_ms = duration_ms(value, "backoff", 0, BACKOFF_BASE_MS_MAX)
    return {"backoff": Backoff(base_ms, 1.0, max(base_ms, HOUR_MS), 0.0).to_wire()}


_CONVERTERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "delay": _delay,
    "run_at": _run_at,
    "priority": lambda value: {"priority": value},
    "attempts": lambda value: {"attempts": value},
    "backoff": _backoff,
    "timeout": _timeout,
    "job_id": _custom_id,
    "keep_completed": lambda value: {"keep_completed": value},
}


def _durability(durable: Any) -> int:
    if type(durable) is not bool:
        raise BadOption(f"durable {durable!r} is neither true nor false")
    return Flag.DURABLE if durable else Flag.NONE


# --- many at once -----------------------------------------------------------------------------


class _Message:
    """One PUSH of a bulk: the handles in the order of its jobs, and where they stand."""

    __slots__ = ("handles", "indexes", "pending")

    def __init__(self, handles: list[Job], indexes: list[int], pending: Pending) -> None:
        self.handles = handles
        self.indexes = indexes  # of the items in the whole bulk
        self.pending = pending


class _Bulk:
    """One call of `add_bulk`: packs, sends with a few messages in flight, collects answers."""

    def __init__(self, queue: Queue, common_options: Mapping[str, Any]) -> None:
        options = dict(common_options)
        self._flags = _durability(options.pop("durable", False))
        if options.get("job_id") is not None:
            raise BadOption("job_id belongs to one job: give it with the item")
        self._common: _Wire = options_to_wire(options) or None
        self._queue = queue
        self._connection: Connection = queue.client.connection()
        self._results: list[Job | None] = []
        self._failures: list[tuple[int, PyqError]] = []
        self._in_flight: deque[_Message] = deque()
        self._broken: PyqError | None = None  # why nothing more is sent

    def run(self, jobs: Iterable[BulkItem]) -> list[Job]:
        items = iter(jobs)
        while chunk := list(islice(items, BATCH_JOBS_MAX)):
            self._add_chunk(chunk)
        while self._in_flight:
            self._collect(self._in_flight.popleft())
        if self._failures:
            raise self._error()
        return self._results  # type: ignore[return-value]  # without failures no entry is None

    def _add_chunk(self, chunk: list[BulkItem]) -> None:
        """Pack the items of one chunk and send them, in several messages if they are large."""
        first = len(self._results)
        self._results.extend(repeat(None, len(chunk)))  # before any answer is written into it
        ids = self._connection.ids.make(self._queue._slot, len(chunk))
        packed: list[tuple[bytes, str, bytes, _Wire]] = []
        indexes: list[int] = []
        names: set[str] = set()
        size = 0
        for index, (id_bytes, item) in enumerate(zip(ids, chunk, strict=True), first):
            try:
                if type(item) is tuple and len(item) == 2:
                    name, data = item
                    own = None
                else:
                    name, data, own = _taken_apart(item)
                if name not in names:
                    names.add(check_name(name))
                payload = pack(data)
                wire = None if own is None else self._own_options(own)
            except PyqError as error:
                self._failures.append((index, error))
                continue
            size += len(payload)
            if size > BATCH_BYTES_MAX and packed:
                self._send(packed, indexes)
                packed, indexes, size = [], [], len(payload)
            packed.append((id_bytes, name, payload, wire))
            indexes.append(index)
        if packed:
            self._send(packed, indexes)

    def _own_options(self, own: Mapping[str, Any]) -> _Wire:
        if "durable" in own:
            raise BadOption("durable belongs to the whole bulk: give it to add_bulk")
        return options_to_wire(own) or None

    def _send(self, packed: list[tuple[bytes, str, bytes, _Wire]], indexes: list[int]) -> None:
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            self._collect(self._in_flight.popleft())
        if self._broken is not None:
            self._failures.extend(zip(indexes, repeat(self._broken)))
            return
        pending = self._connection.send(
            Verb.PUSH,
            (self._common, packed),
            queue=self._queue.name,
            flags=self._flags,
            budget_ms=_PUSH_BUDGET_MS,
        )
        queue = self._queue
        handles = [
            Job(queue, id_bytes, name, None if wire is None else wire.get("job_id"))
            for id_bytes, name, _, wire in packed
        ]
        self._in_flight.append(_Message(handles, indexes, pending))

    def _collect(self, message: _Message) -> None:
        """Wait for the answer to one message and note what became of its jobs."""
        try:
            reply = self._connection.wait(message.pending)
        except PyqError as error:
            self._broken = error
            self._failures.extend(zip(message.indexes, repeat(error)))
            return
        handles, indexes = message.handles, message.indexes
        first = indexes[0]
        if indexes[-1] - first + 1 == len(indexes):  # the usual case: no gap
            self._results[first : first + len(indexes)] = handles
        else:
            for index, handle in zip(indexes, handles, strict=True):
                self._results[index] = handle
        for position, status, detail in reply.body[1]:
            try:
                _apply_exception(handles[position], status, detail)
            except PyqError as error:
                self._results[indexes[position]] = None
                self._failures.append((indexes[position], error))

    def _error(self) -> PyqError:
        self._failures.sort(key=lambda failure: failure[0])
        kinds = {type(error) for _, error in self._failures}
        none_added = len(self._failures) == len(self._results)
        if self._broken is not None and none_added and kinds == {type(self._broken)}:
            return self._broken
        return BulkError(self._results, self._failures)


def _taken_apart(item: Any) -> tuple[Any, Any, Mapping[str, Any] | None]:
    if isinstance(item, tuple | list):
        if len(item) == 2:
            return item[0], item[1], None
        if len(item) == 3 and (item[2] is None or isinstance(item[2], Mapping)):
            return item[0], item[1], item[2]
    raise BadOption(
        f"a {type(item).__name__} is neither (name, data) nor (name, data, {{options}})"
    )


def _apply_exception(job: Job, status: int, detail: Any) -> None:
    """Take over one entry of a batch answer: another job has the id, or an error is raised."""
    if status != Status.OK:
        raise item_error(status, detail)
    if isinstance(detail, tuple) and len(detail) >= 2 and detail[0] == "exists":
        # Its own id: a repeat of this very add, which had arrived the first time.
        job.deduplicated = detail[1] != job._id
        job.forgotten = len(detail) >= 3 and detail[2] in ("forgotten", "removed")
        job._id = detail[1]


def item_error(status: int, detail: Any) -> PyqError:
    """Return the exception for an item of a batch answer that is not OK."""
    sentence = detail[0] if isinstance(detail, tuple) and detail else detail
    kind = ERRORS_BY_STATUS.get(status, Refused)  # type: ignore[call-overload]
    error: PyqError = kind(str(sentence) if sentence else f"refused with code {status}")
    return error
