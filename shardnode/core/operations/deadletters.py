"""RETRY, DEAD_STATS, and what dead letters do by themselves: age, retry, make room.

A dead (or completed) job becomes a waiting one again, as if it had never run. Its history
stays; its error, failures and stalls do not count any more.
"""

from pyq.errors import Status
from pyq.job import DEAD
from pyq.limits import RETENTION_JOBS_MAX
from pyq.messages import NO_FILTERS, DeadStats, Reply, Retry, Tend, batch_answer
from shardnode.core.dependencies import DONE, await_jobs
from shardnode.core.effects import Effects, Found, Key, Need, Now, Page, Stored
from shardnode.core.keys import holder_id, take_key
from shardnode.core.lifecycle import remove_ended, revive
from shardnode.core.operations.removal import not_found
from shardnode.core.state import Job, QueueState, ShardState


def retry(state: ShardState, command: Retry, now: Now, found: Found | None) -> Effects | Need:
    """Give ended jobs a fresh start; an answer per job, in order."""
    if found is None:
        keys: list[Key] = [
            ("job", job_id) for (job_id,) in command.items if job_id not in state.jobs
        ]
        if keys:
            return Need(keys)
        found = {}
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id,) in enumerate(command.items):
        live = state.jobs.get(job_id)
        if live is not None:
            again = ["again", live.state.word]  # a repeat, or named twice: it is alive already
            exceptions.append([index, Status.OK, again])
            continue
        known = found.get(("job", job_id))
        if not isinstance(known, Stored):
            exceptions.append(not_found(state, index, job_id))
        elif _retried_by(known.job) == command.origin.request_id:
            again = ["again", known.job.state.word]  # a repeat: it was retried, and has ended since
            exceptions.append([index, Status.OK, again])
        elif not _may_live(known.job):
            sentence = f"its unique key {known.job.options.unique!r} is held by another job"
            exceptions.append([index, Status.CONFLICT, sentence])
        else:
            _start_afresh(state, known.job, now, effects)
            known.job.need_detail().retried_by = command.origin.request_id
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def dead_stats(
    state: ShardState, command: DeadStats, now: Now, found: Found | None
) -> Effects | Need:
    """How many dead letters a queue has, by reason, and when the first and last of them died."""
    queue = state.queues.get(command.queue)
    if queue is None:
        return Effects(replies=[Reply(command.origin, Status.OK, [0, {}])])
    key: Key = ("dead_stats", queue.number)
    if found is None:
        return Need([key])
    rows = found[key]
    assert isinstance(rows, list)
    by_reason = {reason: [count, oldest, newest] for reason, count, oldest, newest in rows}
    body = [queue.counts[DEAD], by_reason]
    return Effects(replies=[Reply(command.origin, Status.OK, body)])


def tend(state: ShardState, command: Tend, now: Now, found: Found | None) -> Effects | Need:
    """Do what the settings of a queue say of its dead letters; a bounded number at a time."""
    queue = state.queues.get(command.queue)
    if queue is None or not queue.counts[DEAD]:
        return Effects()
    keys = _tend_keys(queue, command.after, now)
    if not keys:
        return Effects()
    if found is None:
        return Need(list(keys.values()))
    effects = Effects()
    gone: set[int] = set()
    for what in ("aged", "surplus"):
        for stored in _listed(found, keys.get(what)):
            if stored.job.seq not in gone:
                gone.add(stored.job.seq)
                remove_ended(state, stored.job, now, effects)
    if "page" in keys:
        page = found[keys["page"]]
        assert isinstance(page, Page)
        for stored in page.jobs:
            if stored.job.seq not in gone and _is_due(stored.job, now):
                _start_afresh(state, stored.job, now, effects)
                stored.job.need_detail().auto_retries += 1
        if queue in state.tended:
            state.tended[queue] = page.next_after or 0
    return effects


def _tend_keys(queue: QueueState, after: int, now: Now) -> dict[str, Key]:
    """Return what must be read, by what it is for."""
    settings = queue.settings
    keys: dict[str, Key] = {}
    if settings.dead_ms:
        before = now.wall_ms - settings.dead_ms
        keys["aged"] = ("dead_oldest", queue.number, before, RETENTION_JOBS_MAX)
    surplus = min(RETENTION_JOBS_MAX, queue.counts[DEAD] - settings.dead_max)
    if settings.drop_oldest and surplus > 0:
        keys["surplus"] = ("dead_oldest", queue.number, 0, surplus)
    if settings.auto_retry_ms:
        limit = RETENTION_JOBS_MAX
        keys["page"] = ("page", queue.number, DEAD, after, limit, NO_FILTERS)
    return keys


def _listed(found: Found, key: Key | None) -> list[Stored]:
    listed = found[key] if key is not None else []
    assert isinstance(listed, list)
    return listed


def _is_due(job: Job, now: Now) -> bool:
    """True if a dead job is to be retried by the settings of its queue."""
    settings = job.queue.settings
    times = job.detail.auto_retries if job.detail is not None else 0
    if times >= settings.auto_retry_max or not _may_live(job):
        return False
    return now.wall_ms >= job.updated_at + (settings.auto_retry_ms << times)


def _retried_by(job: Job) -> bytes:
    return job.detail.retried_by if job.detail is not None else b""


def _may_live(job: Job) -> bool:
    """False if another job holds its unique key."""
    return not job.options.unique or holder_id(job.queue, job.options.unique) in (None, job.id)


def _start_afresh(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    revive(state, job, now, effects)
    if job.options.edges:  # those that had not completed are asked again, as if it were new
        detail = job.need_detail()
        known = list(zip(job.options.edges, detail.settled, strict=True))
        detail.settled = bytes(DONE if verdict == DONE else 0 for _, verdict in known)
        await_jobs(state, job, job.options.edges, effects)
        for dep_id, verdict in known:
            if verdict != DONE or state.owns(dep_id):  # or its record must be kept again
                state.unasked[dep_id] = None
        state.unsettled.append(job)
        if job.options.dep_timeout_ms:
            state.timers.block(job)
    if job.options.unique and not job.options.unique_ttl_ms:  # a timed one is held to its time
        take_key(state, job, now, effects)
