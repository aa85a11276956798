"""What the router says of itself: counters, and the body of its PONG.

Reads, never decides: the caller passes in the time. Counters only grow; they are logged
at the end.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from router.link import Link


@dataclass(slots=True)
class Counters:
    """How often something noteworthy happened since the start."""

    frames_bad: int = 0  # messages that were no messages of ours
    refused: int = 0  # requests answered with an error by the router itself
    busy: int = 0  # ... of these because a bound was reached
    retried: int = 0  # requests answered RETRY because their shard went away
    expired: int = 0  # requests dropped from the table after their deadline
    replies_dropped: int = 0  # their client is gone or does not read
    pulls_returned: int = 0  # undeliverable pull replies that went back to their shard
    pulls_withdrawn: int = 0  # parked pulls whose client is gone
    noops: int = 0


def pong(
    incarnation: bytes,
    wall_ms: int,
    pid: int,
    links: Sequence[Link],
    has_coordinator: bool,
    counters: Counters,
) -> list[Any]:
    """Return the body that answers a PING to the router itself."""
    info = {
        "shards": len(links),
        "shards_up": [link.up for link in links],
        "epochs": [link.epoch for link in links],
        "coordinator": has_coordinator,
        "pid": pid,
        "outstanding": [len(link.outstanding) for link in links],
        **asdict(counters),
    }
    return ["router", incarnation, wall_ms, info]
