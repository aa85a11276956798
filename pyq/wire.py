"""Frames: the fixed header, the body's codec, and nothing else.

The one place where bytes from outside become Python values, with limits on size,
depth and type. `messages.py` knows what a body means; docs/protocol.md fixes every byte.
"""

import struct
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import msgpack

from pyq.errors import Status
from pyq.limits import BODY_ITEMS_MAX, FRAME_BYTES_MAX, QUEUE_NAME_BYTES_MAX, SLOTS

VERSION = 1

# version, verb, flags, status, slot, reserved, epoch, deadline_ms, request id
_HEADER = struct.Struct(">BBBBHHIq16s")
HEADER_BYTES = _HEADER.size
_DEADLINE = struct.Struct(">q")
_DEADLINE_AT = 12
_FLAGS_AT = 2
_STATUS_AT = 3
_REQUEST_ID = slice(20, 36)

# Values of the header's slot that are no slot.
BY_QUEUE = 0xFFFF  # routed by the queue's name
ALL_SHARDS = 0xFFFE  # scattered; the reply lists one answer per shard
COORDINATOR = 0xFFFD  # handed to the attached coordinator
ROUTER = 0xFFFC  # answered by the router itself


class Verb(IntEnum):
    """What a request asks for."""

    PING = 1
    PUSH = 2
    PULL = 3
    UNPULL = 4
    RETURN = 5
    ACK = 6
    FAIL = 7
    RELEASE = 8
    HEARTBEAT = 9
    EXTEND = 10
    PROGRESS = 11
    GET = 12
    LIST = 13
    COUNTS = 14
    RESULT = 15
    SWEEP = 16
    STATS = 17
    WORKERS = 18
    STOP_WORKERS = 19
    GOODBYE = 20
    ATTACH = 21  # a coordinator makes itself known to the router
    PROCESSES = 22  # supervisor: its table of children
    SHUTDOWN = 23  # supervisor: stop the cluster
    RETRY = 24  # dead jobs start afresh
    CANCEL = 25  # waiting and delayed jobs are taken back
    PURGE = 26  # dead jobs are forgotten
    PROMOTE = 27  # delayed jobs wait no longer
    UPDATE = 28  # priority, due time or payload of a job that waits
    CONFIGURE = 29  # settings of a queue: change and read
    PAUSE = 30  # a queue or a group hands out nothing, or does again
    DRAIN = 31  # what waits in a queue is removed
    CLEAN = 32  # jobs of one state are removed
    OBLITERATE = 33  # a queue is removed with everything in it
    DEAD_STATS = 34  # dead letters by reason and age
    LOG = 35  # lines of a running job
    LOGS = 36  # ... read
    EVENTS = 37  # what happened, after a cursor
    STATES = 38  # where jobs are, by their ids
    BLOCK = 39  # a running job waits for others, and runs again
    OUTBOX = 40  # rows that a shard has for others
    DELIVER = 41  # ... brought to them
    OPEN = 42  # the gate of a flow: all of it is there
    SCHEDULE = 50  # a schedule is added, or changed
    UNSCHEDULE = 51  # ... removed
    SCHEDULES = 52  # ... listed, and what changed of them waited for
    FIRED = 53  # ... has come past a tick
    SUSPEND = 54  # ... fires no more, or does again


class Flag(IntFlag):
    """Bits of the header's flags."""

    NONE = 0
    DURABLE = 1  # request: answer after fsync
    REPEAT = 2  # request: sent before with the same request id
    ABSOLUTE = 4  # request: the deadline is CLOCK_MONOTONIC, not a budget
    PARTIAL = 8  # reply: some shards did not answer


_ABSOLUTE = int(Flag.ABSOLUTE)  # arithmetic on flags costs three times that on integers
_BUDGET_MAX = 1 << 40


