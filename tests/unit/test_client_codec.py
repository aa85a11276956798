"""What travels as payload comes back the same; what cannot travel is named by its path."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyq.codec import DEPTH_MAX, pack, unpack
from pyq.errors import PayloadError, TooLarge
from pyq.limits import PAYLOAD_BYTES_MAX

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_offsets = st.integers(-1_439, 1_439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | _texts
    | st.binary(max_size=20)
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.timedeltas()
    | st.dates()
    | st.datetimes(timezones=_offsets)
)
_hashable = st.recursive(_scalars, lambda inner: st.frozensets(inner, max_size=3), max_leaves=5)
_values = st.recursive(
    _scalars | st.sets(_hashable, max_size=4) | st.frozensets(_hashable, max_size=4),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_hashable, inner, max_size=5),
    max_leaves=25,
)


@given(_values)
def test_what_is_packed_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    back = unpack(pack(value))

    assert back == value
    assert type(back) is type(value)


def test_tuples_come_back_as_lists_but_stay_tuples_where_they_must_be_hashable() -> None:
    assert unpack(pack((1, (2, 3)))) == [1, [2, 3]]
    assert unpack(pack({(1, 2): "a"})) == {(1, 2): "a"}
    assert unpack(pack({(1, 2)})) == {(1, 2)}


def test_a_datetime_keeps_its_offset() -> None:
    moment = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=2)))

    assert unpack(pack(moment)).utcoffset() == timedelta(hours=2)


class Unknown:
    pass


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"user": {"tags": [1, 2, 3, Unknown()]}}, "data.user.tags[3]: cannot pack <class"),
        ({"a b": Unknown()}, "data['a b']: cannot pack"),
        ({"n": 2**64}, "data.n: whole numbers go from -2**63 to 2**64-1"),
        ([-(2**63) - 1], "data[0]: whole numbers"),
        ({"t": "ok \ud800"}, "data.t: the text contains a lone surrogate"),
        ({"\ud800": 1}, "data: key '\\ud800': the text contains a lone surrogate"),
        ({"at": datetime(2026, 1, 1)}, "data.at: a datetime needs a time zone"),
        ([{Unknown}], "data[0][0]: cannot pack"),
        (Unknown(), "data: cannot pack"),
    ],
)
def test_the_error_names_the_field(value: Any, sentence: str) -> None:
    with pytest.raises(PayloadError) as caught:
        pack(value)

    assert sentence in str(caught.value)


def test_nesting_that_is_too_deep_is_a_clean_error() -> None:
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PayloadError, match="nested deeper than 500 levels"):
        pack(deep)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(PayloadError, match="nested deeper"):
        pack(circle)


def test_nesting_up_to_the_limit_passes() -> None:
    deep: Any = None
    for _ in range(DEPTH_MAX - 1):
        deep = [deep]
    assert unpack(pack(deep)) == deep


def test_size_is_checked_at_the_edge() -> None:
    header = 5
    assert len(pack(b"x" * (PAYLOAD_BYTES_MAX - header))) == PAYLOAD_BYTES_MAX
    with pytest.raises(TooLarge, match=str(PAYLOAD_BYTES_MAX)):
        pack(b"x" * (PAYLOAD_BYTES_MAX - header + 1))


def test_packing_works_after_a_failure() -> None:
    with pytest.raises(PayloadError):
        pack([1, 2, Unknown()])
    assert unpack(pack([1])) == [1]


@given(st.binary(max_size=60))
def test_foreign_bytes_are_a_payload_error_or_a_value(packed: bytes) -> None:
    try:
        unpack(packed)
    except PayloadError:
        return


def test_plain_examples() -> None:
    value = {
        "id": UUID(int=5), "price": Decimal("9.90"), "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1), "wait": timedelta(days=-1, microseconds=3), "set": {1, 2},
    }  # fmt: skip
    assert unpack(pack(value)) == value
