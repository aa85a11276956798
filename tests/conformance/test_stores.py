"""One suite for every store: what is put comes back, before and after a restart."""

import importlib
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyq.cron import check_cron
from pyq.job import ACTIVE, COMPLETED, DEAD, DELAYED, GONE, WAITING, Verdict
from pyq.messages import NO_FILTERS, WATCH, Filters, Row
from pyq.options import check_options
from pyq.settings import DEFAULT_SETTINGS, check_settings
from shardnode.core.effects import Effects, Page, Stored, Tombstone
from shardnode.core.recovery import Loaded
from shardnode.core.state import Detail, Job, LeaseEnd, QueueState, TimedKey
from shardnode.storage.memory import MemoryStore
from shardnode.storage.sqlite import FORMAT_VERSION, SqliteStore
from shardnode.storage.store import Store, StoreError, StoreFull
from tests.support.records import (
    a_job,
    a_lease,
    a_schedule,
    accepted,
    changed,
    completed,
    dead,
    died,
    ended,
    fields,
    leased,
    logged,
    purged,
    removed,
    revived,
    rewritten,
    scheduled,
    ticked,
    unscheduled,
    waiting_again,
)

IDENTITY = {"cluster": "c-1", "shard": 0, "shards": 1}


class Bench:
    """A store and the queues its jobs belong to; `restart` closes and opens it again."""

    def __init__(self, store: Store, reopen: Callable[[], Store]) -> None:
        self.store = store
        self.reopen = reopen
        self.loaded: Loaded = store.open()
        self.queues = {number: QueueState(number, f"queue-{number}") for number in (1, 2)}
        self.seq = 0

    def job(self, seq: int, queue: int = 1, **options: Any) -> Job:
        self.seq = max(self.seq, seq)
        return a_job(seq, self.queues[queue], **options)

    def put(self, *effects: Effects, sync: bool = False) -> None:
        self.store.begin(sync)
        for some in effects:
            self.store.stage(some, self.seq)
        self.store.commit()

    def accept(self, *jobs: Job) -> None:
        self.put(accepted(*jobs))

    def jobs(self) -> list[Job]:
        return list(self.store.jobs(self.queues))

    def one(self, *key: object) -> Any:
        return self.store.find([key], self.queues)[key]

    def page(
        self,
        queue: int = 0,
        state: int = 0,
        after: int = 0,
        limit: int = 100,
        filters: Filters = NO_FILTERS,
    ) -> Page:
        return self.one("page", queue, state, after, limit, filters)

    def listed(
        self, queue: int = 0, state: int = 0, limit: int = 100, filters: Filters = NO_FILTERS
    ) -> list[int]:
        """All that the pages of a listing show, one after the other."""
        collected: list[int] = []
        after: int | None = 0
        while after is not None:
            page = self.page(queue, state, after, limit, filters)
            assert len(page.jobs) <= limit
            collected += numbers(page.jobs)
            assert page.next_after is None or page.next_after > after, "it would never end"
            after = page.next_after
        return collected

    def restart(self) -> None:
        if self.store is not (again := self.reopen()):
            self.store = again
        self.loaded = self.store.open()


def numbers(stored: list[Stored]) -> list[int]:
    return [one.job.seq for one in stored]


@pytest.fixture(params=["memory", "sqlite"])
def bench(request, tmp_path):
    if request.param == "memory":
        store = MemoryStore()
        yield Bench(store, lambda: store)
        return
    made = Bench(SqliteStore(tmp_path, IDENTITY), lambda: reopened(made.store, tmp_path))
    yield made
    made.store.close()


def reopened(store: Store, folder: Path) -> SqliteStore:
    store.close()
    return SqliteStore(folder, IDENTITY)


# --- opening ----------------------------------------------------------------------------


def test_a_new_store_is_empty(bench):
    assert bench.loaded == Loaded(
        epoch=1,
        seq=0,
        tombstones_count=0,
        queues=[],
        windows=[],
        timed_keys=[],
        mail=[],
        links=[],
        watchers=[],
    )
    assert bench.jobs() == []


def test_the_epoch_grows_with_each_start_even_if_nothing_happens(bench):
    for epoch in (2, 3, 4):
        bench.restart()
        assert bench.loaded.epoch == epoch


def test_numbers_are_not_given_out_again_when_all_is_deleted(bench):
    jobs = [bench.job(seq, queue) for seq, queue in ((1, 2), (2, 1), (3, 1))]
    bench.accept(*jobs)
    bench.put(Effects(forgotten=[1, 2, 3]))
    bench.restart()

    assert bench.loaded.seq == 3
    assert bench.jobs() == []
    assert [queue[:2] for queue in bench.loaded.queues] == [(1, "queue-1"), (2, "queue-2")]


# --- putting ----------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_comes_back_as_it_was_put(bench, restarted):
    plain = bench.job(1)
    rich = bench.job(
        2,
        queue=2,
        priority=-7,
        attempts=9,
        backoff=[5, 1.5, 60, 0.0, [1, 2, 3]],
        timeout_ms=8,
        job_id="naïve \N{SNOWMAN}",
        keep_completed=False,
        run_at=5_000,
        ttl_ms=60_000,
        unique="key",
        unique_ttl_ms=5_000,
        on_conflict="extend",
        group="g",
        tags=["a", "naïve"],
        meta=b"\x00\xff",
    )
    last = bench.job(5, lifo=True, keep_count=7)
    held = leased(bench.job(3))
    failed = bench.job(4)
    failed.lease = a_lease(2)
    failed.lease.end = LeaseEnd.STALLED
    failed.detail = Detail()
    failed.detail.error, failed.detail.traceback = "boom \N{SNOWMAN}", "line 1\nline 2"
    failed.detail.reason, failed.detail.progress = "stalled", b"\x00\xff"
    failed.detail.history = [(1, 1_000, "a"), (2, 2_000, "b")]
    failed.detail.cancel_requested, failed.detail.auto_retries = True, 2
    failed.detail.lines_count, failed.detail.lines_fence = 1_200, 7
    failed.detail.lines_taken = 30
    failed.failures, failed.stalls, failed.attempt = 2, 1, 3
    failed.state, failed.run_at, failed.ready = DELAYED, 9_999, 77
    jobs = [plain, rich, held, failed, last]
    bench.accept(*jobs)
    bench.put(changed(held, failed))
    if restarted:
        bench.restart()

    assert [fields(job) for job in bench.jobs()] == [fields(job) for job in jobs]


def test_an_accepted_job_stands_where_its_options_say(bench):
    bench.accept(bench.job(1), bench.job(2, lifo=True))
    bench.restart()
    assert [job.ready for job in bench.jobs()] == [1, -2]


@pytest.mark.parametrize("option", ["job_id", "unique"])
def test_options_that_belong_to_one_job_are_not_shared(bench, option):
    bench.accept(*[bench.job(seq, **{option: f"k-{seq}"}) for seq in (1, 2)])
    bench.restart()
    assert [getattr(job.options, option) for job in bench.jobs()] == ["k-1", "k-2"]


def test_jobs_come_back_in_order_of_acceptance(bench):
    for seq in (5, 3, 9, 1):
        bench.accept(bench.job(seq))
    assert [job.seq for job in bench.jobs()] == [1, 3, 5, 9]


def test_jobs_of_one_pull_share_their_grant_after_a_start(bench):
    one, other = leased(bench.job(1)), leased(bench.job(3), number=3)
    two = leased(bench.job(2), like=one, number=2)
    bench.accept(one, two, other)
    bench.put(changed(one, two, other))
    bench.restart()
    first, second, third = (job.lease.grant for job in bench.jobs())

    assert first is second
    assert first is not third


def test_the_last_put_of_a_turn_wins(bench):
    job = bench.job(1)
    bench.store.begin(False)
    bench.store.stage(accepted(job), 1)
    leased(job)
    bench.store.stage(changed(job), 1)
    completed(job, at=7_000)
    bench.store.stage(changed(job), 1)
    bench.store.commit()

    (back,) = bench.jobs()
    assert (back.state, back.updated_at, back.attempt) == (COMPLETED, 7_000, 1)


