"""Where a message goes: header -> one shard, several, the coordinator, the router, or a refusal.

Pure, and a function of four header fields only (version, verb, slot, queue), so the answer
is cached: a busy queue costs one look-up per message. Bodies are never looked at here.
"""

from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from pyq.errors import Status
from pyq.limits import QUEUE_NAME_BYTES_MAX
from pyq.routes import shard_of, slot_of
from pyq.wire import (
    ALL_SHARDS,
    BY_QUEUE,
    COORDINATOR,
    HEADER_BYTES,
    ROUTER,
    Header,
    Verb,
    WireError,
    unpack_header,
)

# Batches about jobs named by id: with the route "all shards" their items may belong to
# several shards, each item to the one that its id names.
SPLIT_VERBS = frozenset(
    (
        *(Verb.ACK, Verb.FAIL, Verb.RELEASE, Verb.EXTEND, Verb.PROGRESS),
        *(Verb.LOG, Verb.RETRY, Verb.CANCEL, Verb.PURGE, Verb.PROMOTE, Verb.UPDATE),
        *(Verb.STATES, Verb.BLOCK, Verb.OPEN),
    )
)
# Questions and orders that every shard gets as they are.
SCATTER_VERBS = frozenset(
    (
        *(Verb.PING, Verb.GET, Verb.LIST, Verb.COUNTS, Verb.STATS, Verb.WORKERS),
        *(Verb.STOP_WORKERS, Verb.SCHEDULES),
    )
)
# Spoken between router and shard, or with the supervisor; nobody may send them here.
REFUSED_VERBS = frozenset((Verb.RETURN, Verb.PROCESSES, Verb.SHUTDOWN))

_VERBS = frozenset(Verb)
# At most 17 MiB, should someone send nothing but names of the greatest length.
_ROUTES_MAX = 16_384


class Target(Enum):
    """Who a message is for."""

    SHARD = auto()  # one shard, body untouched
    SPLIT = auto()  # item by item
    SCATTER = auto()  # every shard
    COORDINATOR = auto()
    PONG = auto()  # the router answers
    ATTACH = auto()  # the coordinator says it is there
    REFUSAL = auto()


class Route(NamedTuple):
    """The way of one message."""

    target: Target
    shard: int = -1  # with SHARD
    status: int = 0  # with REFUSAL ...
    sentence: str = ""  # ... and why


def route_of(header: bytes, shards_count: int) -> Route:
    """Return where a request goes. `header` has at least HEADER_BYTES; never raises."""
    if len(header) > HEADER_BYTES + QUEUE_NAME_BYTES_MAX:
        return _TOO_LONG
    return _route(header[:2], header[4:8], header[HEADER_BYTES:], shards_count)


@lru_cache(maxsize=_ROUTES_MAX)
def _route(version_verb: bytes, slot_reserved: bytes, queue: bytes, shards_count: int) -> Route:
    try:
        header = unpack_header(
            b"".join((version_verb, b"\0\0", slot_reserved, bytes(HEADER_BYTES - 8), queue))
        )
        return _decide(header, shards_count)
    except WireError as error:
        return Route(Target.REFUSAL, status=error.status, sentence=str(error))


def _decide(header: Header, shards_count: int) -> Route:
    verb, slot = header.verb, header.slot
    if verb not in _VERBS:
        raise WireError(Status.UNSUPPORTED, f"verb {verb} is not known here")
    name = Verb(verb).name
    if verb in REFUSED_VERBS:
        raise WireError(Status.UNSUPPORTED, f"{name} is not for the router")
    if slot == ROUTER or (slot == BY_QUEUE and verb == Verb.PING and not header.queue):
        return _to_router(verb, name)
    if verb == Verb.ATTACH:
        raise WireError(Status.BAD_REQUEST, "ATTACH is for the router itself")
    if slot == BY_QUEUE:
        return _by_queue(header.queue, name, shards_count)
    if slot == ALL_SHARDS:
        return _to_all(verb, name)
    if slot == COORDINATOR:
        return Route(Target.COORDINATOR)
    return Route(Target.SHARD, shard_of(slot, shards_count))


def _to_router(verb: int, name: str) -> Route:
    if verb == Verb.PING:
        return Route(Target.PONG)
    if verb == Verb.ATTACH:
        return Route(Target.ATTACH)
    raise WireError(Status.UNSUPPORTED, f"the router itself does not answer {name}")


def _by_queue(queue: str, name: str, shards_count: int) -> Route:
    if not queue:
        raise WireError(Status.BAD_REQUEST, f"{name} by queue names no queue")
    return Route(Target.SHARD, shard_of(slot_of(queue), shards_count))


def _to_all(verb: int, name: str) -> Route:
    if verb in SPLIT_VERBS:
        return Route(Target.SPLIT)
    if verb in SCATTER_VERBS:
        return Route(Target.SCATTER)
    raise WireError(Status.BAD_REQUEST, f"{name} goes to one shard, not to all")


_TOO_LONG = Route(
    Target.REFUSAL,
    status=Status.BAD_REQUEST,
    sentence=f"a header frame has {HEADER_BYTES} bytes and a queue name",
)
