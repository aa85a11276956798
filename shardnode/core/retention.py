"""What a shard forgets: completed jobs beyond what a queue keeps, the oldest tombstones.

Nothing that can still run is ever forgotten, and no completed job within its first minute.
"""

from pyq.job import COMPLETED
from pyq.limits import (
    AGING_MS,
    COMPLETED_KEPT_DEFAULT,
    COMPLETED_MS_MIN,
    RETENTION_JOBS_MAX,
    TOMBSTONE_MS_MAX,
    TOMBSTONES_MAX,
)
from shardnode.core.effects import Effects, Now
from shardnode.core.state import QueueState, ShardState


def note_finished(state: ShardState, queue: QueueState) -> None:
    """Remember a queue that holds more completed jobs than it keeps."""
    if queue.finished.count > COMPLETED_KEPT_DEFAULT:
        state.overfull[queue] = None


def forget_old(state: ShardState, now: Now, effects: Effects) -> None:
    """Forget a bounded number of what is too old; the next pass goes on."""
    budget = RETENTION_JOBS_MAX
    before = now.wall_ms - COMPLETED_MS_MIN
    for queue in list(state.overfull):
        seqs = queue.finished.take(COMPLETED_KEPT_DEFAULT, before, budget)
        queue.counts[COMPLETED] -= len(seqs)
        budget -= len(seqs)
        effects.forgotten += seqs
        if queue.finished.count <= COMPLETED_KEPT_DEFAULT:
            del state.overfull[queue]
        if budget == 0:
            state.retention_at = now.mono_ms  # more to do: in the next turn, not in this one
            break
    effects.forgotten.sort()  # deletes in key order cost a ninth of random ones
    excess = state.tombstones_count - TOMBSTONES_MAX
    if excess > 0:
        effects.trimmed_count = min(excess, RETENTION_JOBS_MAX)
        state.tombstones_count -= effects.trimmed_count
    if excess > RETENTION_JOBS_MAX:
        state.retention_at = now.mono_ms
    if now.mono_ms >= state.aging_at:
        state.aging_at = now.mono_ms + AGING_MS
        effects.ended_before = now.wall_ms - TOMBSTONE_MS_MAX
