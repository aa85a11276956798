"""A shard under random commands, time steps, restarts and repeats, beside a model of plain dicts.

The model knows nothing of the core: it keeps, per job, who may finish it and what was said.
support/invariants.py looks at the core after every single turn.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from pyq.errors import Status
from pyq.limits import MAX_STALLS_DEFAULT as STALLS_MAX
from pyq.messages import Pull
from shardnode.storage.sqlite import SqliteStore
from tests.support.invariants import check_invariants
from tests.support.shards import (
    REPEAT,
    Call,
    Leased,
    Rig,
    a_shard,
    ack,
    counts,
    extend,
    fail,
    goodbye,
    heartbeat,
    page,
    progress,
    pull,
    push,
    release,
    repeat,
    result,
    sweep,
    tick,
    undelivered,
    unpull,
)

QUEUES = ("emails", "sms")
CLIENTS = ("w-1", "w-2", "w-3")
BACKOFFS = ([0, 1.0, 0, 0.0, []], [100, 2.0, 5_000, 0.2, []])

queues = st.sampled_from(QUEUES)
clients = st.sampled_from(CLIENTS)
options = st.fixed_dictionaries(
    {"attempts": st.integers(1, 3), "backoff": st.sampled_from(BACKOFFS)},
    optional={
        "priority": st.integers(-1, 1),
        "delay_ms": st.sampled_from([1, 500, 20_000]),
        "timeout_ms": st.sampled_from([1, 3_000]),
        "job_id": st.sampled_from(["one", "two", "three"]),
        "keep_completed": st.booleans(),
    },
)


class Told:
    """What producers and workers were told about one job."""

    def __init__(self, options: dict[str, Any], queue: str) -> None:
        self.options = options
        self.queue = queue
        self.fences: dict[bytes, int] = {}  # of all its leases, by token
        self.completed_by: bytes | None = None


class ShardMachine(RuleBasedStateMachine):
    pushes = Bundle("pushes")
    pulls = Bundle("pulls")
    leases = Bundle("leases")
    settled = Bundle("settled")

    @initialize()
    def start(self) -> None:
        self.rig: Rig = self.a_rig()
        self.jobs: dict[bytes, Told] = {}
        self.parked: list[Call] = []

    def a_rig(self) -> Rig:
        return a_shard(checked=False)

    # --- rules ---------------------------------------------------------------------------------

    @rule(target=pushes, queue=queues, options=options, count=st.integers(1, 4))
    def push(self, queue, options, count):
        call = push(self.rig, *"abcd"[:count], queue=queue, **options)
        refused = {index: detail for index, _, detail in call.exceptions}
        for index, job_id in enumerate(call.ids):
            if index in refused:
                assert refused[index][0] == "exists", "a new id is refused for its custom id only"
                assert options.get("job_id")
            else:
                self.jobs[job_id] = Told(options, queue)
        if options.get("job_id"):
            holders = [
                t for t in self.jobs.values() if t.options.get("job_id") == options["job_id"]
            ]
            assert len([t for t in holders if t.queue == queue]) == 1, "I17"
        return call

    @rule(call=pushes)
    def push_again(self, call):
        again = repeat(self.rig, call)
        assert len(again.exceptions) == len(call.ids), "a repeat is never accepted (I18)"
        assert {status for _, status, _ in again.exceptions} == {Status.OK}

    @rule(
        target=pulls,
        client=clients,
        names=st.permutations(QUEUES).flatmap(lambda q: st.sampled_from([q[:1], q])),
        jobs_max=st.integers(1, 4),
        wait_ms=st.sampled_from([0, 0, 1_000, 30_000]),
        lease_ms=st.sampled_from([100, 2_000, 15_000]),
        lost=st.booleans(),
    )
    def pull(self, client, names, jobs_max, wait_ms, lease_ms, lost):
        last_received = 0 if lost else None
        call = pull(
            self.rig,
            *names,
            client=client,
            jobs_max=jobs_max,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            last_received=last_received,
        )
        if call.waits:
            assert wait_ms
            self.parked.append(call)
        return call

    @rule(call=pulls)
    def pull_again(self, call):
        again = repeat(self.rig, call)
        if again.waits:
            self.parked.append(again)
        elif again.status is Status.OK and call.answers and call.status is Status.OK:
            before = {job.token for job in call.jobs}
            held = {job.token for job in again.jobs}
            assert held <= before or not held & before, "some old leases and some new ones"

    @rule(target=leases, call=pulls)
    def receive(self, call):
        jobs = [job for answer in call.answers if answer.status is Status.OK for job in answer.jobs]
        return multiple(*jobs)

    @rule(target=settled, job=leases, value=st.sampled_from([None, b"r"]))
    def ack(self, job, value):
        newest = self.newest(job)
        call = ack(self.rig, job, result=value)
        self.note_ack(call, job, newest)
        return job

    @rule(job=settled, value=st.sampled_from([None, b"other"]))
    def ack_again(self, job, value):
        newest = self.newest(job)
        call = ack(self.rig, job, result=value, flags=REPEAT)
        self.note_ack(call, job, newest)
        if self.jobs[job.id].completed_by == job.token:
            assert call.replayed or call.accepted

    @rule(job=leases, twin=leases)
    def ack_two(self, job, twin):
        newest = {one.id: self.newest(one) for one in (job, twin)}
        call = ack(self.rig, job, twin)
        codes = {index: (status, detail) for index, status, detail in call.exceptions}
        for index, one in enumerate((job, twin)):
            if index not in codes:
                self.completed(one, newest[one.id])

    @rule(
        target=settled,
        job=leases,
        unrecoverable=st.sampled_from([False, False, False, True]),
        retry_in_ms=st.sampled_from([-1, -1, 0, 700]),
        flags=st.sampled_from([0, REPEAT]),
    )
    def fail(self, job, unrecoverable, retry_in_ms, flags):
        newest = self.newest(job)
        call = fail(
            self.rig, job, unrecoverable=unrecoverable, retry_in_ms=retry_in_ms, flags=flags
        )
        if call.accepted:
            self.held(job, newest)
        return job

    @rule(target=settled, job=leases, delay_ms=st.sampled_from([0, 0, 900]))
    def release(self, job, delay_ms):
        newest = self.newest(job)
        call = release(self.rig, job, delay_ms=delay_ms)
        if call.accepted:
            self.held(job, newest)
        return job

    @rule(job=leases, wait_ms=st.sampled_from([0, 1_000]), client=clients)
    def heartbeat(self, job, wait_ms, client):
        newest = self.newest(job)
        call = heartbeat(self.rig, job, worker=client, wait_ms=wait_ms)
        if call.answers and not call.exceptions:
            self.held(job, newest)

    @rule(job=leases, lease_ms=st.sampled_from([100, 60_000]), value=st.binary(max_size=3))
    def extend_and_tell(self, job, lease_ms, value):
        newest = self.newest(job)
        first, second = (
            extend(self.rig, job, lease_ms=lease_ms),
            progress(self.rig, job, value=value),
        )
        assert first.accepted == second.accepted
        if first.accepted:
            self.held(job, newest)

    @rule(call=consumes(pulls))
    def return_it(self, call):
        undelivered(self.rig, call)

    @rule(call=pulls)
    def unpull(self, call):
        unpull(self.rig, call)

    @rule(client=clients)
    def goodbye(self, client):
        # A worker withdraws its pulls before it says goodbye; the pull scenarios have the other.
        for call in self.parked:
            if call.waits and call.command.worker == client:
                unpull(self.rig, call)
        goodbye(self.rig, client)

    @rule(call=pushes, wait_ms=st.sampled_from([0, 5_000]))
    def ask_for_result(self, call, wait_ms):
        result(self.rig, call.ids[0], wait_ms)

    @rule(ms=st.sampled_from([1, 90, 1_000, 4_000, 20_000, 70_000]), late=st.booleans())
    def time_passes(self, ms, late):
        tick(self.rig, at=self.rig.clock.at + ms, late=late)

    @rule(times=st.integers(1, 8), router=st.booleans())
    def sweeps(self, times, router):
        for _ in range(times):
            due_ms = sweep(self.rig, router=router)[0]
            self.rig.clock.at += max(1, due_ms)

    @rule(ms=st.integers(-100_000, 100_000))
    def somebody_sets_the_clock(self, ms):
        self.rig.clock.wall_shift += ms

    @precondition(lambda self: self.jobs)
    @rule(ms=st.sampled_from([0, 10_000]))
    def restart(self, ms):
        self.rig.restart(at=self.rig.clock.at + ms)
        self.parked.clear()

    # --- what must be true -----------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong_inside(self):
        check_invariants(self.rig.shard, self.rig.store, self.rig.clock.now())

    @invariant()
    def every_lease_is_a_new_one(self):
        """Whatever was answered to whatever pull: fences differ and no token comes twice."""
        for calls in self.rig.calls.values():
            for call in calls:
                assert len(call.answers) <= 1, "one sending, one answer (I31)"
                if isinstance(call.command, Pull) and call.answers and call.status is Status.OK:
                    self.note_leases(call.jobs)

    def note_leases(self, leased: list[Leased]) -> None:
        for job in leased:
            told = self.jobs[job.id]
            if job.token in told.fences:
                continue
            assert told.completed_by is None, "a completed job was leased (P3)"
            assert job.failures < told.options["attempts"], "a job without attempts was leased"
            assert job.attempt <= job.failures + STALLS_MAX + 1
            assert job.fence not in told.fences.values(), "two leases with one fence (I9)"
            told.fences[job.token] = job.fence

    @invariant()
    def no_job_is_lost(self):
        """Every accepted job is in exactly one state, or completed and not kept (I1, I35)."""
        rig = self.rig
        seen: dict[bytes, str] = {}
        after: int | None = 0
        while after is not None:
            views, after = page(rig, after=after, limit=7)
            for view in views:
                assert view["id"] not in seen
                seen[view["id"]] = view["state"]
        for job_id, told in self.jobs.items():
            if told.completed_by is not None:
                kept = told.options.get("keep_completed", True)
                assert seen.get(job_id) == ("completed" if kept else None)
            else:
                assert seen[job_id] in ("waiting", "delayed", "active", "dead")
        assert seen.keys() <= self.jobs.keys()
        total = sum(n for states in counts(rig).values() for n in states.values())
        assert total == len(seen)

    def note_ack(self, call: Call, job: Leased, newest: bytes) -> None:
        if call.accepted:
            self.completed(job, newest)

    def completed(self, job: Leased, newest: bytes) -> None:
        told = self.jobs[job.id]
        assert told.completed_by is None, "a second completion was accepted (I10)"
        self.held(job, newest)
        told.completed_by = job.token

    def newest(self, job: Leased) -> bytes:
        """The token of the newest lease of a job; asked before it is used."""
        self.every_lease_is_a_new_one()
        fences = self.jobs[job.id].fences
        return max(fences, key=fences.__getitem__)

    def held(self, job: Leased, newest: bytes) -> None:
        """Something was accepted: only the newest token of a job does anything (I8)."""
        assert newest == job.token, "a stale token changed something"
        assert self.jobs[job.id].completed_by in (None, job.token)


class DiskMachine(ShardMachine):
    """The same over a file."""

    def a_rig(self) -> Rig:
        self.folder = TemporaryDirectory()
        return a_shard(self.a_store(), checked=False, reopen=self.reopened)

    def a_store(self) -> SqliteStore:
        return SqliteStore(Path(self.folder.name), {"cluster": "c", "shard": 0, "shards": 1})

    def reopened(self, store: SqliteStore) -> SqliteStore:
        store.close()
        return self.a_store()

    def teardown(self) -> None:
        self.rig.store.close()
        self.folder.cleanup()


TestShardMachine = ShardMachine.TestCase
TestShardMachine.settings = settings(stateful_step_count=40)
TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(stateful_step_count=40, max_examples=15)