def test_staging_twice_is_harmless(bench):
    job = completed(leased(bench.job(1, job_id="x")))
    effects = accepted(job)
    effects.merge(ended(job))
    effects.results[1] = b"r"
    bench.put(effects, effects)
    bench.put(effects)

    assert [fields(one) for one in bench.jobs()] == [fields(job)]
    assert bench.store.result(1) == b"r"


@pytest.mark.parametrize("in_one", [True, False], ids=["one effect", "two effects"])
def test_accepted_and_forgotten_in_one_turn(bench, in_one):
    job = completed(leased(bench.job(1, job_id="x", keep_completed=False)))
    first = accepted(job)
    last = Effects(ended={job.id: job}, forgotten=[1])
    if in_one:
        first.merge(last)
        bench.put(first)
    else:
        bench.put(first, last)

    for _ in range(2):
        assert bench.jobs() == []
        assert bench.store.payloads([1]) == {}
        assert isinstance(bench.one("job", job.id), Tombstone)
        assert isinstance(bench.one("custom", 1, "x"), Tombstone)
        bench.restart()


def test_a_result_of_a_forgotten_job_goes_with_it(bench):
    job = completed(leased(bench.job(1)))
    effects = ended(job)
    effects.results[1] = b"r"
    bench.accept(job)
    bench.put(effects)
    bench.put(Effects(forgotten=[1]))

    assert bench.store.result(1) is None


# --- finding ----------------------------------------------------------------------------


def test_nothing_is_found_under_unknown_keys(bench):
    bench.accept(bench.job(1))
    keys = [("job", bytes(16)), ("custom", 1, "x"), ("custom_any", "x"), ("horizon",)]
    found = bench.store.find(keys, bench.queues)

    assert found == {keys[0]: None, keys[1]: None, keys[2]: [], keys[3]: 0}


@pytest.mark.parametrize("restarted", [False, True])
def test_an_ended_job_is_found_by_its_id(bench, restarted):
    job = completed(leased(bench.job(1)))
    effects = ended(job)
    effects.results[1] = b"r"
    bench.accept(job)
    bench.put(effects)
    if restarted:
        bench.restart()

    stored = bench.one("job", job.id)
    assert isinstance(stored, Stored)
    assert stored.result_bytes == 1
    assert fields(stored.job) == fields(job)


def test_a_forgotten_job_is_found_as_its_tombstone(bench):
    job = completed(leased(bench.job(1)), at=7_000)
    bench.accept(job)
    bench.put(ended(job))
    bench.put(Effects(forgotten=[1]))
    bench.restart()

    digest = job.lease.token[4:12]
    expected = Tombstone(job.id, Verdict.COMPLETED, 7_000, digest, seq=1, queue=1, job_id=None)
    assert bench.one("job", job.id) == expected


def test_the_tombstone_of_a_job_that_was_never_leased_has_no_digest(bench):
    job = bench.job(1, job_id="x")
    job.state = DEAD
    bench.accept(job)
    bench.put(Effects(ended={job.id: job}, forgotten=[1]))

    assert bench.one("job", job.id) == Tombstone(job.id, Verdict.DEAD, 1_001, b"", 1, 1, "x")


@pytest.mark.parametrize("restarted", [False, True])
def test_custom_ids_are_found_per_queue_and_in_all(bench, restarted):
    one, two = bench.job(1, queue=2, job_id="x"), completed(bench.job(2, job_id="x"))
    other = bench.job(3, job_id="y")
    bench.accept(one, two, other)
    bench.put(ended(two))
    bench.put(Effects(forgotten=[2]))
    if restarted:
        bench.restart()

    assert bench.one("custom", 2, "x").job.seq == 1
    assert isinstance(bench.one("custom", 1, "x"), Tombstone)
    assert bench.one("custom", 2, "y") is None
    first, second = bench.one("custom_any", "x")
    assert isinstance(first, Tombstone)
    assert second.job.seq == 1


def test_a_custom_id_names_its_last_job(bench):
    bench.accept(bench.job(1, job_id="x"))
    bench.accept(bench.job(2, job_id="x"))
    assert bench.one("custom", 1, "x").job.seq == 2


def test_what_is_staged_is_found_before_it_is_committed(bench):
    job = completed(leased(bench.job(1, job_id="x")))
    bench.store.begin(False)
    bench.store.stage(accepted(job), 1)
    effects = ended(job)
    effects.results[1] = b"r"
    bench.store.stage(effects, 1)

    assert bench.one("job", job.id).result_bytes == 1
    assert bench.one("custom", 1, "x").job.seq == 1
    assert numbers(bench.page().jobs) == [1]
    assert bench.store.payloads([1]) == {1: b"001"}
    bench.store.commit()


# --- pages ------------------------------------------------------------------------------


def many(bench: Bench) -> None:
    """Ten jobs, even ones in queue 2: two waiting, delayed, active, completed and dead each."""
    jobs = [bench.job(seq, 2 - seq % 2) for seq in range(1, 11)]
    delayed = [bench.job(seq, 2 - seq % 2, run_at=9_000) for seq in (3, 4)]
    jobs[2:4] = delayed
    bench.accept(*jobs)
    for job in jobs[4:]:
        leased(job)
    for job in jobs[6:8]:
        completed(job)
    for job in jobs[8:]:
        dead(job)
    bench.put(changed(*jobs[4:6]), ended(*jobs[6:8]), died(*jobs[8:]))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("queue", "state", "expected"),
    [
        (0, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (1, 0, [1, 3, 5, 7, 9]),
        (2, 0, [2, 4, 6, 8, 10]),
        (0, WAITING, [1, 2]),
        (0, DELAYED, [3, 4]),
        (0, ACTIVE, [5, 6]),
        (0, COMPLETED, [7, 8]),
        (0, DEAD, [9, 10]),
        (2, DEAD, [10]),
        (3, 0, []),
        (3, DEAD, []),
    ],
)
def test_a_page_is_filtered(bench, queue, state, expected, restarted):
    many(bench)
    if restarted:
        bench.restart()
    assert numbers(bench.page(queue, state).jobs) == expected
    assert bench.listed(queue, state, 2) == expected


def test_a_short_page_is_the_last(bench):
    many(bench)
    assert bench.page(limit=11).next_after is None
    assert bench.page(after=8, limit=3).next_after is None
    assert bench.page(after=10).jobs == []
    assert bench.page(after=1 << 62) == Page([], None)


