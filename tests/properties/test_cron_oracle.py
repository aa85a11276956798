"""Ticks against a search that looks at every minute, where clocks are changed and elsewhere.

The oracle has a matcher of its own and asks the zone for each minute, so it shares nothing
with what it judges. By default it looks at twenty zones from 2020 to 2035;
`PYQ_CRON_ORACLE=all` looks at every zone there is, and further around each change.
"""

import os
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyq.cron import check_cron, last_ticks, next_ticks

EVERYWHERE = os.environ.get("PYQ_CRON_ORACLE") == "all"
SOME_ZONES = [
    *("Africa/Cairo", "Africa/Casablanca", "America/Havana", "America/New_York", "America/Nuuk"),
    *("America/Santiago", "America/Sao_Paulo", "Antarctica/Troll", "Asia/Beirut", "Asia/Gaza"),
    *("Asia/Jerusalem", "Asia/Tehran", "Atlantic/Azores", "Australia/Lord_Howe"),
    *("Australia/Sydney", "Europe/Berlin", "Europe/Chisinau", "Europe/Dublin"),
    *("Pacific/Apia", "Pacific/Chatham"),
]
ZONES = sorted(files("tzdata").joinpath("zones").read_text().split()) if EVERYWHERE else SOME_ZONES
AROUND_MIN = 26 * 60 if EVERYWHERE else 3 * 60  # looked at before and after each change
PATTERNS = (
    "0 * * * *",
    "15 * * * *",
    "*/30 * * * *",
    "*/47 * * * *",
    "* 2 * * *",
    "0 */2 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "30 1 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "15,45 1-3 * * *",
    "0 0-23 * * *",
    "59 23 * * SUN",
)
LOW_HIGH = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@lru_cache
def zone_of(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


class Oracle:
    """What a pattern of five fields means, written down as directly as it can be."""

    def __init__(self, pattern: str) -> None:
        self.fields = pattern.split()
        self.sets = [
            self.values(field, low, high)
            for field, (low, high) in zip(self.fields, LOW_HIGH, strict=True)
        ]
        self.repeats = self.fields[0].startswith("*") or self.fields[1].startswith("*")

    @staticmethod
    def values(field: str, low: int, high: int) -> set[int]:
        found: set[int] = set()
        for term in field.split(","):
            span, _, step = term.partition("/")
            if span == "*":
                first, last = low, high
            else:
                ends = [DAYS.index(end) if end in DAYS else int(end) for end in span.split("-")]
                first, last = ends[0], high if step and len(ends) == 1 else ends[-1]
            found |= set(range(first, last + 1, int(step or 1)))
        return found

    def fits(self, local: datetime) -> bool:
        minutes, hours, days, months, weekdays = self.sets
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        day = local.day in days
        weekday = bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
        both = self.fields[2].startswith("*") or self.fields[4].startswith("*")
        return (day and weekday) if both else (day or weekday)

    def ticks(self, wall: list[tuple[int, datetime]]) -> list[int]:
        """The ticks among minutes of which `wall` says what clocks there show, in order."""
        minutes = self.sets[0]
        if self.repeats:
            return [m for m, local in wall if local.minute in minutes and self.fits(local)]
        found: set[int] = set()
        begin, last = wall[0][1], max(shown for _, shown in wall)
        at = 0
        for minute in range((last - begin) // timedelta(minutes=1) + 1):
            if (begin.minute + minute) % 60 not in minutes:
                continue
            local = begin + timedelta(minutes=minute)
            while wall[at][1] < local:  # the first minute that shows it, or is already later
                at += 1
            if self.fits(local):
                found.add(wall[at][0])
        return sorted(found)


ORACLES = [(pattern, Oracle(pattern)) for pattern in PATTERNS]


def changes(zone: ZoneInfo) -> list[int]:
    """The minutes since 1970 at which clocks in a zone are changed, 2020 to 2035."""
    found = []
    hour = datetime(2020, 1, 1, tzinfo=UTC)
    before = hour.astimezone(zone).utcoffset()
    while hour.year < 2036:
        hour += timedelta(days=1)
        if hour.astimezone(zone).utcoffset() != before:
            day = hour - timedelta(days=1)
            minute = next(
                m
                for m in range(1, 24 * 60 + 1)
                if (day + timedelta(minutes=m)).astimezone(zone).utcoffset() != before
            )
            found.append(int(day.timestamp()) // 60 + minute)
            before = hour.astimezone(zone).utcoffset()
    return found


def wall_clock(zone: ZoneInfo, first: int, count: int) -> list[tuple[int, datetime]]:
    minutes = range(first, first + count)
    return [
        (minute, datetime.fromtimestamp(minute * 60, zone).replace(tzinfo=None))
        for minute in minutes
    ]


@pytest.mark.parametrize("name", ZONES)
def test_around_each_change_of_the_clock_ticks_are_those_of_a_search(name):
    zone = zone_of(name)
    crons = [check_cron({"pattern": pattern, "zone": name}) for pattern in PATTERNS]
    for change in changes(zone):
        wall = wall_clock(zone, change - AROUND_MIN, 2 * AROUND_MIN)
        for (pattern, oracle), cron in zip(ORACLES, crons, strict=True):
            expected = oracle.ticks(wall)
            first, last = wall[0][0], wall[-1][0]
            found = next_ticks(cron, first * 60_000 - 1, len(expected) + 1)
            within = [tick // 60_000 for tick in found if tick // 60_000 <= last]
            assert within == expected, f"{pattern} in {name} at {change * 60}"


@pytest.mark.parametrize(("zone", "at"), [("Europe/Berlin", 1_792_890_000), ("UTC", 1_792_890_000)])
def test_patterns_with_seconds_around_a_fold_are_those_of_a_search(zone, at):
    """Every second around 2026-10-25T01:00Z, when Berlin's clocks go from 3:00 to 2:00."""
    where = zone_of(zone)
    seconds = [
        (second, datetime.fromtimestamp(second, where)) for second in range(at - 4_000, at + 4_000)
    ]
    every = check_cron({"pattern": "*/20 * * * * *", "zone": zone})
    expected = [second for second, local in seconds if local.second % 20 == 0]
    found = next_ticks(every, (at - 4_000) * 1_000 - 1, len(expected))
    assert [tick // 1_000 for tick in found] == expected
    once = check_cron({"pattern": "5,50 30 2 * * *", "zone": zone})
    shown = [
        second
        for second, local in seconds
        if (local.hour, local.minute) == (2, 30) and local.second in (5, 50) and not local.fold
    ]
    found = next_ticks(once, (at - 4_000) * 1_000, 3)
    assert [tick // 1_000 for tick in found if tick // 1_000 < at + 4_000] == shown


# --- for all patterns -------------------------------------------------------------------


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ends = st.lists(number, min_size=2, max_size=2, unique=True)
    span = ends.map(sorted).map("{0[0]}-{0[1]}".format)
    step = st.tuples(st.just("*") | span, st.integers(1, high)).map("{0[0]}/{0[1]}".format)
    term = number.map(str) | span | step
    return st.just("*") | term | st.tuples(term, term).map(",".join)


PATTERN = st.tuples(field(0, 59), field(0, 23), st.just("*"), st.just("*"), field(0, 6)).map(
    " ".join
)
ZONE = st.sampled_from(SOME_ZONES)
MOMENT = st.integers(1_577_836_800, 2_082_758_400)  # seconds, 2020 to 2035


@given(PATTERN, ZONE, MOMENT)
def test_any_pattern_at_any_time_has_the_ticks_of_a_search(pattern, name, at):
    first = at // 60 + 1
    wall = wall_clock(zone_of(name), first, 30 * 60)
    # A fold has begun before we look: what is shown now was shown an hour ago, too.
    earlier = wall_clock(zone_of(name), first - 180, 180)
    expected = [tick for tick in Oracle(pattern).ticks(earlier + wall) if tick >= first]
    cron = check_cron({"pattern": pattern, "zone": name})
    found = [tick // 60_000 for tick in next_ticks(cron, at * 1_000, len(expected) + 1)]
    assert [tick for tick in found if tick <= wall[-1][0]] == expected


@given(PATTERN, ZONE, MOMENT, st.integers(1, 200_000), st.integers(1, 50))
def test_the_last_ticks_are_the_end_of_all_ticks(pattern, name, at, reach, count):
    cron = check_cron({"pattern": pattern, "zone": name})
    after, until = at * 1_000, (at + reach) * 1_000
    everything: list[int] = []
    while ticks := next_ticks(cron, everything[-1] if everything else after, 500):
        everything += [tick for tick in ticks if tick <= until]
        if ticks[-1] > until:
            break
    assert last_ticks(cron, after, until, count) == everything[-count:]


@given(st.integers(1_000, 10**9), st.integers(0, 10**12), MOMENT, st.integers(0, 2))
def test_intervals_are_evenly_spaced_from_their_anchor(every_ms, anchor, at, started):
    times = {"every_ms": every_ms, **({"start_at": anchor + 1} if started else {})}
    cron = check_cron(times)
    ticks = next_ticks(cron, at, 5, anchor)
    base = anchor + 1 if started else anchor
    assert all((tick - base) % every_ms == 0 for tick in ticks)
    assert [b - a for a, b in pairwise(ticks)] == [every_ms] * 4
    assert ticks[0] > at
    lowest = base if started else anchor + every_ms
    assert ticks[0] == lowest or ticks[0] - every_ms <= at
    until = ticks[-1]
    assert last_ticks(cron, at, until, 3, anchor) == ticks[-3:]
