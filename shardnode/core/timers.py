"""What happens when: two heaps, one per clock, because due times and durations differ.

An entry is a number and an object; whoever takes it out checks that it still holds. So
nothing is ever searched for in a heap, and an answered wait leaves only a void entry.
"""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardnode.core.state import Job, ParkedBeat, ParkedPull, ParkedResult


class Timers:
    """Due jobs on the wall clock; deadlines of whoever waits, and of attempts, on the monotonic."""

    __slots__ = ("_delayed", "_number", "_parked", "_timeouts")

    def __init__(self) -> None:
        self._delayed: list[tuple[int, int, Job]] = []
        self._parked: list[tuple[int, int, ParkedPull | ParkedBeat | ParkedResult | bytes]] = []
        self._timeouts: list[tuple[int, int, int, Job]] = []
        self._number = 0  # keeps entries of one millisecond in order, and apart

    def delay(self, job: "Job") -> None:
        """Wake up at `job.run_at` (wall)."""
        heappush(self._delayed, (job.run_at, job.seq, job))

    def park(self, at_ms: int, who: "ParkedPull | ParkedBeat | ParkedResult | bytes") -> None:
        """Wake up at `at_ms` (monotonic) for somebody who waits, or a job id that lingers."""
        self._number += 1
        heappush(self._parked, (at_ms, self._number, who))

    def limit(self, at_ms: int, job: "Job") -> None:
        """Wake up at `at_ms` (monotonic), when the present attempt of a job has lasted too long."""
        heappush(self._timeouts, (at_ms, job.seq, job.attempt, job))

    def pop_delayed(self, wall_ms: int) -> "Job | None":
        """Take out a job whose entry is due; the caller checks that it is still delayed to then."""
        if self._delayed and self._delayed[0][0] <= wall_ms:
            return heappop(self._delayed)[2]
        return None

    def pop_parked(self, mono_ms: int) -> "ParkedPull | ParkedBeat | ParkedResult | bytes | None":
        """Take out somebody whose wait is over, answered or not."""
        if self._parked and self._parked[0][0] <= mono_ms:
            return heappop(self._parked)[2]
        return None

    def pop_timeout(self, mono_ms: int) -> "tuple[Job, int] | None":
        """Take out a job and the attempt whose time is over."""
        if self._timeouts and self._timeouts[0][0] <= mono_ms:
            entry = heappop(self._timeouts)
            return entry[3], entry[2]
        return None

    def next_ms(self, wall_ms: int, mono_ms: int) -> int | None:
        """Return the monotonic millisecond of the next entry, or None."""
        candidates = []
        if self._delayed:
            candidates.append(mono_ms + max(0, self._delayed[0][0] - wall_ms))
        if self._parked:
            candidates.append(self._parked[0][0])
        if self._timeouts:
            candidates.append(self._timeouts[0][0])
        return min(candidates, default=None)
