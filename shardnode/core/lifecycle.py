"""The moves of a job, one function each, with everything that must happen in the same commit.

Operations decide which move; these do it: state, counts, indexes, records, events, replies
to those who wait. MOVES (pyq/job.py) lists what is legal; nothing else changes a state.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappush

from pyq.backoff import backoff_ms
from pyq.errors import Status
from pyq.job import (
    ACTIVE,
    BLOCKED,
    COMPLETED,
    DEAD,
    DELAYED,
    GONE,
    LEGAL,
    WAITING,
    JobState,
    Verdict,
)
from pyq.limits import ERROR_BYTES_MAX, HISTORY_MAX, LINGER_BYTES_MAX
from pyq.messages import GATE_NAME, Reply
from shardnode.core.dependencies import (
    DONE,
    await_jobs,
    failure_of,
    forget_all,
    is_released,
    is_shut_out,
    pin,
    settle,
    take_fallout,
    tell,
    unpin,
)
from shardnode.core.dice import chance
from shardnode.core.effects import Effects, Now
from shardnode.core.keys import release_key
from shardnode.core.queues import enter, leave, put_back, wake
from shardnode.core.retention import note_finished
from shardnode.core.state import Job, LeaseEnd, QueueState, ShardState

RESULT_LINGER_MS = 10_000  # a result that is not kept can still be asked for this long


def _move(job: Job, target: JobState) -> None:
    assert LEGAL[job.state][target], f"a job may not move from {job.state!r} to {target!r}"
    counts = job.queue.counts
    counts[job.state] -= 1
    counts[target] += 1
    job.state = target


def open_queue(state: ShardState, name: str, effects: Effects) -> QueueState:
    """Return a queue, made and recorded if it is new."""
    queue = state.queues.get(name)
    if queue is None:
        queue = state.add_queue(state.queues_made + 1, name)
        effects.queues[queue.number] = name
    return queue


def become_ready(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    """A delayed or active job waits to be leased."""
    _move(job, WAITING)
    job.run_at = 0
    job.updated_at = now.wall_ms
    enter(state, job)
    effects.changed[job.seq] = job
    if state.events.on:
        state.events.record("waiting", now.wall_ms, [job])


def become_delayed(state: ShardState, job: Job, run_at: int, now: Now, effects: Effects) -> None:
    """A job waits until `run_at` (wall) before it is ready; if that is not ahead, it is ready now.

    A waiting one has left the line before.
    """
    if run_at <= now.wall_ms:
        become_ready(state, job, now, effects)
        return
    _move(job, DELAYED)
    job.run_at = run_at
    job.updated_at = now.wall_ms
    state.timers.delay(job)
    effects.changed[job.seq] = job
    if state.events.on:
        state.events.record("delayed", now.wall_ms, [job], [[run_at]])


def end_lease(state: ShardState, job: Job, end: LeaseEnd) -> None:
    """The lease of an active job is over; its token stays with the job, for repeats."""
    lease = job.lease
    assert lease is not None
    assert lease.end is LeaseEnd.HELD, "a lease ends once"
    lease.end = end
    del state.processing[job.seq]
    grant = lease.grant
    grant.jobs_count -= 1
    if grant.jobs_count == 0:
        state.grants.pop(grant.request_id, None)
    if job.queue.limited:
        wake(state, job.queue)


def give_back(state: ShardState, job: Job, delay_ms: int, now: Now, effects: Effects) -> None:
    """A lease is released: nothing is charged, and the job keeps its place in line."""
    end_lease(state, job, LeaseEnd.RELEASED)
    if job.cancel_requested:
        remove(state, job, Verdict.CANCELLED, now, effects)
        return
    job.attempt -= 1
    if delay_ms > 0:
        become_delayed(state, job, now.wall_ms + delay_ms, now, effects)
        return
    _move(job, WAITING)
    job.updated_at = now.wall_ms
    put_back(state, job)
    effects.changed[job.seq] = job
    if state.events.on:
        state.events.record("waiting", now.wall_ms, [job])


def complete(
    state: ShardState, done: list[tuple[Job, bytes | None]], now: Now, effects: Effects
) -> None:
    """Jobs are done: a tombstone says so, and their records stay as they were, with their results.

    Each is active, or not leased again since its lease stalled (a late ack); the caller
    has marked its lease as acked. This is the hot path, so the loop is flat, and what jobs
    of one queue share is done once.
    """
    wall_ms = now.wall_ms
    jobs, processing, waiting = state.jobs, state.processing, state.results
    awaited = state.awaited
    ended = effects.ended
    assert LEGAL[ACTIVE][COMPLETED]
    named_count = 0  # tombstones of custom ids are not counted, and not trimmed
    seqs_by_queue: dict[QueueState, list[int]] = {}
    for job, result in done:
        seq = job.seq
        queue = job.queue
        before = job.state
        job.state = COMPLETED
        queue.counts[before] -= 1
        if before is ACTIVE:
            del processing[seq]
            lease = job.lease
            assert lease is not None
            grant = lease.grant
            grant.jobs_count -= 1
            if not grant.jobs_count:
                state.grants.pop(grant.request_id, None)
            if queue.limited:
                wake(state, queue)
        else:  # a late ack
            assert LEGAL[before][COMPLETED]
            if not job.options.group:
                leave(state, job, before)
        job.updated_at = wall_ms
        del jobs[job.id]
        ended[job.id] = job
        if result is not None or job.failures:  # a failed attempt may have left one
            effects.results[seq] = result
        if job.options.plain:
            queue.completed_count += 1
            if queue in seqs_by_queue:
                seqs_by_queue[queue].append(seq)
            else:
                seqs_by_queue[queue] = [seq]
        elif _complete_special(state, job, before, result, now, effects):
            named_count += 1
        if awaited and job.id in awaited:
            tell(state, job.id, DONE, "", effects)
            if job.name != GATE_NAME:
                pin(state, job, not job.options.keep_completed)
        if waiting and job.id in waiting:
            answer_waiting(state, job.id, [COMPLETED.word, result, ""], effects)
    state.tombstones_count += len(done) - named_count
    for queue, seqs in seqs_by_queue.items():
        queue.counts[COMPLETED] += len(seqs)
        queue.finished.add(wall_ms, seqs)
        note_finished(state, queue)
    if state.events.on:
        state.events.record("completed", wall_ms, [job for job, _ in done])


def _complete_special(
    state: ShardState,
    job: Job,
    before: JobState,
    result: bytes | None,
    now: Now,
    effects: Effects,
) -> bool:
    """Free what a completed job held, and keep its record as long as it says itself.

    Returns whether it has a custom id.
    """
    queue, options = job.queue, job.options
    if options.job_id:
        del queue.custom[options.job_id]
    if options.unique:
        release_key(job, False, effects)
    if options.group:
        leave(state, job, before)
    if options.edges:
        forget_all(state, job, effects)
    if not options.keep_completed and job.id in state.awaited and job.name != GATE_NAME:
        queue.counts[COMPLETED] += 1  # until the last who depends on it has ended
        return bool(options.job_id)
    if not options.keep_completed:
        _forget_at_once(state, job, result, now, effects)
        return bool(options.job_id)
    queue.counts[COMPLETED] += 1
    queue.completed_count += 1
    keep_record(state, job)
    return bool(options.job_id)


def keep_record(state: ShardState, job: Job) -> None:
    """Note how long the record of a completed job is kept; `updated_at` is when it ended."""
    queue, options = job.queue, job.options
    if options.keep_ms:
        until = queue.kept[job.seq] = job.updated_at + options.keep_ms
        state.timers.forget(until, queue, job.seq)
    elif options.keep_count:
        due = queue.kept[job.seq] = queue.completed_count + options.keep_count
        heappush(queue.by_count, (due, job.seq, job.updated_at))
    else:
        queue.finished.add(job.updated_at, (job.seq,))
    note_finished(state, queue)


def drop_record(state: ShardState, job: Job) -> None:
    """A completed job is none any more: its queue forgets how long its record was kept."""
    queue = job.queue
    queue.counts[COMPLETED] -= 1
    if unpin(state, job):
        return  # nothing but its dependents kept it
    if queue.kept.pop(job.seq, None) is None:
        queue.finished.discard(job.seq, job.updated_at)


def _forget_at_once(
    state: ShardState, job: Job, result: bytes | None, now: Now, effects: Effects
) -> None:
    """A job that is not kept: nothing but its tombstone stays; its result for some seconds."""
    effects.changed.pop(job.seq, None)
    effects.results.pop(job.seq, None)
    effects.forgotten.append(job.seq)
    size = len(result) if result is not None else 0
    if state.lingering_bytes + size <= LINGER_BYTES_MAX:
        state.lingering_bytes += size
        state.lingering[job.id] = result
        state.timers.park(now.mono_ms + RESULT_LINGER_MS, job.id)


def kill(state: ShardState, job: Job, reason: str, now: Now, effects: Effects) -> None:
    """The job becomes a dead letter, in the same commit as its last failure."""
    detail = job.need_detail()
    detail.reason = reason
    before = job.state
    _move(job, DEAD)
    job.updated_at = now.wall_ms
    if job.options.group:
        leave(state, job, before)
    if job.options.unique:
        release_key(job, False, effects)
    if job.options.edges:
        forget_all(state, job, effects)
    _leave_memory(state, job, effects)
    tell(state, job.id, int(DEAD), detail.error, effects)
    effects.rare.buried[job.seq] = job
    effects.changed[job.seq] = job
    answer_waiting(state, job.id, [DEAD.word, None, detail.error], effects)
    if state.events.on:
        state.events.record("dead", now.wall_ms, [job], [[reason, detail.error]])


def remove(state: ShardState, job: Job, verdict: Verdict, now: Now, effects: Effects) -> None:
    """A job that has not ended is gone: only its tombstone stays, which says why.

    If it was active, its lease has ended before.
    """
    before = job.state
    _move(job, GONE)
    job.queue.counts[GONE] -= 1
    job.updated_at = now.wall_ms
    leave(state, job, before)
    if job.options.unique:
        release_key(job, True, effects)
    if job.options.edges:
        forget_all(state, job, effects)
    _leave_memory(state, job, effects)
    tell(state, job.id, int(verdict), "", effects)
    effects.rare.verdicts[job.id] = verdict
    effects.forgotten.append(job.seq)
    answer_waiting(state, job.id, [verdict.word, None, ""], effects)
    if state.events.on:
        state.events.record("removed", now.wall_ms, [job], [[verdict.word]])


def remove_ended(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    """A completed or dead job is forgotten: its tombstone is there already, and stays."""
    assert LEGAL[job.state][GONE]
    if job.state is DEAD:
        job.queue.counts[DEAD] -= 1
        effects.rare.unburied[job.seq] = None
        tell(state, job.id, int(Verdict.REMOVED), "", effects)
    else:
        drop_record(state, job)
    effects.forgotten.append(job.seq)
    if state.events.on:
        state.events.record("removed", now.wall_ms, [job], [[Verdict.REMOVED.word]])


def revive(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    """A dead or completed job, read from the store, starts afresh; its history stays."""
    queue = job.queue
    if job.state is DEAD:
        queue.counts[DEAD] -= 1
        effects.rare.unburied[job.seq] = None
    else:
        drop_record(state, job)
    target = BLOCKED if job.options.edges else WAITING
    assert LEGAL[job.state][target]
    queue.counts[target] += 1
    job.state = target
    job.run_at = 0
    job.attempt = job.failures = job.stalls = 0
    job.updated_at = now.wall_ms
    if job.lease is not None:
        job.lease.end = LeaseEnd.RETRIED
    detail = job.need_detail()
    detail.reason = detail.error = detail.traceback = ""
    state.jobs[job.id] = job
    if job.options.job_id:
        queue.custom[job.options.job_id] = job
    else:
        state.tombstones_count -= 1
    if target is WAITING:
        enter(state, job)
    effects.changed[job.seq] = job
    effects.results[job.seq] = None
    effects.rare.revived[job.id] = None
    if state.events.on:
        state.events.record("retried", now.wall_ms, [job])


def retry_or_kill(
    state: ShardState,
    job: Job,
    exhausted: bool,
    reason: str,
    n: int,
    retry_in_ms: int,
    now: Now,
    effects: Effects,
) -> None:
    """After the n-th failure or stall: dead if used up, else delayed.

    By the backoff, unless the worker asked for a delay of its own (`retry_in_ms` >= 0).
    """
    if exhausted:
        kill(state, job, reason, now, effects)
        return
    if retry_in_ms < 0:
        retry_in_ms = backoff_ms(job.options.backoff, n, chance(now.seed, job.seq))
    become_delayed(state, job, now.wall_ms + retry_in_ms, now, effects)


def note_error(job: Job, error: str, traceback: str, now: Now) -> None:
    """Keep the error of an attempt, and the last few before it."""
    detail = job.need_detail()
    detail.error = error
    detail.traceback = traceback
    first_line = error.split("\n", 1)[0][: ERROR_BYTES_MAX // 16]
    detail.history = [
        *detail.history[1 - HISTORY_MAX :],
        (job.attempt, now.wall_ms, first_line),
    ]


def _leave_memory(state: ShardState, job: Job, effects: Effects) -> None:
    """An ended job leaves the indexes; its tombstone answers for it from now on."""
    del state.jobs[job.id]
    if job.options.job_id:
        del job.queue.custom[job.options.job_id]
    else:
        state.tombstones_count += 1
    effects.ended[job.id] = job


def answer_waiting(state: ShardState, job_id: bytes, body: list[object], effects: Effects) -> None:
    """Tell everybody who waits for the end of this job."""
    waiting = state.results.pop(job_id, None)
    if not waiting:
        return
    for parked in waiting:
        if not parked.done:
            parked.done = True
            state.parked_count -= 1
            effects.replies.append(Reply(parked.command.origin, Status.OK, body))


def wake_delayed(state: ShardState, now: Now, effects: Effects) -> None:
    """Jobs whose time has come become ready; a gate that was not opened until then is gone."""
    while (job := state.timers.delayed.pop(now.wall_ms)) is not None:
        if job.name == GATE_NAME:
            remove(state, job, Verdict.EXPIRED, now, effects)
        else:
            become_ready(state, job, now, effects)


def expire(state: ShardState, now: Now, effects: Effects) -> None:
    """Jobs that waited for their first lease longer than they may are gone."""
    while (job := state.timers.expiring.pop(now.wall_ms)) is not None:
        remove(state, job, Verdict.EXPIRED, now, effects)


def become_blocked(
    state: ShardState,
    job: Job,
    dep_ids: Sequence[bytes],
    settled: bytes,
    now: Now,
    effects: Effects,
) -> None:
    """An active job waits for further jobs: its lease ends, nothing is charged."""
    end_lease(state, job, LeaseEnd.RELEASED)
    if job.cancel_requested:
        remove(state, job, Verdict.CANCELLED, now, effects)
        return
    job.attempt -= 1
    _move(job, BLOCKED)
    job.updated_at = now.wall_ms
    job.options = replace(job.options, depends_on=(*job.options.depends_on, *dep_ids))
    job.need_detail().settled += settled
    await_jobs(state, job, dep_ids, effects)
    effects.rare.rewritten[job.seq] = job
    effects.changed[job.seq] = job
    state.unsettled.append(job)
    if job.options.dep_timeout_ms:
        state.timers.block(job)
    if state.events.on:
        state.events.record("blocked", now.wall_ms, [job], [[len(dep_ids)]])


def unblock(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    """Nothing holds a blocked job back any more: it waits, or is delayed until its time."""
    become_delayed(state, job, job.run_at, now, effects)


def settle_fallout(state: ShardState, now: Now, effects: Effects) -> None:
    """Blocked jobs hear how those they depend on have ended; a bounded number at a time."""
    looked_at = state.unsettled
    state.unsettled = []
    for job in looked_at:
        _look_at(state, job, "", now, effects)
    while state.fallout and state.settle_left:
        edges = take_fallout(state, state.settle_left)
        state.settle_left -= len(edges)
        for job, place, ended in edges:
            if job.state is BLOCKED:
                settle(job, place, ended.verdict)
                effects.changed[job.seq] = job
                _look_at(state, job, ended.error, now, effects)


def end_blocked(state: ShardState, now: Now, effects: Effects) -> None:
    """Jobs that waited for their dependencies longer than they may are dead."""
    while (job := state.timers.blocked.pop(now.wall_ms)) is not None:
        seconds = job.options.dep_timeout_ms / 1_000
        note_error(job, f"its dependencies have not completed within {seconds:g} s", "", now)
        kill(state, job, "dep_timeout", now, effects)


def _look_at(state: ShardState, job: Job, error: str, now: Now, effects: Effects) -> None:
    """A blocked job whose dependencies have changed: released, dead, or still blocked."""
    if job.state is not BLOCKED:
        return
    failure = failure_of(job, error)
    if is_shut_out(job):
        remove(state, job, Verdict.REMOVED, now, effects)
    elif failure is not None:
        note_error(job, failure, "", now)
        kill(state, job, "dependency", now, effects)
    elif is_released(job):
        unblock(state, job, now, effects)
