"""The line of waiting jobs of one queue: highest priority first, then by ready number.

A bucket (deque) per priority and a small heap of the priorities: taking and adding cost
the same at any depth. An entry is alive while its job is still `waiting`; a job that left
in another way leaves a stale entry behind, which is skipped, or dropped by compaction. A
job that shall wait elsewhere in line is replaced by a twin (core/queues.py), so that a
stale entry never comes to life again. docs/decisions/0002-ready-line.md has the measurements.
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
    """Jobs of one priority: a line by ready number, and those that were given back."""

    __slots__ = ("count", "line", "returned")

    def __init__(self) -> None:
        self.line: deque[Job] = deque()
        # Heap by ready number, which a stale entry may share: then the order of arrival.
        self.returned: list[tuple[int, int, Job]] = []
        self.count = 0  # live entries

    def __len__(self) -> int:
        return len(self.line) + len(self.returned)


class ReadyLine:
    """Waiting jobs. `count` is the number of live ones."""

    __slots__ = ("_buckets", "_priorities", "_returns_count", "_stale_count", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._priorities: list[int] = []  # heap of negated priorities, one per bucket
        self._stale_count = 0
        self._returns_count = 0
        self.count = 0

    def add(self, jobs: "list[Job]") -> None:
        """Let jobs that have just become ready join their priorities, in order.

        At the tail; those that are `lifo` at the head.
        """
        options = None
        for job in jobs:
            if job.options is not options:  # jobs of one push mostly share them
                options = job.options
                bucket = self._bucket(options.priority)
                join = bucket.line.appendleft if options.lifo else bucket.line.append
            join(job)
            bucket.count += 1
        self.count += len(jobs)

    def restore(self, job: "Job") -> None:
        """Put a job at the tail of its priority; jobs come by ready number, after a start."""
        bucket = self._bucket(job.options.priority)
        bucket.line.append(job)
        bucket.count += 1
        self.count += 1

    def put_back(self, job: "Job") -> None:
        """Put a job back to the place its ready number says."""
        bucket = self._bucket(job.options.priority)
        self._returns_count += 1
        heappush(bucket.returned, (job.ready, self._returns_count, job))
        bucket.count += 1
        self.count += 1

    def discard(self, job: "Job") -> None:
        """Note that a waiting job left in another way; its entry has become stale."""
        self._buckets[job.options.priority].count -= 1
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
            before = len(taken)
            while line or returned:
                first_returned = returned and (not line or returned[0][0] < line[0].ready)
                job = returned[0][2] if first_returned else line[0]
                if job.state is WAITING:
                    size += job.size
                    if len(taken) == count or (size > bytes_max and taken):
                        bucket.count -= len(taken) - before
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

    def priorities(self) -> dict[int, int]:
        """Return the number of waiting jobs by priority, highest first."""
        return {
            priority: self._buckets[priority].count
            for priority in sorted(self._buckets, reverse=True)
            if self._buckets[priority].count
        }

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
            bucket.returned = [entry for entry in bucket.returned if entry[2].state is WAITING]
            heapify(bucket.returned)
        self._buckets = {
            priority: bucket for priority, bucket in self._buckets.items() if len(bucket)
        }
        self._priorities = [-priority for priority in self._buckets]
        heapify(self._priorities)
        self._stale_count = 0
