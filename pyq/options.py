"""Options of a job: what they mean on the wire, their defaults and their bounds.

Checked by the client before it sends and by the shard again, with the same code, so
both refuse the same value with the same sentence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyq.errors import BadOption
from pyq.limits import (
    ATTEMPTS_MAX,
    BACKOFF_BASE_MS_MAX,
    BACKOFF_CAP_MS_MAX,
    BACKOFF_FACTOR_MAX,
    BACKOFF_STEPS_MAX,
    COMPLETED_KEPT_MAX,
    COMPLETED_MS_MIN,
    DELAY_MS_MAX,
    DEP_TIMEOUT_MS_MAX,
    DEPENDS_MAX,
    GROUP_MAX,
    HOUR_MS,
    JOB_ID_MAX,
    META_BYTES_MAX,
    NAME_MAX,
    PRIORITY_MAX,
    QUEUE_NAME_MAX,
    SECOND_MS,
    TAG_MAX,
    TAGS_MAX,
    TIMEOUT_MS_MAX,
    TTL_MS_MAX,
    UNIQUE_MAX,
    UNIQUE_MS_MAX,
)

# What a push does that finds its unique key held.
ON_CONFLICT = ("return", "replace", "extend")
# What becomes of a job when one it depends on fails for good.
ON_DEP_FAIL = ("fail", "ignore", "hold")
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before attempt n+1 after n failures.

    `steps_ms`, if given, is an explicit list whose last entry repeats; otherwise the
    delay is min(cap, base x factor^(n-1)). Either is varied by +-`jitter` (a share).
    """

    base_ms: int = 1 * SECOND_MS
    factor: float = 2.0
    cap_ms: int = 1 * HOUR_MS
    jitter: float = 0.2
    steps_ms: tuple[int, ...] = ()

    def to_wire(self) -> list[Any]:
        """Return the wire form: [base_ms, factor, cap_ms, jitter, [steps_ms...]]."""
        return [self.base_ms, self.factor, self.cap_ms, self.jitter, list(self.steps_ms)]


@dataclass(frozen=True, slots=True)
class Options:
    """All options of one job, checked. The wire form is a map of the names that differ."""

    priority: int = 0
    delay_ms: int = 0
    run_at: int = 0  # wall milliseconds; 0: none
    attempts: int = 3
    backoff: Backoff = Backoff()
    timeout_ms: int = 0  # 0: none
    job_id: str = ""  # custom id; empty: none
    keep_completed: bool = True  # false: only a tombstone stays
    keep_count: int = 0  # kept until so many later ones completed; 0: the queue decides
    keep_ms: int = 0  # kept for this long; 0: the queue decides
    lifo: bool = False
    ttl_ms: int = 0  # 0: none
    unique: str = ""  # key; empty: none
    on_conflict: str = "return"
    unique_ttl_ms: int = 0  # 0: the key is held until the job ends
    group: str = ""  # FIFO group; empty: none
    tags: tuple[str, ...] = ()
    meta: bytes = b""
    depends_on: tuple[bytes, ...] = ()  # ids of jobs that must complete first
    on_dep_fail: str = "fail"
    dep_timeout_ms: int = 0  # longest time blocked; 0: no limit
    gate: bytes = b""  # id of the gate of its flow: a job that is gone if the gate never opens
    # True if nothing but its state changes when such a job completes: the fast path.
    plain: bool = field(init=False, compare=False, repr=False)
    edges: tuple[bytes, ...] = field(init=False, compare=False, repr=False)  # all it waits for

    def __post_init__(self) -> None:
        special = (
            self.job_id
            or self.unique
            or self.group
            or not self.keep_completed
            or self.keep_count
            or self.keep_ms
            or self.depends_on
            or self.gate
        )
        object.__setattr__(
            self, "edges", (self.gate, *self.depends_on) if self.gate else self.depends_on
        )
        object.__setattr__(self, "plain", not special)

    def to_wire(self) -> dict[str, Any] | None:
        """Return the map for the wire and the store, or None if all are defaults."""
        wire: dict[str, Any] = {}
        for name, default in _DEFAULTS:
            value = getattr(self, name)
            if value != default:
                wire[name] = value.to_wire() if name == "backoff" else value
        return wire or None


