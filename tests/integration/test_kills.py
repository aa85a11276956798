"""kill -9 of every process, each under load from producers and workers: nothing is lost."""

import os
import signal
import time

import pytest

import pyq
from cluster.local import LocalCluster
from tests.integration.ledger import QUEUES, Ledger, is_alive, kill, wait_for

pytestmark = pytest.mark.slow

# Two seconds are promised, and 0.3 to 0.7 measured; the load of the test shares the cores.
SERVED_AGAIN_S = 4.0


@pytest.mark.parametrize("process", ["shard-0", "shard-1", "router", "coordinator"])
def test_a_killed_process_of_the_cluster_loses_and_repeats_nothing(process: str) -> None:
    with LocalCluster(shards=2) as cluster, Ledger(cluster) as ledger:
        ledger.accepted_more()
        for _ in range(3):
            kill(cluster.processes()[process]["pid"])
            wait_for(lambda: is_served(cluster), SERVED_AGAIN_S, cluster.log)
            wait_for(lambda: cluster.processes()[process]["state"] == "ready", SERVED_AGAIN_S)
            ledger.accepted_more()
        ledger.check()
        assert cluster.processes()[process]["restarts"] == 3


def is_served(cluster: LocalCluster) -> bool:
    """Whether a job is accepted on each shard without a single repeat."""
    try:
        with pyq.connect(cluster.url, timeout=0.2) as client:
            for queue in QUEUES:
                client.queue(queue).add("probe")
    except pyq.PyqError:
        return False
    return True


def test_a_killed_worker_only_has_its_own_jobs_run_again() -> None:
    with LocalCluster(shards=2) as cluster, Ledger(cluster, lease_s=1.0) as ledger:
        ledger.accepted_more()
        for _ in range(2):
            ledger.start_worker()
            victim = ledger.workers.pop(0)
            victim.kill()
            victim.wait()
            ledger.accepted_more()
        ledger.check(again_allowed=True)


def test_a_killed_supervisor_takes_its_children_along_and_the_next_start_finds_everything() -> None:
    with LocalCluster(shards=2) as cluster, Ledger(cluster) as ledger:
        ledger.accepted_more()
        children = [process["pid"] for process in cluster.processes().values()]
        cluster.kill()
        wait_for(lambda: not any(map(is_alive, children)), 2)
        cluster.start()
        ledger.accepted_more()
        ledger.check()


@pytest.mark.parametrize("dead", [False, True], ids=["stands still", "is dead"])
def test_a_router_that_is_down_for_longer_than_a_lease_re_runs_nothing(dead: bool) -> None:
    with (
        LocalCluster(shards=2) as cluster,
        Ledger(cluster, lease_s=1.0, work_s=0.5) as ledger,
    ):
        wait_for(ledger.runs, 20, cluster.log)
        router = cluster.processes()["router"]["pid"]
        if dead:  # and nobody there to start it again
            os.kill(cluster.pid, signal.SIGSTOP)
        os.kill(router, signal.SIGKILL if dead else signal.SIGSTOP)
        let_pass(4.0)  # four leases
        os.kill(cluster.pid if dead else router, signal.SIGCONT)
        ledger.check()


def test_a_shard_that_stands_still_for_longer_than_a_lease_re_runs_nothing() -> None:
    with (
        LocalCluster(shards=2) as cluster,
        Ledger(cluster, lease_s=1.0, work_s=0.5) as ledger,
    ):
        wait_for(ledger.runs, 20, cluster.log)
        shard = cluster.processes()["shard-0"]["pid"]
        os.kill(shard, signal.SIGSTOP)
        let_pass(4.0)
        os.kill(shard, signal.SIGCONT)
        ledger.check()


def let_pass(seconds: float) -> None:
    """Time is what this is about: there is nothing else to wait for."""
    end = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > end, seconds + 5)


def test_a_worker_that_was_stopped_past_its_lease_cannot_complete_the_job() -> None:
    with LocalCluster(shards=1) as cluster, pyq.connect(cluster.url) as client:
        ledger = Ledger(cluster, lease_s=1.0, work_s=1.5)
        stopped = ledger.start_worker()
        job = client.queue("red").add("count", backoff=0)
        wait_for(ledger.runs, 20, cluster.log)
        stopped.send_signal(signal.SIGSTOP)
        second = ledger.start_worker()
        result = job.result(timeout=20)
        second.kill()
        second.wait()
        stopped.send_signal(signal.SIGCONT)
        wait_for(lambda: "the lease of this attempt has ended" in cluster.log, 20)
        stopped.kill()
        stopped.wait()
        attempt_of = {run: attempt for _, attempt, run in ledger.runs()}
        view = job.view()
        assert (view["state"], view["result"]) == ("completed", result)
        # The second lease may have gone to the pull that the stopped worker had parked.
        assert attempt_of[result] == view["attempt"] > 1
