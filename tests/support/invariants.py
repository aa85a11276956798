"""What must hold after every turn of a shard, whatever happened; docs/invariants.md lists it.

The one place in the tests that looks into the structures of the core.
"""

from collections import Counter
from typing import Any

from pyq.job import ACTIVE, BLOCKED, COMPLETED, DELAYED, WAITING, JobState
from pyq.limits import EVENTS_MAX, HISTORY_MAX
from pyq.routes import shard_of, slot_of
from shardnode.core.dependencies import failure_of, is_released
from shardnode.core.effects import Now, Stored
from shardnode.core.heap import STALE_MIN, STALE_SHARE, ReadyLine
from shardnode.core.queues import holds_group
from shardnode.core.recovery import Loaded, restore_jobs, restore_queues
from shardnode.core.shard import Shard
from shardnode.core.state import Awaited, Job, LeaseEnd, QueueState, ShardState
from shardnode.storage.store import Store

LIVE = (WAITING, DELAYED, BLOCKED, ACTIVE)


def check_invariants(shard: Shard, store: Store, now: Now) -> None:
    """Raise AssertionError with a sentence if anything that must always hold does not."""
    state = shard.state
    records = {job.seq: job for job in store.jobs(state.queues_by_number)}
    _check_identity(state, records)
    _check_lines(state)
    _check_groups(state)
    _check_keys(state)
    _check_leases(state)
    _check_limits(state, now)
    _check_waiting_callers(state)
    _check_timers(state)
    _check_events(state)
    _check_dependencies(state, records, now)
    _check_records(state, store, records)
    _check_rebuilt(state, store, now)


def line_entries(line: ReadyLine) -> list[Job]:
    """Every entry of a line in the order in which `take` meets them, stale ones included."""
    entries: list[Job] = []
    for priority in sorted(line._buckets, reverse=True):
        bucket = line._buckets[priority]
        given_back = sorted(bucket.returned, key=lambda entry: entry[0])
        for job in bucket.line:
            while given_back and given_back[0][0] < job.ready:
                entries.append(given_back.pop(0)[-1])
            entries.append(job)
        entries += [entry[-1] for entry in given_back]
    return entries


def live_line(line: ReadyLine) -> list[Job]:
    """The waiting jobs of a line in the order in which they will be leased."""
    return [job for job in line_entries(line) if job.state is WAITING]


def fields(job: Job) -> dict[str, Any]:
    """Every field of a job that its records keep."""
    kept = {
        name: getattr(job, name)
        for name in Job.__slots__
        if name not in ("queue", "lease", "detail", "options")
    }
    lease, detail = job.lease, job.detail
    kept["queue"] = job.queue.name
    kept["options"] = job.options
    kept["lease"] = lease and (
        lease.token,
        lease.end,
        lease.grant.request_id,
        lease.grant.worker,
        lease.grant.queue,
        lease.grant.lease_ms,
        lease.grant.granted_at,
        lease.grant.fence,
    )
    kept["detail"] = detail and {name: getattr(detail, name) for name in detail.__slots__}
    return kept


def _check_identity(state: ShardState, records: dict[int, Job]) -> None:
    for job_id, job in state.jobs.items():
        assert job.id == job_id
        assert job.state in LIVE, f"{job.state!r} in the table of live jobs"
        assert job.queue is state.queues[job.queue.name]
        assert state.queues_by_number[job.queue.number] is job.queue
    seqs = [job.seq for job in state.jobs.values()]
    readies = [job.ready for job in state.jobs.values()]
    assert len(set(seqs)) == len(seqs), "an acceptance number is used twice (I4)"
    assert len(set(readies)) == len(readies), "a place in line is used twice"
    assert max([0, *seqs, *map(abs, readies), *records]) <= state.counter, (
        "a number beyond the counter (I4)"
    )
    for queue in state.queues.values():
        mine = [job for job in records.values() if job.queue is queue]
        expected = Counter(job.state for job in mine)
        counted = {s: queue.counts[s] for s in JobState if queue.counts[s]}
        assert counted == expected, f"counts of {queue.name} differ from its records (I6)"
        assert shard_of(slot_of(queue.name), state.shards_count) == state.shard, "I3"
        custom = {job.options.job_id: job for job in _live(state, queue) if job.options.job_id}
        assert queue.custom == custom, "custom ids differ from the live jobs that have one (I17)"
        completed = {job.seq for job in mine if job.state is COMPLETED}
        due = {seq for seq, is_due in state.pinned.items() if is_due} & completed
        own = {
            job.seq
            for job in mine
            if job.state is COMPLETED and (job.options.keep_ms or job.options.keep_count)
        } - due
        completed -= due
        assert queue.kept.keys() == own, "jobs that say how long they are kept"
        assert sorted(queue.finished) == sorted(completed - own), "finished is not its records"
        assert queue.finished.count == len(completed - own)


