"""Frames: what is packed comes back, and nothing that arrives raises anything but WireError."""

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyq.errors import Status
from pyq.limits import SLOTS
from pyq.messages import Origin
from pyq.parsing import parse
from pyq.routes import slot_of
from pyq.wire import (
    ALL_SHARDS,
    BY_QUEUE,
    COORDINATOR,
    HEADER_BYTES,
    ROUTER,
    Flag,
    Header,
    Verb,
    WireError,
    pack_body,
    pack_header,
    request_id_of,
    status_of,
    unpack_body,
    unpack_header,
    with_absolute_deadline,
)
from shardnode.frames import read_message
from tests.support.shards import a_shard

ids = st.binary(min_size=16, max_size=16)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=40)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(texts | st.binary(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
headers = st.builds(
    Header,
    verb=st.integers(0, 255),
    flags=st.integers(0, 255),
    status=st.integers(0, 255),
    slot=st.integers(0, SLOTS - 1) | st.sampled_from([BY_QUEUE, ALL_SHARDS, COORDINATOR, ROUTER]),
    epoch=st.integers(0, (1 << 32) - 1),
    deadline_ms=st.integers(-(1 << 63), (1 << 63) - 1),
    request_id=ids,
    queue=texts,
)


def packed(header: Header) -> bytes:
    fields = header._asdict()
    return pack_header(fields.pop("verb"), fields.pop("request_id"), **fields)


@given(headers)
def test_a_header_comes_back(header):
    frame = packed(header)
    assert len(frame) == HEADER_BYTES + len(header.queue.encode())
    assert unpack_header(frame) == header
    assert request_id_of(frame) == header.request_id
    assert status_of(frame) == header.status


@given(values)
def test_a_body_comes_back(value):
    assert unpack_body(pack_body(value)) == value


@given(headers, st.integers(0, 1 << 50))
def test_a_budget_becomes_a_deadline_once(header, now_ms):
    frame = packed(header)
    stamped = with_absolute_deadline(frame, now_ms)
    result = unpack_header(stamped)
    if header.flags & Flag.ABSOLUTE:
        assert stamped == frame
        return
    expected = now_ms + max(0, min(header.deadline_ms, 1 << 40))
    assert result == header._replace(flags=header.flags | Flag.ABSOLUTE, deadline_ms=expected)
    assert with_absolute_deadline(stamped, now_ms + 5) == stamped


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_a_wire_error(frame):
    with suppress(WireError):
        header = unpack_header(frame)
        assert unpack_header(packed(header)) == header


@given(st.binary(max_size=200) | values.map(pack_body).flatmap(
    lambda frame: st.integers(0, len(frame)).map(lambda cut: frame[:cut])
))  # fmt: skip
def test_any_bytes_are_a_body_or_a_wire_error(frame):
    with suppress(WireError):
        unpack_body(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,  # depth
        b"\x81\x90\x01",  # a key that is an array
        b"\x81\x01\x01",  # a key that is a number
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xc7\x00\xff",  # an empty one
        b"\xa1\xff",  # no UTF-8
        b"\x90\x90",  # more than one value
        msgpack.packb([0] * 10_001),
        msgpack.packb({str(n): n for n in range(257)}),
    ],
)
def test_hostile_bodies_are_wire_errors(frame):
    with pytest.raises(WireError):
        unpack_body(frame)


# --- parse: arbitrary and almost right bodies, for each verb ----------------------------

QUEUE = "emails"
JOB_ID = bytes(14) + slot_of(QUEUE).to_bytes(2, "big")
TOKEN = bytes(20)
BACKOFF = [1_000, 2.0, 60_000, 0.2, [1, 2]]
EVERY_OPTION = {
    "priority": 1, "delay_ms": 5, "attempts": 2, "backoff": BACKOFF, "timeout_ms": 9,
    "job_id": "x", "keep_completed": False,
}  # fmt: skip
RIGHT: dict[Verb, list[Any]] = {
    Verb.PING: [],
    Verb.PUSH: [EVERY_OPTION, [[JOB_ID, "name", b"data", {"priority": 2}]]],
    Verb.PULL: ["worker", [QUEUE, "other"], 1, 1_000, 15_000, 0],
    Verb.UNPULL: [bytes(16)],
    Verb.RETURN: [1, 2],
    Verb.ACK: [[[JOB_ID, TOKEN, b"result"], [JOB_ID, TOKEN, None]]],
    Verb.FAIL: [[[JOB_ID, TOKEN, "error", "traceback", b"result", False, -1]]],
    Verb.RELEASE: [[[JOB_ID, TOKEN, 0]]],
    Verb.HEARTBEAT: [[[JOB_ID, TOKEN]], ["w", "host", 1, 1, 1, [QUEUE]], 1_000],
    Verb.EXTEND: [[[JOB_ID, TOKEN, 15_000]]],
    Verb.PROGRESS: [[[JOB_ID, TOKEN, b"10"]]],
    Verb.GET: [JOB_ID, None, 3],
    Verb.LIST: ["waiting", 0, 10, 3],
    Verb.COUNTS: [0],
    Verb.RESULT: [JOB_ID, 1_000],
    Verb.SWEEP: [],
    Verb.STATS: [],
    Verb.WORKERS: [""],
    Verb.STOP_WORKERS: [""],
    Verb.GOODBYE: ["w"],
}
edges = st.sampled_from(
    [0, 1, -1, 2**31, 2**53, 2**62, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, float("nan"),
     float("inf"), True, None, "", "x" * 5_000, "\0", b"", b"x" * 16, b"x" * 20, JOB_ID,
     (), {}, (None,), {"priority": 0}, {"job_id": ""}, {b"priority": 1}, ((),)]
)  # fmt: skip


@st.composite
def almost_right(draw, right: Any) -> Any:
    """A valid body in which up to two places hold something else."""
    body = msgpack.unpackb(msgpack.packb(right))
    for _ in range(draw(st.integers(0, 2))):
        body = draw(_mutated(body))
    return body


@st.composite
def _mutated(draw, value: Any) -> Any:
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(value) - 1))
        change = draw(st.sampled_from(["inner", "inner", "inner", "drop", "double"]))
        inner = [draw(_mutated(value[at]))] if change == "inner" else []
        return (
            value[:at]
            + (inner or ([value[at]] * 2 if change == "double" else []))
            + value[at + 1 :]
        )
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value, key=repr)))
        return {**value, name: draw(_mutated(value[name]))}
    return draw(edges | values)


