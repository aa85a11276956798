"""Cases A to D: retries, order, delays, unique keys and custom ids."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from pyq.limits import ATTEMPTS_MAX, COMPLETED_KEPT_DEFAULT, COMPLETED_MS_MIN, DELAY_MS_MAX
from tests.cases.adapter import (
    JITTER,
    Core,
    Failure,
    Killed,
    Lease,
    Refused,
    Surface,
    backoff_preview,
    library_preview,
)
from tests.cases.levels import everywhere, in_memory, refusals

ROOT = Path(__file__).parents[2]
HOUR_MS = 3_600_000


def always_failing(lease: Lease) -> None:
    raise Failure("boom")


# --- A. Retries and backoff -----------------------------------------------------------------------


def test_c01_the_backoff_is_the_documented_formula_with_its_cap(product: Core) -> None:
    """The delay is what the docs say, in whole ms, and stays at its cap for ever."""
    spec = ("exponential", 120_000, 2, HOUR_MS)
    expected = [120_000, 240_000, 480_000, 960_000, 1_920_000] + [HOUR_MS] * 59
    assert [backoff_preview(spec, n) for n in range(1, 65)] == expected
    assert all(type(backoff_preview(spec, n)) is int for n in range(1, 65))
    assert [seconds * 1_000 for seconds in library_preview(spec, 64)] == expected
    queue = product.queue()
    job = product.push(queue, backoff=spec, attempts=3).id
    for delay_ms in expected[:2]:
        product.fail(product.pull_one(queue))
        product.here()
        view = product.get(job)
        assert view["state"] == "delayed"
        waits_ms = view["run_at"] - product.now
        assert delay_ms * (1 - JITTER) <= waits_ms <= delay_ms * (1 + JITTER)
        product.pass_time(waits_ms - 1)
        assert product.pull(queue) == [], "never early"
        product.pass_time(1)

    assert product.pull_one(queue).attempt == 3
    assert (
        "min(cap, base * factor^(n-1)) * (1 +- jitter)" in (ROOT / "docs/protocol.md").read_text()
    )


@in_memory
def test_c02_no_number_of_failures_overflows_a_delay(product: Core) -> None:
    """A thousand failures later a delay is still between zero and its cap."""
    product.rig.checked = False
    queue = product.queue()
    with pytest.raises(Refused, match=f"attempts 1100 is not .* to {ATTEMPTS_MAX}"):
        product.push(queue, attempts=1_100)
    job = product.push(queue, attempts=1_000, backoff=("exponential", 1, 2, 50)).id
    for _ in range(999):
        assert product.fail(product.pull_one(queue)) == "ok"
        view = product.get(job)
        waits_ms = (view["run_at"] or product.now) - product.now
        assert 0 <= waits_ms <= 60
        product.pass_time(waits_ms)
    product.fail(product.pull_one(queue))

    view = product.get(job)
    assert (view["state"], view["attempt"], view["failures"]) == ("dead", 1_000, 1_000)
    assert product.dlq(queue)[0]["id"] == job
    spec = ("exponential", 1_000, 2, 86_400_000)
    for n in (62, 63, 64, 1_023, 1_024, 1_025, 1_100, 2_147_483_647):
        assert backoff_preview(spec, n) == 86_400_000


def test_c03_a_backoff_without_attempts_is_retried_as_often_as_the_default_says(
    product: Core,
) -> None:
    """Three runs by default, one when asked for; and whatever is no number of runs is refused."""
    queue = product.queue()
    fixed = ("fixed", 200, 1, 200)
    thrice = product.push(queue, "thrice", backoff=fixed).id
    crew = product.crew(queue, handler=always_failing)
    for _ in range(3):
        product.here()
        product.pass_time(1_000)
    assert [lease.attempt for _, lease in crew.leases] == [1, 2, 3]
    starts = [at for at, _ in crew.leases]
    gaps = [b - a for a, b in pairwise(starts)]
    assert all(160 <= gap <= 240 for gap in gaps), gaps
    once = product.push(queue, "once", backoff=fixed, attempts=1).id
    product.pass_time(10_000)
    assert crew.done == ["thrice"] * 3 + ["once"]

    product.here()
    for job, runs in ((thrice, 3), (once, 1)):
        view = product.get(job)
        ended = (view["state"], view["reason"], view["failures"], view["attempts"])
        assert ended == ("dead", "exhausted", runs, runs)
    assert {view["id"] for view in product.dlq(queue)} == {thrice, once}


@refusals
@pytest.mark.parametrize("attempts", [0, -1, "3", 2.5, True])
def test_c03_what_is_no_number_of_runs_is_refused(product: Surface, attempts: object) -> None:
    """A wrong number of attempts is a definite error, and nothing is stored."""
    queue = product.queue()
    with pytest.raises(Refused) as refusal:
        product.push(queue, attempts=attempts)

    assert refusal.value.status == "BAD_OPTION"
    assert refusal.value.sentence.startswith(f"attempts {attempts!r} is not a whole number from 1")
    assert product.counts(queue) == {}


def test_c04_a_job_that_kills_its_workers_ends(product: Core) -> None:
    """A lost worker costs a stall, and stalls are bounded, too."""
    queue = product.queue()
    product.settings(queue, max_stalls=2, stall_ms=1_000)
    killer = product.push(queue, "killer", attempts=3, priority=1).id
    for n in range(10):
        product.push(queue, n)

    def handler(lease: Lease) -> None:
        if lease.data == "killer":
            raise Killed

    crews = [product.crew(queue, handler=handler, prefix=f"w{n}") for n in range(5)]
    for _ in range(4):
        product.pass_time(12_000)
        product.here()
    leases = [lease for crew in crews for _, lease in crew.leases if lease.data == "killer"]

    assert [lease.attempt for lease in leases] == [1, 2, 3], "first, and two stalls"
    view = product.get(killer)
    ended = (view["state"], view["reason"], view["failures"], view["stalls"])
    assert ended == ("dead", "stalled", 0, 3)
    assert product.counts(queue) == {"completed": 10, "dead": 1}


# --- B. Priority and order ------------------------------------------------------------------------


def test_c05_a_released_job_keeps_its_place_under_a_rate_limit(product: Core) -> None:
    """What is given back comes next, before its equals that never left the line."""
    queue = product.queue()
    for data in ("1", "2", "3", "4"):
        product.push(queue, data, priority=10)
    product.limits(queue, max=1, per_ms=100)
    first = product.pull_one(queue)
    assert first.data == "1"
    assert product.release(first) == "ok"
    product.here()
    crew = product.crew(queue)
    product.pass_time(5_000)

    assert crew.done == ["1", "2", "3", "4"]
    assert {lease.attempt for _, lease in crew.leases} == {1}, "a release costs nothing"


def shuffled_jobs(number: int) -> list[tuple[int, int]]:
    """Jobs as (data, priority), of five priorities."""
    jobs = [(n, n % 5) for n in range(number)]
    random.Random(1775).shuffle(jobs)
    return jobs


@in_memory
@pytest.mark.parametrize(("number", "n"), [(15_000, 50), (5_000, 1)])
def test_c06_a_large_backlog_comes_out_in_order(product: Core, number: int, n: int) -> None:
    """Higher priority first, then acceptance, at any depth and however many are pulled at once."""
    product.rig.checked = False
    queue = product.queue()
    jobs = shuffled_jobs(number)
    product.push_many(queue, [(data, {"priority": priority}) for data, priority in jobs])
    expected = [data for data, _ in sorted(jobs, key=lambda job: -job[1])]
    listed = product.listing(queue, "waiting", page=500)
    assert [view["data"] for view in listed] == [data for data, _ in jobs], "by acceptance"
    assert [view["data"] for view in sorted(listed, key=lambda v: -v["priority"])] == expected

    drained: list[Lease] = []
    while leases := product.pull(queue, n):
        drained += leases
        if len(drained) % 100 == 0:
            product.ack_many([(lease, None) for lease in drained[-100:]])
    assert [lease.data for lease in drained] == expected


@in_memory
def test_c07_an_urgent_job_overtakes_a_limited_backlog(product: Core) -> None:
    """The next lease after its acceptance is the urgent job's, however many wait for the limit."""
    product.rig.checked = False
    queue = product.queue()
    product.push_many(queue, [(n, {}) for n in range(2_000)])
    product.limits(queue, max=5, per_ms=500)
    crew = product.crew(queue, n=10)
    product.pass_time(2_100)
    before = len(crew.leases)
    assert before == 25, "five each half second"
    product.push(queue, "urgent", priority=9)
    product.pass_time(500)

    assert crew.done[:before] == list(range(before))
    assert crew.done[before:] == ["urgent", *range(before, before + 4)]