def _check_lines(state: ShardState) -> None:
    for queue in state.queues.values():
        line = queue.line
        alive = live_line(line)
        waiting = {
            job.seq
            for job in _live(state, queue)
            if job.state is WAITING and _may_stand_in_line(queue, job)
        }
        assert [job.ready for job in alive] == [
            job.ready for job in sorted(alive, key=lambda job: (-job.options.priority, job.ready))
        ], "the line is not in order (I14)"
        assert len(alive) == len({job.seq for job in alive}), "two live entries of one job (I5)"
        assert {job.seq for job in alive} == waiting, "the line is not what waits (I5)"
        assert line.count == len(alive), "the line miscounts its live entries"
        stale = line.entries_count() - line.count
        bound = max(STALE_MIN, line.entries_count() // STALE_SHARE) + 1
        assert 0 <= stale <= bound, f"{stale} stale entries of {line.entries_count()} (I5)"


def _may_stand_in_line(queue: QueueState, job: Job) -> bool:
    if not job.options.group:
        return True
    group = queue.groups[job.options.group]
    return job.seq in group.exposed and not group.paused


def _check_groups(state: ShardState) -> None:
    for queue in state.queues.values():
        members: dict[str, set[int]] = {}
        for job in _live(state, queue):
            if job.options.group and holds_group(job):
                members.setdefault(job.options.group, set()).add(job.seq)
        assert members.keys() == queue.groups.keys(), "groups without members, or the reverse"
        for name, group in queue.groups.items():
            behind = [job.seq for job in group.behind]
            assert {*group.exposed, *behind} == members[name], f"members of group {name}"
            assert len(group.exposed) + len(behind) == len(members[name]), "a member twice"
            assert group.paused == (name in queue.settings.paused_groups)
            for job in [*group.exposed.values(), *group.behind]:
                assert state.jobs[job.id] is job, "a group holds a job that is replaced"
            assert all(job.state is WAITING for job in group.behind), "a hidden job runs"
            readies = [job.ready for job in group.behind]
            assert readies == sorted(readies), "the order behind is not that of readiness (I15)"
            exposed = [job.ready for job in group.exposed.values() if job.state is WAITING]
            assert not exposed or not readies or max(exposed) < readies[0], "I15"
            limit = queue.settings.group_concurrency
            assert not exposed or len(group.exposed) <= limit, "more exposed than may run (I12)"
            assert not behind or len(group.exposed) >= limit, "a job is hidden without need"


def _check_keys(state: ShardState) -> None:
    for queue in state.queues.values():
        held = {
            job.options.unique: job
            for job in _live(state, queue)
            if job.options.unique and not job.options.unique_ttl_ms
        }
        assert queue.unique == held, "keys differ from the live jobs that hold them (I16)"
        assert not queue.unique.keys() & queue.timed_keys.keys(), "a key is held twice (I16)"


def _check_limits(state: ShardState, now: Now) -> None:
    for queue in state.queues.values():
        settings = queue.settings
        assert queue.limited == settings.limited
        served = queue.parked and queue.line.count and not settings.paused and not state.disk_low
        if settings.rate_max and served:
            full = queue.window.room(now.mono_ms, settings.rate_max, settings.rate_per_ms) <= 0
            assert not full or queue.window_at is not None, "nobody looks when the window opens"


def _check_dependencies(state: ShardState, records: dict[int, Job], now: Now) -> None:
    assert not state.unsettled, "a blocked job was not looked at"
    dependents: dict[bytes, set[int]] = {}
    for job in state.jobs.values():
        for dep_id in job.options.edges:
            dependents.setdefault(dep_id, set()).add(job.seq)
        if job.options.edges:
            assert job.detail is not None
            assert len(job.detail.settled) == len(job.options.edges)
    for job_id, awaited in state.awaited.items():
        assert awaited.jobs.keys() == dependents.pop(job_id, set()), "who waits for whom"
        assert awaited.jobs or awaited.shards, "a job is awaited by nobody"
        for seq, job in awaited.jobs.items():
            assert state.jobs[job.id] is job, "a dependent that was replaced"
            assert job.seq == seq
        if awaited.seq:
            assert awaited.seq in state.pinned
        if not (state.fallout or state.unasked or state.rewatch_at <= now.mono_ms):
            told = awaited.asked or state.owns(job_id)
            assert told or not _is_unsettled(awaited, job_id), "nobody is asked how it ends (I29)"
    assert not dependents, "a dependency that nobody awaits"
    for seq in state.pinned:
        assert records[seq].state is COMPLETED, "a pinned job without a record (I33)"
        assert state.awaited[records[seq].id].seq == seq
    if not state.fallout:
        for job in state.jobs.values():
            if job.state is BLOCKED:
                assert not is_released(job), "a job is blocked by nothing (I29)"
                assert failure_of(job) is None, "a job waits for one that failed (I29)"
    for bag in state.mail.values():
        numbers = [number for number, _ in bag.rows]
        assert numbers == list(range(bag.sent - len(numbers) + 1, bag.sent + 1)), "I27"


def _is_unsettled(awaited: Awaited, job_id: bytes) -> bool:
    """True if a blocked job does not know yet how this one has ended."""
    for job in awaited.jobs.values():
        if job.state is BLOCKED:
            assert job.detail is not None
            if not job.detail.settled[job.options.edges.index(job_id)]:
                return True
    return False


def _check_events(state: ShardState) -> None:
    log = state.events
    kept = [
        number for first, _, _, jobs, _ in log.entries for number in range(first, first + len(jobs))
    ]
    assert kept == list(range(log.next - len(kept), log.next)), "numbers of events have holes (I36)"
    assert len(log.entries) <= EVENTS_MAX


def _check_leases(state: ShardState) -> None:
    active = {job.seq: job for job in state.jobs.values() if job.state is ACTIVE}
    assert state.processing == active, "the processing set is not what is active (I7)"
    tokens = set()
    by_grant: Counter[int] = Counter()
    for job in active.values():
        lease = job.lease
        assert lease is not None
        assert lease.end is LeaseEnd.HELD, "an active job whose lease is over (I7)"
        assert len(lease.token) == 20
        assert int.from_bytes(lease.token[:4], "big") <= state.epoch
        tokens.add(lease.token)
        by_grant[id(lease.grant)] += 1
        assert job in state.grants[lease.grant.request_id], "a lease that its pull does not know"
    assert len(tokens) == len(active), "two leases with one token (I8)"
    for job in active.values():
        assert job.lease is not None
        grant = job.lease.grant
        assert grant.jobs_count == by_grant[id(grant)], "a grant miscounts its leases"
    held = {job.lease.grant.request_id for job in active.values() if job.lease}
    assert set(state.grants) == held, "grants without leases, or leases without a grant"
    for job in state.jobs.values():
        if job.state is not ACTIVE and job.lease is not None:
            assert job.lease.end is not LeaseEnd.HELD, "a lease is held on a job not active (I7)"
            assert job.lease.end is not LeaseEnd.ACKED, "an acked job is alive (I2)"
        assert job.failures <= job.options.attempts, "I9"
        assert job.detail is None or len(job.detail.history) <= HISTORY_MAX


def _check_waiting_callers(state: ShardState) -> None:
    assert not state.awake, "somebody was woken and not served"
    for request_id, parked in state.parked.items():
        assert parked.command.origin.request_id == request_id
        assert not parked.done, "an answered pull is still parked"
        for queue in parked.queues:
            assert queue.parked.get(request_id) is parked, "a parked pull its queue does not know"
            may_wait = state.disk_low or queue.limited or not queue.line.count
            assert may_wait, "a pull waits although jobs do"
            full = queue.settings.concurrency and queue.counts[ACTIVE] >= queue.settings.concurrency
            if queue.limited and queue.line.count and not state.disk_low:
                held_back = queue.settings.paused or full or queue.settings.rate_max
                assert held_back, "a pull waits although jobs do"
    for queue in state.queues.values():
        for request_id, parked in queue.parked.items():
            assert state.parked.get(request_id) is parked, "a mailbox names a pull that is gone"
    beats = [entry.beat for entry in state.workers.values() if entry.beat and not entry.beat.done]
    results = [parked for waiting in state.results.values() for parked in waiting]
    assert not any(parked.done for parked in results)
    assert all(state.results.values()), "an empty list of those who wait for a result"
    assert set(state.results) <= set(state.jobs), "somebody waits for the end of an ended job"
    readers = [parked for parked in state.events.readers if not parked.done]
    relays = [parked for parked in state.relays if not parked.done]
    watchers = state.schedules.readers
    assert not any(parked.done for parked in watchers)
    parked_count = sum(map(len, (state.parked, beats, results, readers, relays, watchers)))
    assert state.parked_count == parked_count, "parked_count drifts (P16)"


def _check_timers(state: ShardState) -> None:
    due = {(entry[0], entry[-1].seq) for entry in state.timers.delayed._entries}
    for job in state.jobs.values():
        if job.state is DELAYED:
            assert job.run_at > 0
            assert (job.run_at, job.seq) in due, "a delayed job that nothing wakes"
        elif job.state is not BLOCKED:
            assert job.run_at == 0, "a job that is not delayed has a due time"
    expiring = {
        entry[-1].seq for entry in state.timers.expiring._entries if entry[-1].lease is None
    }
    for job in state.jobs.values():
        if job.may_expire:
            assert job.seq in expiring, "a job that nothing expires"
    for queue in state.queues.values():
        times = {(entry[0], entry[-1][1]) for entry in state.timers.keys._entries}
        for key, timed in queue.timed_keys.items():
            assert (timed.until, key) in times, "a key that nothing frees"


def _check_records(state: ShardState, store: Store, records: dict[int, Job]) -> None:
    live = {job.seq for job in state.jobs.values()}
    assert {seq for seq, job in records.items() if job.state in LIVE} == live, "I1"
    for job in state.jobs.values():
        assert fields(records[job.seq]) == fields(job), "memory and records differ (I1)"
    payloads = store.payloads(list(records))
    assert {seq: len(payload) for seq, payload in payloads.items()} == {
        seq: job.size for seq, job in records.items()
    }, "payloads are missing or of another size (I39)"
    ended = [job for job in records.values() if job.state not in LIVE]
    found = store.find([("job", job.id) for job in ended], state.queues_by_number)
    for job in ended:
        known = found[("job", job.id)]
        assert isinstance(known, Stored) or job.id in state.jobs, "an ended job not found by its id"


def _check_rebuilt(state: ShardState, store: Store, now: Now) -> None:
    """What a restart would know is what is known (I1)."""
    other = ShardState(state.shard, state.shards_count, state.epoch + 1)
    queues = [(n, queue.name, queue.settings) for n, queue in state.queues_by_number.items()]
    watchers = [(job_id, n) for job_id, known in state.awaited.items() for n in known.shards]
    known = Loaded(0, state.counter, 0, queues, [], [], [], [], watchers)
    restore_queues(other, known, now)
    restore_jobs(other, store.jobs(other.queues_by_number), now)
    assert other.jobs.keys() == state.jobs.keys()
    assert other.processing.keys() == state.processing.keys()
    assert other.grants.keys() == state.grants.keys()
    for request_id, jobs in state.grants.items():
        held = {job.seq for job in jobs if _is_held_by(job, request_id)}
        rebuilt = {job.seq for job in other.grants[request_id]}
        assert rebuilt == held, "a pull would get other leases after a restart"
    for name, queue in state.queues.items():
        twin = other.queues[name]
        assert twin.counts == queue.counts
        assert [job.seq for job in live_line(twin.line)] == [
            job.seq for job in live_line(queue.line)
        ], f"the line of {name} would have another order after a restart"
        assert twin.custom.keys() == queue.custom.keys()
        due_count = sum(
            is_due and seq in set(twin.finished) for seq, is_due in state.pinned.items()
        )  # kept for dependents only: the next pass after a restart notes it again
        assert twin.finished.count == queue.finished.count + due_count
        assert twin.unique.keys() == queue.unique.keys()
        assert twin.groups.keys() == queue.groups.keys()
        for key, group in queue.groups.items():
            assert twin.groups[key].exposed.keys() == group.exposed.keys(), f"group {key}"
            rebuilt_behind = [job.seq for job in twin.groups[key].behind]
            assert rebuilt_behind == [job.seq for job in group.behind], f"group {key}"
    overfull = {queue.name for queue in state.overfull}
    overfull |= {known.queue.name for known in state.awaited.values() if known.queue and known.seq}
    assert {queue.name for queue in other.overfull} <= overfull, "a queue that nobody looks after"
    if not state.unasked:
        assert other.pinned.keys() == state.pinned.keys(), "a restart would keep others (I33)"
    assert other.tended.keys() == {other.queues[queue.name] for queue in state.tended}


def what_records_keep(state: ShardState) -> dict[str, Any]:
    """What must be the same before and after a restart, beside the jobs."""
    return {
        queue.name: (
            queue.number,
            queue.settings,
            dict(queue.timed_keys),
            list(queue.counts),
        )
        for queue in state.queues.values()
    } | {
        "": (state.counter, state.tombstones_count),
        "schedules": {schedule.name: schedule for schedule in state.schedules},
        "mail": {n: (bag.sent, list(bag.rows)) for n, bag in state.mail.items() if bag.sent},
        "received": {n: number for n, number in state.received.items() if number},
        "watchers": {job_id: sorted(a.shards) for job_id, a in state.awaited.items() if a.shards},
    }


def _live(state: ShardState, queue: QueueState) -> list[Job]:
    return [job for job in state.jobs.values() if job.queue is queue]


def _is_held_by(job: Job, request_id: bytes) -> bool:
    return (
        job.state is ACTIVE and job.lease is not None and job.lease.grant.request_id == request_id
    )
