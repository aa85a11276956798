"""Options as users write them: their types, the map that travels, and the way back.

What an option means and its bounds are in `options.py`, which is asked here before anything
is sent. An option that is not given is not sent: the queue may have a default of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from pyq.backoff import backoff_ms
from pyq.codec import pack
from pyq.durations import Duration, duration_ms, moment_ms
from pyq.errors import BadOption
from pyq.limits import (
    ATTEMPTS_MAX,
    BACKOFF_BASE_MS_MAX,
    BACKOFF_CAP_MS_MAX,
    COMPLETED_KEPT_MAX,
    COMPLETED_MS_MIN,
    DELAY_MS_MAX,
    DEP_TIMEOUT_MS_MAX,
    HOUR_MS,
    META_BYTES_MAX,
    TIMEOUT_MS_MAX,
    TTL_MS_MAX,
    UNIQUE_MS_MAX,
)
from pyq.options import DEFAULT_OPTIONS, Backoff, Options, check_options, shown
from pyq.references import dependency_ids

if TYPE_CHECKING:
    from pyq.handle import Job

BackoffLike: TypeAlias = Backoff | Duration | list[Duration] | tuple[Duration, ...]
Wire: TypeAlias = dict[str, Any]
# A handle, an id as text, or several of them.
DependsOn: TypeAlias = "Job | str | Iterable[Job | str]"

NO_LIMIT = "none"  # as a timeout or ttl: none, although the queue has a default
_WITHOUT_JITTER = 0.5  # the share in the middle


class JobOptions(TypedDict, total=False):
    """The options of `Queue.add`, explained there. None is the same as not given."""

    delay: Duration | None
    run_at: datetime | None
    priority: int | None
    lifo: bool | None
    attempts: int | None
    backoff: BackoffLike | None
    timeout: Duration | None
    ttl: Duration | None
    job_id: str | None
    unique: str | None
    on_conflict: Literal["return", "replace", "extend"] | None
    unique_ttl: Duration | None
    group: str | None
    tags: list[str] | tuple[str, ...] | None
    meta: Mapping[str, Any] | None
    keep_completed: bool | int | timedelta | str | None
    depends_on: "DependsOn | None"
    on_dep_fail: Literal["fail", "ignore", "hold"] | None
    dep_timeout: Duration | None


def options_to_wire(options: Mapping[str, Any], base: Options = DEFAULT_OPTIONS) -> Wire:
    """Return the wire's map for options as users write them, checked as laid over `base`.

    Raises BadOption, which names the option, the value and the bound; for `meta` also
    PayloadError and TooLarge.
    """
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise BadOption("delay and run_at exclude each other; give one of them")
    wire: Wire = {}
    for name, value in options.items():
        convert = _CONVERTERS.get(name)
        if convert is None:
            raise BadOption(f"unknown option {name!r}; known are {', '.join(sorted(_CONVERTERS))}")
        if value is not None:
            wire.update(convert(value))
    check_options(wire, base)
    return wire


def options_to_user(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a queue's defaults may hold as users write them.

    Durations are seconds, the age in `keep_completed` a timedelta; what says nothing is left out.
    """
    given = {name: wire[name] for name in ("priority", "attempts", "lifo") if name in wire}
    if "backoff" in wire:
        given["backoff"] = check_options({"backoff": wire["backoff"]}).backoff
    for name in ("delay", "timeout", "ttl"):
        if wire.get(f"{name}_ms"):
            given[name] = wire[f"{name}_ms"] / 1_000
    if wire.get("tags"):
        given["tags"] = list(wire["tags"])
    if wire.get("keep_count"):
        given["keep_completed"] = wire["keep_count"]
    elif wire.get("keep_ms"):
        given["keep_completed"] = timedelta(milliseconds=wire["keep_ms"])
    elif wire.get("keep_completed") is False:
        given["keep_completed"] = False
    return given


# --- backoff ----------------------------------------------------------------------------------


def exponential(
    base: Duration = 1, *, factor: float = 2.0, cap: Duration = "1h", jitter: float = 0.2
) -> Backoff:
    """Return a backoff: before attempt n+1 it waits min(cap, base x factor^(n-1)), varied by
    +- `jitter` (0 to 1). `base` goes up to a day, `cap` to 365 days, `factor` from 1 to 100.
    """
    return Backoff(
        duration_ms(base, "base", 0, BACKOFF_BASE_MS_MAX),
        factor,
        duration_ms(cap, "cap", 0, BACKOFF_CAP_MS_MAX),
        jitter,
    )


def backoff_preview(backoff: BackoffLike | None = None, n: int = 10) -> list[float]:
    """Return the seconds that a job waits before its attempts 2, 3, ... n+1, without jitter.

    `backoff` is what `Queue.add` takes, None its default; `n` is 1 to 1,000. Raises BadOption.
    """
    if type(n) is not int or not 1 <= n <= ATTEMPTS_MAX:
        raise BadOption(f"n {shown(n)} is not a whole number from 1 to {ATTEMPTS_MAX}")
    checked = check_options(options_to_wire({"backoff": backoff})).backoff
    failures = range(1, n + 1)
    return [backoff_ms(checked, failed, _WITHOUT_JITTER) / 1_000 for failed in failures]


