"""A shard with a backlog is killed with -9: how long until it serves again, what it weighs."""

import os
import signal
import time
from typing import Any

import psutil

import pyq
from cluster.local import LocalCluster

BULK = 1_000
DATA = "x" * 98
GIVE_UP_S = 60.0


def measure_restart(jobs: int) -> dict[str, Any]:
    """Return the seconds from the kill to the first answer, and the resident memory."""
    with LocalCluster(1) as cluster, pyq.connect(cluster.url) as client:
        queue = client.queue("bench")
        for _ in range(jobs // BULK):
            queue.add_bulk([("job", DATA)] * BULK)
        pid = cluster.processes()["shard-0"]["pid"]
        before_mb = psutil.Process(pid).memory_info().rss >> 20
        started = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        waiting = _wait_until_served(client, started)
        took_s = time.perf_counter() - started
        after = psutil.Process(cluster.processes()["shard-0"]["pid"])
        return {
            "jobs": jobs,
            "waiting_after": waiting,
            "kill_to_served_s": round(took_s, 3),
            "rss_mb_before": before_mb,
            "rss_mb_after": after.memory_info().rss >> 20,
        }


def _wait_until_served(client: pyq.Client, started: float) -> int:
    while time.perf_counter() - started < GIVE_UP_S:
        try:
            return client.queue("bench").counts().get("waiting", 0)
        except pyq.PyqError:
            continue
    return 0
