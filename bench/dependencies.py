"""Dependencies over the shards of a real cluster: how soon, how many, how far.

`latency`: from before the ack of a job until a parked pull on another shard has the one that
depended on it, one at a time; `beside`: the same within one shard. `releases`: pairs of jobs
on neighbouring shards, the first ones acked in batches. `fan_out`: one job with many
dependents on another shard; `fan_in`: one that waits for 1,000 on all shards; `chain`: jobs on
changing shards, one after the other.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyq
from cluster.local import LocalCluster
from cluster.probes import Asker, Question
from pyq.limits import BATCH_JOBS_MAX, DEPENDS_MAX
from pyq.routes import shard_of, slot_of
from pyq.wire import Verb

WAIT_MS = 20_000
LEASE_MS = 60_000


def measure_dependencies(shards: int, pairs: int, rounds: int, links: int) -> dict[str, Any]:
    """Return all figures for a cluster of so many shards."""
    with LocalCluster(shards) as cluster, pyq.connect(cluster.url) as client:
        bench = _Bench(cluster, client, shards)
        bench.latency(20, 0, 1)  # warm up
        return {
            "shards": shards,
            **_percentiles("latency_ms", bench.latency(rounds, 0, 1)),
            **_percentiles("beside_ms", bench.latency(rounds, 0, 0)),
            **bench.releases(pairs),
            **bench.fan_out(pairs * shards),
            **bench.fan_in(DEPENDS_MAX),
            **bench.chain(links),
        }


class _Bench:
    """A cluster with fresh queues for each measurement."""

    def __init__(self, cluster: LocalCluster, client: pyq.Client, shards: int) -> None:
        self._cluster = cluster
        self._client = client
        self._shards = shards
        self._made = 0

    def latency(self, rounds: int, first_on: int, second_on: int) -> list[float]:
        """Milliseconds from the ack of a job to the lease of the one that waits for it."""
        here, there = self._queue(first_on), self._queue(second_on)
        lags_ms: list[float] = []
        with (
            _Worker(self._cluster.url, here.name) as one,
            _Worker(self._cluster.url, there.name) as other,
        ):
            for _ in range(rounds):
                there.add("second", depends_on=[here.add("first")])
                (leased,) = one.pull(1)
                other.park()
                time.sleep(0.02)  # the watcher is known over there, the pull is parked
                started = time.perf_counter()
                acked = threading.Thread(target=one.ack, args=([leased],))
                acked.start()
                (second,) = other.parked()
                lags_ms.append((time.perf_counter() - started) * 1_000)
                acked.join()
                other.ack([second])
        return lags_ms

    def releases(self, pairs: int) -> dict[str, Any]:
        """As many pairs from each shard to the next one, all at once."""
        heres = [self._queue(shard) for shard in range(self._shards)]
        theres = [self._queue((shard + 1) % self._shards) for shard in range(self._shards)]
        for here, there in zip(heres, theres, strict=True):
            firsts = here.add_bulk([("first", None)] * pairs)
            there.add_bulk([("second", None, {"depends_on": [job]}) for job in firsts])
        total = pairs * self._shards
        took_s = self._until_waiting(theres, total, lambda: self._ack_all(heres))
        return {"releases": total, "releases_per_s": round(total / took_s)}

    def fan_out(self, count: int) -> dict[str, Any]:
        """One job, many dependents on another shard."""
        here, there = self._queue(0), self._queue(1 % self._shards)
        first = here.add("first")
        there.add_bulk([("second", None)] * count, depends_on=[first])
        took_s = self._until_waiting([there], count, lambda: self._ack_all([here]))
        return {"fan_out": count, "fan_out_s": round(took_s, 3)}

    def fan_in(self, count: int) -> dict[str, Any]:
        """One job that waits for many on all shards."""
        heres = [self._queue(shard) for shard in range(self._shards)]
        parts = [here.add_bulk([("part", None)] * (count // self._shards)) for here in heres]
        join = self._queue(0)
        join.add("join", depends_on=[job for jobs in parts for job in jobs])
        took_s = self._until_waiting([join], 1, lambda: self._ack_all(heres))
        return {"fan_in": sum(map(len, parts)), "fan_in_s": round(took_s, 3)}

    def chain(self, links: int) -> dict[str, Any]:
        """Jobs on changing shards, one after the other, run by one worker."""
        queues = [self._queue(shard) for shard in range(self._shards)]
        last = queues[0].add("link")
        names = [queue.name for queue in queues]
        for number in range(1, links):
            last = queues[number % self._shards].add("link", depends_on=[last])
        started = time.perf_counter()
        with pyq.Worker(*names, handler=_nothing, url=self._cluster.url, concurrency=2):
            last.result(timeout=600)
        took_s = time.perf_counter() - started
        return {
            "chain": links,
            "chain_s": round(took_s, 3),
            "chain_ms_per_link": round(took_s * 1_000 / links, 3),
        }

    def _queue(self, shard: int) -> pyq.Queue:
        while True:
            self._made += 1
            name = f"bench-{self._made}"
            if shard_of(slot_of(name), self._shards) == shard:
                return self._client.queue(name)

    def _ack_all(self, queues: Sequence[pyq.Queue]) -> None:
        """Ack all jobs of these queues, in batches, one client for each queue."""

        def work(name: str) -> None:
            with _Worker(self._cluster.url, name) as worker:
                while leased := worker.pull(BATCH_JOBS_MAX, wait_ms=0):
                    worker.ack(leased)

        threads = [threading.Thread(target=work, args=(queue.name,)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _until_waiting(
        self, queues: Sequence[pyq.Queue], total: int, start: Callable[[], None]
    ) -> float:
        """Return the seconds from `start` until so many jobs of these queues wait."""
        started = time.perf_counter()
        thread = threading.Thread(target=start)
        thread.start()
        while sum(queue.counts()["waiting"] for queue in queues) < total:
            time.sleep(0.002)
        took_s = time.perf_counter() - started
        thread.join()
        return took_s


class _Worker:
    """A raw client of one queue: one pull at a time, and acks."""

    def __init__(self, url: str, queue: str) -> None:
        self._asker = Asker(url)
        self._acker = Asker(url)
        self._queue = queue
        self._pulls = 0

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._asker.close()
        self._acker.close()

    def pull(self, jobs_max: int, wait_ms: int = WAIT_MS) -> list[Any]:
        self.park(jobs_max, wait_ms)
        return self.parked()

    def park(self, jobs_max: int = 1, wait_ms: int = WAIT_MS) -> None:
        body = ("bench", (self._queue,), jobs_max, wait_ms, LEASE_MS, self._pulls)
        self._asker.send(Question(Verb.PULL, body=body, queue=self._queue), WAIT_MS + 2_000)
        self._pulls += 1

    def parked(self) -> list[Any]:
        assert self._asker.socket.poll(WAIT_MS + 2_000), "no answer to a pull"
        ((_, answer),) = self._asker.receive()
        return [job for _, jobs in answer.value()[1] for job in jobs]

    def ack(self, leased: Sequence[Any]) -> None:
        items = [(job[0], job[1], None) for job in leased]
        question = Question(Verb.ACK, body=(items,), queue=self._queue)
        _, exceptions = self._acker.ask(question, WAIT_MS).value()
        assert not exceptions, exceptions


def _nothing(job: pyq.JobContext) -> None:
    return None


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {f"{name}_p50": round(cuts[49], 3), f"{name}_p99": round(cuts[98], 3)}
