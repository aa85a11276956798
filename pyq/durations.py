"""Durations and moments as users write them, as the integer milliseconds of the wire.

A duration is seconds (int or float), a timedelta, or text such as "90s" or "2h30m".
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from pyq.errors import BadOption

Duration: TypeAlias = int | float | timedelta | str

_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_SHOWN_MAX = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration_ms(value: Any, option: str, low_ms: int, high_ms: int) -> int:
    """Return a duration as whole milliseconds, rounded up, so that nothing is ever early.

    Raises BadOption, which names `option`, the value and the bounds.
    """
    exact_ms = _exact_ms(value)
    if exact_ms is None:
        raise BadOption(
            f"{option} {_shown(value)} is not a duration: give seconds, a timedelta, "
            'or text such as "90s", "500ms" or "2h30m"'
        )
    if not low_ms <= exact_ms <= high_ms:  # NaN fails this too
        raise BadOption(
            f"{option} {_shown(value)} is not a duration from {low_ms / 1000:g} s "
            f"to {high_ms / 1000:g} s"
        )
    return math.ceil(round(exact_ms, 6))  # 1.001 s is 1000.9999999999999 ms


def moment_ms(value: Any, option: str) -> int:
    """Return an aware datetime as milliseconds since 1970, or raise BadOption."""
    if not isinstance(value, datetime):
        raise BadOption(f"{option} {_shown(value)} is not a datetime")
    if value.utcoffset() is None:
        raise BadOption(
            f"{option} {_shown(value)} has no time zone; use datetime.now(timezone.utc) or a zone"
        )
    return max(1, math.ceil((value - _EPOCH) / timedelta(milliseconds=1)))


def _exact_ms(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value * 1_000
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, str):
        return _text_ms(value)
    return None


def _text_ms(text: str) -> float | None:
    compact = text.strip().lower()
    if len(compact) > _SHOWN_MAX or not _WHOLE.fullmatch(compact):
        return None
    return sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(compact))


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more than 4,300 digits
        text = f"of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
