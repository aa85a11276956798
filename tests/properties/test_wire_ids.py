"""Ids carry time and slot in the bits of a UUIDv7; a slot never changes."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyq.ids import IdFactory, id_from_text, id_to_text, slot_of_id, time_of_id
from pyq.limits import SLOTS
from pyq.routes import fnv1a32, shard_of, slot_of

slots = st.integers(0, SLOTS - 1)
times = st.integers(0, (1 << 48) - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(slots, times, st.integers(1, 1_000))
def test_ids_are_uuids_of_version_7_in_growing_order(slot, time_ms, count):
    made = IdFactory(lambda: time_ms).make(slot, count)

    assert len(set(made)) == count
    assert made == sorted(made)
    for job_id in (made[0], made[-1]):
        parsed = uuid.UUID(bytes=job_id)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert slot_of_id(job_id) == slot
        assert time_of_id(job_id) == time_ms
        assert id_from_text(id_to_text(job_id)) == job_id


@given(slots, st.lists(times, min_size=1, max_size=20))
def test_the_time_of_ids_never_runs_backwards(slot, clock):
    ticks = iter(clock)
    factory = IdFactory(lambda: next(ticks))
    seen = [time_of_id(factory.make(slot)[0]) for _ in clock]

    assert seen == sorted(seen)
    assert seen[-1] == max(clock)


@given(names)
def test_a_text_that_is_no_id_is_none(text):
    parsed = id_from_text(text)
    assert parsed is None or len(parsed) == 16


def test_other_uuids_are_no_ids():
    assert id_from_text(str(uuid.UUID(int=1 << 76 | 4 << 76))) is None
    assert id_from_text("00000000-0000-4000-8000-000000000000") is None


# Test vectors of the IETF draft "The FNV Non-Cryptographic Hash Algorithm" (FNV-1a, 32 bits).
VECTORS = [
    (b"", 0x811C9DC5),
    (b"a", 0xE40C292C),
    (b"b", 0xE70C2DE5),
    (b"c", 0xE60C2C52),
    (b"foo", 0xA9F37ED7),
    (b"foobar", 0xBF9CF968),
    (b"hello", 0x4F9F2CAB),
    (b"chongo was here!\n", 0xD49930D5),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_fnv_gives_the_published_vectors(data, expected):
    assert fnv1a32(data) == expected


@pytest.mark.parametrize(
    ("queue", "slot"), [("emails", 1_116), ("", 0xDC5), ("a", 0x92C), ("foobar", 0x968)]
)
def test_slots_are_for_life(queue, slot):
    """These numbers are on disks out there: whoever changes one loses jobs."""
    assert slot_of(queue) == slot


@given(names, st.integers(0, 6))
def test_a_shard_is_the_low_bits_of_the_slot(queue, bits):
    slot = slot_of(queue)
    assert 0 <= slot < SLOTS
    shard = shard_of(slot, 1 << bits)
    assert shard == slot % (1 << bits)
    assert shard_of(slot, 2 << bits) in (shard, shard + (1 << bits)), "twice as many: it splits"
