"""Job ids: UUIDv7 (RFC 9562) whose last 12 bits are the slot of the job's queue.

A producer makes the id before it sends, so a repeated push names the same job, and
any message that names a job can be routed from the id alone.
"""

import os
import time
import uuid
from collections.abc import Callable

from pyq.limits import SLOTS

_STEP = SLOTS  # ids of one batch differ by one above the 12 bits of the slot
_RANDOM_BITS = 50  # rand_b without the slot


class IdFactory:
    """Makes ids whose time never runs backwards within one factory.

    `clock_ms` returns milliseconds since 1970; a client gives the cluster's time here,
    so that a slow clock does not make its repeats look old.
    """

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._last_ms = 0

    def make(self, slot: int, count: int = 1) -> list[bytes]:
        """Return `count` new ids of 16 bytes for a queue in `slot`, in increasing order."""
        self._last_ms = max(self._last_ms, self._clock_ms())
        # The top bit of the counter stays clear, so adding `count` cannot carry into the
        # variant bits; 62 bits of rand_b: 1 clear, 49 random, 12 slot. rand_a is random too.
        random = int.from_bytes(os.urandom(8), "big")
        rand_a = random >> 52
        counter = random & ((1 << (_RANDOM_BITS - 1)) - 1)
        first = (
            (self._last_ms << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | (counter << 12)
        ) | slot
        return [n.to_bytes(16, "big") for n in range(first, first + count * _STEP, _STEP)]


def slot_of_id(job_id: bytes) -> int:
    """Return the slot (0..4095) that an id carries."""
    return ((job_id[14] << 8) | job_id[15]) & (SLOTS - 1)


def time_of_id(job_id: bytes) -> int:
    """Return the millisecond since 1970 at which an id was made."""
    return int.from_bytes(job_id[:6], "big")


def id_to_text(job_id: bytes) -> str:
    """Return the canonical text form of an id, as `Job.id` shows it."""
    return str(uuid.UUID(bytes=job_id))


def id_from_text(text: str) -> bytes | None:
    """Return the 16 bytes of an id in text form, or None if `text` is not a UUIDv7."""
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed.bytes if parsed.version == 7 else None
