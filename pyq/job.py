"""The states of a job and every legal move between them.

Nothing moves a job without asking this table, and the table in docs/protocol.md is
checked against it.
"""

from enum import IntEnum


class JobState(IntEnum):
    """Where a job is. The values are on disk and on the wire: never renumber them."""

    WAITING = 1
    DELAYED = 2
    BLOCKED = 3
    ACTIVE = 4
    COMPLETED = 5
    DEAD = 6
    GONE = 7  # no state of a record: the job left, only its tombstone is there

    @property
    def word(self) -> str:
        """The state as users read and write it."""
        return self.name.lower()


class Verdict(IntEnum):
    """What a tombstone says of a job that ended. On disk: never renumber them."""

    COMPLETED = 5
    DEAD = 6
    REMOVED = 7  # drained, cleaned, purged or obliterated
    CANCELLED = 8
    EXPIRED = 9  # its time to live passed before its first lease
    REPLACED = 10  # by a new holder of its unique key
    MOVED = 11  # to another queue, under another id

    @property
    def word(self) -> str:
        """The verdict as users read it."""
        return self.name.lower()


WAITING = JobState.WAITING
DELAYED = JobState.DELAYED
BLOCKED = JobState.BLOCKED
ACTIVE = JobState.ACTIVE
COMPLETED = JobState.COMPLETED
DEAD = JobState.DEAD
GONE = JobState.GONE

# (from, to) -> when.
MOVES: dict[tuple[JobState | None, JobState], str] = {
    (None, WAITING): "push",
    (None, DELAYED): "push with a delay",
    (None, BLOCKED): "push with dependencies that have not completed",
    (BLOCKED, WAITING): "its last dependency completed",
    (BLOCKED, DELAYED): "its last dependency completed before its time",
    (BLOCKED, DEAD): "a dependency failed for good, or took longer than dep_timeout",
    (BLOCKED, GONE): "cancelled, replaced, expired, drained, cleaned, moved",
    (ACTIVE, BLOCKED): "its holder waits for further jobs",
    (DEAD, BLOCKED): "dead-letter retry, its dependencies have not completed",
    (COMPLETED, BLOCKED): "retry of a completed job whose dependencies have not completed",
    (DELAYED, WAITING): "its time comes, or it is promoted",
    (WAITING, DELAYED): "rescheduled",
    (WAITING, ACTIVE): "leased by a pull",
    (ACTIVE, COMPLETED): "ack with the valid token",
    (ACTIVE, DELAYED): "fail or stall with attempts left; released with a delay",
    (ACTIVE, WAITING): "released, or retried without a delay",
    (ACTIVE, DEAD): "attempts or stalls used up, unrecoverable, or timeout on the last attempt",
    (ACTIVE, GONE): "cancelled, and its holder confirmed or its lease ended; obliterated",
    (WAITING, COMPLETED): "late ack of the last holder, nobody leased it since",
    (DELAYED, COMPLETED): "late ack of the last holder, nobody leased it since",
    (DEAD, WAITING): "dead-letter retry",
    (COMPLETED, WAITING): "retry of a completed job",
    (COMPLETED, GONE): "retention, cleaned",
    (DEAD, GONE): "purged, cleaned, too old",
    (WAITING, GONE): "cancelled, replaced, expired, drained, cleaned, moved",
    (DELAYED, GONE): "cancelled, replaced, expired, drained, cleaned, moved",
}

# Words that users of other queues bring along, accepted as filters.
STATE_WORDS: dict[str, JobState] = {
    **{state.word: state for state in JobState if state is not GONE},
    "pending": WAITING,
    "processing": ACTIVE,
    "running": ACTIVE,
    "failed": DEAD,
    "prioritized": WAITING,
    "waiting-children": BLOCKED,
}


# MOVES as rows of booleans, LEGAL[from][to]: the core asks twice a job, and hashing enums is slow.
LEGAL: tuple[tuple[bool, ...], ...] = tuple(
    tuple((JobState(a) if a else None, JobState(b) if b else None) in MOVES for b in range(8))
    for a in range(8)
)
