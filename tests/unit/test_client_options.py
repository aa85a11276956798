"""Options as users write them, as the map that travels."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pyq
from pyq.codec import unpack
from pyq.errors import BadOption
from pyq.given_options import JobOptions, options_to_user, options_to_wire
from pyq.options import OPTION_NAMES, check_options


def test_the_wire_map_is_what_the_shard_checks() -> None:
    wire = options_to_wire(
        {
            "delay": "90s",
            "priority": 5,
            "attempts": 7,
            "backoff": [1, "2s", timedelta(seconds=3)],
            "timeout": 2.5,
            "job_id": "invoice-42",
            "keep_completed": False,
        }
    )
    options = check_options(wire)

    assert (options.delay_ms, options.priority, options.attempts) == (90_000, 5, 7)
    assert options.backoff.steps_ms == (1_000, 2_000, 3_000)
    assert (options.timeout_ms, options.job_id, options.keep_completed) == (
        2_500,
        "invoice-42",
        False,
    )


def test_a_single_duration_is_a_fixed_backoff() -> None:
    backoff = check_options(options_to_wire({"backoff": "2h"})).backoff

    assert (backoff.base_ms, backoff.factor, backoff.jitter) == (7_200_000, 1.0, 0.0)
    assert backoff.cap_ms >= backoff.base_ms


def test_exponential_is_checked() -> None:
    backoff = check_options(options_to_wire({"backoff": pyq.exponential("2s", cap="1m")})).backoff

    assert (backoff.base_ms, backoff.factor, backoff.cap_ms) == (2_000, 2.0, 60_000)
    with pytest.raises(BadOption, match="backoff factor 0"):
        options_to_wire({"backoff": pyq.exponential(factor=0)})


def test_an_item_may_override_the_common_time_with_the_other_kind() -> None:
    common = check_options(options_to_wire({"delay": 60}))
    own = options_to_wire({"run_at": datetime(2026, 1, 1, tzinfo=UTC)})

    assert check_options(own, common).delay_ms == 0


def test_what_is_not_given_does_not_travel_and_what_is_given_does() -> None:
    # The queue may have other defaults: an explicit 3 must win over them.
    assert options_to_wire({}) == {}
    assert options_to_wire(dict.fromkeys(JobOptions.__annotations__)) == {}
    assert options_to_wire({"attempts": 3, "priority": 0, "lifo": False}) == {
        "attempts": 3, "priority": 0, "lifo": False,
    }  # fmt: skip
    assert options_to_wire({"timeout": "none", "ttl": "none", "tags": []}) == {
        "timeout_ms": 0, "ttl_ms": 0, "tags": [],
    }  # fmt: skip
    assert options_to_wire({"delay": 0}) == {"delay_ms": 0, "run_at": 0}


def test_every_option_has_a_type_and_reaches_the_wire() -> None:
    options: JobOptions = {
        "delay": "1m", "priority": 1, "lifo": True, "attempts": 2, "backoff": 1, "timeout": 5,
        "ttl": "2h", "job_id": "a", "unique": "k", "on_conflict": "extend", "unique_ttl": "1h",
        "tags": ["x", "y", "x"], "meta": {"trace": 7}, "keep_completed": "7d",
        "depends_on": "0197c0de-0000-7000-8000-000000000001", "on_dep_fail": "hold",
        "dep_timeout": "1h",
    }  # fmt: skip
    checked = check_options(options_to_wire(options))

    assert (checked.ttl_ms, checked.unique_ttl_ms) == (7_200_000, 3_600_000)
    assert (checked.unique, checked.on_conflict, checked.lifo) == ("k", "extend", True)
    assert (checked.tags, unpack(checked.meta)) == (("x", "y"), {"trace": 7})
    assert check_options(options_to_wire({"group": "g"})).group == "g"
    given = set(options) | {"group", "run_at"}
    assert given == set(JobOptions.__annotations__)
    not_for_users = {"keep", "keep_count", "gate"}  # in other words, or for flows only
    reached = {name.removesuffix("_ms") for name in OPTION_NAMES} - not_for_users
    assert given == reached


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, (True, 0, 0)),
        (False, (False, 0, 0)),
        (1, (True, 1, 0)),
        (250, (True, 250, 0)),
        ("1h", (True, 0, 3_600_000)),
        (timedelta(days=1), (True, 0, 86_400_000)),
    ],
)
def test_keep_completed_is_yes_or_no_or_a_number_or_an_age(value: Any, expected: Any) -> None:
    # Laid over a queue's default of another kind it must replace it.
    for base in ({}, {"keep_count": 9}, {"keep_ms": 90_000}, {"keep_completed": False}):
        options = check_options(options_to_wire({"keep_completed": value}), check_options(base))
        assert (options.keep_completed, options.keep_count, options.keep_ms) == expected


def test_defaults_of_a_queue_come_back_as_they_are_given() -> None:
    for options in (
        {},
        {"attempts": 7, "priority": -3, "lifo": True, "tags": ["x"]},
        {"delay": 5.5, "ttl": 60.0, "timeout": 2.0, "keep_completed": False},
        {"keep_completed": 9, "backoff": pyq.Backoff(5, 3.0, 70, 0.5, (1, 2))},
        {"keep_completed": timedelta(hours=1)},
    ):
        assert options_to_user(options_to_wire(options)) == options


def test_a_backoff_can_be_seen_before_it_is_used() -> None:
    assert pyq.backoff_preview(n=4) == [1, 2, 4, 8]
    assert pyq.backoff_preview()[-1] == 512
    assert pyq.backoff_preview(n=13)[-2:] == [2048, 3600]
    assert pyq.backoff_preview("5s", 3) == [5, 5, 5]
    assert pyq.backoff_preview([1, "10s"], 3) == [1, 10, 10]
    assert pyq.backoff_preview(pyq.exponential(2, factor=3, cap="1m", jitter=1), 5) == [
        2, 6, 18, 54, 60,
    ]  # fmt: skip
    assert pyq.backoff_preview(pyq.exponential(1, cap="365d"), 1_000)[-1] == 365 * 86_400
    for n in (0, 1_001, True, "3"):
        with pytest.raises(BadOption, match="is not a whole number from 1 to 1000"):
            pyq.backoff_preview(1, n)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="backoff 'soon' is not a duration"):
        pyq.backoff_preview("soon")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attemps": 3}, "unknown option 'attemps'; known are attempts, backoff, delay"),
        ({"priority": True}, "priority True is not a whole number"),
        ({"priority": 1_000_001}, "priority 1000001 is not a whole number from -1000000"),
        ({"attempts": 0}, "attempts 0 is not a whole number from 1 to 1000"),
        ({"attempts": 2.0}, "attempts 2.0"),
        ({"delay": -1}, "delay -1 is not a duration from 0 s"),
        ({"delay": True}, "delay True is not a duration"),
        ({"timeout": 0}, "timeout 0 is not a duration from 0.001 s to 86400 s"),
        ({"delay": 1, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "exclude each other"),
        ({"run_at": datetime(2026, 1, 1)}, "has no time zone"),
        ({"job_id": ""}, "job_id '' is empty"),
        ({"job_id": 5}, "job_id 5 is not a text"),
        ({"job_id": "x" * 513}, "is not a text of 1 to 512 characters"),
        ({"backoff": []}, "backoff [] is an empty list"),
        ({"backoff": "soon"}, "backoff 'soon' is not a duration"),
        ({"keep_completed": 0}, "keep_completed 0 keeps nothing; say False"),
        ({"keep_completed": -1}, "keep_completed -1 is not a number of jobs from 1 to 1000000"),
        ({"keep_completed": 1_000_001}, "keep_completed 1000001 is not a number of jobs"),
        ({"keep_completed": 1.5}, "keep_completed 1.5 is neither True nor False, nor a number"),
        ({"keep_completed": "59s"}, "keep_completed '59s' is not a duration from 60 s"),
        ({"lifo": 1}, "lifo 1 is neither true nor false"),
        ({"lifo": True, "group": "g"}, "lifo and group exclude each other"),
        ({"group": ""}, "group '' is empty; leave it out, or give 1 to 256 characters"),
        ({"group": "g" * 257}, "is not a text of 1 to 256 characters"),
        ({"ttl": 0}, "ttl 0 is not a duration from 0.001 s to 3.1536e+08 s"),
        ({"ttl": 5, "delay": 5}, "ttl of 5000 ms ends before the delay of 5000 ms"),
        ({"unique": ""}, "unique '' is empty"),
        ({"unique": 7}, "unique 7 is not a text of 1 to 512 characters"),
        ({"on_conflict": "replace"}, "belong to a unique key"),
        ({"unique_ttl": 5}, "belong to a unique key"),
        ({"unique": "k", "on_conflict": "drop"}, "on_conflict 'drop' is not one of return, rep"),
        ({"unique": "k", "unique_ttl": "366d"}, "unique_ttl '366d' is not a duration from"),
        ({"tags": "urgent"}, "tags 'urgent' is not a list of at most 20 texts"),
        ({"tags": ["x"] * 21}, "is not a list of at most 20 texts"),
        ({"tags": [""]}, "tag '' is not a text of 1 to 128 characters"),
        ({"meta": 5}, "meta 5 is not a dict"),
    ],
)
def test_refusals_name_option_value_and_bound(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadOption) as caught:
        options_to_wire(options)

    assert sentence in str(caught.value)


def test_meta_is_small_and_can_be_packed() -> None:
    with pytest.raises(pyq.TooLarge, match=r"meta has \d+ bytes packed, the limit is 4096"):
        options_to_wire({"meta": {"trace": "x" * 4_096}})
    with pytest.raises(pyq.PayloadError, match=r"meta.trace: cannot pack <class 'object'>"):
        options_to_wire({"meta": {"trace": object()}})