def assorted(bench: Bench) -> list[Job]:
    """Jobs of which each differs from the others in something that a filter can tell."""
    jobs = [
        bench.job(1, tags=["a", "red"]),
        bench.job(2, group="g"),
        bench.job(3, tags=["tags", "group"], group="tags"),
        bench.job(4, meta=b"\xa1a\xa5group\xa1g"),  # reads like the tag a and the group g
        bench.job(5, queue=2, group="naïve", tags=["\N{SNOWMAN}"]),
        bench.job(6),
        bench.job(7, tags=["a"]),
        bench.job(8, queue=2, tags=["a"], group="g"),
        bench.job(9, job_id="a", unique="red"),
    ]
    bench.accept(*jobs)
    dead(leased(jobs[5])), dead(leased(jobs[6]), "stalled"), dead(leased(jobs[7]), "stalled")
    completed(leased(jobs[8]))
    bench.put(died(*jobs[5:8]), ended(jobs[8]))
    return jobs


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize(
    ("queue", "state", "filters", "expected"),
    [
        (0, 0, Filters(tag="a"), [1, 7, 8]),
        (0, 0, Filters(tag="red"), [1]),
        (0, 0, Filters(tag="re"), []),
        (0, 0, Filters(tag="tags"), [3]),
        (0, 0, Filters(tag="group"), [3]),
        (0, 0, Filters(tag="\N{SNOWMAN}"), [5]),
        (0, 0, Filters(group="g"), [2, 8]),
        (0, 0, Filters(group="naïve"), [5]),
        (0, 0, Filters(group="tags", tag="tags"), [3]),
        (0, 0, Filters(group="g", tag="a"), [8]),
        (1, 0, Filters(tag="a"), [1, 7]),
        (0, WAITING, Filters(tag="a"), [1]),
        (0, DEAD, Filters(tag="a"), [7, 8]),
        (2, DEAD, Filters(tag="a"), [8]),
        (0, DEAD, Filters(reason="stalled"), [7, 8]),
        (1, DEAD, Filters(reason="stalled"), [7]),
        (0, 0, Filters(reason="stalled"), [7, 8]),
        (0, 0, Filters(reason="timeout"), []),
        (0, WAITING, Filters(reason="stalled"), []),
        (0, 0, Filters(name="job-3"), [3]),
        (0, DEAD, Filters(name="job-7"), [7]),
        (0, DEAD, Filters(name="job-3"), []),
        (0, 0, Filters(since=1_008), [8, 9]),
        (0, 0, Filters(until=1_003), [1, 2]),
        (0, 0, Filters(since=1_002, until=1_004, name="job-2"), [2]),
        (0, COMPLETED, Filters(since=1_009), [9]),
        (0, DEAD, Filters(since=1_007, until=1_008), [7]),
    ],
)
def test_a_page_is_narrowed(bench, queue, state, filters, expected, limit):
    assorted(bench)
    assert bench.listed(queue, state, limit, filters) == expected


def test_a_filter_follows_what_is_rewritten(bench):
    job = bench.job(1, priority=1)
    bench.accept(job)
    job.options = check_options({"tags": ["new"]})
    bench.put(rewritten(job))
    assert bench.listed(filters=Filters(tag="new")) == [1]


# --- payloads, results ------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_payloads_come_back_bit_for_bit(bench, restarted):
    payloads = [b"", b"\x00", bytes(range(256)), b"x" * 300_000]
    jobs = [bench.job(seq) for seq in range(1, 5)]
    bench.put(accepted(*jobs, payloads=dict(enumerate(payloads, 1))))
    if restarted:
        bench.restart()

    assert bench.store.payloads([1, 2, 3, 4]) == dict(enumerate(payloads, 1))
    assert bench.store.payloads([4, 99]) == {4: payloads[3]}
    assert bench.store.payloads([]) == {}


def test_payloads_of_a_thousand_jobs_are_read_at_once(bench):
    jobs = [bench.job(seq) for seq in range(1, 1_001)]
    bench.accept(*jobs)
    bench.restart()

    assert len(bench.store.payloads(range(1, 1_001))) == 1_000


def test_the_payload_of_an_ended_job_is_still_there(bench):
    job = completed(leased(bench.job(1)))
    bench.accept(job)
    bench.put(ended(job))
    assert bench.store.payloads([1]) == {1: b"001"}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("new", [b"", b"new", None])
def test_a_rewritten_job_comes_back(bench, new, restarted):
    job, other = bench.job(1, run_at=5_000, job_id="x"), bench.job(2)
    bench.accept(job, other)
    job.options = check_options({"priority": 8, "job_id": "x"})
    job.run_at, job.name, job.size = 6_000, "renamed", 3 if new is None else len(new)
    bench.put(rewritten(job, payloads=None if new is None else {1: new}))
    if restarted:
        bench.restart()

    assert [fields(one) for one in bench.jobs()] == [fields(job), fields(other)]
    assert bench.store.payloads([1, 2]) == {1: b"001" if new is None else new, 2: b"002"}
    assert bench.one("custom", 1, "x").job.seq == 1


def test_a_rewritten_payload_is_read_before_it_is_committed_and_replaced_again(bench):
    job = bench.job(1)
    bench.accept(job)
    bench.store.begin(False)
    bench.store.stage(rewritten(job, payloads={1: b"second"}), 1)
    assert bench.store.payloads([1]) == {1: b"second"}
    bench.store.stage(rewritten(job, payloads={1: b"third"}), 1)
    assert bench.store.payloads([1]) == {1: b"third"}
    bench.store.commit()

    assert bench.store.payloads([1]) == {1: b"third"}
    bench.restart()
    assert bench.store.payloads([1]) == {1: b"third"}


@pytest.mark.parametrize("in_one", [True, False], ids=["one effect", "two effects"])
@pytest.mark.parametrize("forgotten", [True, False])
def test_accepted_and_rewritten_in_one_turn(bench, in_one, forgotten):
    job = bench.job(1)
    parts = [accepted(job)]
    job.options, job.size = check_options({"priority": 8}), 3
    parts.append(rewritten(job, payloads={1: b"new"}))
    if forgotten:
        parts.append(removed(job))
    if in_one:
        for later in parts[1:]:
            parts[0].merge(later)
        del parts[1:]
    bench.put(*parts)

    for _ in range(2):
        assert [fields(one) for one in bench.jobs()] == ([] if forgotten else [fields(job)])
        assert bench.store.payloads([1]) == ({} if forgotten else {1: b"new"})
        bench.restart()


def test_nothing_stays_of_an_older_job_that_is_rewritten_and_forgotten_in_one_turn(bench):
    job = bench.job(1)
    bench.accept(job)
    effects = rewritten(job, payloads={1: b"new"})
    effects.merge(removed(job))
    bench.put(effects)

    assert bench.jobs() == []
    assert bench.store.payloads([1]) == {}


def test_the_payload_of_a_forgotten_job_is_gone(bench):
    bench.accept(bench.job(1), bench.job(2))
    bench.put(Effects(forgotten=[1]))
    effects = rewritten(bench.job(2), payloads={2: b"new"})
    effects.forgotten.append(2)
    bench.put(effects)
    assert bench.store.payloads([1, 2]) == {}


@pytest.mark.parametrize("value", [b"", b"\x00r", b"x" * 100_000])
def test_results_come_back(bench, value):
    bench.accept(bench.job(1))
    bench.put(Effects(results={1: value}))
    bench.restart()

    assert bench.store.result(1) == value
    assert bench.store.result(2) is None


def test_a_result_of_none_removes_the_one_before(bench):
    job = completed(leased(bench.job(1)))
    bench.accept(job)
    bench.put(Effects(results={1: b"of a failed attempt"}))
    effects = ended(job)
    effects.results[1] = None
    bench.put(effects)
    bench.restart()

    assert bench.store.result(1) is None
    assert bench.one("job", job.id).result_bytes is None


# --- tombstones -------------------------------------------------------------------------


def bury(bench: Bench, *jobs: Job, at: int = 2_000) -> None:
    bench.accept(*jobs)
    bench.put(ended(*[completed(job, at) for job in jobs]))
    bench.put(Effects(forgotten=[job.seq for job in jobs]))


def trimming(count: int) -> Effects:
    effects = Effects()
    effects.rare.trimmed_count = count
    return effects


def aging(ended_before: int) -> Effects:
    effects = Effects()
    effects.rare.ended_before = ended_before
    return effects


def test_the_oldest_tombstones_are_trimmed_and_leave_a_horizon(bench):
    jobs = [bench.job(seq) for seq in range(1, 6)]
    bury(bench, *jobs)
    bench.put(trimming(2))

    for _ in range(2):
        known = [bench.one("job", job.id) is not None for job in jobs]
        assert known == [False, False, True, True, True]
        assert bench.one("horizon") == 1_003, "the millisecond after the last one trimmed"
        bench.restart()
    assert bench.loaded.tombstones_count == 3


def test_tombstones_with_a_custom_id_are_neither_counted_nor_trimmed(bench):
    # Was a bug for memory: its `open` counts all tombstones, the contract (and sqlite) plain ones.
    named = bench.job(1, job_id="x")
    bury(bench, named, bench.job(2), bench.job(3))
    bench.put(trimming(1))

    assert bench.one("job", named.id) is not None
    bench.restart()
    assert bench.loaded.tombstones_count == 1


