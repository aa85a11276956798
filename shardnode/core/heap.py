"""The line of waiting jobs of one queue: highest priority first, then order of readiness.

A bucket (deque) per priority and a small heap of the priorities: taking and adding cost
the same at any depth. An entry is alive while its job is still `waiting`; a job that left
in another way leaves a stale entry behind, which is skipped, or dropped by compaction.
docs/decisions/0002-ready-line.md has the measurements.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from pyq.job import WAITING

if TYPE_CHECKING:
    from shardnode.core.state import Job

STALE_MIN = 64  # below this, compaction costs more than it gives
STALE_SHARE = 5  # one in five entries


class _Bucket:
    """Jobs of one priority: a line in order of readiness, and those that were given back."""

    __slots__ = ("line", "returned")

    def __init__(self) -> None:
        self.line: deque[Job] = deque()
        self.returned: list[tuple[int, Job]] = []  # heap by ready number

    def __len__(self) -> int:
        return len(self.line) + len(self.returned)


class ReadyLine:
    """Waiting jobs. `count` is the number of live ones."""

    __slots__ = ("_buckets", "_priorities", "_stale_count", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._priorities: list[int] = []  # heap of negated priorities, one per bucket
        self._stale_count = 0
        self.count = 0

    def add(self, jobs: "list[Job]") -> None:
        """Put jobs that have just become ready at the tail of their priorities, in order."""
        options = None
        for job in jobs:
            if job.options is not options:  # jobs of one push mostly share them
                options = job.options
                line = self._bucket(options.priority).line
            line.append(job)
        self.count += len(jobs)

    def put_back(self, job: "Job") -> None:
        """Put a job back to the place its ready number says."""
        heappush(self._bucket(job.options.priority).returned, (job.ready, job))
        self.count += 1

    def discard(self) -> None:
        """Note that one waiting job left in another way; its entry has become stale."""
        self.count -= 1
        self._stale_count += 1
        if self._stale_count > max(STALE_MIN, (self.count + self._stale_count) // STALE_SHARE):
            self._compact()

    def take(self, count: int, bytes_max: int) -> "list[Job]":
        """Take out up to `count` jobs, in order, whose payloads sum up to at most `bytes_max`.

        The first job is given whatever its size.
        """
        taken: list[Job] = []
        size = 0
        while self._priorities:
            bucket = self._buckets[-self._priorities[0]]
            line, returned = bucket.line, bucket.returned
            while line or returned:
                first_returned = returned and (not line or returned[0][0] < line[0].ready)
                job = returned[0][1] if first_returned else line[0]
                if job.state is WAITING:
                    size += job.size
                    if len(taken) == count or (size > bytes_max and taken):
                        self.count -= len(taken)
                        return taken
                    taken.append(job)
                else:
                    self._stale_count -= 1
                if first_returned:
                    heappop(returned)
                else:
                    line.popleft()
            del self._buckets[-heappop(self._priorities)]
        self.count -= len(taken)
        return taken

    def entries_count(self) -> int:
        """Return the number of entries, stale ones included."""
        return sum(len(bucket) for bucket in self._buckets.values())

    def _bucket(self, priority: int) -> _Bucket:
        bucket = self._buckets.get(priority)
        if bucket is None:
            bucket = self._buckets[priority] = _Bucket()
            heappush(self._priorities, -priority)
        return bucket

    def _compact(self) -> None:
        for bucket in self._buckets.values():
            bucket.line = deque(job for job in bucket.line if job.state is WAITING)
            bucket.returned = [entry for entry in bucket.returned if entry[1].state is WAITING]
            heapify(bucket.returned)
        self._buckets = {
            priority: bucket for priority, bucket in self._buckets.items() if len(bucket)
        }
        self._priorities = [-priority for priority in self._buckets]
        heapify(self._priorities)
        self._stale_count = 0