DEFAULT_OPTIONS = Options()


def check_options(wire: Mapping[str, Any] | None, base: Options = DEFAULT_OPTIONS) -> Options:
    """Return `base` overlaid with the map `wire`.

    Raises BadOption, whose sentence names the option, the value and the bound.
    """
    if not wire:
        return base
    values: dict[str, Any] = {name: getattr(base, name) for name in OPTION_NAMES}
    for name, value in wire.items():
        check = _CHECKS.get(name)
        if check is None:
            raise BadOption(
                f"unknown option {shown(name)}; known are {', '.join(sorted(OPTION_NAMES))}"
            )
        values[name] = check(name, value)
    _check_together(values)
    return Options(**values)


def _check_together(values: Mapping[str, Any]) -> None:
    """Refuse what no job can have at once."""
    if values["delay_ms"] and values["run_at"]:
        raise BadOption("delay and run_at exclude each other; give one of them")
    if values["lifo"] and values["group"]:
        raise BadOption("lifo and group exclude each other: a group runs in order of arrival")
    if values["keep_count"] and values["keep_ms"]:
        raise BadOption("keep_completed is a number of jobs or an age, not both")
    if values["ttl_ms"] and values["ttl_ms"] <= values["delay_ms"]:
        raise BadOption(
            f"ttl of {values['ttl_ms']} ms ends before the delay of {values['delay_ms']} ms;"
            " give a longer ttl"
        )
    if not values["depends_on"] and values["dep_timeout_ms"]:
        raise BadOption("dep_timeout belongs to depends_on; give depends_on, too")
    if not values["unique"] and (values["unique_ttl_ms"] or values["on_conflict"] != "return"):
        raise BadOption("on_conflict and unique_ttl belong to a unique key; give unique, too")