def test_trimming_more_than_there_are_trims_all(bench):
    # Was a bug for sqlite: with fewer plain tombstones than asked for it trims none.
    jobs = [bench.job(seq) for seq in (1, 2, 3)]
    bury(bench, *jobs)
    bench.put(trimming(10))

    assert [bench.one("job", job.id) for job in jobs] == [None, None, None]
    assert bench.one("horizon") == 1_004


def test_old_tombstones_go_with_their_custom_ids(bench):
    named, plain, young = bench.job(1, job_id="x"), bench.job(2), bench.job(3)
    bury(bench, named, plain, at=2_000)
    bury(bench, young, at=3_000)
    bench.put(aging(3_000))

    assert [bench.one("job", job.id) is None for job in (named, plain, young)] == [
        True,
        True,
        False,
    ]
    assert bench.one("custom", 1, "x") is None
    assert bench.one("custom_any", "x") == []


def test_the_horizon_never_goes_back(bench):
    bury(bench, bench.job(5))
    bench.put(trimming(1))
    bury(bench, bench.job(1))
    bench.put(trimming(1))

    assert bench.one("horizon") == 1_006


# --- verdicts, revival ------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (COMPLETED, DEAD)])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_tombstone_of_a_job_that_is_gone_has_a_verdict(bench, verdict, restarted):
    job = bench.job(1, job_id="x")
    bench.accept(job)
    bench.put(removed(job, verdict=verdict, at=4_000))
    if restarted:
        bench.restart()

    stone = bench.one("job", job.id)
    assert stone == Tombstone(job.id, verdict, 4_000, b"", 1, 1, "x")
    assert isinstance(stone.verdict, Verdict)
    assert bench.one("custom", 1, "x") == stone
    assert bench.one("custom_any", "x") == [stone]
    assert bench.jobs() == []


def test_verdicts_of_one_turn_do_not_mix(bench):
    jobs = [bench.job(seq) for seq in range(1, 5)]
    bench.accept(*jobs)
    effects = removed(jobs[0], verdict=Verdict.EXPIRED)
    effects.merge(removed(jobs[1]))
    effects.merge(ended(completed(leased(jobs[2]))))
    effects.merge(died(dead(leased(jobs[3]))))
    effects.merge(purged(jobs[2], jobs[3]))
    bench.put(effects)

    verdicts = [bench.one("job", job.id).verdict for job in jobs]
    assert verdicts == [Verdict.EXPIRED, Verdict.REMOVED, Verdict.COMPLETED, Verdict.DEAD]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_completed_job_is_revived(bench, restarted):
    job = completed(leased(bench.job(1, job_id="x")))
    effects = ended(job)
    effects.results[1] = b"r"
    bench.accept(job)
    bench.put(effects)
    effects = revived(waiting_again(job, ready=9))
    effects.results[1] = None
    bench.put(effects)
    if restarted:
        bench.restart()

    (back,) = bench.jobs()
    assert (back.state, back.ready) == (WAITING, 9)
    assert bench.one("job", job.id) is None, "live jobs are not looked for by their id"
    assert bench.one("custom", 1, "x").job.state is WAITING
    assert bench.store.result(1) is None
    assert bench.store.payloads([1]) == {1: b"001"}


@pytest.mark.parametrize("in_one", [True, False], ids=["one effect", "two effects"])
def test_revived_then_ended_in_one_turn(bench, in_one):
    job = dead(leased(bench.job(1)))
    bench.accept(job)
    bench.put(died(job))
    first = revived(waiting_again(job, ready=9))
    if not in_one:
        bench.store.begin(False)
        bench.store.stage(first, 9)
    last = ended(completed(leased(job), at=6_000))
    if in_one:
        first.merge(last)
        bench.put(first)
    else:
        bench.store.stage(last, 9)
        bench.store.commit()

    for _ in range(2):
        assert bench.one("job", job.id).job.state is COMPLETED
        assert [one.updated_at for one in bench.jobs()] == [6_000]
        assert bench.listed(state=DEAD) == []
        assert bench.one("dead_stats", 1) == []
        bench.restart()


def test_ended_then_revived_in_one_turn(bench):
    job = completed(leased(bench.job(1)))
    effects = accepted(job)
    effects.merge(ended(job))
    effects.merge(revived(waiting_again(job, ready=9)))
    bench.put(effects)

    assert [one.state for one in bench.jobs()] == [WAITING]
    assert bench.one("job", job.id) is None


# --- dead letters -----------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_dead_letters_are_listed_by_age_and_counted_by_reason(bench, restarted):
    times = {1: 4_000, 2: 3_000, 3: 3_000, 4: 5_000, 5: 1_500}
    jobs = [dead(bench.job(seq), at=at) for seq, at in times.items()]
    jobs[3].detail.reason = "stalled"
    other = dead(bench.job(6, queue=2))
    bench.accept(*jobs, other)
    bench.put(died(*jobs, other))
    if restarted:
        bench.restart()

    assert numbers(bench.one("dead_oldest", 1, 0, 100)) == [5, 2, 3, 1, 4]
    assert numbers(bench.one("dead_oldest", 1, 0, 2)) == [5, 2]
    assert numbers(bench.one("dead_oldest", 1, 4_000, 100)) == [5, 2, 3]
    assert numbers(bench.one("dead_oldest", 2, 0, 100)) == [6]
    assert bench.one("dead_oldest", 3, 0, 100) == []
    assert bench.one("dead_stats", 1) == [
        ("exhausted", 4, 1_500, 4_000),
        ("stalled", 1, 5_000, 5_000),
    ]
    assert bench.one("dead_stats", 3) == []


@pytest.mark.parametrize("how", [purged, removed, lambda job: revived(waiting_again(job, 9))])
def test_what_is_no_dead_letter_any_more_is_not_listed(bench, how):
    job, other = dead(bench.job(1)), dead(bench.job(2))
    bench.accept(job, other)
    bench.put(died(job, other))
    bench.put(how(job))

    for _ in range(2):
        assert bench.listed(state=DEAD) == bench.listed(1, DEAD) == [2]
        assert numbers(bench.one("dead_oldest", 1, 0, 100)) == [2]
        assert bench.one("dead_stats", 1) == [("exhausted", 1, 2_000, 2_000)]
        bench.restart()


@pytest.mark.parametrize("in_one", [True, False], ids=["one effect", "two effects"])
def test_buried_then_forgotten_in_one_turn(bench, in_one):
    job = dead(bench.job(1))
    first, last = accepted(job), purged(job)
    first.merge(died(job))
    if in_one:
        first.merge(last)
        bench.put(first)
    else:
        bench.put(first, last)

    assert bench.one("dead_stats", 1) == []
    assert bench.one("job", job.id).verdict is Verdict.DEAD


def test_forgotten_wins_over_buried(bench):
    job = dead(bench.job(1))
    effects = accepted(job)
    effects.merge(died(job))
    effects.forgotten.append(1)
    bench.put(effects)

    assert bench.one("dead_stats", 1) == []


def test_a_dead_letter_that_died_again_is_listed_at_its_new_time(bench):
    job = dead(bench.job(1))
    bench.accept(job)
    bench.put(died(job))
    effects = revived(waiting_again(job, ready=9))
    effects.merge(died(dead(job, "stalled", at=7_000)))
    bench.put(effects)

    assert bench.one("dead_stats", 1) == [("stalled", 1, 7_000, 7_000)]


# --- logs -------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_log_lines_come_back_in_order(bench, restarted):
    job, other = leased(bench.job(1)), leased(bench.job(2))
    bench.accept(job, other)
    bench.put(logged(job, "a", "b \N{SNOWMAN}\0", ""), logged(other, "z"))
    bench.put(logged(job, "d", first=5))
    if restarted:
        bench.restart()

    lines = [
        (1, 5_001, 1, "a"), (2, 5_002, 1, "b \N{SNOWMAN}\0"), (3, 5_003, 1, ""), (5, 5_005, 1, "d")
    ]  # fmt: skip
    assert bench.one("logs", 1, 0, 100) == lines
    assert bench.one("logs", 1, 1, 2) == lines[1:3]
    assert bench.one("logs", 1, 3, 100) == lines[3:]
    assert bench.one("logs", 1, 5, 100) == []
    assert bench.one("logs", 3, 0, 100) == []