class WireError(Exception):
    """What arrived is not a message of ours. `status` and the sentence go back to the sender."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class Header(NamedTuple):
    """The first frame of a request or reply, taken apart."""

    verb: int
    flags: int
    status: int
    slot: int
    epoch: int
    deadline_ms: int  # request: time budget, or absolute with Flag.ABSOLUTE; reply: 0
    request_id: bytes  # 8 bytes client incarnation, 8 bytes sequence
    queue: str


def pack_header(
    verb: int,
    request_id: bytes,
    *,
    flags: int = 0,
    status: int = 0,
    slot: int = BY_QUEUE,
    epoch: int = 0,
    deadline_ms: int = 0,
    queue: str = "",
) -> bytes:
    """Return the header frame. `request_id` is 16 bytes, `deadline_ms` milliseconds."""
    head = _HEADER.pack(VERSION, verb, flags, status, slot, 0, epoch, deadline_ms, request_id)
    return head + queue.encode() if queue else head


def unpack_header(frame: bytes) -> Header:
    """Take a header frame apart.

    Raises WireError: UNSUPPORTED for another version, BAD_REQUEST for anything that is
    not a header of ours.
    """
    if not HEADER_BYTES <= len(frame) <= HEADER_BYTES + QUEUE_NAME_BYTES_MAX:
        raise WireError(
            Status.BAD_REQUEST, f"a header frame has {HEADER_BYTES} bytes and a queue name"
        )
    version, verb, flags, status, slot, reserved, epoch, deadline_ms, request_id = (
        _HEADER.unpack_from(frame)
    )
    if version != VERSION:
        raise WireError(
            Status.UNSUPPORTED, f"protocol version {version} is not spoken here, {VERSION} is"
        )
    if reserved or SLOTS <= slot < ROUTER:
        raise WireError(Status.BAD_REQUEST, "the header names no slot and no known route")
    try:
        queue = frame[HEADER_BYTES:].decode() if len(frame) > HEADER_BYTES else ""
    except UnicodeDecodeError:
        raise WireError(Status.BAD_REQUEST, "the queue name is not UTF-8") from None
    return Header(verb, flags, status, slot, epoch, deadline_ms, request_id, queue)


def request_id_of(header: bytes) -> bytes:
    """Return the 16 bytes of the request id without taking the header apart."""
    return header[_REQUEST_ID]


def status_of(header: bytes) -> int:
    """Return the status byte (0 in a request) without taking the header apart."""
    return header[_STATUS_AT]


def with_absolute_deadline(header: bytes, now_mono_ms: int) -> bytes:
    """Return the header of a request with its budget turned into an absolute deadline.

    Unchanged if it is absolute already. Done by the first hop on the cluster's machine:
    a budget cannot see the time a message spends in socket buffers.
    """
    if header[_FLAGS_AT] & _ABSOLUTE:
        return header
    budget_ms = _DEADLINE.unpack_from(header, _DEADLINE_AT)[0]
    stamped = bytearray(header)
    stamped[_FLAGS_AT] |= _ABSOLUTE
    _DEADLINE.pack_into(stamped, _DEADLINE_AT, now_mono_ms + max(0, min(budget_ms, _BUDGET_MAX)))
    return bytes(stamped)


SMALL_BYTES = 256 * 1024
CONTAINERS_MAX = 30_000


class _TooMany(Exception):
    """A body has more arrays and maps than any of ours."""


def _counting_hooks() -> dict[str, Any]:
    left = CONTAINERS_MAX

    def count(container: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooMany
        return container

    return {"object_hook": count, "list_hook": lambda items: tuple(count(items))}


_packer = msgpack.Packer(use_bin_type=True)


def pack_body(body: Any) -> bytes:
    """Return a body frame. Arrays and scalars; maps only where docs/protocol.md says so."""
    packed: bytes = _packer.pack(body)
    return packed


def unpack_body(frame: bytes) -> Any:
    """Return a body as tuples and scalars, or raise WireError(BAD_REQUEST or TOO_LARGE).

    Lengths are bounded here; `messages.py` checks the shape, and so the depth. In a large
    frame the number of arrays and maps is bounded too: empty ones would take seventy times
    their bytes. (A small one cannot hold many, and counting would cost it a third more.)
    """
    if len(frame) > FRAME_BYTES_MAX:
        raise WireError(Status.TOO_LARGE, f"a body frame has at most {FRAME_BYTES_MAX} bytes")
    try:
        return msgpack.unpackb(
            frame,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_array_len=BODY_ITEMS_MAX,
            max_map_len=256,
            max_ext_len=0,
            **({} if len(frame) <= SMALL_BYTES else _counting_hooks()),
        )
    except _TooMany:
        sentence = f"a body has at most {CONTAINERS_MAX} arrays and maps"
        raise WireError(Status.TOO_LARGE, sentence) from None
    except Exception as error:  # msgpack raises seven unrelated types on hostile input
        raise WireError(
            Status.BAD_REQUEST, f"the body is not valid: {type(error).__name__}"
        ) from None
