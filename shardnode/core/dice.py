"""Chance and tokens from the seed of a turn: what must differ is fixed by its commands."""

import hashlib
import struct

_TOKENS = struct.Struct("16s")


def chance(seed: bytes, seq: int) -> float:
    """Return a number in [0, 1), fixed by the turn's seed and a job's acceptance number."""
    digest = hashlib.blake2b(seed + seq.to_bytes(8, "big"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / (1 << 48)


def tokens(seed: bytes, epoch: int, counter: int, count: int) -> list[bytes]:
    """Return `count` tokens: the epoch and 16 unguessable bytes each.

    `counter` must differ between calls of one turn.
    """
    prefix = epoch.to_bytes(4, "big")
    stream = hashlib.shake_128(seed + counter.to_bytes(8, "big")).digest(16 * count)
    return [prefix + token for (token,) in _TOKENS.iter_unpack(stream)]