def test_the_oldest_lines_are_cut(bench):
    job = leased(bench.job(1))
    bench.accept(job)
    bench.put(logged(job, "a", "b", "c"))
    effects = logged(job, "d", "e", first=4)
    effects.rare.lines_cut[1] = 3
    bench.put(effects)
    effects = Effects()
    effects.rare.lines_cut[2] = 3  # of a job that has none
    bench.put(effects)

    assert [line[0] for line in bench.one("logs", 1, 0, 100)] == [3, 4, 5]


@pytest.mark.parametrize("when", ["one effect", "two effects", "later", "after a restart"])
def test_lines_go_with_their_job(bench, when):
    job, other = leased(bench.job(1)), leased(bench.job(2))
    bench.accept(job, other)
    first = logged(job, "a", "b")
    last = removed(job)
    if when == "one effect":
        first.merge(last)
        bench.put(first, logged(other, "z"))
    elif when == "two effects":
        bench.put(first, logged(other, "z"), last)
    else:
        bench.put(first, logged(other, "z"))
        if when == "after a restart":
            bench.restart()
        bench.put(last)

    assert bench.one("logs", 1, 0, 100) == []
    assert len(bench.one("logs", 2, 0, 100)) == 1


# --- what shards tell each other -----------------------------------------------------------------


def test_mail_stays_until_it_is_confirmed(bench):
    effects = Effects()
    rows = [Row(WATCH, bytes([n]) * 16, n, "why" * n) for n in range(4)]
    effects.rare.mail = [(2, number, row) for number, row in enumerate(rows, 1)] + [(1, 9, rows[0])]
    effects.rare.links = {1: (9, 0), 2: (4, 17)}
    bench.put(effects)
    confirmed = Effects()
    confirmed.rare.confirmed = {2: 2}
    bench.put(confirmed)
    bench.restart()

    assert bench.loaded.mail == [(1, 9, rows[0]), (2, 3, rows[2]), (2, 4, rows[3])]
    assert bench.loaded.links == [(1, 9, 0), (2, 4, 17)]


def test_watchers_come_and_go(bench):
    effects = Effects()
    effects.rare.watchers = {(b"a" * 16, 1): True, (b"a" * 16, 3): True, (b"b" * 16, 1): True}
    bench.put(effects)
    gone = Effects()
    gone.rare.watchers = {(b"a" * 16, 1): False, (b"c" * 16, 1): False}
    bench.put(gone)
    bench.restart()

    assert bench.loaded.watchers == [(b"a" * 16, 3), (b"b" * 16, 1)]


# --- queues: settings, windows, keys ----------------------------------------------------


def test_settings_windows_and_keys_come_back(bench):
    one = check_settings(
        {
            "paused": True,
            "paused_groups": ["b", "a \N{SNOWMAN}"],
            "rate_max": 5,
            "rate_per_ms": 1_000,
            "keep_count": 0,
            "auto_retry_ms": 1_000,
            "auto_retry_max": 2,
            "defaults": {"attempts": 7, "backoff": [5, 1.5, 60, 0.0, [1, 2]], "tags": ["x"]},
        },
        DEFAULT_SETTINGS,
    )
    held = TimedKey(bytes(16), 3, 9_000)
    bench.accept(bench.job(1), bench.job(2, queue=2))
    effects = Effects()
    effects.rare.settings[1] = one
    effects.rare.windows[1] = (4, 7)
    effects.rare.timed_keys = {(1, "k"): held, (1, "gone"): held, (2, "\N{SNOWMAN}"): held}
    bench.put(effects)
    effects = Effects()
    effects.rare.timed_keys = {(1, "gone"): None, (2, "never"): None, (1, "a"): held}
    effects.rare.windows[2] = (1, 8)
    bench.put(effects)

    for _ in range(2):
        bench.restart()
        assert bench.loaded.queues == [(1, "queue-1", one), (2, "queue-2", DEFAULT_SETTINGS)]
        assert bench.loaded.windows == [(1, 4, 7), (2, 1, 8)]
        keys = [(1, "a", held), (1, "k", held), (2, "\N{SNOWMAN}", held)]
        assert bench.loaded.timed_keys == keys
        assert isinstance(bench.loaded.timed_keys[0][2], TimedKey)


def test_settings_back_to_their_defaults_leave_nothing(bench):
    bench.accept(bench.job(1))
    for changes in ({"concurrency": 3}, {"concurrency": None}):
        effects = Effects()
        effects.rare.settings[1] = check_settings(changes, DEFAULT_SETTINGS)
        bench.put(effects)
    bench.restart()

    assert bench.loaded.queues == [(1, "queue-1", DEFAULT_SETTINGS)]


def test_named_tombstones_are_counted_per_queue(bench):
    jobs = [bench.job(1, job_id="a"), bench.job(2, job_id="b"), bench.job(3)]
    other = bench.job(4, queue=2, job_id="a")
    live = bench.job(5, job_id="c")
    bury(bench, *jobs, other)
    bench.accept(live)

    assert [bench.one("named_count", number) for number in (1, 2, 3)] == [2, 1, 0]


@pytest.mark.parametrize("in_one", [True, False], ids=["one effect", "several turns"])
def test_nothing_stays_of_an_obliterated_queue_but_ids(bench, in_one):
    ours = [bench.job(1, job_id="a"), leased(bench.job(2, job_id="b")), bench.job(3)]
    other = bench.job(4, queue=2, job_id="a")
    held = TimedKey(ours[0].id, 1, 9_000)
    effects = accepted(*ours, other)
    effects.rare.settings[1] = replace(DEFAULT_SETTINGS, paused=True)
    effects.rare.windows = {1: (2, 9), 2: (3, 9)}
    effects.rare.timed_keys = {(1, "k"): held, (2, "k"): held}
    parts = [effects, removed(*ours), Effects()]
    parts[-1].rare.obliterated[1] = None
    again = QueueState(3, "queue-1")
    successor = a_job(5, again, job_id="a")
    parts.append(accepted(successor))
    bench.queues[3] = again
    bench.seq = 5
    if in_one:
        for later in parts[1:]:
            parts[0].merge(later)
        bench.put(parts[0])
    else:
        for part in parts:
            bench.put(part)

    for _ in range(2):
        assert [fields(job) for job in bench.jobs()] == [fields(other), fields(successor)]
        stones = [bench.one("job", job.id) for job in ours]
        assert [stone.verdict for stone in stones] == [Verdict.REMOVED] * 3
        assert [stone.job_id for stone in stones] == [None] * 3
        assert [bench.one("custom", 1, name) for name in "ab"] == [None, None]
        assert [one.job.seq for one in bench.one("custom_any", "a")] == [4, 5]
        assert bench.one("named_count", 1) == 0
        bench.restart()
        assert [queue[:2] for queue in bench.loaded.queues] == [(2, "queue-2"), (3, "queue-1")]
        assert all(queue[2] == DEFAULT_SETTINGS for queue in bench.loaded.queues)
        assert bench.loaded.windows == [(2, 3, 9)]
        assert bench.loaded.timed_keys == [(2, "k", held)]
        assert bench.loaded.tombstones_count == 3, "they count as plain ones now"


def test_tombstones_of_an_obliterated_queue_are_trimmed_and_aged(bench):
    jobs = [bench.job(seq, job_id=f"n-{seq}") for seq in (1, 2)]
    bury(bench, *jobs)
    effects = Effects()
    effects.rare.obliterated[1] = None
    bench.put(effects)
    bench.put(trimming(1))
    assert [bench.one("job", job.id) is None for job in jobs] == [True, False]
    bench.put(aging(3_000))
    assert bench.one("job", jobs[1].id) is None


