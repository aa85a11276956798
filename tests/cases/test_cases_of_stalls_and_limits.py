"""Cases H and L: stalls and double runs; pause, rate limits, concurrency."""

import random

import pytest

from tests.cases.adapter import Core, Killed, Lease, Parked
from tests.cases.levels import in_memory
from tests.support.shards import a_shard

# --- H. Stalls and double runs --------------------------------------------------------------------


def a_stalled_job(product: Core, queue: str) -> Lease:
    """A job whose worker was stopped for longer than its lease; it waits for another one."""
    product.settings(queue, stall_ms=1_000)
    product.push(queue, "J", backoff=("fixed", 0, 1, 0))
    lease = product.pull_one(queue, "slow")
    product.pass_time(4_000)
    assert product.get(lease.id)["stalls"] == 1
    return lease


def completions(product: Core, before: "object", queue: str) -> int:
    reading = product.events(queue, since=before)()
    assert reading.missed == 0
    return sum(event.kind == "completed" for event in reading.events)


@pytest.mark.parametrize("late_first", [False, True])
def test_c30_a_lease_that_was_given_on_is_void(product: Core, late_first: bool) -> None:
    """Once another worker has the job the first one's token is refused, whoever is faster."""
    queue = product.queue()
    first = a_stalled_job(product, queue)
    product.here()
    cursor = product.events(queue)()
    second = product.pull_one(queue, "quick")
    assert (second.id, second.attempt) == (first.id, 2)
    if late_first:
        assert product.ack(first, "one") == "STALE_TOKEN"
        assert product.ack(second, "two") == "ok"
    else:
        assert product.ack(second, "two") == "ok"
        assert product.ack(first, "one") == "STALE_TOKEN"

    assert completions(product, cursor, queue) == 1
    product.here()
    assert product.wait(first.id).end == ("completed", "two", "")


def test_c30_a_late_holder_may_finish_while_nobody_else_has_the_job(product: Core) -> None:
    """The work of a slow worker counts as long as nobody got the job after it."""
    queue = product.queue()
    first = a_stalled_job(product, queue)
    product.here()
    cursor = product.events(queue)()
    assert product.ack(first, "one") == "ok"
    assert product.pull(queue, worker="quick") == []

    assert completions(product, cursor, queue) == 1
    assert product.wait(first.id).end == ("completed", "one", "")


def test_c31_heartbeats_renew_the_lease(product: Core) -> None:
    """Jobs that take three times the lease run once each, however long the worker is heard."""
    queue = product.queue()
    product.settings(queue, stall_ms=1_000)
    product.push_many(queue, [(n, {}) for n in range(5)])
    leases = product.pull(queue, 5)
    for _ in range(9):
        product.pass_time(333)
        assert product.heartbeat(*leases) == ["ok"] * 5
        product.here()
    assert product.ack_many([(lease, lease.data) for lease in leases]) == ["ok"] * 5

    views = product.listing(queue)
    assert [(view["attempt"], view["stalls"], view["result"]) for view in views] == [
        (1, 0, n) for n in range(5)
    ]
    product.pass_time(10_000)
    assert product.pull(queue) == []


def test_c32_a_delay_beyond_the_lease_is_no_stall(product: Core) -> None:
    """Nothing is leased before it is due, and each delayed job runs once, at its time."""
    queue = product.queue()
    product.settings(queue, stall_ms=1_000)
    crew = product.crew(queue, workers=4)
    due = product.now + 8_000
    product.push_many(queue, [(n, {"delay_ms": 8_000}) for n in range(50)])
    product.pass_time(7_999)
    product.here()
    assert crew.leases == []
    product.pass_time(30_000)

    assert sorted(crew.done) == list(range(50))
    assert {(at, lease.attempt) for at, lease in crew.leases} == {(due, 1)}
    assert product.counts(queue) == {"completed": 50}


# --- L. Pause, limits, concurrency ----------------------------------------------------------------


def test_c40_a_parked_pull_gets_nothing_while_the_queue_is_paused(product: Core) -> None:
    """A pull that waited before the pause is served after it, not within."""
    queue = product.queue()
    parked = product.park(queue, n=5, wait_ms=10_000)
    product.pause(queue)
    product.here()
    for n in range(5):
        product.push(queue, n)
    product.pass_time(5_000)
    assert parked.waits
    assert product.counts(queue) == {"waiting": 5}
    product.resume(queue)

    assert [lease.data for lease in parked.leases] == list(range(5))


