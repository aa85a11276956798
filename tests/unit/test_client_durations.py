"""Durations and moments as users write them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyq.durations import duration_ms, moment_ms
from pyq.errors import BadOption

HOUR = 3_600_000


def ms(value: Any) -> int:
    return duration_ms(value, "delay", 0, 1_000 * HOUR)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (90, 90_000),
        (0.5, 500),
        (1.001, 1_001),
        (0.0001, 1),  # never early
        (timedelta(minutes=2), 120_000),
        ("90s", 90_000),
        ("500ms", 500),
        ("2h30m", 2 * HOUR + 30 * 60_000),
        ("1.5h", HOUR + HOUR // 2),
        ("1d", 24 * HOUR),
        ("1w", 168 * HOUR),
        (" 2H ", 2 * HOUR),
    ],
)
def test_durations(value: Any, expected: int) -> None:
    assert ms(value) == expected


@pytest.mark.parametrize(
    "value",
    [True, None, "", "90", "s", "2h 30m", "-5s", "1y", "1e3s", "٣s", [], b"1s", "9" * 100 + "s"],
)
def test_what_is_no_duration_is_refused_by_name(value: Any) -> None:
    with pytest.raises(BadOption, match=r"delay .* is not a duration"):
        ms(value)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        pytest.param(10**5_000, id="huge"),
        timedelta(days=-1),
        "900w",
    ],
)
def test_bounds_are_named(value: Any) -> None:
    with pytest.raises(BadOption, match=r"delay .* is not a duration from 0 s to"):
        ms(value)


def test_moments_are_aware() -> None:
    assert moment_ms(datetime(1970, 1, 2, tzinfo=UTC), "run_at") == 24 * HOUR
    with pytest.raises(BadOption, match=r"run_at .* has no time zone"):
        moment_ms(datetime(2026, 1, 1), "run_at")
    with pytest.raises(BadOption, match="run_at 5 is not a datetime"):
        moment_ms(5, "run_at")


def test_a_moment_in_summer_time_is_the_moment_meant() -> None:
    summer = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))

    assert moment_ms(summer, "run_at") == moment_ms(datetime(2026, 7, 1, 10, tzinfo=UTC), "run_at")