# --- schedules --------------------------------------------------------------------------


def test_a_schedule_comes_back_as_it_was_put(bench):
    whole = a_schedule(
        "whole",
        cron=check_cron({"pattern": "0 6 * * MON", "zone": "Asia/Tokyo", "limit": 3}),
        payload=b"\xff\0",
        options={"tags": ("a", "b"), "backoff": (5, 2, 9, 0, ()), "timeout_ms": 0},
        paused=True,
        changed_at=1,
        anchor_at=2,
        since=3,
        removed_at=4,
        last_tick=5,
        fired_count=6,
        skipped_count=7,
        last_job=b"j" * 16,
    )
    plain = a_schedule("plain", cron=check_cron({"every_ms": 5_000}))
    bench.put(scheduled(whole, plain))
    bench.restart()
    assert bench.loaded.schedules == [plain, whole]


def test_ticks_move_a_schedule_on_and_a_change_keeps_them(bench):
    bench.put(scheduled(a_schedule()))
    bench.put(ticked(a_schedule(last_tick=5, fired_count=1, last_job=b"j" * 16)))
    bench.restart()
    assert bench.loaded.schedules == [a_schedule(last_tick=5, fired_count=1, last_job=b"j" * 16)]
    changed_since = a_schedule(payload=b"other", last_tick=5, fired_count=1, last_job=b"j" * 16)
    bench.put(scheduled(changed_since))
    bench.put(ticked(replace(changed_since, last_tick=6, skipped_count=1)))
    bench.restart()
    assert bench.loaded.schedules == [replace(changed_since, last_tick=6, skipped_count=1)]


def test_a_forgotten_schedule_leaves_nothing(bench):
    bench.put(scheduled(a_schedule("a", last_tick=5), a_schedule("b")))
    bench.put(unscheduled("a"))
    bench.restart()
    assert [schedule.name for schedule in bench.loaded.schedules] == ["b"]
    bench.put(scheduled(a_schedule("a")))
    bench.restart()
    assert bench.loaded.schedules[0].last_tick == 0


def test_several_changes_of_a_schedule_in_one_turn(bench):
    """The last one per record wins, in whatever order they came."""
    turn = scheduled(a_schedule(payload=b"1"))
    turn.merge(ticked(a_schedule(payload=b"1", last_tick=5)))
    turn.merge(scheduled(a_schedule(payload=b"2", last_tick=5)))
    turn.merge(ticked(a_schedule(payload=b"2", last_tick=6)))
    bench.put(turn)
    bench.restart()
    assert bench.loaded.schedules == [a_schedule(payload=b"2", last_tick=6)]
    gone = ticked(a_schedule(payload=b"2", last_tick=7))
    gone.merge(unscheduled("nightly"))
    bench.put(gone)
    bench.restart()
    assert bench.loaded.schedules == []


# --- both stores do the same ------------------------------------------------------------

TEXTS = ("a", "g", "red", "tags", "group", "naïve", "")
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "tags": st.lists(st.sampled_from(TEXTS[:-1]), max_size=3),
        "group": st.sampled_from(TEXTS),
        "meta": st.sampled_from([b"", b"\xa1a", b"\xa5group\xa1g", b"\xa3red"]),
        "run_at": st.just(9_000),
        "keep_completed": st.booleans(),
    },
)
FILTERS = st.builds(
    Filters,
    name=st.sampled_from(["", "", "", "job-3", "job-9"]),
    tag=st.sampled_from(["", *TEXTS]),
    group=st.sampled_from(["", *TEXTS]),
    reason=st.sampled_from(["", "", "", "exhausted", "stalled", "timeout"]),
    since=st.sampled_from([0, 0, 1_003, 1_030]),
    until=st.sampled_from([0, 0, 1_006, 1_000]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("accept", "accept", "accept", "lease", "lease", "complete", "die", "retry"),
                *("remove", "purge", "rewrite", "log", "cut", "settings", "key", "window"),
                *("obliterate", "trim", "age"),
            ]
        ),
        st.integers(0, 99),
    ),
    max_size=40,
)


