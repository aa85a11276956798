"""Which moments a schedule names: patterns and intervals, time zones, and the ticks that follow.

Asks no clock: times come with each call. A pattern is stepped through by cronsim on wall-clock
times without a zone; which moments those are is decided here, where clocks are changed, too.
cronsim, zoneinfo and tzdata are imported when they are needed first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any

from pyq.errors import BadOption
from pyq.limits import DELAY_MS_MAX, EVERY_MS_MIN, TICKS_MAX
from pyq.options import shown

OVERLAP = ("skip", "allow")
MISFIRE = ("skip", "once", "all")
PATTERN_MAX = 200  # characters
ZONE_MAX = 64
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Name, lowest and highest value of each field, the optional one first.
FIELDS = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day-of-month", 1, 31),
    ("month", 1, 12),
    ("day-of-week", 0, 7),
)
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_NAMES = {
    **{day: number for number, day in enumerate(_DAYS)},
    **{month: number for number, month in enumerate(_MONTHS, 1)},
}
_FORM = "minute hour day-of-month month day-of-week, and a second in front of them if you like"
_MOMENT_MAX = 250_000_000_000_000  # in the year 9892: some years before datetime ends
_LAST_DAY = 2_900_000  # since 1970
_LIMIT_MAX = 1_000_000_000
_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
_LONG_AGO = datetime(2000, 1, 1)


@dataclass(frozen=True, slots=True)
class Cron:
    """When a schedule fires, and what if it cannot; checked. The wire form is a map."""

    pattern: str = ""  # five fields, six with seconds in front, or a macro
    every_ms: int = 0  # or this interval
    zone: str = "UTC"  # of the pattern
    start_at: int = 0  # no tick before; 0: none
    end_at: int = 0  # ... or after
    limit: int = 0  # jobs that are created in all; 0: no limit
    overlap: str = "skip"  # a tick while the last job has not ended: skip or allow
    misfire: str = "once"  # of ticks that were missed: skip, once (the newest) or all

    def to_wire(self) -> dict[str, Any]:
        """Return the map of the names that differ from their defaults."""
        named = ((name, getattr(self, name)) for name in Cron.__slots__)
        return {name: value for name, value in named if value != getattr(_DEFAULTS, name)}


_DEFAULTS = Cron()


def check_cron(wire: Mapping[str, Any]) -> Cron:
    """Return what a map says, checked.

    Raises BadOption, whose sentence names the option, the value and the bound.
    """
    for name in wire:
        if name not in _CHECKS:
            known = ", ".join(_CHECKS)
            raise BadOption(f"unknown option {shown(name)} of a schedule; known are {known}")
    cron = Cron(**{name: _CHECKS[name](name, value) for name, value in wire.items()})
    if bool(cron.pattern) == bool(cron.every_ms):
        raise BadOption("a schedule has either a pattern or every; give one of them")
    if cron.every_ms and cron.zone != "UTC":
        raise BadOption(f"zone {cron.zone} belongs to a pattern; every goes by elapsed time")
    if cron.end_at and cron.end_at < cron.start_at:
        raise BadOption("end is before start; nothing would ever fire")
    return cron


# --- ticks ------------------------------------------------------------------------------------


def next_ticks(cron: Cron, after_ms: int, n: int = 1, anchor_ms: int = 0) -> list[int]:
    """Return the first `n` ticks after a millisecond since 1970; fewer if there are no more.

    Intervals are counted from `start_at`, else from `anchor_ms`, which is no tick itself.
    """
    return list(islice(_ticks(cron, after_ms, anchor_ms), n))


def last_ticks(cron: Cron, after_ms: int, until_ms: int, n: int, anchor_ms: int = 0) -> list[int]:
    """Return the last `n` ticks after `after_ms` and not after `until_ms`, in order.

    Costs in proportion to `n`, however many ticks there are.
    """
    reach_ms = max(60, n) * (cron.every_ms or 1_000)
    while True:
        begin_ms = max(after_ms, until_ms - reach_ms)
        found: list[int] = []
        for tick in _ticks(cron, begin_ms, anchor_ms):
            if tick > until_ms:
                break
            found.append(tick)
        if len(found) >= n or begin_ms == after_ms:
            return found[-n:]
        reach_ms *= 4


def _ticks(cron: Cron, after_ms: int, anchor_ms: int) -> Iterator[int]:
    ticks = _intervals(cron, after_ms, anchor_ms) if cron.every_ms else _moments(cron, after_ms)
    for tick in ticks:
        if cron.end_at and tick > cron.end_at:
            return
        yield tick


def _intervals(cron: Cron, after_ms: int, anchor_ms: int) -> Iterator[int]:
    every_ms = cron.every_ms
    first = cron.start_at or anchor_ms + every_ms
    tick = first
    if after_ms >= first:
        tick = first + ((after_ms - first) // every_ms + 1) * every_ms
    while True:
        yield tick
        tick += every_ms


def _moments(cron: Cron, after_ms: int) -> Iterator[int]:
    text = MACROS.get(cron.pattern.lower(), cron.pattern)
    minute, hour = text.split()[-5:-3]
    # As in Debian's cron: what repeats within the day goes by elapsed time, what has its times
    # of day goes by the clock on the wall.
    step = _by_elapsed_time if minute[0] == "*" or hour[0] == "*" else _by_the_clock
    after_s = max(after_ms, cron.start_at - 1) // 1_000
    for moment in step(text, zone_of(cron.zone), after_s):
        yield moment * 1_000


def _by_elapsed_time(text: str, zone: tzinfo, after: int) -> Iterator[int]:
    """Yield the moments at which a clock on the wall there shows what the pattern says."""
    offset = _offset(zone, after)
    while True:
        for local in _wall_times(text, after + offset):
            moment = local - offset
            change = _change(zone, after, moment, offset)
            if change is not None:  # the clock is changed before: go on from there
                after, offset = change - 1, _offset(zone, change)
                break
            yield moment
            after = moment
        else:
            return


def _by_the_clock(text: str, zone: tzinfo, after: int) -> Iterator[int]:
    """Yield a moment for each time on the wall: the first of two, or the first after a gap."""
    for local in _wall_times(text, after + _offset(zone, after)):
        moment = _first_moment(zone, local)
        if moment > after:
            yield moment
            after = moment


def _first_moment(zone: tzinfo, local: int) -> int:
    """Return the first moment of a wall-clock time; of one that is left out, that after the gap."""
    before, later = _offset(zone, local - _DAY_S), _offset(zone, local + _DAY_S)
    for offset in (before, later):
        if _offset(zone, local - offset) == offset:
            return local - offset
    change = _change(zone, local - later, local - before, before)
    assert change is not None, "a time that is left out stands at a change of the clock"
    return change


def _change(zone: tzinfo, after: int, until: int, offset: int) -> int | None:
    """Return the first second in (after, until] with another offset than this one, or None.

    No zone has two changes within a day.
    """
    while after < until:
        end = min(after + _DAY_S, until)
        if _offset(zone, end) == offset:
            after = end
            continue
        while end - after > 1:
            middle = (after + end) // 2
            if _offset(zone, middle) == offset:
                after = middle
            else:
                end = middle
        return end
    return None


def _offset(zone: tzinfo, moment: int) -> int:
    """Return the seconds by which clocks on the wall are ahead of UTC."""
    ahead = datetime.fromtimestamp(moment, zone).utcoffset()
    assert ahead is not None, "a zone has an offset at any time"
    return ahead.days * _DAY_S + ahead.seconds


def _wall_times(text: str, after: int) -> Iterator[int]:
    """Yield what the pattern says of clocks on the wall, as if they showed UTC."""
    from cronsim import CronSim

    try:
        for local in CronSim(text, _EPOCH + timedelta(seconds=after)):
            since = local - _EPOCH
            if since.days > _LAST_DAY:
                return
            yield since.days * _DAY_S + since.seconds
    except OverflowError:  # it went on to the year 10000
        return


# --- zones ------------------------------------------------------------------------------------


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> tzinfo:
    """Return the time zone of a checked name, by the data that came with us on every host."""
    from importlib.resources import files
    from zoneinfo import ZoneInfo

    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    from importlib.resources import files

    return frozenset(files("tzdata").joinpath("zones").read_text().split())


def _check_zone(option: str, value: Any) -> str:
    if isinstance(value, str) and len(value) <= ZONE_MAX and value in _zone_names():
        return value
    from difflib import get_close_matches

    like = get_close_matches(str(value)[:ZONE_MAX], _zone_names(), 1, 0.7)
    hint = f"did you mean {like[0]}?" if like else "write Europe/Berlin, UTC ..."
    raise BadOption(f"{option} {shown(value)} is no time zone that is known here; {hint}")


# --- patterns ---------------------------------------------------------------------------------


def step_hints(pattern: str) -> list[str]:
    """Return a sentence for each step in a checked pattern that leaves a shorter one at the end."""
    fields = pattern.split()
    hints: list[str] = []
    if len(fields) < 5:  # a macro, or none
        return hints
    for (name, low, high), field in zip(FIELDS[-len(fields) :], fields, strict=True):
        start, _, step = field.partition("/")
        if name not in ("second", "minute", "hour") or start != "*" or not step.isdigit():
            continue
        whole, rest = high + 1 - low, (high + 1 - low) % int(step)
        if rest and int(step) < whole:
            last = whole - rest
            hints.append(
                f"{field} does not divide the {whole} {name}s: after {name} {last} comes {name} 0,"
                f" {rest} later; an even interval is every={step}{name[0]}"
            )
    return hints


def _check_pattern(option: str, value: Any) -> str:
    """Return a pattern with single spaces, or raise BadOption, which names the field."""
    if not isinstance(value, str):
        raise BadOption(f"{option} {shown(value)} is not a text")
    if len(value) > PATTERN_MAX:
        raise BadOption(f"{option} has {len(value)} characters, the limit is {PATTERN_MAX}")
    text = " ".join(value.split())
    if text.startswith("@"):
        if text.lower() not in MACROS:
            known = ", ".join(MACROS)
            raise BadOption(f"{option} {shown(text)} is not known; known are {known}")
        return text
    fields = text.split()
    if len(fields) not in (5, 6):
        count = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
        raise BadOption(f"{option} {shown(text)} has {count}, not five or six: {_FORM}")
    for place, field in zip(FIELDS[-len(fields) :], fields, strict=True):
        _check_field(option, text, place, field)
    _check_that_it_comes(option, text, fields)
    return text


def _check_field(option: str, text: str, place: tuple[str, int, int], field: str) -> None:
    from cronsim import CronSim, CronSimError

    name, low, high = place
    alone = ["*"] * len(FIELDS)
    alone[[known for known, _, _ in FIELDS].index(name)] = field
    reason = _unsupported(name, field.upper())
    if not reason and field.isascii():
        try:
            CronSim(" ".join(alone), _LONG_AGO)
            return
        except CronSimError:
            pass
    words = {"day-of-month": " L LW", "month": " JAN ...", "day-of-week": " MON ... 5L MON#2"}
    reason = reason or f"write * or {low}-{high}, with , - /{words.get(name, '')}"
    raise BadOption(f"{option} {shown(text)}: {name} {shown(field)} is not supported; {reason}")


def _unsupported(name: str, field: str) -> str:
    """Return what to say of something that other crons know, or that is read in another way."""
    if "?" in field:
        return "write * instead of ?"
    if field.startswith("H"):
        return "a value chosen by hash (H) is not known; write a number"
    terms = field.split(",")
    if any(_is_a_range_of_one(term) for term in terms):
        return "a range of one value has no steps"
    if name == "day-of-month":
        if any("W" in term and term != "LW" for term in terms):
            return "of the weekdays (W) only LW, the last one of the month, is known"
        if any("L" in term and term not in ("L", "LW") for term in terms):
            return "L, the last day of the month, stands alone"
    return ""


def _is_a_range_of_one(term: str) -> bool:
    """Whether a term is 5-5/2, which cronsim reads as 5/2: from 5 to the end."""
    ends, slash, _ = term.partition("/")
    first, dash, last = ends.partition("-")
    numbers = [str(_NAMES.get(end, end)).lstrip("0") for end in (first, last)]
    return bool(slash and dash) and numbers[0] == numbers[1]


def _check_that_it_comes(option: str, text: str, fields: list[str]) -> None:
    """Refuse dates that no month has."""
    from cronsim import CronSimError

    try:
        comes = next(_wall_times(text, 0), None) is not None
    except CronSimError:
        comes = False
    if not comes:
        day, month, weekday = fields[-3:]
        raise BadOption(
            f"{option} {shown(text)} never fires: no day fits day-of-month {shown(day)},"
            f" month {shown(month)} and day-of-week {shown(weekday)}"
        )


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def check(option: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadOption(f"{option} {shown(value)} is not a whole number from {low} to {high}")
        return value

    return check


def _one_of(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(option: str, value: Any) -> str:
        if value not in words:
            raise BadOption(f"{option} {shown(value)} is not one of {', '.join(words)}")
        return str(value)

    return check


def check_count(n: Any) -> int:
    """Return how many ticks shall be shown, or raise BadOption."""
    return _whole(1, TICKS_MAX)("n", n)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "pattern": _check_pattern,
    "every_ms": _whole(EVERY_MS_MIN, DELAY_MS_MAX),
    "zone": _check_zone,
    "start_at": _whole(0, _MOMENT_MAX),
    "end_at": _whole(0, _MOMENT_MAX),
    "limit": _whole(0, _LIMIT_MAX),
    "overlap": _one_of(OVERLAP),
    "misfire": _one_of(MISFIRE),
}
