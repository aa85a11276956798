"""How long a failed or stalled job waits before it may be leased again: the one formula.

Pure: the shard asks it with chance, `pyq.backoff_preview` without.
"""

from pyq.options import Backoff


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
