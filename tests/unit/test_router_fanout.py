"""Splitting batches, and what becomes of the answers: refusals, damage, and bounds."""

from contextlib import suppress
from typing import Any

import pytest

from pyq.errors import Status
from pyq.limits import BATCH_JOBS_MAX, FRAME_BYTES_MAX
from pyq.messages import batch_answer, error_body
from pyq.wire import (
    ALL_SHARDS,
    Flag,
    Verb,
    WireError,
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)
from router.fanout import (
    NO_ANSWER,
    Answer,
    Part,
    merge_batch,
    merge_scatter,
    part_header,
    refusal,
    scatter,
    split,
)

TOKEN = bytes(20)


def an_item(slot: int, result: bytes | None = None) -> list[Any]:
    return [bytes(14) + slot.to_bytes(2, "big"), TOKEN, result]


def ok(count: int, *exceptions: list[Any], epoch: int = 1) -> Answer:
    return Answer(Status.OK, epoch, pack_body(batch_answer(count, list(exceptions))))


def test_items_go_to_the_shards_that_their_ids_name():
    items = [an_item(slot) for slot in (5, 2, 1, 6)]
    count, parts = split(pack_body([items]), 4)

    assert count == 4
    assert {part.shard: tuple(part.indexes) for part in parts} == {1: (0, 2), 2: (1, 3)}
    assert {part.shard: part.slot & 3 for part in parts} == {1: 1, 2: 2}
    assert [list(item) for item in unpack_body(parts[0].body)[0]] == [items[0], items[2]]


def test_exceptions_come_back_under_the_index_of_the_whole():
    _, parts = split(pack_body([[an_item(slot) for slot in (1, 0, 1, 0)]]), 2)
    merged = merge_batch(
        4,
        parts,
        [ok(2, [1, Status.STALE_TOKEN, "over"]), ok(2, [0, Status.OK, "replayed"])],
    )

    assert unpack_body(merged) == (4, ((1, 1, "replayed"), (2, 20, "over")))


def test_a_part_refused_as_a_whole_refuses_each_of_its_items():
    _, parts = split(pack_body([[an_item(slot) for slot in (1, 0, 1)]]), 2)
    down = refusal(Status.UNAVAILABLE, "down")

    assert unpack_body(merge_batch(3, parts, [down, ok(1)])) == (
        3,
        ((0, 25, "down"), (2, 25, "down")),
    )


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"", pack_body([]), pack_body([5, []]), pack_body([1, [[7, 1, ""]]]), pack_body(7)],
)
def test_an_unreadable_answer_leaves_its_items_unknown(body: bytes):
    _, parts = split(pack_body([[an_item(0)]]), 2)
    merged = unpack_body(merge_batch(1, parts, [Answer(Status.OK, 1, body)]))

    assert merged[0] == 1
    assert [exception[:2] for exception in merged[1]] == [(0, Status.UNKNOWN)]


@pytest.mark.parametrize(
    "body",
    [None, [], [[], []], [7], [[7]], [[[]]], [["x"]], [[[b"short", TOKEN]]], [[["x" * 16]]]],
)
def test_what_is_no_batch_is_refused(body: Any):
    with pytest.raises(WireError) as refused:
        split(pack_body(body), 2)
    assert refused.value.status == Status.BAD_REQUEST


def test_a_batch_may_have_a_thousand_items_and_no_more():
    assert split(pack_body([[an_item(0)] * BATCH_JOBS_MAX]), 1)[0] == BATCH_JOBS_MAX
    with pytest.raises(WireError) as refused:
        split(pack_body([[an_item(0)] * (BATCH_JOBS_MAX + 1)]), 1)
    assert refused.value.status == Status.TOO_LARGE


@pytest.mark.parametrize("depth", [400, 600, 1_000, 5_000])
def test_a_deeply_nested_item_is_split_or_refused_and_nothing_else(depth: int):
    """Where decoder and packer stop depends on msgpack's version."""
    item = b"\x92" + pack_body(bytes(16)) + b"\x91" * depth + b"\xc0"
    with suppress(WireError):
        _, parts = split(b"\x91\x91" + item, 2)
        assert parts[0].body == b"\x91\x91" + item


def test_a_part_never_grows_over_the_frame_limit():
    float32 = b"\xca\x00\x00\x00\x00"
    row = b"\xdc\x27\x10" + float32 * 10_000
    rows = FRAME_BYTES_MAX // len(row) - 1  # doubles when it is packed again
    item = b"\xdc" + (rows + 1).to_bytes(2, "big") + pack_body(bytes(16)) + row * rows
    body = b"\x91\x91" + item
    assert len(body) < FRAME_BYTES_MAX
    with pytest.raises(WireError) as refused:
        split(body, 2)
    assert refused.value.status == Status.TOO_LARGE


def test_an_empty_batch_has_no_parts():
    assert split(pack_body([[]]), 4) == (0, [])


def test_a_part_travels_under_the_routers_own_id_and_its_shards_slot():
    header = pack_header(
        Verb.ACK, b"c" * 16, flags=Flag.DURABLE | Flag.REPEAT, slot=ALL_SHARDS, deadline_ms=77
    )
    part = unpack_header(part_header(header, Part(1, 5, b""), b"r" * 16))

    assert (part.slot, part.request_id, part.deadline_ms) == (5, b"r" * 16, 77)
    assert part.flags == Flag.DURABLE | Flag.REPEAT


def test_the_answers_of_all_shards_are_listed_as_they_are():
    parts = scatter(pack_body([]), 2)
    broken = b"\xc1 not even msgpack"
    flags, body = merge_scatter(parts, [Answer(Status.OK, 3, broken), Answer(Status.OK, 4, b"")])

    assert flags == 0
    assert unpack_body(body) == ((0, 1, 3, broken), (1, 1, 4, b""))


def test_one_missing_answer_makes_the_reply_partial():
    flags, body = merge_scatter(scatter(b"", 2), [Answer(Status.OK, 3, b""), NO_ANSWER])

    assert flags == Flag.PARTIAL
    assert unpack_body(body)[1][:2] == (1, Status.UNKNOWN)


def test_answers_that_do_not_fit_into_a_frame_are_left_out():
    large = Answer(Status.OK, 1, bytes(FRAME_BYTES_MAX // 2))
    flags, body = merge_scatter(scatter(b"", 3), [large, large, Answer(Status.OK, 1, b"small")])
    statuses = [entry[1] for entry in unpack_body(body)]

    assert len(body) <= FRAME_BYTES_MAX
    assert flags == Flag.PARTIAL
    assert statuses == [Status.OK, Status.TOO_LARGE, Status.OK]


def test_a_refusal_carries_its_sentence():
    answer = refusal(Status.BUSY, "full", 50)
    assert unpack_body(answer.body) == tuple(error_body("full", 50))
