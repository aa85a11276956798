"""What happens when: heaps on two clocks, because due times and durations differ.

An entry is a time and an object; whoever takes it out checks that it still holds. So
nothing is ever searched for in a heap: what was answered or ended leaves a void entry,
and when void entries may be the half of a heap it is made anew without them.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Union

from pyq.job import BLOCKED, DELAYED, WAITING

if TYPE_CHECKING:
    from shardnode.core.state import (
        Job,
        Lease,
        ParkedBeat,
        ParkedEvents,
        ParkedOutbox,
        ParkedPull,
        ParkedResult,
        ParkedSchedules,
        QueueState,
    )

Waiting: TypeAlias = Union[
    "ParkedPull",
    "ParkedBeat",
    "ParkedResult",
    "ParkedEvents",
    "ParkedOutbox",
    "ParkedSchedules",
    bytes,
]
T = TypeVar("T")

COMPACT_MIN = 1_024  # entries below which void ones are left where they are


class _Heap(Generic[T]):
    """Entries by time, then in order of their arrival. `holds` tells void ones apart."""

    __slots__ = ("_compact_at", "_entries", "_holds", "_number")

    def __init__(self, holds: Callable[[int, T], bool]) -> None:
        self._entries: list[tuple[int, int, int, T]] = []
        self._number = 0
        self._holds = holds
        self._compact_at = COMPACT_MIN

    def push(self, at_ms: int, what: T, order: int = 0) -> None:
        """`order` decides between entries of one millisecond, then their arrival does."""
        self._number += 1
        heappush(self._entries, (at_ms, order, self._number, what))
        if len(self._entries) > self._compact_at:
            self._entries = [entry for entry in self._entries if self._holds(entry[0], entry[3])]
            heapify(self._entries)
            self._compact_at = max(COMPACT_MIN, 2 * len(self._entries))

    def pop(self, until_ms: int) -> T | None:
        """Take out the next that holds and is due, or return None."""
        entries = self._entries
        while entries and entries[0][0] <= until_ms:
            at_ms, _, _, what = heappop(entries)
            if self._holds(at_ms, what):
                return what
        return None

    def next_ms(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def __len__(self) -> int:
        return len(self._entries)


class Timers:
    """Due and expiring jobs, keys and records on the wall clock; durations on the monotonic one."""

    __slots__ = ("blocked", "delayed", "expiring", "kept", "keys", "parked", "timeouts", "windows")

    def __init__(self) -> None:
        self.delayed: _Heap[Job] = _Heap(_is_delayed_until)
        self.blocked: _Heap[Job] = _Heap(_is_blocked_since)
        self.expiring: _Heap[Job] = _Heap(_was_never_leased)
        self.keys: _Heap[tuple[QueueState, str]] = _Heap(_is_held_until)
        self.kept: _Heap[tuple[QueueState, int]] = _Heap(_is_kept_until)
        self.windows: _Heap[QueueState] = _Heap(_looks_again)
        self.parked: _Heap[Waiting] = _Heap(_still_waits)
        self.timeouts: _Heap[tuple[Job, Lease]] = _Heap(_is_held)

    def delay(self, job: "Job") -> None:
        """Wake up at `job.run_at` (wall)."""
        self.delayed.push(job.run_at, job, job.seq)

    def expire(self, job: "Job") -> None:
        """Wake up when this job has waited for its first lease too long (wall)."""
        self.expiring.push(job.created_at + job.options.ttl_ms, job, job.seq)

    def block(self, job: "Job") -> None:
        """Wake up when this job, blocked now, has waited for its dependencies too long (wall)."""
        self.blocked.push(job.updated_at + job.options.dep_timeout_ms, job, job.seq)

    def free_key(self, at_ms: int, queue: "QueueState", key: str) -> None:
        """Wake up at `at_ms` (wall), until when a unique key is held."""
        self.keys.push(at_ms, (queue, key))

    def forget(self, at_ms: int, queue: "QueueState", seq: int) -> None:
        """Wake up at `at_ms` (wall), until when the record of a completed job is kept."""
        self.kept.push(at_ms, (queue, seq))

    def open_window(self, at_ms: int, queue: "QueueState") -> None:
        """Wake up at `at_ms` (monotonic), when the rate limit of a queue allows a lease again."""
        queue.window_at = at_ms
        self.windows.push(at_ms, queue)

    def park(self, at_ms: int, who: Waiting) -> None:
        """Wake up at `at_ms` (monotonic) for somebody who waits, or a job id that lingers."""
        self.parked.push(at_ms, who)

    def limit(self, at_ms: int, job: "Job", lease: "Lease") -> None:
        """Wake up at `at_ms` (monotonic), when this lease of a job has lasted too long."""
        self.timeouts.push(at_ms, (job, lease))

    def next_ms(self, wall_ms: int, mono_ms: int) -> int | None:
        """Return the monotonic millisecond of the next entry, or None."""
        heaps = (self.delayed, self.expiring, self.blocked, self.keys)
        on_wall = [heap.next_ms() for heap in heaps]
        candidates = [mono_ms + max(0, at - wall_ms) for at in on_wall if at is not None]
        on_mono = [self.parked.next_ms(), self.timeouts.next_ms(), self.windows.next_ms()]
        candidates += [at for at in on_mono if at is not None]
        return min(candidates, default=None)


def _is_delayed_until(at_ms: int, job: "Job") -> bool:
    return job.state is DELAYED and job.run_at == at_ms


def _was_never_leased(at_ms: int, job: "Job") -> bool:
    return job.may_expire and job.state in (WAITING, DELAYED, BLOCKED)


def _is_blocked_since(at_ms: int, job: "Job") -> bool:
    return job.state is BLOCKED and job.updated_at + job.options.dep_timeout_ms == at_ms


def _is_held_until(at_ms: int, key: "tuple[QueueState, str]") -> bool:
    queue, name = key
    held = queue.timed_keys.get(name)
    return held is not None and held.until == at_ms


def _is_kept_until(at_ms: int, record: "tuple[QueueState, int]") -> bool:
    queue, seq = record
    return queue.kept.get(seq) == at_ms


def _looks_again(at_ms: int, queue: "QueueState") -> bool:
    return queue.window_at == at_ms


def _still_waits(at_ms: int, who: Waiting) -> bool:
    return isinstance(who, bytes) or not who.done


def _is_held(at_ms: int, limited: "tuple[Job, Lease]") -> bool:
    job, lease = limited
    return job.lease is lease and not lease.end  # HELD is zero
