"""Settings of a queue as users write them: their types, the map that travels, the way back.

What a setting means and its bounds are in `settings.py`, which is asked here before anything
is sent.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypedDict

from pyq.durations import Duration, duration_ms
from pyq.errors import BadOption
from pyq.given_options import JobOptions, options_to_user, options_to_wire
from pyq.limits import (
    AUTO_RETRIES_MAX,
    COMPLETED_MS_MIN,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    RATE_MAX,
    RATE_MS_MAX,
    SECOND_MS,
)
from pyq.options import shown
from pyq.settings import DEFAULT_SETTINGS, SETTING_NAMES, check_settings

Wire: TypeAlias = dict[str, Any]

_AS_GIVEN = (
    "paused", "concurrency", "group_concurrency", "max_stalls", "keep_count", "dead_max",
    "drop_oldest",
)  # fmt: skip
_DEAD_MS_MIN = 60 * SECOND_MS


class QueueSettings(TypedDict, total=False):
    """The settings of `Queue.configure`, explained there. None is the default."""

    concurrency: int | None
    group_concurrency: int | None
    rate: tuple[int, Duration] | None
    lease: Duration | None
    max_stalls: int | None
    keep_count: int | None
    keep_age: Duration | None
    dead_max: int | None
    drop_oldest: bool | None
    dead_age: Duration | None
    auto_retry: tuple[Duration, int] | None
    defaults: JobOptions | None
    paused: bool | None
    paused_groups: list[str] | None


def settings_to_wire(settings: Mapping[str, Any]) -> Wire:
    """Return the wire's map for settings as users write them; nil stands for the default.

    Raises BadOption, which names the setting, the value and the bound.
    """
    wire: Wire = {}
    for name, value in settings.items():
        convert = _CONVERTERS.get(name)
        if convert is None:
            raise BadOption(f"unknown setting {name!r}; known are {', '.join(sorted(_CONVERTERS))}")
        wire.update(convert(value))
    check_settings(wire, DEFAULT_SETTINGS)
    return wire


def settings_to_user(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return a queue's settings as users write them: `settings_to_wire` backwards.

    Durations are seconds, None is no limit.
    """
    now = {name: wire.get(name, getattr(DEFAULT_SETTINGS, name)) for name in SETTING_NAMES}
    rate = (now["rate_max"], _seconds(now["rate_per_ms"]))
    auto_retry = (_seconds(now["auto_retry_ms"]), now["auto_retry_max"])
    return {
        "paused": now["paused"],
        "paused_groups": list(now["paused_groups"]),
        "concurrency": now["concurrency"] or None,
        "group_concurrency": now["group_concurrency"],
        "rate": rate if now["rate_max"] else None,
        "lease": _seconds(now["lease_ms"]),
        "max_stalls": now["max_stalls"],
        "keep_count": now["keep_count"],
        "keep_age": _seconds(now["keep_ms"]),
        "dead_max": now["dead_max"],
        "drop_oldest": now["drop_oldest"],
        "dead_age": _seconds(now["dead_ms"]),
        "auto_retry": auto_retry if now["auto_retry_max"] else None,
        "defaults": options_to_user(wire.get("defaults") or {}),
    }


def _seconds(ms: int) -> float | None:
    return ms / 1_000 if ms else None


# --- one setting each -------------------------------------------------------------------------


def _as_given(name: str) -> Callable[[Any], Wire]:
    """Return a converter for a setting that users write as it travels."""
    return lambda value: {name: value}


def _duration(name: str, wire_name: str, low_ms: int, high_ms: int) -> Callable[[Any], Wire]:
    def convert(value: Any) -> Wire:
        return {wire_name: None if value is None else duration_ms(value, name, low_ms, high_ms)}

    return convert


def _rate(value: Any) -> Wire:
    if value is None:
        return {"rate_max": None, "rate_per_ms": None}
    most, per = _pair("rate", value, 'a pair of a number of jobs and a duration: (100, "1m")')
    return {
        "rate_max": _count("rate", most, RATE_MAX),
        "rate_per_ms": duration_ms(per, "rate per", 1, RATE_MS_MAX),
    }


def _auto_retry(value: Any) -> Wire:
    if value is None:
        return {"auto_retry_ms": None, "auto_retry_max": None}
    what = 'a pair of a duration and a number of times: ("10m", 3)'
    interval, times = _pair("auto_retry", value, what)
    return {
        "auto_retry_ms": duration_ms(interval, "auto_retry after", SECOND_MS, DELAY_MS_MAX),
        "auto_retry_max": _count("auto_retry times", times, AUTO_RETRIES_MAX),
    }


def _pair(name: str, value: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise BadOption(f"{name} {shown(value)} is not {what}")
    return value[0], value[1]


def _count(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise BadOption(f"{name} {shown(value)} is not a whole number from 1 to {most}")
    return value


def _defaults(value: Any) -> Wire:
    if value is None:
        return {"defaults": None}
    if not isinstance(value, Mapping):
        raise BadOption(f"defaults {shown(value)} is not a dict of options")
    options = options_to_wire(value)
    if not options.get("run_at"):
        options.pop("run_at", None)  # it came along with a delay
    return {"defaults": options}


_CONVERTERS: dict[str, Callable[[Any], Wire]] = {
    **{name: _as_given(name) for name in _AS_GIVEN},
    "paused_groups": _as_given("paused_groups"),
    "rate": _rate,
    "lease": _duration("lease", "lease_ms", LEASE_MS_MIN, LEASE_MS_MAX),
    "keep_age": _duration("keep_age", "keep_ms", COMPLETED_MS_MIN, DELAY_MS_MAX),
    "dead_age": _duration("dead_age", "dead_ms", _DEAD_MS_MIN, DELAY_MS_MAX),
    "auto_retry": _auto_retry,
    "defaults": _defaults,
}
