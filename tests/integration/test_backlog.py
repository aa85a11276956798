"""A shard with a long backlog is killed: everything is there afterwards, in order."""

import os
import signal
from collections.abc import Iterator

import pyq
from cluster.local import LocalCluster
from pyq.codec import unpack
from pyq.wire import Verb
from tests.integration.ledger import is_alive, wait_for

JOBS = 100_000
PULL = 1_000


def test_a_hundred_thousand_waiting_jobs_survive_in_order() -> None:
    with LocalCluster(shards=1) as cluster, pyq.connect(cluster.url) as client:
        queue = client.queue("long")
        for start in range(0, JOBS, 10_000):
            queue.add_bulk([("count", n) for n in range(start, start + 10_000)])
        shard = cluster.processes()["shard-0"]["pid"]
        os.kill(shard, signal.SIGKILL)
        wait_for(lambda: not is_alive(shard), 5)

        assert queue.counts()["waiting"] == JOBS
        assert list(pulled_until_empty(client)) == list(range(JOBS))


def pulled_until_empty(client: pyq.Client) -> Iterator[int]:
    connection = client.connection()
    last_received = 0
    while True:
        body = ["reader", ["long"], PULL, 0, 60_000, last_received]
        pending = connection.send(Verb.PULL, body, queue="long")
        _, groups = connection.wait(pending).body
        last_received = pending.sequence
        if not groups:
            return
        for _, jobs in groups:
            yield from (unpack(job[4]) for job in jobs)
