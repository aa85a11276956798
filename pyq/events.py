"""What happens in a queue, or in all, as it happens: an iterator over events.

One long poll per shard on a connection of its own. A shard keeps its newest events in memory
only; where some are lost (a slow reader, a restart) an event of the kind "gap" says so.
"""

import contextlib
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from pyq.client import Client, readable
from pyq.connection import Connection, Pending
from pyq.durations import Duration, duration_ms
from pyq.errors import BadOption, Busy, OutcomeUnknown, Unavailable, Unreachable, UsageError
from pyq.ids import id_to_text
from pyq.limits import DAY_MS, LIST_JOBS_MAX, PING_MS, REQUEST_MS_DEFAULT, WAIT_MS_MAX
from pyq.options import check_queue, shown
from pyq.routes import shard_of, slot_of
from pyq.wire import BY_QUEUE, Verb

GAP = "gap"
_AGAIN_S = 0.05  # after an answer without events: a shard where too many wait answers at once
_FROM_NOW = -1
_UNKNOWN = -1
_FOREVER_MS = 3_650 * DAY_MS
_CURSOR = re.compile(r"\d{1,10}\.\d{1,19}(-\d{1,10}\.\d{1,19})*", re.ASCII)
# The cluster may be away for a while: the same question again.
_NOT_NOW = (Busy, OutcomeUnknown, Unavailable, Unreachable)

