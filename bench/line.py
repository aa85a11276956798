"""The line of waiting jobs against two heaps, at three depths: what one take and add costs."""

import gc
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from pyq.job import WAITING
from pyq.options import DEFAULT_OPTIONS, Options
from shardnode.core.heap import ReadyLine
from shardnode.core.state import Job, QueueState, new_job

DEPTHS = (1_000, 65_000, 1_000_000)
STEPS = 100_000
PRIORITIES = 10


def measure_line() -> dict[str, Any]:
    """Return nanoseconds for one take and one add, per structure, depth and priorities."""
    result: dict[str, Any] = {}
    for name, make in (("buckets", _Buckets), ("heapq", _HeapQueue), ("4-ary heap", _FourAry)):
        rows: dict[str, Any] = {}
        for depth in DEPTHS:
            for priorities in (1, PRIORITIES):
                rows[f"{depth:,} deep, {priorities} prio"] = _measure(make, depth, priorities)
        result[name] = rows
    return result


def _measure(make: "Callable[[], _Line]", depth: int, priorities: int) -> int:
    line = make()
    jobs = _jobs(depth + STEPS, priorities)
    for job in jobs[:depth]:
        line.add(job)
    gc.collect()
    gc.freeze()
    gc.disable()
    started_ns = time.perf_counter_ns()
    for job in jobs[depth:]:
        line.take()
        line.add(job)
    took_ns = time.perf_counter_ns() - started_ns
    gc.enable()
    gc.unfreeze()
    return round(took_ns / STEPS)


def _jobs(count: int, priorities: int) -> list[Job]:
    queue = QueueState(1, "bench")
    options = [Options(priority=number) for number in range(priorities)]
    options[0] = DEFAULT_OPTIONS
    return [
        new_job(seq, b"", queue, "", options[seq * 7 % priorities], 0, 0, 0, WAITING)
        for seq in range(count)
    ]


class _Buckets:
    """What the shard uses."""

    def __init__(self) -> None:
        self._line = ReadyLine()

    def add(self, job: Job) -> None:
        self._line.add([job])

    def take(self) -> Job:
        return self._line.take(1, 1)[0]


class _HeapQueue:
    """The standard library's binary heap of tuples."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []

    def add(self, job: Job) -> None:
        heappush(self._heap, (-job.options.priority, job.ready, job))

    def take(self) -> Job:
        return heappop(self._heap)[2]


class _FourAry:
    """A heap of four children per node, in Python."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []

    def add(self, job: Job) -> None:
        heap = self._heap
        entry = (-job.options.priority, job.ready, job)
        at = len(heap)
        heap.append(entry)
        while at and entry < heap[parent := (at - 1) >> 2]:
            heap[at] = heap[parent]
            at = parent
        heap[at] = entry

    def take(self) -> Job:
        heap = self._heap
        first = heap[0]
        entry = heap.pop()
        if heap:
            at, size = 0, len(heap)
            while (child := 4 * at + 1) < size:
                least = min(range(child, min(child + 4, size)), key=heap.__getitem__)
                if not heap[least] < entry:
                    break
                heap[at] = heap[least]
                at = least
            heap[at] = entry
        return first[2]


_Line = _Buckets | _HeapQueue | _FourAry
