"""The queues of a worker grouped by shard, and what is on its way to each shard.

No I/O. One lane per shard: at most one pull is parked there, and what handlers finished is
collected in outboxes until a message leaves.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pyq.connection import Pending
from pyq.context import JobContext
from pyq.limits import BATCH_BYTES_MAX, BATCH_JOBS_MAX
from pyq.routes import shard_of, slot_of
from pyq.wire import Verb

# In the order in which they leave: news of a running job before the news of its end.
OUT_VERBS = (Verb.PROGRESS, Verb.EXTEND, Verb.ACK, Verb.FAIL, Verb.RELEASE)


class Outbox:
    """Items of one verb that wait for a message."""

    __slots__ = ("bytes_count", "contexts", "in_flight_count", "items", "newest", "sizes")

    def __init__(self, newest_only: bool = False) -> None:
        # Of progress only the last word of a job counts: place in `items` by token.
        self.newest: dict[bytes, int] | None = {} if newest_only else None
        self.contexts: list[JobContext | None] = []
        self.items: list[tuple[Any, ...]] = []
        self.sizes: list[int] = []
        self.bytes_count = 0
        self.in_flight_count = 0  # messages sent and not answered

    def add(self, context: JobContext | None, item: tuple[Any, ...], size: int) -> None:
        if self.newest is not None:
            at = self.newest.setdefault(item[1], len(self.items))
            if at < len(self.items):
                self.items[at] = item
                return
        self.contexts.append(context)
        self.items.append(item)
        self.sizes.append(size)
        self.bytes_count += size

    def take(self) -> tuple[list[JobContext | None], list[tuple[Any, ...]]]:
        """Remove and return what fits into one message, oldest first."""
        count = self._fitting_count()
        taken = self.contexts[:count], self.items[:count]
        self.bytes_count -= sum(self.sizes[:count])
        del self.contexts[:count], self.items[:count], self.sizes[:count]
        if self.newest is not None:
            self.newest = {item[1]: at for at, item in enumerate(self.items)}
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

    def __init__(self, shard: int, queues: Sequence[str]) -> None:
        self.shard = shard
        self.queues = tuple(queues)
        self.pull: Pending | None = None
        self.pull_after = 0.0  # after a refusal: not before this moment of time.monotonic()
        self.refusals_count = 0  # in a row
        self.last_received = 0  # sequence of the last pull whose reply arrived
        self.outboxes = {verb: Outbox(verb is Verb.PROGRESS) for verb in OUT_VERBS}

    @property
    def route(self) -> str:
        """A queue of this shard: its name routes what concerns the whole lane."""
        return self.queues[0]

    @property
    def has_endings(self) -> bool:
        return any(self.outboxes[verb].items for verb in (Verb.ACK, Verb.FAIL, Verb.RELEASE))

    @property
    def has_waiting(self) -> bool:
        return any(outbox.items for outbox in self.outboxes.values())


def lanes_of(queues: Iterable[str], shards_count: int) -> list[Lane]:
    """Return one lane for each shard that owns one of `queues`, queues in the given order."""
    by_shard: dict[int, list[str]] = {}
    for queue in queues:
        by_shard.setdefault(shard_of(slot_of(queue), shards_count), []).append(queue)
    return [Lane(shard, names) for shard, names in sorted(by_shard.items())]
