"""How many shards a cluster has.

Pure: cores come in as a number. The count is a power of two, so that slot -> shard is a
mask; it is stored in the data directory at the first start and never changes by itself.
"""

from pyq.limits import SHARDS_MAX


class BadShards(ValueError):
    """`--shards` has a value that is no shard count. The sentence says what would be one."""


def shards_for(cpus_count: int) -> int:
    """Return the smallest power of two that covers all logical CPUs, at most SHARDS_MAX."""
    shards = 1
    while shards < min(cpus_count, SHARDS_MAX):
        shards *= 2
    return shards


def parse_shards(text: str) -> int | None:
    """Return the number that `--shards` asks for; None for `auto`: decide by the cores.

    Raises BadShards for anything that is not a power of two from 1 to SHARDS_MAX.
    """
    if text.strip().lower() == "auto":
        return None
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not is_shard_count(count):
        raise BadShards(
            f"--shards {text!r} is neither 'auto' nor a power of two from 1 to {SHARDS_MAX}"
        )
    return count


def is_shard_count(count: int) -> bool:
    """Tell whether a cluster can have that many shards."""
    return 1 <= count <= SHARDS_MAX and count & (count - 1) == 0
