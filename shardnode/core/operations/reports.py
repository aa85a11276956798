"""EXTEND, PROGRESS, LOG: what the holder of a lease says while it runs; LOGS reads lines again.

All but LOGS carry the token; a stale one changes nothing. Every batch is answered item by item.
"""

from pyq.errors import Status
from pyq.limits import LOG_LINES_MAX
from pyq.messages import Extend, Log, Logs, Progress, Reply, batch_answer, error_body
from shardnode.core.effects import Effects, Found, Need, Now, Stored
from shardnode.core.operations.settle import held, stale
from shardnode.core.state import ShardState


def extend(state: ShardState, command: Extend, now: Now) -> Effects:
    """The lease lasts `lease_ms` from now on, unless a heartbeat sets it anew."""
    exceptions: list[list[object]] = []
    for index, (job_id, token, lease_ms) in enumerate(command.items):
        holding = held(state, job_id, token)
        if holding is None:
            exceptions.append(stale(state, index, job_id))
            continue
        _, lease = holding
        lease.beat_at = now.mono_ms + lease_ms - lease.grant.lease_ms
        lease.suspect = False
    body = batch_answer(len(command.items), exceptions)
    return Effects(replies=[Reply(command.origin, Status.OK, body)])


def progress(state: ShardState, command: Progress, now: Now) -> Effects:
    """The last word of a holder about how far it is; kept with the job."""
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id, token, value) in enumerate(command.items):
        holding = held(state, job_id, token)
        if holding is None:
            exceptions.append(stale(state, index, job_id))
            continue
        job, _ = holding
        job.need_detail().progress = value
        effects.changed[job.seq] = job
        if state.events.on:
            state.events.record("progress", now.wall_ms, [job], [[value]])
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def log(state: ShardState, command: Log, now: Now) -> Effects:
    """Lines for the log of a job; those that this lease has written already add nothing."""
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id, token, first, lines) in enumerate(command.items):
        holding = held(state, job_id, token)
        if holding is None:
            exceptions.append(stale(state, index, job_id))
            continue
        job, lease = holding
        detail = job.need_detail()
        if detail.lines_fence != lease.grant.fence:
            detail.lines_fence, detail.lines_taken = lease.grant.fence, 0
        for number, line in enumerate(lines, first):
            if number > detail.lines_taken:
                detail.lines_taken = number
                detail.lines_count += 1
                row = (job.seq, detail.lines_count, now.wall_ms, job.attempt, line)
                effects.rare.lines.append(row)
        if detail.lines_count > LOG_LINES_MAX:
            effects.rare.lines_cut[job.seq] = detail.lines_count - LOG_LINES_MAX + 1
        effects.changed[job.seq] = job
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def logs(state: ShardState, command: Logs, now: Now, found: Found | None) -> Effects | Need:
    """A page of a job's log, also of one that has ended."""
    if not state.owns(command.id):
        sentence = f"this job does not live on shard {state.shard}"
        return _refused(command, Status.WRONG_SHARD, sentence)
    found = found or {}
    job = state.jobs.get(command.id)
    if job is None:
        if ("job", command.id) not in found:
            return Need([("job", command.id)])
        known = found["job", command.id]
        if not isinstance(known, Stored):
            return _refused(command, Status.NOT_FOUND, "no such job, or its record was forgotten")
        job = known.job
    key = ("logs", job.seq, command.after, command.limit)
    if key not in found:
        return Need([key])
    lines = found[key]
    assert isinstance(lines, list)
    next_after = lines[-1][0] if len(lines) == command.limit else None
    body = [[list(row) for row in lines], next_after]
    return Effects(replies=[Reply(command.origin, Status.OK, body)])


def _refused(command: Logs, status: Status, sentence: str) -> Effects:
    return Effects(replies=[Reply(command.origin, status, error_body(sentence))])
