"""Where a queue lives: name -> slot -> shard.

A slot is fixed for the life of a queue; the shard follows from the slot and the
number of shards, which is a power of two. Nothing here keeps a table: every
process computes the same answer from the name alone.
"""

from functools import lru_cache

from pyq.limits import SLOTS

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


def fnv1a32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of `data`.

    Source: Fowler, Noll, Vo; IETF draft "The FNV Non-Cryptographic Hash Algorithm".
    """
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=65_536)
def slot_of(queue: str) -> int:
    """Return the slot (0..4095) of a queue's name, for life."""
    return fnv1a32(queue.encode()) & (SLOTS - 1)


def shard_of(slot: int, shards_count: int) -> int:
    """Return the number of the shard that owns `slot`; `shards_count` is a power of two."""
    return slot & (shards_count - 1)