def check_name(name: Any, what: str = "name", longest: int = NAME_MAX) -> str:
    """Return `name` if it is 1 to `longest` characters without NUL, or raise BadOption."""
    if not isinstance(name, str) or not 1 <= len(name) <= longest or "\0" in name:
        raise BadOption(
            f"{what} {shown(name)} is not a text of 1 to {longest} characters without NUL"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadOption(f"{what} {shown(name)} cannot be written as UTF-8") from None
    return name


def check_queue(queue: Any) -> str:
    """Return `queue` if it may name a queue (1 to 256 characters, no NUL), else raise BadOption."""
    return check_name(queue, "queue", QUEUE_NAME_MAX)


def _integer(low: int, high: int) -> Callable[[str, Any], int]:
    def check(option: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadOption(f"{option} {shown(value)} is not a whole number from {low} to {high}")
        return value

    return check


def _boolean(option: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadOption(f"{option} {shown(value)} is neither true nor false")
    return value


def _text_or_none(longest: int) -> Callable[[str, Any], str]:
    """Check a text that may be empty, which means: none."""

    def check(option: str, value: Any) -> str:
        return "" if value == "" else check_name(value, option, longest)

    return check


def _one_of(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(option: str, value: Any) -> str:
        if value not in words:
            raise BadOption(f"{option} {shown(value)} is not one of {', '.join(words)}")
        return str(value)

    return check


def _gate(option: str, value: Any) -> bytes:
    if type(value) is not bytes or len(value) not in (0, _ID_BYTES):
        raise BadOption(f"{option} {shown(value)} is not an id of {_ID_BYTES} bytes")
    return value


def _dependencies(option: str, value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list | tuple) or len(value) > DEPENDS_MAX:
        raise BadOption(f"{option} {shown(value)} is not a list of at most {DEPENDS_MAX} jobs")
    if any(type(job_id) is not bytes or len(job_id) != _ID_BYTES for job_id in value):
        raise BadOption(f"{option} {shown(value)} is not a list of ids of {_ID_BYTES} bytes")
    return tuple(dict.fromkeys(value))


def _zero_or(low: int, high: int) -> Callable[[str, Any], int]:
    """Check a whole number that may also be 0, which means: none."""

    def check(option: str, value: Any) -> int:
        if type(value) is not int or (value and not low <= value <= high):
            raise BadOption(
                f"{option} {shown(value)} is not a whole number from {low} to {high}, nor 0"
            )
        return value

    return check


def _tags(option: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > TAGS_MAX:
        raise BadOption(f"{option} {shown(value)} is not a list of at most {TAGS_MAX} texts")
    return tuple(dict.fromkeys(check_name(tag, "tag", TAG_MAX) for tag in value))


def _meta(option: str, value: Any) -> bytes:
    if type(value) is not bytes:
        raise BadOption(f"{option} {shown(value)} is not bytes")
    if len(value) > META_BYTES_MAX:
        raise BadOption(f"{option} has {len(value)} bytes packed, the limit is {META_BYTES_MAX}")
    return value


def _number(option: str, value: Any, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:  # NaN fails both comparisons
        raise BadOption(f"{option} {shown(value)} is not a number from {low} to {high}")
    return float(value)


def _backoff(option: str, value: Any) -> Backoff:
    if not isinstance(value, list | tuple) or len(value) != 5:
        raise BadOption(
            f"{option} {shown(value)} is not [base_ms, factor, cap_ms, jitter, steps_ms]"
        )
    base_ms, factor, cap_ms, jitter, steps_ms = value
    if not isinstance(steps_ms, list | tuple) or len(steps_ms) > BACKOFF_STEPS_MAX:
        raise BadOption(f"{option} steps are not a list of at most {BACKOFF_STEPS_MAX} delays")
    step = _integer(0, BACKOFF_CAP_MS_MAX)
    return Backoff(
        _integer(0, BACKOFF_BASE_MS_MAX)("backoff base_ms", base_ms),
        _number("backoff factor", factor, 1, BACKOFF_FACTOR_MAX),
        _integer(0, BACKOFF_CAP_MS_MAX)("backoff cap_ms", cap_ms),
        _number("backoff jitter", jitter, 0, 1),
        tuple(step("backoff step", item) for item in steps_ms),
    )


def shown(value: Any) -> str:
    """Return a value as an error message shows it: at most 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python is willing to write
        text = f"of {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "priority": _integer(-PRIORITY_MAX, PRIORITY_MAX),
    "delay_ms": _integer(0, DELAY_MS_MAX),
    "run_at": _integer(0, 1 << 53),
    "attempts": _integer(1, ATTEMPTS_MAX),
    "backoff": _backoff,
    "timeout_ms": _integer(0, TIMEOUT_MS_MAX),
    "job_id": _text_or_none(JOB_ID_MAX),
    "keep_completed": _boolean,
    "keep_count": _zero_or(1, COMPLETED_KEPT_MAX),
    "keep_ms": _zero_or(COMPLETED_MS_MIN, DELAY_MS_MAX),
    "lifo": _boolean,
    "ttl_ms": _zero_or(1, TTL_MS_MAX),
    "unique": _text_or_none(UNIQUE_MAX),
    "on_conflict": _one_of(ON_CONFLICT),
    "unique_ttl_ms": _zero_or(1, UNIQUE_MS_MAX),
    "group": _text_or_none(GROUP_MAX),
    "tags": _tags,
    "meta": _meta,
    "depends_on": _dependencies,
    "on_dep_fail": _one_of(ON_DEP_FAIL),
    "dep_timeout_ms": _zero_or(1, DEP_TIMEOUT_MS_MAX),
    "gate": _gate,
}
OPTION_NAMES = tuple(_CHECKS)
_DEFAULTS = tuple((name, getattr(DEFAULT_OPTIONS, name)) for name in OPTION_NAMES)
