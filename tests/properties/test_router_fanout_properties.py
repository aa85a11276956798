"""For all batches and all numbers of shards: split and merge are the identity, in order."""

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyq.errors import Status
from pyq.ids import slot_of_id
from pyq.messages import batch_answer
from pyq.wire import HEADER_BYTES, VERSION, Flag, WireError, pack_body, unpack_body
from router.fanout import Answer, merge_batch, merge_scatter, refusal, scatter, split
from router.routing import Target, route_of

shard_counts = st.sampled_from([1, 2, 4, 8, 16, 32, 64])
ids = st.binary(min_size=16, max_size=16)
items = st.tuples(
    ids, st.binary(min_size=20, max_size=20), st.none() | st.binary(max_size=40) | st.integers(0, 9)
)
statuses = st.sampled_from([Status.OK, Status.NOT_FOUND, Status.STALE_TOKEN])


@given(st.lists(items, max_size=60), shard_counts)
def test_every_item_reaches_the_shard_of_its_slot_once_and_in_order(
    batch: list[Any], shards_count: int
):
    count, parts = split(pack_body([batch]), shards_count)

    rebuilt: dict[int, Any] = {}
    for part in parts:
        (part_items,) = unpack_body(part.body)
        assert list(part.indexes) == sorted(part.indexes)
        assert part.slot % shards_count == part.shard
        for index, item in zip(part.indexes, part_items, strict=True):
            assert slot_of_id(item[0]) % shards_count == part.shard
            assert index not in rebuilt
            rebuilt[index] = item
    assert [rebuilt[index] for index in range(count)] == batch
    assert len({part.shard for part in parts}) == len(parts)


@given(st.lists(st.tuples(items, statuses), max_size=60), shard_counts, st.randoms())
def test_merged_answers_are_those_of_one_shard_that_owned_everything(
    judged: list[Any], shards_count: int, random: Any
):
    batch = [item for item, _ in judged]
    verdicts = [status for _, status in judged]
    expected = [
        (index, status, f"item {index}")
        for index, status in enumerate(verdicts)
        if status != Status.OK
    ]
    count, parts = split(pack_body([batch]), shards_count)

    answers = []
    for part in parts:
        exceptions = [
            [at, verdicts[index], f"item {index}"]
            for at, index in enumerate(part.indexes)
            if verdicts[index] != Status.OK
        ]
        random.shuffle(exceptions)
        body = pack_body(batch_answer(len(part.indexes), exceptions))
        answers.append(Answer(Status.OK, 1, body))

    merged = unpack_body(merge_batch(count, parts, answers))
    assert merged == (len(batch), tuple(expected))


@given(st.lists(items, min_size=1, max_size=60), shard_counts, st.data())
def test_a_shard_that_fails_fails_its_items_and_no_others(
    batch: list[Any], shards_count: int, data: st.DataObject
):
    count, parts = split(pack_body([batch]), shards_count)
    failed = data.draw(st.sets(st.sampled_from([part.shard for part in parts])))
    answers = [
        refusal(Status.RETRY, "gone")
        if part.shard in failed
        else Answer(Status.OK, 1, pack_body(batch_answer(len(part.indexes), [])))
        for part in parts
    ]

    _, exceptions = unpack_body(merge_batch(count, parts, answers))
    assert [exception[0] for exception in exceptions] == [
        index for index, item in enumerate(batch) if slot_of_id(item[0]) % shards_count in failed
    ]
    assert all(exception[1:] == (Status.RETRY, "gone") for exception in exceptions)


@given(
    shard_counts.flatmap(
        lambda count: st.lists(
            st.builds(
                Answer,
                st.sampled_from([Status.OK, Status.BUSY, Status.UNAVAILABLE]),
                st.integers(0, 2**32 - 1),
                st.binary(max_size=50),
            ),
            min_size=count,
            max_size=count,
        )
    )
)
def test_a_scatter_lists_every_answer_untouched(answers: list[Answer]):
    flags, body = merge_scatter(scatter(b"", len(answers)), answers)

    assert unpack_body(body) == tuple(
        (shard, answer.status, answer.epoch, answer.body) for shard, answer in enumerate(answers)
    )
    assert (flags == Flag.PARTIAL) == any(answer.status != Status.OK for answer in answers)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES + 1_100), shard_counts, st.booleans())
def test_any_header_has_a_route(header: bytes, shards_count: int, is_ours: bool):
    if is_ours:
        header = bytes((VERSION,)) + header[1:6] + b"\0\0" + header[8:]
    route = route_of(header, shards_count)

    assert route.target is not Target.SHARD or 0 <= route.shard < shards_count
    assert route.target is not Target.REFUSAL or (route.status and route.sentence)


bodies = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=20) | ids | st.floats(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@given(st.binary(max_size=200) | bodies.map(pack_body), shard_counts)
def test_any_body_is_split_or_refused(body: bytes, shards_count: int):
    with suppress(WireError):
        count, parts = split(body, shards_count)
        assert sum(len(part.indexes) for part in parts) == count


@given(st.binary(max_size=100) | bodies.map(pack_body), statuses)
def test_any_answer_can_be_merged(body: bytes, status: Status):
    _, parts = split(pack_body([[[bytes(16)], [bytes(16)]]]), 1)
    count, exceptions = unpack_body(merge_batch(2, parts, [Answer(status, 1, body)]))

    assert count == 2
    assert all(exception[0] in (0, 1) for exception in exceptions)
