"""The core alone: complete life cycles, no socket, a store that copies, the collector off."""

import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyq.ids import IdFactory
from pyq.messages import Ack, Command, NewJob, Origin, Pull, Push, Reply
from pyq.options import DEFAULT_OPTIONS
from pyq.routes import slot_of
from shardnode.core.effects import Effects, Now
from shardnode.core.shard import Shard
from shardnode.core.state import ShardState
from shardnode.storage.memory import MemoryStore
from shardnode.storage.sqlite import SqliteStore
from shardnode.storage.store import Store

QUEUE = "bench"
BATCH = 100
PAYLOAD = b"x" * 100


def measure_core(batches: int, runs: int, store: str) -> dict[str, Any]:
    """Return life cycles per second and microseconds per job and step, best run."""
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for number in range(runs):
            path = Path(folder) / str(number)
            path.mkdir()
            chosen: Store = MemoryStore() if store == "memory" else SqliteStore(path, {})
            results.append(_Run(chosen).measure(batches))
    best = max(results, key=lambda result: float(result["lifecycles_per_s"]))
    rates = [float(result["lifecycles_per_s"]) for result in results]
    return {
        "store": store,
        "jobs": batches * BATCH,
        **best,
        "lifecycles_per_s_median": round(statistics.median(rates)),
    }


class _Run:
    """One shard, driven as its shell drives it: apply, stage, commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        loaded = store.open()
        self._state = ShardState(0, 1, loaded.epoch)
        self._shard = Shard(self._state)
        self._sequence = 0
        self._core_ns: dict[str, int] = {"push": 0, "pull": 0, "ack": 0}
        self._store_ns = 0

    def measure(self, batches: int) -> dict[str, Any]:
        ids = IdFactory()
        slot = slot_of(QUEUE)
        prepared: list[list[NewJob]] = [
            [(job_id, "job", PAYLOAD, DEFAULT_OPTIONS) for job_id in ids.make(slot, BATCH)]
            for _ in range(batches)
        ]
        gc.collect()
        gc.freeze()
        gc.disable()
        started_ns = time.perf_counter_ns()
        for jobs in prepared:
            self._turn("push", Push(self._origin(), QUEUE, jobs))
            pull = Pull(self._origin(), "w", (QUEUE,), BATCH, last_received=self._sequence - 1)
            rows = self._turn("pull", pull).leased
            items = [(row[0], row[1], None) for row in rows]
            self._turn("ack", Ack(self._origin(), items))  # type: ignore[arg-type] # rows are mixed
        took_ns = time.perf_counter_ns() - started_ns
        gc.enable()
        gc.unfreeze()
        self._store.close()
        count = batches * BATCH
        return {
            "lifecycles_per_s": round(count / took_ns * 1e9),
            "push_us": round(self._core_ns["push"] / count / 1000, 3),
            "pull_us": round(self._core_ns["pull"] / count / 1000, 3),
            "ack_us": round(self._core_ns["ack"] / count / 1000, 3),
            "store_us": round(self._store_ns / count / 1000, 3),
        }

    def _origin(self) -> Origin:
        self._sequence += 1
        return Origin(b"benchmrk" + self._sequence.to_bytes(8, "big"))

    def _turn(self, step: str, command: Command) -> Reply:
        now = Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000, os.urandom(16))
        started_ns = time.perf_counter_ns()
        effects = self._shard.apply(command, now)
        applied_ns = time.perf_counter_ns()
        assert isinstance(effects, Effects)
        self._store.begin(sync=False)
        self._store.stage(effects, self._state.counter)
        self._store.commit()
        self._store_ns += time.perf_counter_ns() - applied_ns
        self._core_ns[step] += applied_ns - started_ns
        return effects.replies[0]