# What the detail of an event says, by its kind.
_DETAILS: dict[str, tuple[str, ...]] = {
    "added": ("run_at",),
    "active": ("attempt", "worker"),
    "failed": ("attempt", "error"),
    "stalled": ("stalls",),
    "delayed": ("run_at",),
    "dead": ("reason", "error"),
    "removed": ("verdict",),
    "progress": ("progress",),
    "paused": ("group",),
    "resumed": ("group",),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. What its kind does not say is None.

    - `kind`: added, waiting, active, completed, failed, stalled, delayed, dead, retried, removed,
      progress, paused, resumed, or "gap"
    - `number` grows within its `shard`; `at` is ms since 1970
    - `queue`, `id` and `name` of the job
    - `run_at` (added, delayed): when it will be waiting, ms since 1970
    - `attempt` and `worker` (active, failed), `stalls` (stalled), `error` (failed, dead)
    - `reason` (dead): exhausted, unrecoverable, timeout, stalled
    - `verdict` (removed): removed, cancelled, expired, replaced, moved
    - `progress` (progress): what the handler said
    - `group` (paused, resumed): None for the whole queue
    - `missed` (gap): how many events were lost before the next one of this shard; None: unknown
    """

    kind: str
    shard: int
    number: int
    at: int | None = None
    queue: str | None = None
    id: str | None = None
    name: str | None = None
    run_at: int | None = None
    attempt: int | None = None
    worker: str | None = None
    stalls: int | None = None
    error: str | None = None
    reason: str | None = None
    verdict: str | None = None
    progress: Any = None
    group: str | None = None
    missed: int | None = None

    def __repr__(self) -> str:
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        said = (f"{name}={value!r}" for name, value in known if value is not None)
        return f"Event({', '.join(said)})"


class _Cursor(NamedTuple):
    """How far the events of one shard are known. The epoch is the shard's count of starts."""

    epoch: int = 0
    after: int = _FROM_NOW

    def __str__(self) -> str:
        return f"{self.epoch}.{max(0, self.after)}"


class _Feed:
    """The events of one shard: the question under way, and what is not delivered yet."""

    __slots__ = ("ask_at", "asked", "delivered", "lost_place", "pending", "ready", "shard")

    def __init__(self, shard: int, cursor: _Cursor, lost_place: bool) -> None:
        self.shard = shard
        self.asked = cursor  # events up to here were received
        self.delivered = cursor  # ... and up to here given to the caller
        self.lost_place = lost_place  # begins with a gap
        self.ask_at = 0.0  # time.monotonic(); not again before
        self.pending: Pending | None = None
        self.ready: deque[tuple[Event, _Cursor]] = deque()

    def take(self, body: Any) -> None:
        """Take over the answer to a question."""
        epoch, following, missed, events = body
        if self.asked.after == _FROM_NOW:
            missed = _UNKNOWN if self.lost_place else 0
        last = _Cursor(epoch, following)
        first = events[0][0] - 1 if events else following
        if missed:
            lost = None if missed == _UNKNOWN else missed
            gap = Event(GAP, self.shard, first, missed=lost)
            self.ready.append((gap, _Cursor(epoch, first)))
        for event in events:
            self.ready.append((_event(self.shard, event), _Cursor(epoch, event[0])))
        if self.ready:  # what comes after the last one concerns others
            self.ready.append((self.ready.pop()[0], last))
        else:
            self.delivered = last
        self.asked = last


class QueueEvents:
    """An iterator over the events of one queue, or of all queues of the cluster.

    It is subscribed as soon as it is made: nothing after that is missed. `since` is a `cursor`
    of an earlier one for the same queue (or all): it goes on from there. Events of one shard, and
    so of one queue, come in order; those of several shards as they arrive. Shards record events
    from the first reader until ten minutes after the last one, the newest 10,000 each; what was
    lost is told by an event of the kind "gap". While a shard or the cluster is away nothing comes
    from it, and nothing is raised.

    A context manager. Use it from one thread at a time; `close` may come from any. Raises
    BadOption for a wrong `queue` or `since`; Unreachable, Unavailable or OutcomeUnknown if a shard
    cannot be asked when it is made.
    """

    def __init__(
        self, client: Client, queue: str | None = None, *, since: str | None = None
    ) -> None:
        self._queue = "" if queue is None else check_queue(queue)
        self._shards_count = client.shard_count()
        self._feeds = self._feeds_from([] if since is None else _cursors(since))
        self._turn = 0  # of the feeds: which is looked at first
        self._connection = Connection(client.url)
        client.adopt(self._connection)
        try:
            self._subscribe()
        except BaseException:
            self._connection.close()
            raise

    @property
    def cursor(self) -> str:
        """Where this reader is, as a text: give it as `since` to go on after the last event
        that was delivered. Cursors of all queues belong to a cluster of as many shards; with
        another number they begin with a gap.
        """
        return "-".join(str(feed.delivered) for feed in self._feeds)

    def next(self, timeout: Duration | None = None) -> Event:
        """Wait for the next event and return it.

        `timeout` is a duration; None waits for ever. Raises TimeoutError when nothing happened
        in time, UsageError when this reader or its client is closed.
        """
        left_ms = _FOREVER_MS
        if timeout is not None:
            left_ms = duration_ms(timeout, "timeout", 0, _FOREVER_MS)
        end = time.monotonic() + left_ms / 1_000
        while True:
            event = self._ready()
            if event is not None:
                return event
            left_ms = round((end - time.monotonic()) * 1_000)
            self._receive(max(0, left_ms))
            if left_ms <= 0 and not any(feed.ready for feed in self._feeds):
                raise TimeoutError("no event in time")

    def close(self) -> None:
        """End the iteration. Callable from any thread; one that waits ends within a second."""
        self._connection.closing = True
        if not self._connection.busy:
            self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return self.next()
        except UsageError:
            if not self._connection.closing:
                raise
            raise StopIteration from None

    def __enter__(self) -> "QueueEvents":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- asking -------------------------------------------------------------------------------

    def _feeds_from(self, cursors: list[_Cursor]) -> list[_Feed]:
        """Return a feed for each shard, from the cursors on if they are of as many shards."""
        shards = [*range(self._shards_count)]
        if self._queue:
            shards = [shard_of(slot_of(self._queue), self._shards_count)]
        if len(cursors) == len(shards):
            return [_Feed(*place, False) for place in zip(shards, cursors, strict=True)]
        return [_Feed(shard, _Cursor(), bool(cursors)) for shard in shards]

    def _subscribe(self) -> None:
        """Ask every shard once without waiting for events: from then on nothing is missed."""
        for feed in self._feeds:
            self._ask(feed, wait_ms=0)
        for feed in self._feeds:
            assert feed.pending is not None, "every shard was asked"
            feed.take(self._connection.wait(feed.pending).body)
            feed.pending = None

    def _ask(self, feed: _Feed, wait_ms: int) -> None:
        slot = BY_QUEUE if self._queue else feed.shard
        feed.pending = self._connection.send(
            Verb.EVENTS,
            [*feed.asked, LIST_JOBS_MAX, wait_ms],
            queue=self._queue,
            slot=slot,
            budget_ms=wait_ms + REQUEST_MS_DEFAULT,
        )

    def _ready(self) -> Event | None:
        """Return an event that is here already; the shards take turns."""
        for _ in self._feeds:
            feed = self._feeds[self._turn]
            self._turn = (self._turn + 1) % len(self._feeds)
            if feed.ready:
                event, feed.delivered = feed.ready.popleft()
                return event
        return None

    def _receive(self, timeout_ms: float) -> None:
        """Ask the shards that are not asked yet, and wait until one of them answers."""
        with self._busy():
            if self._connection.shards not in (0, self._shards_count):
                self._begin_again()
            now = time.monotonic()
            wait_ms = min(timeout_ms, PING_MS)
            for feed in self._feeds:
                if feed.pending is None and feed.ask_at <= now:
                    self._ask(feed, WAIT_MS_MAX)
                elif feed.pending is None:
                    wait_ms = min(wait_ms, (feed.ask_at - now) * 1_000)
            self._connection.poll(wait_ms)
            for feed in self._feeds:
                if feed.pending is not None and feed.pending.done:
                    self._on_answer(feed, feed.pending)

    def _begin_again(self) -> None:
        """After a reshard of the cluster no cursor holds: every feed begins with a gap."""
        for feed in self._feeds:
            if feed.pending is not None:
                self._connection.forget(feed.pending)
        self._shards_count = self._connection.shards
        self._feeds = self._feeds_from([])
        self._turn = 0
        for feed in self._feeds:
            feed.lost_place = True

    def _on_answer(self, feed: _Feed, pending: Pending) -> None:
        feed.pending = None
        if pending.reply is not None:
            feed.take(pending.reply.body)
            if not feed.ready:
                feed.ask_at = time.monotonic() + _AGAIN_S
        elif not isinstance(pending.error, _NOT_NOW):
            assert pending.error is not None, "a finished request has a reply or an error"
            raise pending.error

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Hold the socket: `close` in another thread leaves closing it to us."""
        connection = self._connection
        connection.busy = True
        try:
            if connection.closing:
                raise UsageError("this reader of events is closed")
            yield
        finally:
            connection.busy = False
            if connection.closing:
                connection.close()


def _cursors(since: Any) -> list[_Cursor]:
    if not isinstance(since, str) or not _CURSOR.fullmatch(since):
        raise BadOption(f"since {shown(since)} is not the cursor of a reader of events")
    parts = (part.split(".") for part in since.split("-"))
    return [_Cursor(int(epoch), int(after)) for epoch, after in parts]


def _event(shard: int, event: Any) -> Event:
    number, kind, at, queue, id_bytes, name, detail = event
    names = _DETAILS.get(kind, ()) if isinstance(detail, tuple) else ()
    details = dict(zip(names, detail or (), strict=False))  # a newer cluster may say more
    if "progress" in details:
        details["progress"] = readable(details["progress"])
    if details.get("group") == "":
        details["group"] = None
    job_id = None if id_bytes is None else id_to_text(id_bytes)
    return Event(kind, shard, number, at, queue, job_id, name, **details)
