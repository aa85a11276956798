"""What a shard forgets: completed jobs beyond what is kept of them, the oldest tombstones.

How many and how long says the queue, or the job itself. Nothing that can still run is ever
forgotten, and no completed job within its first minute.
"""

from heapq import heappop

from pyq.job import COMPLETED
from pyq.limits import (
    AGING_MS,
    COMPLETED_MS_MIN,
    RETENTION_JOBS_MAX,
    TOMBSTONE_MS_MAX,
    TOMBSTONES_MAX,
)
from shardnode.core.effects import Effects, Now
from shardnode.core.state import QueueState, ShardState


def note_finished(state: ShardState, queue: QueueState) -> None:
    """Remember a queue that holds completed jobs which are or will be too many or too old."""
    finished = queue.finished
    too_many = finished.count > queue.settings.keep_count
    if too_many or (queue.settings.keep_ms and finished.count) or queue.by_count:
        state.overfull[queue] = None


def forget_old(state: ShardState, now: Now, effects: Effects) -> None:
    """Forget a bounded number of what is too old; the next pass goes on."""
    budget = RETENTION_JOBS_MAX - _forget_aged(state, now, effects, RETENTION_JOBS_MAX)
    for queue in list(state.overfull):
        seqs = _surplus(queue, now, budget)
        budget -= len(seqs)
        _forget(state, queue, seqs, effects)
        del state.overfull[queue]
        note_finished(state, queue)
        if budget == 0:
            state.retention_at = now.mono_ms  # more to do: in the next turn, not in this one
            break
    effects.forgotten.sort()  # deletes in key order cost a ninth of random ones
    excess = state.tombstones_count - TOMBSTONES_MAX
    if excess > 0:
        effects.rare.trimmed_count = min(excess, RETENTION_JOBS_MAX)
        state.tombstones_count -= effects.rare.trimmed_count
    if excess > RETENTION_JOBS_MAX:
        state.retention_at = now.mono_ms
    if now.mono_ms >= state.aging_at:
        state.aging_at = now.mono_ms + AGING_MS
        effects.rare.ended_before = now.wall_ms - TOMBSTONE_MS_MAX


def _forget_aged(state: ShardState, now: Now, effects: Effects, limit: int) -> int:
    """Forget records that were kept for a time of their own; return how many."""
    count = 0
    while count < limit and (record := state.timers.kept.pop(now.wall_ms)) is not None:
        queue, seq = record
        del queue.kept[seq]
        count += 1
        _forget(state, queue, [seq], effects)
    return count


def _forget(state: ShardState, queue: QueueState, seqs: list[int], effects: Effects) -> None:
    """Forget records, but for those that others depend on: they are due when nobody does."""
    if state.pinned:
        for seq in seqs:
            if seq in state.pinned:
                state.pinned[seq] = True
        seqs = [seq for seq in seqs if seq not in state.pinned]
    queue.counts[COMPLETED] -= len(seqs)
    effects.forgotten += seqs


def _surplus(queue: QueueState, now: Now, limit: int) -> list[int]:
    """Take out at most `limit` completed jobs that the queue need not keep."""
    settings = queue.settings
    youngest = now.wall_ms - COMPLETED_MS_MIN
    seqs = queue.finished.take(settings.keep_count, youngest, limit)
    if settings.keep_ms:
        before = min(youngest, now.wall_ms - settings.keep_ms)
        seqs += queue.finished.take(0, before, limit - len(seqs))
    while queue.by_count and len(seqs) < limit:
        due, seq, ended_at = queue.by_count[0]
        if queue.kept.get(seq) == due:
            if due > queue.completed_count or ended_at > youngest:
                break
            del queue.kept[seq]
            seqs.append(seq)
        heappop(queue.by_count)
    return seqs
