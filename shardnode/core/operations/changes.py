"""PROMOTE and UPDATE: what may still be changed about a job that waits or is delayed."""

from dataclasses import replace

from pyq.errors import Status
from pyq.job import ACTIVE, BLOCKED, DELAYED, WAITING
from pyq.messages import Change, Promote, Reply, Update, batch_answer
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored
from shardnode.core.lifecycle import become_delayed, become_ready
from shardnode.core.operations.removal import not_found
from shardnode.core.queues import put_back, step_out, supersede
from shardnode.core.state import Job, ShardState


def promote(state: ShardState, command: Promote, now: Now, found: Found | None) -> Effects | Need:
    """Delayed jobs wait no longer; an answer per job, in order."""
    if found is None and (need := _unknown(state, [item[0] for item in command.items])):
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id,) in enumerate(command.items):
        job = state.jobs.get(job_id)
        if job is None:
            exceptions.append(_refusal(state, index, job_id, found, "delayed"))
        elif job.state is DELAYED:
            become_ready(state, job, now, effects)
        elif job.state is BLOCKED:
            sentence = "the job is blocked: jobs it depends on have not completed"
            exceptions.append([index, Status.CONFLICT, sentence])
        else:
            exceptions.append([index, Status.OK, ["again", job.state.word]])
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def update(state: ShardState, command: Update, now: Now, found: Found | None) -> Effects | Need:
    """Change priority, due time or payload; an answer per job, in order."""
    if found is None and (need := _unknown(state, [change.id for change in command.items])):
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, change in enumerate(command.items):
        job = state.jobs.get(change.id)
        if job is None:
            exceptions.append(_refusal(state, index, change.id, found, "waiting or delayed"))
        elif job.state is ACTIVE:
            sentence = "the job is active, not waiting or delayed"
            exceptions.append([index, Status.CONFLICT, sentence])
        elif state.disk_low and change.payload is not None:
            exceptions.append([index, Status.DISK_FULL, state.disk_sentence])
        else:
            _change(state, job, change, now, effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def postpone(state: ShardState, job: Job, run_at: int, now: Now, effects: Effects) -> None:
    """A delayed job is due at another time, which is ahead."""
    job.run_at = run_at
    job.updated_at = now.wall_ms
    state.timers.delay(job)
    effects.changed[job.seq] = job
    if state.events.on:
        state.events.record("delayed", now.wall_ms, [job], [[run_at]])


def _change(state: ShardState, job: Job, change: Change, now: Now, effects: Effects) -> None:
    if change.payload is not None:
        job.size = len(change.payload)
        effects.payloads[job.seq] = change.payload
        effects.rare.rewritten[job.seq] = job
    if change.priority is not None and change.priority != job.options.priority:
        job = _reprioritise(state, job, change.priority, effects)
    if change.run_at is not None:
        _reschedule(state, job, change.run_at, now, effects)
    elif change.delay_ms is not None:
        _reschedule(state, job, now.wall_ms + change.delay_ms, now, effects)


def _reprioritise(state: ShardState, job: Job, priority: int, effects: Effects) -> Job:
    """The job goes to the place in line that its ready number has under another priority."""
    options = replace(job.options, priority=priority)
    if job.state is WAITING:
        job = supersede(state, job, effects)
        job.options = options
        put_back(state, job)
    else:
        job.options = options
    effects.rare.rewritten[job.seq] = job
    return job


def _reschedule(state: ShardState, job: Job, run_at: int, now: Now, effects: Effects) -> None:
    if job.state is BLOCKED:
        job.run_at = run_at if run_at > now.wall_ms else 0
        effects.changed[job.seq] = job
        return
    if job.state is DELAYED:
        if run_at > now.wall_ms:
            postpone(state, job, run_at, now, effects)
        else:
            become_ready(state, job, now, effects)
        return
    if run_at <= now.wall_ms:
        return  # it waits already
    job = step_out(state, job, effects)
    become_delayed(state, job, run_at, now, effects)


def _unknown(state: ShardState, job_ids: list[bytes]) -> Need | None:
    keys: list[Key] = [("job", job_id) for job_id in job_ids if job_id not in state.jobs]
    return Need(keys) if keys else None


def _refusal(
    state: ShardState, index: int, job_id: bytes, found: Found | None, wanted: str
) -> list[object]:
    """Return the answer for a job that is not live."""
    known = (found or {}).get(("job", job_id))
    if isinstance(known, Stored):
        return [index, Status.CONFLICT, f"the job is {known.job.state.word}, not {wanted}"]
    return not_found(state, index, job_id)
