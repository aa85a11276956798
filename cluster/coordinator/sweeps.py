"""Which shard is swept when.

Pure: the shard itself says in its reply when it wants the next sweep; here that becomes a
task per shard on the agenda, bounded so that a wrong answer can neither spin nor sleep.
"""

from typing import Any

from cluster.coordinator.agenda import Agenda
from pyq.limits import SWEEP_MS_MAX, SWEEP_MS_MIN

SWEEP_TIMEOUT_MS = 2_000
SWEEP_RETRY_MS = 1_000
_PREFIX = "sweep shard-"


def add_sweeps(agenda: Agenda, shards_count: int, now_ms: int) -> None:
    """Put one task per shard on the agenda, due at once."""
    for shard in range(shards_count):
        agenda.add(sweep_name(shard), now_ms, timeout_ms=SWEEP_TIMEOUT_MS, retry_ms=SWEEP_RETRY_MS)


def sweep_name(shard: int) -> str:
    """Return the name of a shard's task."""
    return f"{_PREFIX}{shard}"


def shard_of_sweep(name: str) -> int | None:
    """Return the shard that a task sweeps, or None if it is another task."""
    return int(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


def next_sweep(body: Any, now_ms: int) -> int | None:
    """Return when a shard wants its next sweep; None if its reply makes no sense.

    The reply is [next_due_ms, suspects, stalled].
    """
    if not isinstance(body, tuple) or len(body) != 3 or type(body[0]) is not int:
        return None
    return now_ms + min(max(body[0], SWEEP_MS_MIN), SWEEP_MS_MAX)
