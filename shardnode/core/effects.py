"""What the core wants done, as data: records to put, records to remove, replies to send.

Effects are absolute, so doing them twice is harmless, and the last one per key wins.
They are grouped by kind, because the store writes each kind in one statement.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pyq.job import JobState
from pyq.messages import Reply
from shardnode.core.state import Job


class Now(NamedTuple):
    """The only way in which time and chance reach the core."""

    wall_ms: int  # since 1970; for due times
    mono_ms: int  # monotonic; for durations
    seed: bytes  # 16 fresh random bytes a turn; for tokens and jitter


class Tombstone(NamedTuple):
    """What is left of a job that ended: enough to answer a repeat."""

    id: bytes
    verdict: JobState  # COMPLETED, DEAD or GONE
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
#   ("page", queue number or 0, state or 0, after, limit) -> Page
#   ("horizon",)                         -> millisecond before which tombstones were trimmed
Key: TypeAlias = tuple[object, ...]
Found: TypeAlias = dict[Key, object]


@dataclass(slots=True)
class Need:
    """The command cannot be decided without these records: read them and apply it again."""

    keys: list[Key]


@dataclass(slots=True)
class Effects:
    """Everything one command, or one turn, wants done."""

    queues: dict[int, str] = field(default_factory=dict)  # new queues, by number
    accepted: dict[int, Job] = field(default_factory=dict)  # new jobs: the immutable part
    payloads: dict[int, bytes] = field(default_factory=dict)  # of the accepted
    custom_ids: list[Job] = field(default_factory=list)  # accepted under a custom id
    changed: dict[int, Job] = field(default_factory=dict)  # the mutable part, to be rewritten
    results: dict[int, bytes | None] = field(default_factory=dict)  # None: removed
    ended: dict[bytes, Job] = field(default_factory=dict)  # leave a tombstone, by id
    revived: list[bytes] = field(default_factory=list)  # ids whose tombstone goes
    forgotten: list[int] = field(default_factory=list)  # all records of these jobs
    trimmed_count: int = 0  # oldest tombstones to drop
    ended_before: int = 0  # wall: tombstones of what ended before go, with their custom ids
    replies: list[Reply] = field(default_factory=list)

    def merge(self, later: "Effects") -> None:
        """Add the effects of a later command of the same turn."""
        if later.queues:
            self.queues.update(later.queues)
        if later.accepted:
            self.accepted.update(later.accepted)
            self.payloads.update(later.payloads)
            self.custom_ids += later.custom_ids
        if later.changed:
            self.changed.update(later.changed)
        if later.results:
            self.results.update(later.results)
        if later.ended:
            self.ended.update(later.ended)
        if later.revived:
            self.revived += later.revived
        if later.forgotten:
            self.forgotten += later.forgotten
        self.trimmed_count += later.trimmed_count
        self.ended_before = max(self.ended_before, later.ended_before)
        if later.replies:
            self.replies += later.replies

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
            or self.trimmed_count
            or self.ended_before
        )
