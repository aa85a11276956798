"""One request for several shards, and their answers as one reply.

Pure. `split` takes a batch about leases apart by the slot of each item's id, `merge_batch`
puts the answers back in the order of the items; `merge_scatter` lists what every shard
said without decoding it. Who sends and who waits is not decided here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyq.errors import Status
from pyq.ids import slot_of_id
from pyq.limits import BATCH_JOBS_MAX, FRAME_BYTES_MAX
from pyq.messages import ID_BYTES, batch_answer, error_body
from pyq.routes import shard_of
from pyq.wire import ALL_SHARDS, Flag, WireError, pack_body, pack_header, unpack_body, unpack_header

_ENTRY_BYTES_MAX = 32  # of a scatter entry around its body: array, three numbers, bin header


class Part(NamedTuple):
    """What one shard gets of a request."""

    shard: int
    slot: int  # the route its header carries
    body: bytes
    indexes: Sequence[int] = ()  # of a batch: where its items stood in the whole


class Answer(NamedTuple):
    """What one shard said to its part."""

    status: int
    epoch: int
    body: bytes


def refusal(status: int, sentence: str, retry_after_ms: int = 0) -> Answer:
    """Return an answer that is given in a shard's place."""
    return Answer(status, 0, pack_body(error_body(sentence, retry_after_ms)))


NO_ANSWER = refusal(Status.UNKNOWN, "the shard did not answer in time")


def split(body: bytes, shards_count: int) -> tuple[int, list[Part]]:
    """Return how many items a batch has, and one part for each shard that owns some.

    Raises WireError for whatever is not `[items]` with an id in front of each item.
    """
    items = _items_of(unpack_body(body))
    indexes_of: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        if type(item) is not tuple or not item or type(item[0]) is not bytes:
            raise WireError(Status.BAD_REQUEST, "an item does not begin with an id")
        if len(item[0]) != ID_BYTES:
            raise WireError(Status.BAD_REQUEST, f"an id is not {ID_BYTES} bytes")
        indexes_of.setdefault(shard_of(slot_of_id(item[0]), shards_count), []).append(index)
    return len(items), [
        Part(shard, slot_of_id(items[indexes[0]][0]), _pack_part(items, indexes), indexes)
        for shard, indexes in indexes_of.items()
    ]


def scatter(body: bytes, shards_count: int) -> list[Part]:
    """Return the same part for every shard."""
    return [Part(shard, ALL_SHARDS, body) for shard in range(shards_count)]


def part_header(header: bytes, part: Part, request_id: bytes) -> bytes:
    """Return the header of a part; `request_id` is the router's own.

    Own ids keep a late answer to a part from ever being taken for the answer to the whole.
    """
    whole = unpack_header(header)
    return pack_header(
        whole.verb,
        request_id,
        flags=whole.flags,
        slot=part.slot,
        deadline_ms=whole.deadline_ms,
        queue=whole.queue,
    )


def merge_batch(count: int, parts: Sequence[Part], answers: Sequence[Answer]) -> bytes:
    """Return the body that answers the whole batch, exceptions in the order of its items.

    A part that was refused as a whole is refused item by item.
    """
    exceptions: list[list[Any]] = []
    for part, answer in zip(parts, answers, strict=True):
        exceptions += _exceptions_of(part, answer)
    exceptions.sort(key=_index)
    return pack_body(batch_answer(count, exceptions))


def merge_scatter(parts: Sequence[Part], answers: Sequence[Answer]) -> tuple[int, bytes]:
    """Return flags and body of the reply to a request for all shards.

    Each answer is embedded as bytes. What would not fit into one frame any more is
    replaced by a refusal, so that the reply can always be sent.
    """
    flags = Flag.NONE
    entries: list[tuple[int, int, int, bytes]] = []
    room = FRAME_BYTES_MAX - _ENTRY_BYTES_MAX - len(parts) * (_ENTRY_BYTES_MAX + len(_NO_ROOM.body))
    for part, answer in zip(parts, answers, strict=True):
        if len(answer.body) > room:
            answer = _NO_ROOM
        room -= len(answer.body)
        if answer.status != Status.OK:
            flags = Flag.PARTIAL
        entries.append((part.shard, answer.status, answer.epoch, answer.body))
    return flags, pack_body(entries)


_NO_ROOM = refusal(Status.TOO_LARGE, "the answers of all shards do not fit into one reply")


def _items_of(body: Any) -> tuple[Any, ...]:
    if type(body) is not tuple or len(body) != 1 or type(body[0]) is not tuple:
        raise WireError(Status.BAD_REQUEST, "the body is not an array with one array of items")
    items: tuple[Any, ...] = body[0]
    if len(items) > BATCH_JOBS_MAX:
        raise WireError(Status.TOO_LARGE, f"a batch has at most {BATCH_JOBS_MAX} items")
    return items


def _pack_part(items: tuple[Any, ...], indexes: Sequence[int]) -> bytes:
    try:
        packed = pack_body([[items[index] for index in indexes]])
    except ValueError:  # in some versions msgpack decodes deeper than it packs
        raise WireError(Status.BAD_REQUEST, "an item is nested too deeply") from None
    # Packed anew a body can grow (a 32-bit float takes 64), and a shard drops the
    # connection, all of the router's, at a frame above the limit.
    if len(packed) > FRAME_BYTES_MAX:
        raise WireError(Status.TOO_LARGE, f"a body frame has at most {FRAME_BYTES_MAX} bytes")
    return packed


def _exceptions_of(part: Part, answer: Answer) -> list[list[Any]]:
    try:
        body = unpack_body(answer.body)
        if answer.status != Status.OK:
            return [[index, answer.status, body[0]] for index in part.indexes]
        count, exceptions = body
        if count != len(part.indexes):
            raise ValueError("another number of items")
        return [[part.indexes[index], status, detail] for index, status, detail in exceptions]
    except (WireError, TypeError, ValueError, IndexError, KeyError):
        sentence = "the shard's answer cannot be read"
        return [[index, Status.UNKNOWN, sentence] for index in part.indexes]


def _index(exception: list[Any]) -> int:
    index: int = exception[0]
    return index