# --- C. Delayed jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "parked_ms"), [(20, 0), (3, 60_000)])
def test_c08_a_delayed_job_wakes_an_idle_worker(product: Core, times: int, parked_ms: int) -> None:
    """A delayed job starts when it is due, though nothing else happens, and never early."""
    queue = product.queue()
    crew = product.crew(queue)
    for n in range(times):
        product.pass_time(parked_ms)
        due = product.now + 7_000
        product.push(queue, n, delay_ms=7_000)
        product.pass_time(3_000)
        product.here()
        product.pass_time(4_100)
        at, lease = crew.leases[-1]
        assert lease.data == n
        assert due <= at <= due + 100

    assert crew.done == list(range(times))


def test_c09_delays_beyond_32_bits_are_delays(product: Core) -> None:
    """Ten years are ten years, and cost nothing meanwhile; beyond, a definite error."""
    queue = product.queue()
    delays = [2_147_483_647, 2_147_483_648, 4_294_967_296, DELAY_MS_MAX]
    jobs = [product.push(queue, ms, delay_ms=ms).id for ms in delays]
    due = [product.now + ms for ms in delays]
    for wrong in (2**53, 2**63, 1e300, float("nan"), "5000"):
        with pytest.raises(Refused, match=f"delay_ms .* to {DELAY_MS_MAX}"):
            product.push(queue, delay_ms=wrong)
    product.here()
    product.wakeups_count = 0
    product.pass_time(10_000, coordinator=False)

    assert product.wakeups_count == 0, "nothing to do, so nothing is done"
    assert product.counts(queue) == {"delayed": 4}
    assert [product.get(job)["run_at"] for job in jobs] == due
    assert product.pull(queue, 10) == []


