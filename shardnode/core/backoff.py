"""How long a failed or stalled job waits before it may be leased again."""

import hashlib
import struct

from pyq.options import Backoff

_TOKENS = struct.Struct("16s")


def backoff_ms(backoff: Backoff, n: int, share: float) -> int:
    """Return the delay in milliseconds after the n-th failure (or stall), n >= 1.

    min(cap, base x factor^(n-1)) x (1 + jitter x (2 share - 1)), `share` in [0, 1).
    Saturates for any n: never negative, infinite or an exception. With `steps_ms` the
    n-th step counts, the last one repeats.
    """
    if backoff.steps_ms:
        delay = float(backoff.steps_ms[min(n, len(backoff.steps_ms)) - 1])
    else:
        try:
            delay = min(float(backoff.cap_ms), backoff.base_ms * backoff.factor ** (n - 1))
        except OverflowError:
            delay = float(backoff.cap_ms) if backoff.base_ms else 0.0
    return int(delay * (1 + backoff.jitter * (2 * share - 1)))


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
