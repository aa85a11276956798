"""A real cluster under load: how many jobs a second go in, and how many come out done.

One producer with `add_bulk` of 1,000 jobs of 100 bytes; then one worker with an empty
handler drains the queue; then the latency of one job at a time on the idle cluster.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

import pyq
from cluster.local import LocalCluster
from pyq.routes import slot_of

BULK = 1_000
DATA = "x" * 98  # 100 bytes packed
LATENCY_JOBS = 300


def measure_load(shards: int, jobs: int, concurrency: int) -> dict[str, Any]:
    """Return jobs per second, CPU microseconds per job and percentiles for `shards` shards.

    With several shards there is one queue, one producer and one worker per shard.
    """
    with LocalCluster(shards) as cluster, pyq.connect(cluster.url) as client:
        queues = _queue_per_shard(shards)
        processes = {
            name: psutil.Process(facts["pid"])
            for name, facts in cluster.processes().items()
            if name != "coordinator"
        }
        result: dict[str, Any] = {"shards": shards, "jobs": jobs, "concurrency": concurrency}
        with _cpu_of(processes, jobs, result, "push"):
            result |= _measure_push(cluster, queues, jobs)
        with _cpu_of(processes, jobs, result, "work"):
            result |= _measure_work(cluster, client, queues, jobs, concurrency)
        result |= _measure_latency(cluster, client, queues[0])
        result |= {f"rss_mb_{name}": p.memory_info().rss >> 20 for name, p in processes.items()}
        return result


def _queue_per_shard(shards: int) -> list[str]:
    """Return one queue's name for each shard, in order."""
    names: dict[int, str] = {}
    number = 0
    while len(names) < shards:
        name = f"bench-{number}"
        names.setdefault(slot_of(name) & (shards - 1), name)
        number += 1
    return [names[shard] for shard in range(shards)]


def _measure_push(cluster: LocalCluster, queues: list[str], jobs: int) -> dict[str, Any]:
    calls_ms: list[float] = []

    def produce(queue_name: str) -> None:
        items = [("job", DATA)] * BULK
        with pyq.connect(cluster.url) as client:
            queue = client.queue(queue_name)
            for _ in range(jobs // len(queues) // BULK):
                started = time.perf_counter()
                queue.add_bulk(items)
                calls_ms.append((time.perf_counter() - started) * 1_000)

    took_s = _together(produce, queues)
    return {
        "push_jobs_per_s": round(len(calls_ms) * BULK / took_s),
        **_percentiles("push_call_ms", calls_ms),
    }


def _measure_work(
    cluster: LocalCluster, client: pyq.Client, queues: list[str], jobs: int, concurrency: int
) -> dict[str, Any]:
    workers = [
        pyq.Worker(queue, handler=_nothing, url=cluster.url, concurrency=concurrency)
        for queue in queues
    ]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    total = jobs // len(queues) // BULK * BULK * len(queues)
    while _completed(client) < total:
        time.sleep(0.01)
    took_s = time.perf_counter() - started
    for worker in workers:
        worker.stop()
    return {"work_jobs_per_s": round(total / took_s)}


def _measure_latency(cluster: LocalCluster, client: pyq.Client, queue_name: str) -> dict[str, Any]:
    """From before `add` to the start of the handler, one job at a time."""
    started_at: list[float] = []
    woken = threading.Event()

    def handle(job: pyq.JobContext) -> None:
        started_at.append(time.perf_counter())
        woken.set()

    lags_ms: list[float] = []
    calls_ms: list[float] = []
    queue = client.queue(queue_name)
    with pyq.Worker(queue_name, handler=handle, url=cluster.url, concurrency=1):
        for _ in range(LATENCY_JOBS):
            woken.clear()
            added = time.perf_counter()
            queue.add("job", DATA)
            calls_ms.append((time.perf_counter() - added) * 1_000)
            woken.wait(10)
            lags_ms.append((started_at[-1] - added) * 1_000)
    return {
        **_percentiles("add_call_ms", calls_ms[10:]),
        **_percentiles("add_to_start_ms", lags_ms[10:]),
    }


def _nothing(job: pyq.JobContext) -> None:
    return None


def _completed(client: pyq.Client) -> int:
    return sum(counts.get("completed", 0) for counts in client.counts().values())


def _together(function: Any, arguments: list[str]) -> float:
    threads = [threading.Thread(target=function, args=(argument,)) for argument in arguments]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


@contextmanager
def _cpu_of(
    processes: dict[str, psutil.Process], jobs: int, result: dict[str, Any], step: str
) -> Iterator[None]:
    """Note the CPU microseconds per job that each process of the cluster, and this one, took."""
    everyone = {**processes, "client": psutil.Process()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in everyone.items()}
    yield
    for name, process in everyone.items():
        spent_s = sum(process.cpu_times()[:2]) - before[name]
        result[f"{step}_cpu_us_{name}"] = round(spent_s / jobs * 1e6, 2)


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {f"{name}_p50": round(cuts[49], 3), f"{name}_p99": round(cuts[98], 3)}
