"""When a request is sent again, and what is known about it when its time is over.

Pure: `connection.py` does the sending and reads the clock. Repeating is always safe,
because a repeat carries the same request id and the same job ids.
"""

from dataclasses import dataclass
from enum import Enum

from pyq.errors import Status

AT_ONCE_S = 0.005  # after RETRY, and its step: the shard is there again
LATER_S = 0.05  # after UNAVAILABLE: a shard needs a moment to start
LATER_S_MAX = 1.0


class Known(Enum):
    """What can be said about a request that got no final answer before its deadline."""

    REFUSED = "refused"  # the last answer was a definite "not now", and no copy is in doubt
    NEVER_SENT = "never sent"  # there was no connection: it cannot have taken effect
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Repeats:
    """The history of one request: how often it was sent and what came back."""

    sent_count: int = 0
    answers_count: int = 0
    in_doubt: bool = False  # a copy may have taken effect without telling us
    last_status: int = 0

    def sent(self) -> None:
        """Note that a copy left. An earlier copy without an answer is now in doubt."""
        if self.sent_count > self.answers_count:
            self.in_doubt = True
        self.sent_count += 1

    def answered(self, status: int, retry_after_ms: int) -> float | None:
        """Note an answer; return the seconds after which to repeat, or None if it is final."""
        self.answers_count += 1
        self.last_status = status
        if status == Status.RETRY:
            self.in_doubt = True
            return min(AT_ONCE_S * self.answers_count, LATER_S)
        if status == Status.BUSY:
            return max(retry_after_ms / 1_000, AT_ONCE_S)
        if status == Status.UNKNOWN:  # the shard restarts, and will know
            self.in_doubt = True
        if status in (Status.UNAVAILABLE, Status.WRONG_SHARD, Status.UNKNOWN):
            return min(LATER_S * 2.0 ** min(self.answers_count - 1, 10), LATER_S_MAX)
        return None

    def known_at_deadline(self) -> Known:
        """Return what to tell the caller when no time is left."""
        if self.sent_count == 0:
            return Known.NEVER_SENT
        if self.in_doubt or self.sent_count > self.answers_count:
            return Known.UNKNOWN
        return Known.REFUSED