class Twins:
    """Both stores, given the same, and a script of what a core may want done."""

    def __init__(self, folder: Path) -> None:
        self.memory = MemoryStore()
        self.sqlite = SqliteStore(folder, IDENTITY)
        assert self.memory.open() == self.sqlite.open()
        self.folder = folder
        self.queues = {number: QueueState(number, f"queue-{number}") for number in (1, 2)}
        self.alive = [1, 2]  # numbers of queues
        self.jobs: list[Job] = []
        self.seq = 2

    def stage(self, effects: Effects) -> None:
        self.memory.stage(effects, self.seq)
        self.sqlite.stage(effects, self.seq)

    def turn(self, steps: list[tuple[str, int]], merged: bool, options: dict[str, Any]) -> None:
        whole = Effects()
        self.memory.begin(False)
        self.sqlite.begin(False)
        for step, number in steps:
            effects = getattr(self, step)(number, options)
            if effects is None:
                continue
            if merged:
                whole.merge(effects)
            else:
                self.stage(effects)
        self.stage(whole)
        self.memory.commit()
        self.sqlite.commit()

    def restart(self) -> None:
        self.sqlite = reopened(self.sqlite, self.folder)
        assert self.memory.open() == self.sqlite.open()

    def pick(self, number: int, *states: int) -> Job | None:
        known = [job for job in self.jobs if job.state in states]
        return known[number % len(known)] if known else None

    def accept(self, number: int, options: dict[str, Any]) -> Effects:
        self.seq += 1
        named = {"job_id": f"n-{self.seq}"} if number % 3 == 0 else {}
        queue = self.queues[self.alive[number % 2]]
        job = a_job(self.seq, queue, **options, **named)
        self.jobs.append(job)
        return accepted(job)

    def lease(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, WAITING, DELAYED)
        return job and changed(leased(job, number=number))

    def complete(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, ACTIVE)
        if job is None:
            return None
        job.run_at = 0
        effects = ended(completed(job, at=2_000 + number))
        effects.results[job.seq] = b"r" if number % 2 else None
        return effects

    def die(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, ACTIVE)
        return job and died(dead(job, "stalled" if number % 2 else "exhausted", at=2_000 + number))

    def retry(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, COMPLETED, DEAD)
        if job is None:
            return None
        self.seq += 1
        effects = revived(waiting_again(job, ready=self.seq))
        effects.results[job.seq] = None
        return effects

    def remove(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, WAITING, DELAYED, ACTIVE)
        return job and removed(job, verdict=Verdict(7 + number % 5), at=2_000 + number)

    def purge(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, COMPLETED, DEAD)
        if job is None:
            return None
        effects = purged(job)
        self.jobs.remove(job)
        self.jobs.insert(0, gone := a_job(job.seq, job.queue))
        gone.options, gone.state = job.options, GONE
        return effects

    def rewrite(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, WAITING, DELAYED)
        if job is None:
            return None
        job.options = replace(job.options, priority=number, tags=("a",) * (number % 2))
        if number % 3 == 0:
            return rewritten(job)
        job.size = number
        return rewritten(job, payloads={job.seq: bytes(number)})

    def log(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, ACTIVE)
        if job is None:
            return None
        detail = job.need_detail()
        first, detail.lines_count = detail.lines_count + 1, detail.lines_count + 3
        effects = logged(job, "one", "two", "three", first=first)
        effects.merge(changed(job))
        return effects

    def cut(self, number: int, _: object) -> Effects | None:
        job = self.pick(number, ACTIVE)
        if job is None:
            return None
        effects = Effects()
        effects.rare.lines_cut[job.seq] = number % 9
        return effects

    def settings(self, number: int, _: object) -> Effects:
        effects = Effects()
        effects.rare.settings[self.alive[number % 2]] = replace(
            DEFAULT_SETTINGS, concurrency=number % 4
        )
        return effects

    def key(self, number: int, _: object) -> Effects:
        held = TimedKey(bytes(16), number, 5_000) if number % 3 else None
        effects = Effects()
        effects.rare.timed_keys[self.alive[number % 2], f"k-{number % 4}"] = held
        return effects

    def window(self, number: int, _: object) -> Effects:
        effects = Effects()
        effects.rare.windows[self.alive[number % 2]] = (number, 1)
        return effects

    def obliterate(self, number: int, _: object) -> Effects:
        old = self.alive.pop(number % 2)
        mine = [job for job in self.jobs if job.queue.number == old]
        effects = purged(*[job for job in mine if job.state in (COMPLETED, DEAD)])
        effects.merge(removed(*[job for job in mine if job.state in (WAITING, DELAYED, ACTIVE)]))
        for job in mine:
            job.state = GONE
        effects.rare.obliterated[old] = None
        self.seq += 1
        self.queues[self.seq] = QueueState(self.seq, self.queues[old].name)
        self.alive.append(self.seq)
        return effects

    def trim(self, number: int, _: object) -> Effects:
        return trimming(number % 3)

    def age(self, number: int, _: object) -> Effects:
        return aging(2_000 + number // 2)

    def compare(self) -> None:
        for part in ("jobs", "payloads", "results", "keys"):
            assert self.seen(self.memory, part) == self.seen(self.sqlite, part)

    def seen(self, store: Store, part: str) -> object:
        seqs = [job.seq for job in self.jobs]
        if part == "jobs":
            return [fields(job) for job in store.jobs(self.queues)]
        if part == "payloads":
            return store.payloads(seqs)
        if part == "results":
            return [store.result(seq) for seq in seqs]
        keys: list[tuple[object, ...]] = [("horizon",)]
        for job in self.jobs:
            keys += [("job", job.id), ("logs", job.seq, 1, 4)]
            keys += [("custom", job.queue.number, f"n-{job.seq}"), ("custom_any", f"n-{job.seq}")]
        for number in (*self.queues, 0):
            keys += [("dead_oldest", number, 2_050, 3), ("dead_oldest", number, 0, 100)]
            keys += [("dead_stats", number), ("named_count", number)]
            keys += [("page", number, state, 0, 200, NO_FILTERS) for state in range(7)]
        return {key: plain(found) for key, found in store.find(keys, self.queues).items()}

    def listed(self, store: Store, queue: int, state: int, limit: int, filters: Filters) -> object:
        collected: list[object] = []
        after: int | None = 0
        while after is not None:
            key = ("page", queue, state, after, limit, filters)
            page: Any = store.find([key], self.queues)[key]
            collected += plain(page.jobs)
            after = page.next_after
        return collected


def plain(found: Any) -> Any:
    """What a store found, so that it can be compared."""
    if isinstance(found, Stored):
        return fields(found.job), found.result_bytes
    if isinstance(found, Page):
        return plain(found.jobs), found.next_after
    return [plain(one) for one in found] if isinstance(found, list) else found


@settings(max_examples=150)
@given(
    turns=st.lists(st.tuples(STEPS, st.booleans(), OPTIONS), max_size=5),
    restarted=st.booleans(),
)
def test_both_stores_keep_the_same(turns, restarted):
    with tempfile.TemporaryDirectory() as folder:
        twins = Twins(Path(folder))
        for steps, merged, options in turns:
            twins.turn(steps, merged, options)
            twins.compare()
            if restarted:
                twins.restart()
                twins.compare()
        twins.restart()
        twins.sqlite.close()


@settings(max_examples=100)
@given(
    jobs=st.lists(st.tuples(OPTIONS, st.sampled_from(["", "lease", "complete", "die"]))),
    listings=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 5), FILTERS), max_size=20
    ),
    scanned=st.sampled_from([1, 2, 7, 20_000]),
)
def test_both_stores_list_the_same(jobs, listings, scanned):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardnode.storage.sqlite.SCAN_ROWS_MAX", scanned)
        twins = Twins(Path(folder))
        for number, (options, step) in enumerate(jobs):
            twins.turn([("accept", number)], False, options)
            if step:
                twins.turn([("lease", number), (step, number)], False, {})
        for listing in listings:
            expected = twins.listed(twins.memory, *listing)
            assert twins.listed(twins.sqlite, *listing) == expected
        twins.sqlite.close()


# --- a whole shard over each store ------------------------------------------------------


@pytest.fixture
def rigs() -> Any:
    """The core, which the other tests here do without."""
    return importlib.import_module("tests.support.shards")


@pytest.fixture(params=["memory", "sqlite"])
def shard(rigs, request, tmp_path):
    if request.param == "memory":
        yield rigs.a_shard()
        return
    rig = rigs.a_shard(
        SqliteStore(tmp_path, IDENTITY), reopen=lambda store: reopened(store, tmp_path)
    )
    yield rig
    rig.store.close()


def test_a_restart_changes_nothing_that_lasts(rigs, shard):
    rigs.push(shard, *"abcdef", attempts=2)
    rigs.push(shard, "g", delay_ms=60_000, job_id="order-1")
    rigs.push(shard, "h", queue="sms", priority=3, keep_completed=False)
    a, b, _ = rigs.pull(shard, jobs_max=3).jobs
    rigs.ack(shard, a, result=b"r")
    rigs.fail(shard, b, error="boom")
    d = rigs.pull(shard, client="other").job
    rigs.release(shard, d)
    rigs.ack(shard, rigs.pull(shard, "sms").job)
    rigs.sweeps(shard, until=20_000)
    before = {job.id: fields(job) for job in shard.state.jobs.values()}
    counts = {name: list(queue.counts) for name, queue in shard.state.queues.items()}
    counter, epoch = shard.state.counter, shard.state.epoch
    shard.restart()

    assert {job.id: fields(job) for job in shard.state.jobs.values()} == before
    assert {name: list(queue.counts) for name, queue in shard.state.queues.items()} == counts
    assert shard.state.counter == counter
    assert shard.state.epoch == epoch + 1
    invariants = importlib.import_module("tests.support.invariants")
    invariants.check_invariants(shard.shard, shard.store, shard.clock.now())


def test_tokens_of_another_epoch_stay_valid_and_new_ones_differ(rigs, shard):
    rigs.push(shard, "a", "b")
    old = rigs.pull(shard).job
    shard.restart()
    new = rigs.pull(shard, client="other").job

    assert (old.token[:4], new.token[:4]) == (b"\0\0\0\1", b"\0\0\0\2")
    assert rigs.ack(shard, old, new).accepted


# --- only on disk -----------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    made = Bench(SqliteStore(tmp_path, IDENTITY), lambda: reopened(made.store, tmp_path))
    yield made
    made.store.close()


@pytest.mark.parametrize(
    "other", [{"cluster": "c-2"}, {"shard": 1}, {"shards": 2}], ids=lambda other: next(iter(other))
)
def test_the_file_of_somebody_else_is_refused(disk, tmp_path, other):
    disk.store.close()
    with pytest.raises(StoreError, match=f"belongs to {next(iter(other))}"):
        SqliteStore(tmp_path, {**IDENTITY, **other}).open()
    disk.store = SqliteStore(tmp_path, IDENTITY)
    assert disk.store.open().epoch == 2, "and it is not touched"