@refusals
@pytest.mark.parametrize("delay_ms", [-1, -172_800_000, -1_750_000_000_001])
def test_c10_a_negative_delay_is_refused(product: Surface, delay_ms: int) -> None:
    """The refusal names the option, the value and the bound, and nothing is left behind."""
    queue = product.queue()
    with pytest.raises(Refused) as refusal:
        product.push(queue, delay_ms=delay_ms)

    sentence = f"delay_ms {delay_ms} is not a whole number from 0 to {DELAY_MS_MAX}"
    assert (refusal.value.status, refusal.value.sentence) == ("BAD_OPTION", sentence)
    assert product.counts(queue) == {}
    if isinstance(product, Core):
        product.wakeups_count = 0
        product.pass_time(10_000, coordinator=False)
        assert product.wakeups_count == 0


# --- D. Unique keys and ids -----------------------------------------------------------------------


def test_c11_a_key_goes_with_a_job_that_stalled_out(product: Core) -> None:
    """The key of a dead job is free in the same commit, also for the next start of the shard."""
    queue = product.queue()
    product.settings(queue, max_stalls=0, stall_ms=1_000)
    first = product.push(queue, unique_key="k").id
    product.pull_one(queue, "doomed")
    product.kill_worker("doomed")
    product.pass_time(10_000)
    assert product.counts(queue) == {"dead": 1}
    assert product.get(first)["reason"] == "stalled"

    product.here()
    second = product.push(queue, unique_key="k")
    assert not second.deduplicated
    assert product.ack(product.pull_one(queue)) == "ok"
    assert product.get(second.id)["state"] == "completed"
    assert not product.push(queue, unique_key="k").deduplicated, "no key is left behind"


@everywhere
def test_c12_a_key_is_held_while_its_job_runs(product: Surface) -> None:
    """A running job holds its key against any number of pushes; its end frees it."""
    queue = product.queue()
    first = product.push(queue, unique_key="sync").id
    lease = product.pull_one(queue)
    product.here()
    for n in range(50):
        pushed = product.push(queue, client=f"app-{n % 5}", unique_key="sync")
        assert pushed == (first, True, "active")
    assert product.counts(queue) == {"active": 1}

    assert product.ack(lease) == "ok"
    product.here()
    assert not product.push(queue, unique_key="sync").deduplicated
    assert product.counts(queue) == {"completed": 1, "waiting": 1}