@pytest.mark.parametrize("verb", list(RIGHT), ids=lambda verb: verb.name)
def test_the_right_bodies_are_right(verb):
    header = unpack_header(pack_header(verb, bytes(16), queue=QUEUE))
    command = parse(header, Origin(bytes(16)), unpack_body(pack_body(RIGHT[verb])))
    assert type(command).__name__.upper() == verb.name.replace("_", "")


@given(st.data())
@pytest.mark.parametrize("verb", list(RIGHT), ids=lambda verb: verb.name)
def test_what_a_shard_receives_is_refused_or_can_be_applied(verb, data):
    """The path of every message from outside: no exception here may end a shard."""
    body = data.draw(almost_right(RIGHT[verb]) | values)
    flags = data.draw(st.sampled_from([0, Flag.REPEAT, Flag.DURABLE]))
    queue = data.draw(st.sampled_from([QUEUE, "", "q" * 300, "\0"]))
    head = pack_header(verb, data.draw(ids), flags=flags, queue=queue)
    shard = a_shard(checked=False)
    for outcome in read_message([b"me", head, msgpack.packb(body)]):
        if isinstance(outcome, tuple):
            (call,) = shard.send(outcome[0])
            assert len(call.answers) <= 1
        else:
            assert outcome.status in (
                Status.BAD_REQUEST,
                Status.BAD_OPTION,
                Status.TOO_LARGE,
            )
            assert isinstance(outcome.body[0], str)


@given(st.lists(st.binary(max_size=60), max_size=7))
def test_any_frames_are_read(frames):
    list(read_message([b"me", *frames]))


@given(st.integers(0, 255), values, st.integers(0, 255))
def test_any_verb_and_any_body_are_read(verb, body, flags):
    head = pack_header(verb, bytes(16), flags=flags, queue=QUEUE)
    outcomes = list(read_message([b"me", head, msgpack.packb(body)]))
    assert len(outcomes) == 1


@pytest.mark.parametrize("container", [b"\x80", b"\x90"], ids=["maps", "arrays"])
def test_a_large_body_of_empty_containers_is_refused(container):
    # Was a bug (F28): 19 MB of empty maps took 1.4 GB and five seconds.
    row = b"\xdc\x27\x10" + container * 10_000
    body = b"\xdc\x07\xd0" + row * 2_000
    with pytest.raises(WireError) as refusal:
        unpack_body(body)
    assert refusal.value.status == Status.TOO_LARGE


def test_a_large_honest_batch_passes():
    jobs = [[bytes(16), "name", bytes(4_000), None]] * 1_000
    options, unpacked = unpack_body(pack_body([None, jobs]))
    assert options is None
    assert unpacked == tuple(map(tuple, jobs))
