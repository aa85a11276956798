"""Cases M and N: cleaning and retention; events, results, waiting."""

import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyq.limits import COMPLETED_KEPT_DEFAULT, COMPLETED_KEPT_MAX, COMPLETED_MS_MIN
from tests.cases.adapter import Core, Lease, Reading, Refused, Surface
from tests.cases.levels import in_memory, on_disk, refusals

LINGER_MS = 10_000

# --- M. Cleaning and retention --------------------------------------------------------------------


def fill(product: Core, queue: str, each: int) -> list[Lease]:
    """Jobs in every state there is, with everything a job may have; returns the active ones."""
    dead = ({"attempts": 1, "tags": ["t"]}, "fail")
    done = ({"meta": b"m"}, "ack")
    for options, end in (dead, done):
        product.push_many(queue, [("ends", options)] * each)
        for lease in product.pull(queue, each):
            product.progress(lease, 50)
            product.log(lease, "a line")
            assert (product.ack(lease, "r") if end == "ack" else product.fail(lease)) == "ok"
    product.push_many(queue, [("runs", {"unique_key": f"runs-{n}"}) for n in range(each)])
    active = product.pull(queue, each)
    waiting = [
        ("waits", {"unique_key": f"k-{n}", "job_id": f"id-{n}", "group": f"g-{n % 7}"})
        for n in range(each)
    ]
    product.push_many(queue, waiting)
    product.push_many(queue, [("later", {"delay_ms": 60_000, "ttl_ms": 90_000})] * each)
    product.push(queue, "timed", unique_key="timed", unique_ms=3_600_000, delay_ms=1_000)
    return active


@on_disk
def test_c43_obliterate_leaves_nothing(product: Core, tmp_path: Path) -> None:
    """A queue is gone with everything in it, round by round, also on disk; others are not."""
    product.rig.checked = False
    queue, other = product.queue(), product.queue()
    fill(product, other, 3)
    untouched = product.counts(other)
    for _ in range(5):
        active = fill(product, queue, 100)
        product.settings(queue, max_stalls=7, paused_groups=["g-1"])
        everything = {"waiting": 100, "delayed": 101, "active": 100, "completed": 100, "dead": 100}
        assert product.counts(queue) == everything
        with pytest.raises(Refused, match="100 jobs are active"):
            product.obliterate(queue)
        assert product.counts(queue) == everything
        assert product.obliterate(queue, force=True) == 501

        for _ in range(2):
            assert product.counts(queue) == {}
            assert product.listing(queue) == []
            assert product.get("id-0", queue) is None
            assert product.ack_many([(lease, None) for lease in active]) == ["STALE_TOKEN"] * 100
            assert product.pull(queue, 10) == []
            assert product.settings(queue)["max_stalls"] == 3, "as for a queue nobody has heard of"
            product.here()
        keys = ["runs-0", "k-0", "timed"]
        jobs = [(key, {"unique_key": key}) for key in keys] + [("id", {"job_id": "id-0"})]
        assert not any(pushed.deduplicated for pushed in product.push_many(queue, jobs))
        assert product.obliterate(queue) == 4

    product.rig.checked = True
    with product.stopped():
        tables = rows_of(tmp_path / "shard.db")
    assert product.counts(other) == untouched
    assert tables["jobs"] == sum(untouched.values()) == 16
    assert (tables["results"], tables["dead"], tables["lines"]) == (3, 3, 6)
    assert (tables["queues"], tables["timed_keys"], tables["settings"]) == (1, 1, 0)
    assert tables["custom_ids"] == 3