def batch_of(prefix: str, size: int) -> list[tuple[int, dict[str, str]]]:
    return [(n, {"job_id": f"{prefix}-{n}"}) for n in range(size)]


def test_c13_a_batch_that_is_added_again_adds_nothing(product: Core) -> None:
    """Custom ids hold over restarts, and the answers say what became of each job."""
    queue = product.queue()
    first = product.push_many(queue, batch_of("restore", 500))
    done = product.pull(queue, 200)
    product.ack_many([(lease, None) for lease in done])
    counts = product.counts(queue)
    assert counts == {"completed": 200, "waiting": 300}
    product.restart()
    again = product.push_many(queue, batch_of("restore", 500))

    assert [pushed.id for pushed in again] == [pushed.id for pushed in first]
    states = ["completed"] * 200 + ["waiting"] * 300
    assert [(pushed.deduplicated, pushed.state) for pushed in again] == [(True, s) for s in states]
    assert product.counts(queue) == counts


@in_memory
def test_c13_no_number_of_custom_ids_is_too_many(product: Core) -> None:
    """Twelve thousand ids are known, long after the records of most of them were forgotten."""
    product.rig.checked = False
    queue = product.queue()
    batch = batch_of("r", 12_000)
    product.push_many(queue, batch)
    while leases := product.pull(queue, 1_000):
        product.ack_many([(lease, None) for lease in leases])
    product.pass_time(COMPLETED_MS_MIN + 2_000)
    counts = product.counts(queue)
    assert counts == {"completed": COMPLETED_KEPT_DEFAULT}
    product.restart()
    again = product.push_many(queue, batch)

    assert all(pushed.deduplicated for pushed in again)
    kept = 12_000 - COMPLETED_KEPT_DEFAULT
    assert {pushed.state for pushed in again[:kept]} == {"forgotten"}
    assert {pushed.state for pushed in again[kept:]} == {"completed"}
    assert product.counts(queue) == counts


@everywhere
def test_c14_a_custom_id_stays_taken_and_a_unique_key_does_not(product: Surface) -> None:
    """After its end a job still has its id, and says so; its unique key is free."""
    queue = product.queue()
    first = product.push(queue, "a", job_id="foobar").id
    product.ack(product.pull_one(queue), "result")
    product.here()
    assert product.push(queue, "a", job_id="foobar") == (first, True, "completed")

    keyed = product.push(queue, "b", unique_key="foobar").id
    product.ack(product.pull_one(queue))
    again = product.push(queue, "b", unique_key="foobar")
    assert not again.deduplicated
    assert again.id != keyed
    product.ack(product.pull_one(queue))

    assert product.retry(first) == "ok"
    product.here()
    assert product.push(queue, "a", job_id="foobar") == (first, True, "waiting")
    lease = product.pull_one(queue)
    assert (lease.id, lease.attempt) == (first, 1), "the same job, afresh"


def test_c15_keys_of_jobs_whose_workers_were_killed_are_not_left_behind(product: Core) -> None:
    """Everything is killed: each job still runs to its end once, and every key is free then."""
    product.rig.checked = False
    queue = product.queue()
    keys = [f"key-{n}" for n in range(100)]
    product.push_many(queue, [(key, {"unique_key": key}) for key in keys])
    for worker in ("old-1", "old-2", "old-3", "old-4"):
        assert len(product.pull(queue, 5, worker)) == 5
        product.kill_worker(worker)
    product.kill_shard()
    crew = product.crew(queue, workers=4, n=5)
    product.pass_time(30_000)
    product.rig.checked = True

    assert sorted(crew.done) == sorted(keys), "each once"
    attempts = [lease.attempt for _, lease in crew.leases]
    assert attempts.count(1) == 80
    assert attempts.count(2) == 20
    assert product.counts(queue) == {"completed": 100}
    again = product.push_many(queue, [(key, {"unique_key": key}) for key in keys])
    assert not any(pushed.deduplicated for pushed in again)
