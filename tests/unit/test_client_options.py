"""Options as users write them, as the map that travels."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pyq
from pyq.errors import BadOption
from pyq.options import check_options
from pyq.queue import options_to_wire


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
        ({"keep_completed": 1}, "keep_completed 1 is neither true nor false"),
    ],
)
def test_refusals_name_option_value_and_bound(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadOption) as caught:
        options_to_wire(options)

    assert sentence in str(caught.value)
