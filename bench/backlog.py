"""A deep backlog in one shard: what a waiting job weighs, and how fast a million drain.

The shard is a real process, spoken to without a router; the client is a bare loop, so that
what is measured is the shard. A short queue is drained the same way, in the same run.
"""

import time
from typing import Any

import psutil

import pyq
from cluster.local import LocalCluster
from pyq.connection import Connection
from pyq.routes import slot_of
from pyq.wire import Verb

BULK = 1_000
QUEUE = "backlog"
SHORT_JOBS = 20_000
_BUDGET_MS = 30_000


def measure_backlog(jobs: int, payload_bytes: int) -> dict[str, Any]:
    """Return memory per waiting job and the speeds of a deep and a short queue."""
    with LocalCluster(1) as cluster, pyq.connect(cluster.url) as client:
        connection = client.connection()
        shard = psutil.Process(cluster.processes()["shard-0"]["pid"])
        short_runs = [
            _push_and_drain(connection, shard, SHORT_JOBS, payload_bytes) for _ in range(3)
        ]
        short_per_s = max(per_s for per_s, _ in short_runs)
        empty_bytes = shard.memory_info().rss
        started = time.perf_counter()
        _push(connection, jobs, payload_bytes)
        pushed_s = time.perf_counter() - started
        full_bytes = shard.memory_info().rss
        started, cpu_s = time.perf_counter(), _cpu_s(shard)
        in_order = _drain(connection, jobs)
        drained_s, drained_cpu_s = time.perf_counter() - started, _cpu_s(shard) - cpu_s
        return {
            "jobs": jobs,
            "payload_bytes": payload_bytes,
            "rss_mb_full": full_bytes >> 20,
            "bytes_per_waiting_job": (full_bytes - empty_bytes) // jobs,
            "rss_mb_drained": shard.memory_info().rss >> 20,
            "in_order": in_order,
            "pushed_per_s": round(jobs / pushed_s),
            "drained_per_s": round(jobs / drained_s),
            "short_drained_per_s": round(short_per_s),
            "deep_to_short": round(jobs / drained_s / short_per_s, 2),
            # What the shard itself spends, whoever else uses the processors.
            "cpu_us_deep": round(drained_cpu_s / jobs * 1e6, 1),
            "cpu_us_short": round(min(cpu_us for _, cpu_us in short_runs), 1),
        }


def _push_and_drain(
    connection: Connection, shard: psutil.Process, jobs: int, payload_bytes: int
) -> tuple[float, float]:
    """Return jobs drained per second, and the microseconds of the shard's CPU for each."""
    _push(connection, jobs, payload_bytes)
    started, cpu_s = time.perf_counter(), _cpu_s(shard)
    _drain(connection, jobs)
    per_s = jobs / (time.perf_counter() - started)
    return per_s, (_cpu_s(shard) - cpu_s) / jobs * 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _push(connection: Connection, jobs: int, payload_bytes: int) -> None:
    payload = bytes(payload_bytes)
    for _ in range(jobs // BULK):
        ids = connection.ids.make(slot_of(QUEUE), BULK)
        rows = [(job_id, "job", payload, None) for job_id in ids]
        connection.request(Verb.PUSH, (None, rows), queue=QUEUE, budget_ms=_BUDGET_MS)


def _drain(connection: Connection, jobs: int) -> bool:
    """Pull and ack until nothing is left; returns whether the jobs came in order."""
    last, in_order, count = b"", True, 0
    while count < jobs:
        body = ["bench", [QUEUE], 256, 0, 60_000, 1 << 40]
        reply = connection.request(Verb.PULL, body, queue=QUEUE, budget_ms=_BUDGET_MS)
        leased = [row for _, rows in reply.body[1] for row in rows]
        ids = [row[0] for row in leased]
        in_order = in_order and ids == sorted(ids) and ids[0] > last
        last = ids[-1]
        items = [(row[0], row[1], None) for row in leased]
        connection.request(Verb.ACK, [items], queue=QUEUE, budget_ms=_BUDGET_MS)
        count += len(leased)
    return in_order
