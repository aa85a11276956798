"""CANCEL, PURGE, DRAIN, CLEAN, OBLITERATE: what people take back or throw away.

The tombstone stays, so that nothing comes back by a late repeat. Of a running job only the
wish to cancel it is noted: it is removed when its worker confirms, or its lease ends.
"""

from dataclasses import replace

from pyq.errors import Status
from pyq.job import ACTIVE, BLOCKED, DEAD, DELAYED, WAITING, Verdict
from pyq.messages import (
    CANCEL_REQUESTED,
    NO_FILTERS,
    Cancel,
    Clean,
    Drain,
    Obliterate,
    Purge,
    Reply,
    batch_answer,
    error_body,
)
from pyq.wire import Flag
from shardnode.core.effects import Effects, Found, Key, Need, Now, Page, Stored, Tombstone
from shardnode.core.lifecycle import end_lease, remove, remove_ended
from shardnode.core.operations.settings import apply_settings
from shardnode.core.operations.workers import tell_to_cancel
from shardnode.core.state import Job, LeaseEnd, QueueState, ShardState

GONE_ALREADY = "gone"  # by the first sending, or an earlier item


def cancel(state: ShardState, command: Cancel, now: Now, found: Found | None) -> Effects | Need:
    """Take back jobs that have not ended; an answer per job, in order."""
    if found is None and (need := _unknown(state, command)) is not None:
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    removed: set[bytes] = set()
    for index, (job_id,) in enumerate(command.items):
        job = state.jobs.get(job_id)
        if job_id in removed:
            exceptions.append([index, Status.OK, GONE_ALREADY])
        elif job is None:
            known = (found or {}).get(("job", job_id))
            exceptions.append(_refusal(state, index, job_id, command, known))
        elif job.state is ACTIVE:
            _request_cancel(state, job, effects)
            exceptions.append([index, Status.OK, CANCEL_REQUESTED])
        else:
            removed.add(job_id)
            remove(state, job, Verdict.CANCELLED, now, effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def purge(state: ShardState, command: Purge, now: Now, found: Found | None) -> Effects | Need:
    """Forget dead jobs; an answer per job, in order."""
    if found is None and (need := _unknown(state, command)) is not None:
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    removed: set[bytes] = set()
    for index, (job_id,) in enumerate(command.items):
        live = state.jobs.get(job_id)
        known = (found or {}).get(("job", job_id))
        if job_id in removed:
            exceptions.append([index, Status.OK, GONE_ALREADY])
        elif live is not None:
            exceptions.append(_conflict(index, command, live))
        elif isinstance(known, Stored) and known.job.state is DEAD:
            removed.add(job_id)
            remove_ended(state, known.job, now, effects)
        else:
            exceptions.append(_refusal(state, index, job_id, command, known))
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def drain(state: ShardState, command: Drain, now: Now, found: Found | None) -> Effects | Need:
    """Remove what waits, and what is delayed if asked, a page at a time."""
    queue = state.queues.get(command.queue)
    if queue is None:
        return _answer(command, 0, None)
    wanted = (WAITING, DELAYED, BLOCKED) if command.delayed else (WAITING,)
    if not any(queue.counts[s] for s in wanted):
        return _answer(command, 0, None)
    state_filter = 0 if command.delayed else WAITING
    key: Key = ("page", queue.number, state_filter, command.after, command.limit, NO_FILTERS)
    if found is None:
        return Need([key])
    page = found[key]
    assert isinstance(page, Page)
    effects = Effects()
    removed_count = 0
    for stored in page.jobs:
        job = state.jobs.get(stored.job.id)
        if job is not None and job.state in wanted:
            remove(state, job, Verdict.REMOVED, now, effects)
            removed_count += 1
    effects.replies.append(Reply(command.origin, Status.OK, [removed_count, page.next_after]))
    return effects


def clean(state: ShardState, command: Clean, now: Now, found: Found | None) -> Effects | Need:
    """Remove jobs that have been in a state, not active, for long enough, a page at a time."""
    queue = state.queues.get(command.queue)
    if queue is None or not queue.counts[command.state]:
        return _answer(command, 0, None)
    key: Key = ("page", queue.number, command.state, command.after, command.limit, NO_FILTERS)
    if found is None:
        return Need([key])
    page = found[key]
    assert isinstance(page, Page)
    effects = Effects()
    before = now.wall_ms - command.older_ms
    old = [
        stored.job
        for stored in page.jobs
        if stored.job.updated_at <= before and stored.job.seq not in state.pinned
    ]
    for job in old:
        _throw_away(state, job, now, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [len(old), page.next_after]))
    return effects


