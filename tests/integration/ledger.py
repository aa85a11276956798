"""Producers, workers and the ledger of what they were told: the kill tests' common ground.

Nothing here knows how the cluster works inside: it compares what producers were promised
with what is there in the end, and with what the handlers saw.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyq
from cluster.local import LocalCluster

QUEUES = ("red", "green", "blue", "grey")  # on both of two shards
BULK = 20
PAUSE_S = 0.02  # a load, not a flood: it must be drained within the test
END_S = 60.0
WORKER = Path(__file__).parent / "ledger_worker.py"


def wait_for(what: Callable[[], Any], within_s: float, why: str = "") -> Any:
    """Return the first truthy value of `what`; fail when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        assert time.monotonic() < deadline, f"not within {within_s} s {why}"
        time.sleep(0.02)
    return value


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie is dead."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


class Ledger:
    """A cluster under load from two producers and two workers."""

    def __init__(self, cluster: LocalCluster, lease_s: float = 15.0, work_s: float = 0.0) -> None:
        self.cluster = cluster
        self._path = cluster.folder / "ledger"
        self._arguments = [cluster.url, str(self._path), str(lease_s), str(work_s), *QUEUES]
        self.workers: list[subprocess.Popen[bytes]] = []
        self._producers: list[threading.Thread] = []
        self._stop = threading.Event()
        self.accepted: set[str] = set()  # ids of pushes that were answered OK
        self.unsure_count = 0  # pushes that ended in an error

    def __enter__(self) -> "Ledger":
        for _ in range(2):
            self.start_worker()
        for number in range(2):
            thread = threading.Thread(target=self._produce, args=(number,), daemon=True)
            thread.start()
            self._producers.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_producers()
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def start_worker(self) -> "subprocess.Popen[bytes]":
        """Start one worker process on all queues."""
        with (self.cluster.folder / "log").open("a") as log:
            worker = subprocess.Popen(
                [sys.executable, str(WORKER), *self._arguments], stdout=log, stderr=log
            )
        self.workers.append(worker)
        return worker

    def stop_producers(self) -> None:
        """No more pushes; wait for the answers to those on their way."""
        self._stop.set()
        for thread in self._producers:
            thread.join(30)
            assert not thread.is_alive(), "a producer hangs"

    def accepted_more(self, count: int = 200) -> None:
        """Wait until `count` more jobs were accepted: the cluster serves."""
        goal = len(self.accepted) + count
        wait_for(lambda: len(self.accepted) >= goal, 20, self.cluster.log)

    def runs(self) -> list[tuple[str, int, str]]:
        """Return (id, attempt, run) of everything that handlers saw."""
        if not self._path.exists():
            return []
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return [(job_id, int(attempt), run) for job_id, attempt, run in lines]

    def settle(self) -> dict[str, dict[str, Any]]:
        """Wait until nothing is left to do; return the views of all jobs by id."""
        self.stop_producers()
        with pyq.connect(self.cluster.url, timeout=10) as client:
            wait_for(lambda: self._is_quiet(client), END_S, self.cluster.log)
            return {view["id"]: view for view in client.jobs()}

    def check(self, again_allowed: bool = False) -> None:
        """Assert what every kill must leave true.

        `again_allowed`: a worker died, or a lease ran out, so handlers may see a job twice.
        """
        views = self.settle()
        assert self.accepted, "the load never began"
        lost = self.accepted - views.keys()
        assert not lost, f"{len(lost)} accepted jobs are gone"
        runs = self.runs()
        by_run = {run: job_id for job_id, _, run in runs}
        for job_id, view in views.items():
            assert view["state"] == "completed", view
            assert by_run.get(view["result"]) == job_id, f"{job_id} has a result of no run"
        seen = Counter(job_id for job_id, _, _ in runs)
        attempts = Counter((job_id, attempt) for job_id, attempt, _ in runs)
        assert max(attempts.values()) == 1, "one lease was handed to two handlers"
        if not again_allowed:
            twice = [job_id for job_id, count in seen.items() if count > 1]
            assert not twice, f"{len(twice)} jobs ran twice, and nobody died: {twice[:3]}"

    def _is_quiet(self, client: pyq.Client) -> bool:
        try:
            counts = client.counts()
        except pyq.PyqError:
            return False
        live = ("waiting", "delayed", "active")
        return all(not states.get(state) for states in counts.values() for state in live)

    def _produce(self, number: int) -> None:
        with pyq.connect(self.cluster.url, timeout=10) as client:
            queues = [client.queue(name) for name in QUEUES]
            turn = number
            while not self._stop.is_set():
                turn += 1
                jobs = [("count", {"producer": number, "turn": turn, "n": n}) for n in range(BULK)]
                try:
                    added = queues[turn % len(queues)].add_bulk(jobs)
                except pyq.PyqError:
                    self.unsure_count += 1
                    continue
                self.accepted.update(job.id for job in added)
                self._stop.wait(PAUSE_S)


def kill(pid: int) -> None:
    """Kill with -9 and wait until it is dead."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), 5)