def rows_of(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as db:
        names = [row[0] for row in db.execute("select name from sqlite_schema where type='table'")]
        return {name: db.execute(f"select count(*) from {name}").fetchone()[0] for name in names}


def test_c44_cleaning_takes_results_and_logs_along(product: Core, tmp_path: Path) -> None:
    """As many as were asked for, nothing of them stays but a tombstone, the space is used again."""
    product.rig.checked = False
    queue = product.queue()
    sizes = []
    for _ in range(3):
        jobs = [pushed.id for pushed in product.push_many(queue, [(n, {}) for n in range(1_000)])]
        leases = product.pull(queue, 1_000)
        for lease in leases[::100]:
            product.log(lease, "a line")
        product.ack_many([(lease, b"r" * 1_024) for lease in leases])
        removed = [product.clean(queue, "completed", 0, limit=300) for _ in range(4)]
        assert removed == [300, 300, 300, 100]
        assert product.clean(queue, "completed") == 0

        product.here()
        assert product.counts(queue) == {}
        assert product.get(jobs[0]) is None
        assert product.wait(jobs[0]).end.state == "result_expired"
        with pytest.raises(Refused, match="NOT_FOUND"):
            product.logs(jobs[0])
        if product.restarts:
            with product.stopped():
                tables = rows_of(tmp_path / "shard.db")
                sizes.append((tmp_path / "shard.db").stat().st_size)
            assert tables["jobs"] == tables["results"] == tables["lines"] == 0
    assert not sizes or sizes[-1] <= sizes[0] * 1.2, "tombstones only"


@pytest.mark.parametrize("by", ["job", "queue"])
def test_c45_a_number_keeps_the_last_n(product: Core, by: str) -> None:
    """Once they are a minute old exactly the last ten by completion remain; before, all."""
    queue = product.queue()
    if by == "queue":
        product.settings(queue, keep_count=10)
    options = {"keep_completed": 10} if by == "job" else {}
    jobs = [product.push(queue, n, **options).id for n in range(25)]
    order = jobs[::-1]  # completed in another order than accepted
    leases = {lease.id: lease for lease in product.pull(queue, 25)}
    for job in order:
        product.ack(leases[job], "r")
        product.pass_time(10)
    product.here()
    product.pass_time(COMPLETED_MS_MIN - 251)
    assert product.counts(queue) == {"completed": 25}
    product.pass_time(2_000)

    assert [view["id"] for view in product.listing(queue)] == sorted(order[-10:], key=jobs.index)
    product.here()
    product.skip_time(10 * COMPLETED_MS_MIN)
    assert product.counts(queue) == {"completed": 10}
    assert product.wait(order[0]).end.state == "result_expired"
    assert product.wait(order[-1]).end == ("completed", "r", "")


@in_memory
def test_c45_without_records_a_result_still_reaches_who_waits(product: Core) -> None:
    """False keeps nothing but the result, for some seconds; then it has expired."""
    queue = product.queue()
    job = product.push(queue, keep_completed=False).id
    waiting = product.wait(job, 5_000)
    assert waiting.waits
    product.ack(product.pull_one(queue), "r")
    assert waiting.end == ("completed", "r", "")
    assert product.counts(queue) == {}
    assert product.listing(queue) == []

    product.pass_time(LINGER_MS - 1)
    assert product.wait(job).end == ("completed", "r", "")
    product.pass_time(1_000)
    assert product.wait(job).end.state == "result_expired"


def test_c45_by_default_a_bounded_number_is_kept(product: Core) -> None:
    """A thousand, as documented; never a limit that does not exist."""
    product.rig.checked = False
    queue = product.queue()
    assert product.settings(queue)["keep_count"] == COMPLETED_KEPT_DEFAULT == 1_000
    product.push_many(queue, [(n, {"keep_completed": True}) for n in range(1_100)])
    while leases := product.pull(queue, 1_000):
        product.ack_many([(lease, None) for lease in leases])
    product.here()
    product.pass_time(COMPLETED_MS_MIN + 2_000)

    assert [view["data"] for view in product.listing(queue)] == list(range(100, 1_100))


@refusals
@pytest.mark.parametrize("odd", [-1, "10", 2.5, None, COMPLETED_KEPT_MAX + 1])
def test_c45_odd_numbers_are_refused(product: Surface, odd: Any) -> None:
    """What is no number of jobs is a definite error."""
    queue = product.queue()
    with pytest.raises(Refused, match=r"keep_count .* is not a whole number from 1 to 1000000"):
        product.push(queue, keep_completed=odd)
    assert product.counts(queue) == {}


# --- N. Events and results ------------------------------------------------------------------------


@in_memory
def test_c46_the_events_of_a_job_come_in_its_order(product: Core) -> None:
    """Added, active, completed, numbered without a gap; who keeps the last one is right."""
    product.rig.checked = False
    queue = product.queue()
    reading = product.events(queue)()
    product.crew(queue, workers=4)
    seen: dict[Any, list[str]] = defaultdict(list)
    numbers: list[int] = []

    def read(reading: Reading) -> Reading:
        reading = product.events(queue, reading)()
        assert reading.missed == 0
        numbers.extend(event.n for event in reading.events)
        for event in reading.events:
            seen[event.id].append(event.kind)
        return reading

    jobs = []
    for n in range(2_000):
        jobs.append(product.push(queue, n, delay_ms=n % 2).id)
        product.pass_time(1, coordinator=False)
        if n % 100 == 0:
            reading = read(reading)
    product.pass_time(1)
    while reading.events or len(numbers) == 0:
        reading = read(reading)

    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    at_once, later = ["added", "active", "completed"], ["added", "waiting", "active", "completed"]
    assert [seen[job] for job in jobs] == [at_once, later] * 1_000


def test_c46_what_a_reader_missed_is_said(product: Core) -> None:
    """After a restart the reader is told that there is a gap; the states are right all the same."""
    queue = product.queue()
    reading = product.events(queue)()
    job = product.push(queue).id
    product.restart()
    after = product.events(queue, reading)()
    assert (after.missed, after.events) == (-1, [])
    assert after.epoch > reading.epoch
    product.ack(product.pull_one(queue))

    kinds = [event.kind for event in product.events(queue, after)().events]
    assert kinds == ["active", "completed"]
    assert product.get(job)["state"] == "completed"


def test_c47_who_waits_is_told_the_end(product: Core) -> None:
    """Before, while or after the job ends: each of five hundred waits returns its result."""
    product.rig.checked = False
    queue = product.queue()
    product.crew(queue, handler=lambda lease: lease.data * 2)
    dice = random.Random(1270)
    waits = []
    for n in range(500):
        job = product.push(queue, n, keep_completed=dice.choice((False, 100))).id
        if n % 50 == 0:
            waits.append(product.wait(job, 5_000))  # and it is not answered yet
            product.here()
            product.pass_time(0)
            continue
        before_ms = dice.randrange(6)
        if before_ms:
            product.pass_time(before_ms)
        waits.append(product.wait(job, 5_000))
        product.pass_time(0)

    assert not any(wait.waits for wait in waits)
    assert [wait.end for wait in waits] == [("completed", 2 * n, "") for n in range(500)]


def test_c47_a_wait_for_what_is_over_is_answered_at_once(product: Core) -> None:
    """Finished long ago, forgotten, or never there: a definite answer and no hang."""
    queue = product.queue()
    product.crew(queue, handler=lambda lease: "r")
    kept = product.push(queue).id
    forgotten = product.push(queue, keep_completed=False).id
    product.pass_time(0)
    product.skip_time(3_600_000)
    product.here()

    waits = [product.wait(job, 5_000) for job in (kept, forgotten, product.new_id(queue))]
    assert not any(wait.waits for wait in waits)
    assert waits[0].end == ("completed", "r", "")
    assert waits[1].end.state == "result_expired"
    with pytest.raises(Refused, match="NOT_FOUND: no such job"):
        waits[2].end  # noqa: B018