def obliterate(
    state: ShardState, command: Obliterate, now: Now, found: Found | None
) -> Effects | Need:
    """Remove a queue with everything in it, a page at a time; the last page ends it."""
    queue = state.queues.get(command.queue)
    if queue is None:
        return _answer(command, 0, None)
    if queue.counts[ACTIVE] and not command.force:
        sentence = f"{queue.counts[ACTIVE]} jobs are active; wait for them, or use force"
        return Effects(replies=[Reply(command.origin, Status.CONFLICT, error_body(sentence))])
    page_key: Key = ("page", queue.number, 0, command.after, command.limit, NO_FILTERS)
    named_key: Key = ("named_count", queue.number)
    if found is None:
        return Need([page_key, named_key])
    page, named_count = found[page_key], found[named_key]
    assert isinstance(page, Page)
    assert isinstance(named_count, int)
    effects = Effects()
    if not queue.settings.paused:  # or jobs would be leased between two pages
        apply_settings(state, queue, replace(queue.settings, paused=True), now, effects)
    for stored in page.jobs:
        _throw_away(state, stored.job, now, effects)
    next_after = page.next_after
    if next_after is None and any(queue.counts):
        next_after = 0  # more were added meanwhile
    if next_after is None:
        named_count += sum(bool(job.options.job_id) for job in effects.ended.values())
        state.tombstones_count += named_count  # they are like any other from now on
        _forget_queue(state, queue, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [len(page.jobs), next_after]))
    return effects


def not_found(state: ShardState, index: int, job_id: bytes) -> list[object]:
    """Return the answer for an id that is not known here."""
    if not state.owns(job_id):
        return [index, Status.WRONG_SHARD, f"this job does not live on shard {state.shard}"]
    return [index, Status.NOT_FOUND, "no such job, or it was forgotten"]


def _request_cancel(state: ShardState, job: Job, effects: Effects) -> None:
    detail = job.need_detail()
    if not detail.cancel_requested:
        detail.cancel_requested = True
        effects.changed[job.seq] = job
        tell_to_cancel(state, job, effects)


def _throw_away(state: ShardState, stored: Job, now: Now, effects: Effects) -> None:
    """Remove a job in whatever state it is, given as the store has it."""
    job = state.jobs.get(stored.id)
    if job is None:
        remove_ended(state, stored, now, effects)
        return
    if job.state is ACTIVE:
        end_lease(state, job, LeaseEnd.RELEASED)
    remove(state, job, Verdict.REMOVED, now, effects)


def _forget_queue(state: ShardState, queue: QueueState, effects: Effects) -> None:
    """Nothing of the queue stays. Who waits for its jobs goes on to wait: a push makes it anew."""
    del state.queues[queue.name]
    del state.queues_by_number[queue.number]
    state.awake.pop(queue, None)
    state.overfull.pop(queue, None)
    state.tended.pop(queue, None)
    queue.timed_keys.clear()
    queue.kept.clear()
    queue.window_at = None
    effects.rare.obliterated[queue.number] = None
    if queue.parked:
        heir = state.add_queue(state.queues_made + 1, queue.name)
        effects.queues[heir.number] = queue.name
        heir.parked = queue.parked
        for parked in queue.parked.values():
            parked.queues[parked.queues.index(queue)] = heir


def _unknown(state: ShardState, command: Cancel | Purge) -> Need | None:
    keys: list[Key] = [("job", job_id) for (job_id,) in command.items if job_id not in state.jobs]
    return Need(keys) if keys else None


def _refusal(
    state: ShardState, index: int, job_id: bytes, command: Cancel | Purge, known: object
) -> list[object]:
    """Return the answer for a job that is not in memory, nor what this is for."""
    if isinstance(known, Stored):
        return _conflict(index, command, known.job)
    if isinstance(known, Tombstone) and command.origin.flags & Flag.REPEAT:
        return [index, Status.OK, GONE_ALREADY]
    return not_found(state, index, job_id)


def _conflict(index: int, command: Cancel | Purge, job: Job) -> list[object]:
    wanted = "waiting, delayed or active" if isinstance(command, Cancel) else "dead"
    return [index, Status.CONFLICT, f"the job is {job.state.word}, not {wanted}"]


def _answer(
    command: Drain | Clean | Obliterate, removed_count: int, next_after: int | None
) -> Effects:
    return Effects(replies=[Reply(command.origin, Status.OK, [removed_count, next_after])])
