"""What the core wants done, as data: records to put, records to remove, replies to send.

Effects are absolute, so doing them twice is harmless, and the last one per key wins.
They are grouped by kind, because the store writes each kind in one statement.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pyq.job import Verdict
from pyq.messages import Reply, Row
from pyq.schedule import Schedule
from pyq.settings import Settings
from shardnode.core.state import Job, TimedKey


class Now(NamedTuple):
    """The only way in which time and chance reach the core."""

    wall_ms: int  # since 1970; for due times
    mono_ms: int  # monotonic; for durations
    seed: bytes  # 16 fresh random bytes a turn; for tokens and jitter


class Tombstone(NamedTuple):
    """What is left of a job that ended: enough to answer a repeat."""

    id: bytes
    verdict: Verdict
    ended_at: int
    digest: bytes  # eight bytes of the last token; empty if it was never leased
    seq: int  # its record, for as long as that is kept
    queue: int
    job_id: str | None


class Stored(NamedTuple):
    """A job read from the store because it is not in memory."""

    job: Job
    result_bytes: int | None  # size of its result, None: it has none


class Page(NamedTuple):
    """Part of a listing. `next_after` is None at the end."""

    jobs: list[Stored]
    next_after: int | None


# Keys of what the core can ask for.
#   ("job", id)                          -> Stored | Tombstone | None
#   ("custom", queue number, custom id)  -> Stored | Tombstone | None
#   ("custom_any", custom id)            -> list of Stored and Tombstone, of every queue
#   ("page", queue number or 0, state or 0, after, limit, filters) -> Page; filters: pyq.messages
#   ("dead_oldest", queue number, died before, limit) -> list of Stored, longest dead first
#   ("dead_stats", queue number)         -> list of (reason, count, oldest death, newest death)
#   ("logs", seq, after, limit)          -> list of (number, wall ms, attempt, text)
#   ("named_count", queue number)        -> how many tombstones of it have a custom id
#   ("horizon",)                         -> millisecond before which tombstones were trimmed
Key: TypeAlias = tuple[object, ...]
Found: TypeAlias = dict[Key, object]


@dataclass(slots=True)
class Need:
    """The command cannot be decided without these records: read them and apply it again."""

    keys: list[Key]


@dataclass(slots=True)
class Rare:
    """What most commands do not want done. Kept apart: making it costs as much as a command."""

    settings: dict[int, Settings] = field(default_factory=dict)  # of queues, by number
    # Leases in the window of a rate limit, and when (wall) the last was granted; by queue number.
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)
    obliterated: dict[int, None] = field(default_factory=dict)  # queues of which nothing stays
    rewritten: dict[int, Job] = field(default_factory=dict)  # the immutable part differs after all
    # Unique keys that are held for a time, by queue number and key; None: free.
    timed_keys: dict[tuple[int, str], TimedKey | None] = field(default_factory=dict)
    # Lines of logs: job's seq, number, wall ms, attempt, text; and by seq the first one kept.
    lines: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    lines_cut: dict[int, int] = field(default_factory=dict)
    verdicts: dict[bytes, Verdict] = field(default_factory=dict)  # of those ended that are gone
    unburied: dict[int, None] = field(default_factory=dict)  # leave the list of dead letters
    buried: dict[int, Job] = field(default_factory=dict)  # join it
    # Rows for other shards: target, number, row; and by target the last one that is confirmed.
    mail: list[tuple[int, int, Row]] = field(default_factory=list)
    confirmed: dict[int, int] = field(default_factory=dict)
    # By other shard: number of the last row sent to it, and of the last received from it.
    links: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Jobs of this shard that others depend on, by id and shard; False: no more.
    watchers: dict[tuple[bytes, int], bool] = field(default_factory=dict)
    # What was said of schedules, by name, and how far they have come. None: forgotten.
    schedules: dict[str, Schedule | None] = field(default_factory=dict)
    ticks: dict[str, Schedule] = field(default_factory=dict)
    revived: dict[bytes, None] = field(default_factory=dict)  # ids whose tombstone goes
    trimmed_count: int = 0  # oldest tombstones to drop
    ended_before: int = 0  # wall: tombstones of what ended before go, with their custom ids


@dataclass(slots=True)
class Effects:
    """Everything one command, or one turn, wants done.

    Whoever writes them removes before it adds: tombstones of the revived before those of the
    ended, the unburied before the buried. Obliterated queues come last: what else was written
    of them in the same turn goes, too.
    """

    queues: dict[int, str] = field(default_factory=dict)  # new queues, by number
    accepted: dict[int, Job] = field(default_factory=dict)  # new jobs: the immutable part
    payloads: dict[int, bytes] = field(default_factory=dict)  # of the accepted and rewritten
    custom_ids: list[Job] = field(default_factory=list)  # accepted under a custom id
    changed: dict[int, Job] = field(default_factory=dict)  # the mutable part, to be rewritten
    results: dict[int, bytes | None] = field(default_factory=dict)  # None: removed
    ended: dict[bytes, Job] = field(default_factory=dict)  # leave a tombstone, by id
    forgotten: list[int] = field(default_factory=list)  # all records of these jobs
    replies: list[Reply] = field(default_factory=list)
    sync: bool = False  # the replies must not leave before all of this is on the disk
    maybe_rare: Rare | None = None

    @property
    def rare(self) -> Rare:
        """What is rarely wanted, made on first use."""
        if self.maybe_rare is None:
            self.maybe_rare = Rare()
        return self.maybe_rare

    def merge(self, later: "Effects") -> None:
        """Add the effects of a later command of the same turn."""
        if later.maybe_rare is not None:
            self._merge_rare(later.maybe_rare)
        if later.queues:
            self.queues.update(later.queues)
        if later.accepted:
            self.accepted.update(later.accepted)
            self.custom_ids += later.custom_ids
        if later.payloads:
            self.payloads.update(later.payloads)
        if later.changed:
            self.changed.update(later.changed)
        if later.results:
            self.results.update(later.results)
        if later.ended:
            self.ended.update(later.ended)
        if later.forgotten:
            self.forgotten += later.forgotten
        if later.replies:
            self.replies += later.replies
        if later.sync:
            self.sync = True

    def _merge_rare(self, later: Rare) -> None:
        """A removal voids what was added before it in the same turn."""
        for number in later.obliterated:
            self.queues.pop(number, None)
            self.rare.settings.pop(number, None)
            self.rare.windows.pop(number, None)
        for job_id in later.revived:
            self.ended.pop(job_id, None)
        rare = self.rare
        for seq in later.unburied:
            rare.buried.pop(seq, None)
        rare.settings.update(later.settings)
        rare.windows.update(later.windows)
        rare.obliterated.update(later.obliterated)
        rare.rewritten.update(later.rewritten)
        rare.timed_keys.update(later.timed_keys)
        rare.lines += later.lines
        rare.lines_cut.update(later.lines_cut)
        rare.verdicts.update(later.verdicts)
        rare.unburied.update(later.unburied)
        rare.buried.update(later.buried)
        rare.mail += later.mail
        rare.confirmed.update(later.confirmed)
        rare.links.update(later.links)
        rare.watchers.update(later.watchers)
        rare.schedules.update(later.schedules)
        rare.ticks.update(later.ticks)
        rare.revived.update(later.revived)
        rare.trimmed_count += later.trimmed_count
        rare.ended_before = max(rare.ended_before, later.ended_before)

    @property
    def writes(self) -> bool:
        """True if the store has something to write."""
        return bool(
            self.changed
            or self.accepted
            or self.ended
            or self.results
            or self.forgotten
            or self.queues
            or self.maybe_rare
        )