@pytest.mark.parametrize("restarts", [False, True])
def test_c40_no_interleaving_leases_while_paused(restarts: bool) -> None:
    """Pause, push and resume in any order among eight pullers: no lease within a pause."""
    dice = random.Random(447)
    for _ in range(500):
        product = Core(a_shard(checked=False), restarts)
        leased, pushed = interleaving(product, dice)
        assert len(leased) == len(set(leased)) <= pushed


def interleaving(product: Core, dice: random.Random) -> tuple[list[bytes], int]:
    """Do something at random; returns the jobs that were leased, and how many were pushed."""
    queue = product.queue()
    parked: dict[str, Parked] = {}
    leased: list[bytes] = []
    paused, pushed = False, 0
    for step in range(16):
        what = dice.choice(("pause", "resume", "push", "push", "pull", "pull", "time", "restart"))
        if what == "pause":
            product.pause(queue)
            paused = True
        elif what == "resume":
            product.resume(queue)
            paused = False
        elif what == "push":
            product.push(queue, step, delay_ms=dice.choice((0, 0, 3)))
            pushed += 1
        elif what == "pull":
            worker = f"w-{dice.randrange(8)}"
            if worker not in parked:
                parked[worker] = product.park(queue, dice.choice((1, 3)), worker=worker)
        elif what == "time":
            product.pass_time(dice.randrange(5), coordinator=False)
        else:
            product.here()
        answered = [worker for worker, pull in parked.items() if not pull.waits]
        granted = [lease for worker in answered for lease in parked.pop(worker).leases]
        assert not granted or not paused or what == "resume", f"leased after {what}, while paused"
        leased += [lease.id for lease in granted]
    return leased, pushed


def test_c41_a_rate_limit_holds_in_every_window(product: Core) -> None:
    """However one lays a window over the leases it never holds more than the limit."""
    product.rig.checked = False
    queue = product.queue()
    product.limits(queue, max=10, per_ms=1_000)
    product.push_many(queue, [(n, {}) for n in range(200)])
    product.pass_time(990 - product.now % 1_000)
    crew = product.crew(queue, workers=4)
    product.pass_time(9_500)
    product.here()
    product.pass_time(15_000)
    times = [at for at, _ in crew.leases]

    assert sorted(crew.done) == list(range(200))
    windows = [b - a for a, b in zip(times, times[10:], strict=False)]
    assert min(windows) >= 1_000
    most_ms = 22_000 if product.restarts else 21_000
    assert 19_000 <= times[-1] - times[0] <= most_ms


@in_memory
@pytest.mark.parametrize(
    "shard_was",
    ["busy", "idle", "restarted"],
)
def test_c42_a_killed_worker_does_not_keep_the_only_slot(product: Core, shard_was: str) -> None:
    """The slot is the lease: three seconds after its worker was killed the next job runs."""
    queue = product.queue()
    product.limits(queue, concurrency=1)
    product.settings(queue, stall_ms=1_000)
    if shard_was == "idle":
        product.pass_time(1_000)
    product.push_many(queue, [(n, {}) for n in range(3)])
    product.pull_one(queue, "victim")
    product.kill_worker("victim")
    killed_at = product.now
    if shard_was == "restarted":
        product.kill_shard()
    crew = product.crew(queue, workers=2)
    product.pass_time(15_000)

    assert crew.leases[0][0] - killed_at <= 3_000


def test_c42_the_slot_of_a_killed_worker_comes_back(product: Core) -> None:
    """Never two at once, and in the end all jobs complete, the interrupted one with one stall."""
    queue = product.queue()
    product.limits(queue, concurrency=1)
    product.settings(queue, stall_ms=1_000)
    interrupted = product.push(queue, 0).id
    product.push_many(queue, [(n, {}) for n in (1, 2)])

    def handler(lease: Lease) -> None:
        assert product.counts(queue)["active"] == 1
        if lease.worker == "victim-0":
            raise Killed

    product.crew(queue, handler=handler, prefix="victim")
    product.here()
    crew = product.crew(queue, workers=2, handler=handler)
    product.pass_time(15_000)

    assert sorted(crew.done) == [0, 1, 2]
    assert product.counts(queue) == {"completed": 3}
    view = product.get(interrupted)
    assert (view["attempt"], view["stalls"], view["failures"]) == (2, 1, 0)
