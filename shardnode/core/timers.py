"""What happens when: heaps on two clocks, because due times and durations differ.

An entry is a time and an object; whoever takes it out checks that it still holds. So
nothing is ever searched for in a heap: what was answered or ended leaves a void entry,
and when void entries may be the half of a heap it is made anew without them.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Union

from pyq.job import DELAYED

if TYPE_CHECKING:
    from shardnode.core.state import Job, Lease, ParkedBeat, ParkedPull, ParkedResult

Waiting: TypeAlias = Union["ParkedPull", "ParkedBeat", "ParkedResult", bytes]
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
    """Due jobs on the wall clock; whoever waits, and attempts, on the monotonic one."""

    __slots__ = ("delayed", "parked", "timeouts")

    def __init__(self) -> None:
        self.delayed: _Heap[Job] = _Heap(_is_delayed_until)
        self.parked: _Heap[Waiting] = _Heap(_still_waits)
        self.timeouts: _Heap[tuple[Job, Lease]] = _Heap(_is_held)

    def delay(self, job: "Job") -> None:
        """Wake up at `job.run_at` (wall)."""
        self.delayed.push(job.run_at, job, job.seq)

    def park(self, at_ms: int, who: Waiting) -> None:
        """Wake up at `at_ms` (monotonic) for somebody who waits, or a job id that lingers."""
        self.parked.push(at_ms, who)

    def limit(self, at_ms: int, job: "Job", lease: "Lease") -> None:
        """Wake up at `at_ms` (monotonic), when this lease of a job has lasted too long."""
        self.timeouts.push(at_ms, (job, lease))

    def next_ms(self, wall_ms: int, mono_ms: int) -> int | None:
        """Return the monotonic millisecond of the next entry, or None."""
        due_at = self.delayed.next_ms()
        candidates = [self.parked.next_ms(), self.timeouts.next_ms()]
        if due_at is not None:
            candidates.append(mono_ms + max(0, due_at - wall_ms))
        return min((at for at in candidates if at is not None), default=None)


def _is_delayed_until(at_ms: int, job: "Job") -> bool:
    return job.state is DELAYED and job.run_at == at_ms


def _still_waits(at_ms: int, who: Waiting) -> bool:
    return isinstance(who, bytes) or not who.done


def _is_held(at_ms: int, limited: "tuple[Job, Lease]") -> bool:
    job, lease = limited
    return job.lease is lease and not lease.end  # HELD is zero
