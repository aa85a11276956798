"""Settings of a queue: what they mean on the wire, their defaults and their bounds.

Kept by the queue's shard. Checked by the client before it sends and by the shard again,
with the same code, as options are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyq.errors import BadOption
from pyq.limits import (
    AUTO_RETRIES_MAX,
    COMPLETED_KEPT_DEFAULT,
    COMPLETED_KEPT_MAX,
    COMPLETED_MS_MIN,
    CONCURRENCY_LIMIT_MAX,
    DEAD_MAX,
    DEAD_MAX_DEFAULT,
    DELAY_MS_MAX,
    GROUP_CONCURRENCY_MAX,
    GROUP_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    MAX_STALLS_DEFAULT,
    MAX_STALLS_MAX,
    PAUSED_GROUPS_MAX,
    RATE_MAX,
    RATE_MS_MAX,
    SECOND_MS,
)
from pyq.options import DEFAULT_OPTIONS, Options, check_name, check_options, shown

# What belongs to one job cannot be a default of all.
NO_DEFAULTS = (
    *("job_id", "unique", "on_conflict", "unique_ttl_ms", "group", "run_at", "meta"),
    *("depends_on", "dep_timeout_ms", "gate"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one queue, checked. The wire form is a map of the names that differ."""

    paused: bool = False
    paused_groups: tuple[str, ...] = ()  # sorted
    concurrency: int = 0  # leases at once; 0: no limit
    group_concurrency: int = 1  # leases of one group at once
    rate_max: int = 0  # leases in any rate_per_ms; 0: no limit
    rate_per_ms: int = 0
    lease_ms: int = 0  # length of a lease; 0: the worker decides
    max_stalls: int = MAX_STALLS_DEFAULT  # dead when there are more
    keep_count: int = COMPLETED_KEPT_DEFAULT  # completed jobs kept
    keep_ms: int = 0  # ... and how long; 0: however old
    dead_max: int = DEAD_MAX_DEFAULT  # dead letters before health warns
    drop_oldest: bool = False  # ... or before the oldest is forgotten
    dead_ms: int = 0  # how long dead letters are kept; 0: until purged
    auto_retry_ms: int = 0  # a dead job is retried after this long, then twice, ...; 0: never
    auto_retry_max: int = 0  # so many times
    defaults: Options = DEFAULT_OPTIONS  # of jobs that do not say otherwise

    @property
    def limited(self) -> bool:
        """True if a waiting job may have to wait although somebody asks for it."""
        return self.paused or bool(self.concurrency or self.rate_max)

    def to_wire(self) -> dict[str, Any]:
        """Return the map for the wire and the store."""
        wire: dict[str, Any] = {}
        for name in SETTING_NAMES:
            value = getattr(self, name)
            if value != getattr(DEFAULT_SETTINGS, name):
                wire[name] = value.to_wire() if name == "defaults" else value
        return wire


def check_settings(wire: Mapping[str, Any], base: Settings) -> Settings:
    """Return `base` overlaid with the map `wire`; nil stands for the default.

    Raises BadOption, whose sentence names the setting, the value and the bound.
    """
    values: dict[str, Any] = {name: getattr(base, name) for name in SETTING_NAMES}
    for name, value in wire.items():
        check = _CHECKS.get(name)
        if check is None:
            known = ", ".join(sorted(SETTING_NAMES))
            raise BadOption(f"unknown setting {shown(name)}; known are {known}")
        values[name] = getattr(DEFAULT_SETTINGS, name) if value is None else check(name, value)
    if bool(values["rate_max"]) != bool(values["rate_per_ms"]):
        raise BadOption("a rate is two numbers: rate_max leases in any rate_per_ms")
    if bool(values["auto_retry_ms"]) != bool(values["auto_retry_max"]):
        raise BadOption("auto-retry is two numbers: after auto_retry_ms, auto_retry_max times")
    return Settings(**values)


def _integer(low: int, high: int) -> Callable[[str, Any], int]:
    def check(setting: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadOption(f"{setting} {shown(value)} is not a whole number from {low} to {high}")
        return value

    return check


def _boolean(setting: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadOption(f"{setting} {shown(value)} is neither true nor false")
    return value


def _groups(setting: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > PAUSED_GROUPS_MAX:
        raise BadOption(
            f"{setting} {shown(value)} is not a list of at most {PAUSED_GROUPS_MAX} groups"
        )
    return tuple(sorted({check_name(group, "group", GROUP_MAX) for group in value}))


def _defaults(setting: str, value: Any) -> Options:
    if not isinstance(value, Mapping):
        raise BadOption(f"{setting} {shown(value)} is not a map of options")
    for name in NO_DEFAULTS:
        if name in value:
            raise BadOption(f"{name} belongs to one job; it cannot be a default of a queue")
    return check_options(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "paused": _boolean,
    "paused_groups": _groups,
    "concurrency": _integer(1, CONCURRENCY_LIMIT_MAX),
    "group_concurrency": _integer(1, GROUP_CONCURRENCY_MAX),
    "rate_max": _integer(1, RATE_MAX),
    "rate_per_ms": _integer(1, RATE_MS_MAX),
    "lease_ms": _integer(LEASE_MS_MIN, LEASE_MS_MAX),
    "max_stalls": _integer(0, MAX_STALLS_MAX),
    "keep_count": _integer(0, COMPLETED_KEPT_MAX),
    "keep_ms": _integer(COMPLETED_MS_MIN, DELAY_MS_MAX),
    "dead_max": _integer(1, DEAD_MAX),
    "drop_oldest": _boolean,
    "dead_ms": _integer(60 * SECOND_MS, DELAY_MS_MAX),
    "auto_retry_ms": _integer(SECOND_MS, DELAY_MS_MAX),
    "auto_retry_max": _integer(1, AUTO_RETRIES_MAX),
    "defaults": _defaults,
}
SETTING_NAMES = tuple(_CHECKS)
DEFAULT_SETTINGS = Settings()