def test_the_file_of_a_newer_version_is_refused(disk, tmp_path):
    disk.store.close()
    with sqlite3.connect(tmp_path / "shard.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (FORMAT_VERSION + 1,))
    db.close()
    with pytest.raises(StoreError, match="newer version"):
        SqliteStore(tmp_path, IDENTITY).open()
    with sqlite3.connect(tmp_path / "shard.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (FORMAT_VERSION,))
    db.close()
    disk.store = SqliteStore(tmp_path, IDENTITY)
    disk.store.open()


def test_the_file_of_an_older_version_is_refused(disk, tmp_path):
    disk.store.close()
    with sqlite3.connect(tmp_path / "shard.db") as db:
        db.execute("UPDATE meta SET value = 1 WHERE key = 'format'")
    db.close()
    sentence = "was written by an older, unreleased version; start with a new data folder"
    with pytest.raises(StoreError, match=sentence):
        SqliteStore(tmp_path, IDENTITY).open()
    with sqlite3.connect(tmp_path / "shard.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (FORMAT_VERSION,))
    db.close()
    disk.store = SqliteStore(tmp_path, IDENTITY)
    assert disk.store.open().epoch == 2, "and it is not touched"


def test_a_second_opener_is_refused(disk, tmp_path):
    disk.accept(disk.job(1))
    with pytest.raises(StoreError, match="another process has it open"):
        SqliteStore(tmp_path, IDENTITY).open()
    disk.accept(disk.job(2))


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5_000]
)
def test_garbage_is_refused_with_the_name_of_the_file(tmp_path, content):
    (tmp_path / "shard.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"shard\.db"):
        SqliteStore(tmp_path, IDENTITY).open()
    assert (tmp_path / "shard.db").read_bytes() == content


def test_a_file_that_lost_its_tables_is_refused(disk, tmp_path):
    disk.accept(disk.job(1))
    disk.store.close()
    with sqlite3.connect(tmp_path / "shard.db") as db:
        db.execute("DROP TABLE jobs")
    db.close()
    disk.store = SqliteStore(tmp_path, IDENTITY)
    disk.store.open()
    with pytest.raises(StoreError):
        disk.jobs()


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="cannot open"):
        SqliteStore(tmp_path / "nowhere", IDENTITY).open()


def test_a_rollback_leaves_nothing(disk):
    disk.accept(disk.job(1))
    job = completed(leased(disk.job(2, job_id="x")))
    disk.store.begin(False)
    disk.store.stage(accepted(job), 2)
    effects = ended(job)
    effects.results[2] = b"r"
    effects.forgotten = [1]
    disk.store.stage(effects, 2)
    disk.store.rollback()

    assert [one.seq for one in disk.jobs()] == [1]
    assert disk.one("job", job.id) is None
    assert disk.one("custom", 1, "x") is None
    assert disk.store.result(2) is None
    disk.store.rollback()  # harmless without a transaction


def test_a_rollback_leaves_nothing_in_the_cache_of_payloads(disk):
    # Was a bug (minor): payloads stay in the cache, and the turn that is written once more after
    # the ballast is freed counts their bytes twice, for good.
    disk.store.begin(False)
    disk.store.stage(accepted(disk.job(1)), 1)
    disk.store.rollback()

    assert disk.store.payloads([1]) == {}


def test_a_full_disk_refuses_the_turn_and_takes_it_when_there_is_space(disk):
    disk.accept(disk.job(1))
    run = disk.store._run
    pages = run("PRAGMA page_count").fetchone()[0]
    run(f"PRAGMA max_page_count={pages + 5}")
    large = accepted(disk.job(2), payloads={2: bytes(1_000_000)})
    with pytest.raises(StoreFull):
        disk.put(large)
    disk.store.rollback()
    assert [job.seq for job in disk.jobs()] == [1]
    assert disk.one("job", disk.job(2).id) is None

    run("PRAGMA max_page_count=1000000")
    disk.put(large)
    disk.restart()
    assert [job.seq for job in disk.jobs()] == [1, 2]
    assert disk.loaded.seq == 2


@pytest.mark.parametrize(("sync", "level"), [(False, 1), (True, 2)])
def test_a_durable_turn_is_committed_with_full_synchronisation(disk, sync, level):
    for turn in (not sync, sync, sync):
        disk.store.begin(turn)
        disk.store.commit()
    assert disk.store._run("PRAGMA synchronous").fetchone()[0] == level


def test_the_settings_of_the_file_are_taken(disk):
    run = disk.store._run
    assert run("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert run("PRAGMA locking_mode").fetchone()[0] == "exclusive"


def test_a_durable_push_makes_its_turn_durable(rigs, tmp_path):
    rig = rigs.a_shard(SqliteStore(tmp_path, IDENTITY))
    rigs.push(rig, "a")
    assert rig.store._run("PRAGMA synchronous").fetchone()[0] == 1
    rigs.push(rig, "b", flags=rigs.DURABLE)
    assert rig.store._run("PRAGMA synchronous").fetchone()[0] == 2
    rig.store.close()


def test_the_file_is_readable_with_any_sqlite_after_a_clean_stop(disk, tmp_path):
    many(disk)
    disk.store.close()
    assert not (tmp_path / "shard.db-wal").exists()
    with sqlite3.connect(tmp_path / "shard.db") as db:
        rows = db.execute("SELECT seq, queue, state FROM job_list ORDER BY seq").fetchall()
    db.close()
    assert [state for _, _, state in rows][::2] == [
        "waiting", "delayed", "active", "completed", "dead",
    ]  # fmt: skip
    disk.store = SqliteStore(tmp_path, IDENTITY)
    disk.store.open()


@pytest.mark.parametrize(
    ("state", "filters", "expected", "expected_pages"),
    [
        (COMPLETED, NO_FILTERS, [7, 8], 4),
        (0, Filters(tag="no"), [], 4),
        (DEAD, NO_FILTERS, [9, 10], 1),
        (0, Filters(reason="exhausted"), [9, 10], 1),
    ],
)
def test_a_page_looks_at_a_bounded_number_of_rows_and_says_where_to_go_on(
    disk, monkeypatch, state, filters, expected, expected_pages
):
    monkeypatch.setattr("shardnode.storage.sqlite.SCAN_ROWS_MAX", 3)  # a limit, not behaviour
    many(disk)
    collected, after, pages = [], 0, 0
    while after is not None:
        page = disk.page(0, state, after, 100, filters)
        collected += numbers(page.jobs)
        after = page.next_after
        pages += 1
    assert collected == expected
    assert pages == expected_pages, "the dead are found without a look at the living"


def test_a_rewritten_payload_is_counted_once_in_the_cache(disk):
    job = disk.job(1)
    disk.accept(job)
    disk.put(rewritten(job, payloads={1: b"longer than before"}))
    disk.put(removed(job))
    assert disk.store._cached_bytes == 0
    assert disk.store._payload_cache == {}


def test_a_rewritten_payload_too_large_for_the_cache_is_read_from_the_disk(disk, monkeypatch):
    job = disk.job(1)
    disk.accept(job)
    monkeypatch.setattr("shardnode.storage.sqlite.PAYLOAD_CACHE_BYTES_MAX", 10)
    disk.put(rewritten(job, payloads={1: b"longer than before"}))
    assert disk.store._payload_cache == {}
    assert disk.store.payloads([1]) == {1: b"longer than before"}


def test_a_rollback_brings_the_payload_before_back(disk):
    job = disk.job(1)
    disk.accept(job)
    disk.store.begin(False)
    disk.store.stage(rewritten(job, payloads={1: b"new"}), 1)
    disk.store.rollback()
    assert disk.store.payloads([1]) == {1: b"001"}


def test_a_tick_rewrites_no_payload_of_its_schedule(disk):
    disk.put(scheduled(a_schedule()))
    said: list[str] = []
    disk.store._db.trace_v2(0x01, lambda event: said.append(event["sql"]))  # SQLITE_TRACE_STMT
    disk.put(ticked(a_schedule(last_tick=5)))
    disk.store._db.trace_v2(0, None)
    assert [sql for sql in said if "ticks" in sql]
    assert not [sql for sql in said if "schedules" in sql]


def test_forgetting_costs_nothing_for_logs_until_there_is_one(disk):
    jobs = [leased(disk.job(seq)) for seq in (1, 2)]
    disk.accept(*jobs)
    said: list[str] = []
    disk.store._db.trace_v2(0x01, lambda event: said.append(event["sql"]))  # SQLITE_TRACE_STMT
    disk.put(removed(jobs[0]))
    assert not [sql for sql in said if "lines" in sql]
    disk.put(logged(jobs[1], "a"), removed(jobs[1]))
    assert [sql for sql in said if sql.startswith("DELETE FROM lines")]
    disk.store._db.trace_v2(0, None)