# --- one option each --------------------------------------------------------------------------


def _as_given(name: str) -> Callable[[Any], Wire]:
    """Return a converter for an option that users write as it travels."""
    return lambda value: {name: value}


def _text(name: str, what: str) -> Callable[[Any], Wire]:
    """Return a converter for a text; empty would mean none on the wire."""

    def convert(value: Any) -> Wire:
        if value == "":
            raise BadOption(f"{name} '' is empty; leave it out, or give {what}")
        return {name: value}

    return convert


def _delay(value: Any) -> Wire:
    return {"delay_ms": duration_ms(value, "delay", 0, DELAY_MS_MAX), "run_at": 0}


def _run_at(value: Any) -> Wire:
    return {"run_at": moment_ms(value, "run_at"), "delay_ms": 0}


def _limit(name: str, longest_ms: int) -> Callable[[Any], Wire]:
    """Return a converter for a duration that "none" switches off."""

    def convert(value: Any) -> Wire:
        if value == NO_LIMIT:
            return {f"{name}_ms": 0}
        return {f"{name}_ms": duration_ms(value, name, 1, longest_ms)}

    return convert


def _unique_ttl(value: Any) -> Wire:
    return {"unique_ttl_ms": duration_ms(value, "unique_ttl", 1, UNIQUE_MS_MAX)}


def _backoff(value: Any) -> Wire:
    if isinstance(value, Backoff):
        return {"backoff": value.to_wire()}
    if isinstance(value, list | tuple):
        if not value:
            raise BadOption("backoff [] is an empty list; give at least one delay")
        steps = [duration_ms(step, "backoff step", 0, BACKOFF_CAP_MS_MAX) for step in value]
        return {"backoff": Backoff(jitter=0.0, steps_ms=tuple(steps)).to_wire()}
    base_ms = duration_ms(value, "backoff", 0, BACKOFF_BASE_MS_MAX)
    return {"backoff": Backoff(base_ms, 1.0, max(base_ms, HOUR_MS), 0.0).to_wire()}


def _meta(value: Any) -> Wire:
    if not isinstance(value, Mapping):
        raise BadOption(f"meta {shown(value)} is not a dict")
    return {"meta": pack(dict(value), "meta", META_BYTES_MAX)}


def _dep_timeout(value: Any) -> Wire:
    return {"dep_timeout_ms": duration_ms(value, "dep_timeout", 1, DEP_TIMEOUT_MS_MAX)}


def _keep_completed(value: Any) -> Wire:
    """All three names travel, so that one form replaces another that is the queue's default."""
    kept: Wire = {"keep_completed": True, "keep_count": 0, "keep_ms": 0}
    if isinstance(value, bool):
        kept["keep_completed"] = value
    elif isinstance(value, int):
        kept["keep_count"] = _kept_count(value)
    elif isinstance(value, timedelta | str):
        age_ms = duration_ms(value, "keep_completed", COMPLETED_MS_MIN, DELAY_MS_MAX)
        kept["keep_ms"] = age_ms
    else:
        raise BadOption(
            f"keep_completed {shown(value)} is neither True nor False, nor a number of jobs, "
            'nor an age (a timedelta, or text such as "7d")'
        )
    return kept


def _kept_count(value: int) -> int:
    if value == 0:
        raise BadOption("keep_completed 0 keeps nothing; say False for that")
    if not 1 <= value <= COMPLETED_KEPT_MAX:
        raise BadOption(
            f"keep_completed {shown(value)} is not a number of jobs from 1 to {COMPLETED_KEPT_MAX}"
        )
    return value


_CONVERTERS: dict[str, Callable[[Any], Wire]] = {
    "delay": _delay,
    "run_at": _run_at,
    "priority": _as_given("priority"),
    "lifo": _as_given("lifo"),
    "attempts": _as_given("attempts"),
    "backoff": _backoff,
    "timeout": _limit("timeout", TIMEOUT_MS_MAX),
    "ttl": _limit("ttl", TTL_MS_MAX),
    "job_id": _text("job_id", "1 to 512 characters"),
    "unique": _text("unique", "1 to 512 characters"),
    "on_conflict": _as_given("on_conflict"),
    "unique_ttl": _unique_ttl,
    "group": _text("group", "1 to 256 characters"),
    "tags": _as_given("tags"),
    "meta": _meta,
    "keep_completed": _keep_completed,
    "depends_on": lambda value: {"depends_on": dependency_ids(value)},
    "on_dep_fail": _as_given("on_dep_fail"),
    "dep_timeout": _dep_timeout,
}
