"""The queues of a worker grouped by shard, and what is on its way to each shard.

No I/O. One lane per shard: at most one pull is parked there, and what handlers finished is
collected in outboxes until a message leaves.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pyq.connection import Pending
from pyq.context import JobContext
from pyq.limits import BATCH_BYTES_MAX, BATCH_JOBS_MAX, LEASE_MS_DEFAULT, LOG_LINES_MAX
from pyq.routes import shard_of, slot_of
from pyq.wire import Verb

# In the order in which they leave: news of a running job before the news of its end.
NEWS_VERBS = frozenset((Verb.PROGRESS, Verb.LOG))
_ENDS = (Verb.ACK, Verb.FAIL, Verb.RELEASE, Verb.BLOCK)
OUT_VERBS = (Verb.PROGRESS, Verb.LOG, Verb.EXTEND, *_ENDS)
_SHORT_LEASE_S = 60.0  # queues of one lane may grant different leases: the shortest of a minute

Item: TypeAlias = tuple[Any, ...]


def _newest(_: Item, item: Item) -> Item:
    """Of progress only the last word counts."""
    return item


def _joined(waiting: Item, item: Item) -> Item:
    """Put log lines behind those that wait; the cluster keeps no more of a job than we do."""
    job_id, token, number, lines = waiting
    lines += item[3]
    too_many = max(0, len(lines) - LOG_LINES_MAX)
    del lines[:too_many]
    return job_id, token, number + too_many, lines


# How an item becomes one with an earlier one of the same lease. Others wait one by one.
_MERGES: dict[Verb, Callable[[Item, Item], Item]] = {Verb.PROGRESS: _newest, Verb.LOG: _joined}


class Outbox:
    """Items of one verb that wait for a message."""

    __slots__ = (
        "_merge", "_places", "bytes_count", "contexts", "in_flight_count", "items", "sizes",
    )  # fmt: skip

    def __init__(self, verb: Verb = Verb.ACK) -> None:
        self._merge = _MERGES.get(verb)
        self._places: dict[bytes, int] = {}  # in `items`, by token, where items are merged
        self.contexts: list[JobContext | None] = []
        self.items: list[Item] = []
        self.sizes: list[int] = []
        self.bytes_count = 0
        self.in_flight_count = 0  # messages sent and not answered

    def add(self, context: JobContext | None, item: Item, size: int) -> None:
        if self._merge is not None:
            at = self._places.setdefault(item[1], len(self.items))
            if at < len(self.items):
                self.items[at] = self._merge(self.items[at], item)
                self.sizes[at] += size
                self.bytes_count += size
                return
        self.contexts.append(context)
        self.items.append(item)
        self.sizes.append(size)
        self.bytes_count += size

    def take(self) -> tuple[list[JobContext | None], list[Item]]:
        """Remove and return what fits into one message, oldest first."""
        count = self._fitting_count()
        taken = self.contexts[:count], self.items[:count]
        self.bytes_count -= sum(self.sizes[:count])
        del self.contexts[:count], self.items[:count], self.sizes[:count]
        if self._merge is not None:
            self._places = {item[1]: at for at, item in enumerate(self.items)}
        return taken

    def _fitting_count(self) -> int:
        if len(self.items) <= BATCH_JOBS_MAX and self.bytes_count <= BATCH_BYTES_MAX:
            return len(self.items)
        total = 0
        for index, size in enumerate(self.sizes[:BATCH_JOBS_MAX]):
            total += size
            if total > BATCH_BYTES_MAX and index:
                return index
        return min(len(self.items), BATCH_JOBS_MAX)


class Lane:
    """One shard as a worker sees it."""

    def __init__(self, shard: int, queues: Sequence[str], lease_ms: int = LEASE_MS_DEFAULT) -> None:
        self.shard = shard
        self.queues = tuple(queues)
        self.pull: Pending | None = None
        self.pull_after = 0.0  # after a refusal: not before this moment of time.monotonic()
        self.refusals_count = 0  # in a row
        self.last_received = 0  # sequence of the last pull whose reply arrived
        self.lease_ms = lease_ms  # the shortest granted lately; heartbeats keep to it
        self._lease_at = -math.inf  # when that was
        self.outboxes = {verb: Outbox(verb) for verb in OUT_VERBS}

    def note_lease(self, lease_ms: int, now: float) -> bool:
        """Take over the length of a lease granted now; True if it is shorter than those before."""
        if lease_ms <= self.lease_ms or now - self._lease_at > _SHORT_LEASE_S:
            shorter = lease_ms < self.lease_ms
            self.lease_ms, self._lease_at = lease_ms, now
            return shorter
        return False

    @property
    def route(self) -> str:
        """A queue of this shard: its name routes what concerns the whole lane."""
        return self.queues[0]

    @property
    def has_endings(self) -> bool:
        return any(self.outboxes[verb].items for verb in _ENDS)

    @property
    def has_waiting(self) -> bool:
        return any(outbox.items for outbox in self.outboxes.values())


def lanes_of(
    queues: Iterable[str], shards_count: int, lease_ms: int = LEASE_MS_DEFAULT
) -> list[Lane]:
    """Return one lane for each shard that owns one of `queues`, queues in the given order."""
    by_shard: dict[int, list[str]] = {}
    for queue in queues:
        by_shard.setdefault(shard_of(slot_of(queue), shards_count), []).append(queue)
    return [Lane(shard, names, lease_ms) for shard, names in sorted(by_shard.items())]
