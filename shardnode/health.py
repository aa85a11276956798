"""What a shard says of its own loop: measured by the loop that does the work.

So an answer to a probe proves that the loop turns, and its numbers say how well.
"""

import os
from typing import Any

from pyq.messages import Reply
from pyq.wire import Verb
from shardnode.core.effects import Now
from shardnode.storage.store import Store


class LoopHealth:
    """Counters of one shard process, since its start."""

    def __init__(self) -> None:
        self._incarnation = os.urandom(8)
        self._pid = os.getpid()
        self.turns_count = 0
        self.commands_count = 0
        self.late_turns_count = 0
        self.commits_count = 0
        self.commit_us_max = 0
        self.committed_at = 0  # wall
        self.unsynced_ms_max = 0  # the longest window a power failure could have met
        self.undelivered_count = 0

    def turned(self, commands_count: int, late: bool) -> None:
        """Count a turn."""
        self.turns_count += 1
        self.commands_count += commands_count
        self.late_turns_count += late

    def committed(self, now: Now, took_us: int) -> None:
        """Count a commit."""
        self.commits_count += 1
        self.committed_at = now.wall_ms
        self.commit_us_max = max(self.commit_us_max, took_us)

    def synced(self, age_ms: int) -> None:
        """Note how old the oldest unsynced commit was when it reached the disk."""
        self.unsynced_ms_max = max(self.unsynced_ms_max, age_ms)

    def complete(self, reply: Reply, store: Store) -> None:
        """Add what only the shell knows to the core's answer to PING or STATS."""
        if reply.origin.verb == Verb.PING:
            reply.body[1] = self._incarnation
            reply.body[3]["pid"] = self._pid
            return
        reply.body[0].update(self._numbers(), **store.health())

    def _numbers(self) -> dict[str, Any]:
        return {
            "pid": self._pid,
            "turns_count": self.turns_count,
            "commands_count": self.commands_count,
            "late_turns_count": self.late_turns_count,
            "commits_count": self.commits_count,
            "commit_us_max": self.commit_us_max,
            "committed_at": self.committed_at,
            "unsynced_ms_max": self.unsynced_ms_max,
            "undelivered_count": self.undelivered_count,
        }
