"""Unique keys: at most one holder per queue and key.

A key without a time is held by a live job until its end, and follows from the jobs. A key
with a time is a record of its own (owner, until): it outlives its job, or is free before it.
"""

from shardnode.core.effects import Effects, Now
from shardnode.core.state import Job, QueueState, ShardState, TimedKey


def holder_id(queue: QueueState, key: str) -> bytes | None:
    """Return the id of the job that holds a key, or None if it is free."""
    job = queue.unique.get(key)
    if job is not None:
        return job.id
    timed = queue.timed_keys.get(key)
    return None if timed is None else timed.id


def take_key(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    """The job holds its key, which is free, from now on."""
    options = job.options
    if options.unique_ttl_ms:
        hold_until(state, job, now.wall_ms + options.unique_ttl_ms, effects)
    else:
        job.queue.unique[options.unique] = job


def hold_until(state: ShardState, job: Job, until: int, effects: Effects) -> None:
    """The job holds its key until a wall time."""
    _record(state, job.queue, job.options.unique, TimedKey(job.id, job.seq, until), effects)


def extend_key(
    state: ShardState, queue: QueueState, key: str, until: int, effects: Effects
) -> None:
    """A key that is held for a time is held until `until`, if that is later."""
    timed = queue.timed_keys.get(key)
    if timed is not None and until > timed.until:
        _record(state, queue, key, timed._replace(until=until), effects)


def release_key(job: Job, removed: bool, effects: Effects) -> None:
    """A job has ended. What it holds is free; a key with a time only if the job was removed."""
    queue, key = job.queue, job.options.unique
    if queue.unique.get(key) is job:
        del queue.unique[key]
    timed = queue.timed_keys.get(key)
    if removed and timed is not None and timed.id == job.id:
        _free(queue, key, effects)


def free_keys(state: ShardState, now: Now, effects: Effects) -> None:
    """Keys whose time is over are free."""
    while (held := state.timers.keys.pop(now.wall_ms)) is not None:
        _free(*held, effects)


def _record(
    state: ShardState, queue: QueueState, key: str, timed: TimedKey, effects: Effects
) -> None:
    queue.timed_keys[key] = timed
    effects.rare.timed_keys[queue.number, key] = timed
    state.timers.free_key(timed.until, queue, key)


def _free(queue: QueueState, key: str, effects: Effects) -> None:
    del queue.timed_keys[key]
    effects.rare.timed_keys[queue.number, key] = None
