"""Many jobs at once: an iterable cut into messages, a few of them under way.

Every item is added or refused on its own; whoever calls gets all handles or a BulkError.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from pyq.codec import pack
from pyq.connection import Connection, Pending
from pyq.errors import BadOption, BulkError, PyqError
from pyq.given_options import Wire, options_to_wire
from pyq.handle import Job
from pyq.limits import BATCH_BYTES_MAX, BATCH_JOBS_MAX, REQUEST_MS_DEFAULT
from pyq.options import check_name, check_options
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.queue import Queue

IN_FLIGHT_MAX = 4  # messages of one bulk under way: the shard never waits for the client
_PUSH_BUDGET_MS = REQUEST_MS_DEFAULT
_OF_ONE_JOB = ("job_id", "unique")

BulkItem: TypeAlias = tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]


class _Message:
    """One PUSH of a bulk: the handles in the order of its jobs, and where they stand."""

    __slots__ = ("handles", "indexes", "pending")

    def __init__(self, handles: list[Job], indexes: list[int], pending: Pending) -> None:
        self.handles = handles
        self.indexes = indexes  # of the items in the whole bulk
        self.pending = pending


class Bulk:
    """One call of `add_bulk`: packs, sends with a few messages in flight, collects answers."""

    def __init__(self, queue: "Queue", common_options: Mapping[str, Any], flags: int) -> None:
        for name in _OF_ONE_JOB:
            if common_options.get(name) is not None:
                raise BadOption(f"{name} belongs to one job: give it with the item")
        self._common: Wire | None = options_to_wire(common_options) or None
        self._common_options = check_options(self._common)
        self._depends = bool(self._common and self._common.get("depends_on"))
        self._known: set[bytes] = set()  # of the jobs that some depend on
        self._flags = flags
        self._queue = queue
        self._connection: Connection = queue.client.connection()
        self._results: list[Job | None] = []
        self._failures: list[tuple[int, PyqError]] = []
        self._in_flight: deque[_Message] = deque()
        self._broken: PyqError | None = None  # why nothing more is sent

    def run(self, jobs: Iterable[BulkItem]) -> list[Job]:
        """Add the jobs and return their handles in order, or raise why some were not added."""
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
        packed: list[tuple[bytes, str, bytes, Wire | None]] = []
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
                if self._depends or (wire and "depends_on" in wire):
                    self._checked_dependencies(wire)
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

    def _checked_dependencies(self, wire: Wire | None) -> None:
        """Refuse an item that depends on a job nobody knows; asks once for each job."""
        named = {
            id_bytes
            for part in (self._common, wire)
            if part
            for id_bytes in part.get("depends_on", ())
        }
        if new := sorted(named - self._known):
            self._queue.client.must_know(new, self._queue._slot)
            self._known.update(new)

    def _own_options(self, own: Mapping[str, Any]) -> Wire | None:
        if "durable" in own:
            raise BadOption("durable belongs to the whole bulk: give it to add_bulk")
        return options_to_wire(own, self._common_options) or None

    def _send(
        self, packed: list[tuple[bytes, str, bytes, Wire | None]], indexes: list[int]
    ) -> None:
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
                handles[position]._take_over(status, detail)
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
