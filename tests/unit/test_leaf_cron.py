"""Patterns, zones and intervals: what is understood, what is refused and with which words."""

import sys
import time
from datetime import UTC, datetime

import pytest

from pyq.cron import (
    FIELDS,
    MACROS,
    Cron,
    check_count,
    check_cron,
    last_ticks,
    next_ticks,
    step_hints,
    zone_of,
)
from pyq.errors import BadOption
from pyq.ids import slot_of_id, time_of_id
from pyq.routes import slot_of
from pyq.schedule import (
    NO_TEMPLATE,
    Schedule,
    check_schedule_name,
    check_template,
    id_of_tick,
    job_id_of_tick,
    schedule_from_wire,
)


def ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1_000)


def shown(pattern: str, after: str, n: int, zone: str = "UTC", **times: int) -> list[str]:
    """Ticks as clocks in the zone show them, with their offset."""
    cron = check_cron({"pattern": pattern, "zone": zone, **times})
    return [
        datetime.fromtimestamp(tick / 1_000, zone_of(zone)).isoformat(timespec="minutes")
        for tick in next_ticks(cron, ms(after), n)
    ]


def refused(**wire: object) -> str:
    began = time.perf_counter()
    with pytest.raises(BadOption) as caught:
        check_cron(wire)
    assert time.perf_counter() - began < 0.5
    return str(caught.value)


# --- patterns ---------------------------------------------------------------------------


def test_six_fields_begin_with_the_second():
    cron = check_cron({"pattern": "30 15 10 * * *"})
    (tick,) = next_ticks(cron, ms("2026-05-01T00:00:00Z"))
    assert tick == ms("2026-05-01T10:15:30Z")
    every = check_cron({"pattern": "*/20 * * * * *"})
    ticks = next_ticks(every, ms("2026-05-01T00:00:00Z"), 3)
    assert [tick // 1_000 % 60 for tick in ticks] == [20, 40, 0]


def test_a_tick_is_after_the_moment_given_and_never_at_it():
    cron = check_cron({"pattern": "* * * * *"})
    minute = ms("2026-05-01T00:01:00Z")
    for after in (minute - 60_000, minute - 1):
        assert next_ticks(cron, after) == [minute]
    assert next_ticks(cron, minute) == [minute + 60_000]


def test_29_february_and_the_last_day_of_the_month():
    days = [tick[:10] for tick in shown("0 0 29 2 *", "2026-01-01T00:00:00Z", 3)]
    assert days == ["2028-02-29", "2032-02-29", "2036-02-29"]
    days = [tick[:10] for tick in shown("0 0 L * *", "2028-01-01T00:00:00Z", 4)]
    assert days == ["2028-01-31", "2028-02-29", "2028-03-31", "2028-04-30"]
    days = [tick[:10] for tick in shown("0 0 LW * *", "2026-01-01T00:00:00Z", 2)]
    assert days == ["2026-01-30", "2026-02-27"], "the last weekday"
    days = [tick[:10] for tick in shown("0 0 31 * *", "2026-01-01T00:00:00Z", 3)]
    assert days == ["2026-01-31", "2026-03-31", "2026-05-31"]


def test_the_century_that_has_no_29_february():
    days = [tick[:10] for tick in shown("0 0 29 2 *", "2095-01-01T00:00:00Z", 2)]
    assert days == ["2096-02-29", "2104-02-29"]


def test_days_of_the_week_by_name_number_and_place():
    friday = shown("0 9 * * FRI", "2026-05-01T10:00:00Z", 2)
    assert friday == shown("0 9 * * 5", "2026-05-01T10:00:00Z", 2)
    assert friday[0][:10] == "2026-05-08"
    assert shown("0 9 * * fri", "2026-05-01T10:00:00Z", 1) == friday[:1]
    assert shown("0 9 * * 7", "2026-05-01T00:00:00Z", 1)[0][:10] == "2026-05-03"
    assert shown("0 9 * * MON#2", "2026-05-01T00:00:00Z", 1)[0][:10] == "2026-05-11"
    assert shown("0 9 * * 5L", "2026-05-01T00:00:00Z", 1)[0][:10] == "2026-05-29"
    assert shown("0 9 1 JAN *", "2026-05-01T00:00:00Z", 1)[0][:10] == "2027-01-01"


def test_both_days_given_either_is_enough():
    days = [tick[:10] for tick in shown("0 0 13 * FRI", "2026-05-01T12:00:00Z", 4)]
    assert days == ["2026-05-08", "2026-05-13", "2026-05-15", "2026-05-22"]


@pytest.mark.parametrize("macro", MACROS)
def test_a_macro_stands_for_its_fields(macro):
    after = "2026-05-01T12:34:56Z"
    assert shown(macro, after, 5) == shown(MACROS[macro], after, 5)
    assert shown(macro.upper(), after, 5) == shown(macro, after, 5)


def test_spaces_do_not_make_another_pattern():
    assert check_cron({"pattern": "  0  6 * *\t1 "}) == check_cron({"pattern": "0 6 * * 1"})


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("0 0 31 2 *", "day-of-month '31', month '2'"),
        ("0 0 30 2 *", "day-of-month '30', month '2'"),
        ("0 0 31 4,6,9,11 *", "day-of-month '31', month '4,6,9,11'"),
        ("0 0 */27 * MON#3", "day-of-week 'MON#3'"),
        ("0 0 32 1 *", "day-of-month '32' is not supported; write * or 1-31"),
        ("61 * * * *", "minute '61' is not supported; write * or 0-59"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day-of-month '0'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day-of-week '8'"),
        ("60 * * * * *", "second '60'"),
        ("", "has 0 fields, not five or six"),
        ("*", "has 1 field, not"),
        ("* * * *", "has 4 fields, not five or six"),
        ("* * * * * * *", "has 7 fields"),
        ("@yearlyish", "is not known; known are @hourly, @daily"),
        ("@reboot", "is not known"),
        ("* " * 5_000, "has 10000 characters, the limit is 200"),
        ("9" * 150 + " * * * *", "minute"),
        ("0 0 15W * *", "day-of-month '15W' is not supported; of the weekdays (W) only LW"),
        ("0 0 ? * MON", "day-of-month '?' is not supported; write * instead of ?"),
        ("H * * * *", "minute 'H' is not supported; a value chosen by hash"),
        ("H(0-7) 1 * * *", "minute 'H(0-7)'"),
        ("0 0 L-3 * *", "L, the last day of the month, stands alone"),
        ("0 0 L/2 * *", "stands alone"),
        ("0 0 * * FRI-MON", "day-of-week 'FRI-MON'"),
        ("0 22-2 * * *", "hour '22-2'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("5-5/2 * * * *", "a range of one value has no steps"),
        ("0 0 * * MON-1/2", "a range of one value has no steps"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("-5 * * * *", "minute '-5'"),
        ("é * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("\0 * * * *", "minute"),
        (5, "pattern 5 is not a text"),
        (None, "is not a text"),
        (b"* * * * *", "is not a text"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(pattern, words):
    sentence = refused(pattern=pattern)
    assert sentence.startswith("pattern ")
    assert words in sentence
    assert len(sentence) < 250


@pytest.mark.parametrize(
    ("pattern", "hints"),
    [
        ("*/47 * * * *", ["47 does not divide the 60 minutes: after minute 47 comes minute 0, 13"]),
        ("*/7 * * * * *", ["7 does not divide the 60 seconds"]),
        ("0 */5 * * *", ["5 does not divide the 24 hours: after hour 20 comes hour 0, 4 later"]),
        ("*/15 */6 * * *", []),
        ("5 * * * *", []),
        ("@daily", []),
        ("", []),
        ("*/90 * * * *", []),
    ],
)
def test_steps_that_do_not_divide_are_pointed_out(pattern, hints):
    found = step_hints(pattern)
    assert len(found) == len(hints)
    for sentence, words in zip(found, hints, strict=True):
        assert words in sentence


# --- where clocks are changed -----------------------------------------------------------


def test_a_fixed_time_in_the_gap_fires_at_the_first_moment_after_it():
    """...and what was to come at that very moment does not come twice."""
    assert shown("30 2 * * *", "2026-03-29T00:00:00+01:00", 2, "Europe/Berlin") == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]
    assert shown("0,30 2,3 * * *", "2026-03-29T00:00:00+01:00", 3, "Europe/Berlin") == [
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:30+02:00",
        "2026-03-30T02:00+02:00",
    ]


def test_a_midnight_that_is_left_out_fires_at_the_first_moment_of_the_day():
    assert shown("0 0 * * *", "2026-09-05T12:00:00-04:00", 2, "America/Santiago") == [
        "2026-09-06T01:00-03:00",
        "2026-09-07T00:00-03:00",
    ]


def test_a_fixed_time_in_the_fold_fires_the_first_time():
    assert shown("30 2 * * *", "2026-10-25T00:00:00+02:00", 2, "Europe/Berlin") == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]
    # ... also for one who looks only within the second time
    assert shown("30 2 * * *", "2026-10-25T02:10:00+01:00", 1, "Europe/Berlin") == [
        "2026-10-26T02:30+01:00"
    ]


def test_with_seconds_it_is_the_same():
    cron = check_cron({"pattern": "5 30 2 * * *", "zone": "Europe/Berlin"})
    assert next_ticks(cron, ms("2026-10-25T00:00:00+02:00"), 2) == [
        ms("2026-10-25T02:30:05+02:00"),
        ms("2026-10-26T02:30:05+01:00"),
    ]
    assert next_ticks(cron, ms("2026-03-29T00:00:00+01:00")) == [ms("2026-03-29T03:00:00+02:00")]


def test_what_repeats_goes_by_elapsed_time():
    after = "2026-10-25T01:59:50+02:00"
    assert shown("*/30 * * * *", after, 5, "Europe/Berlin") == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:00+01:00",
    ]
    assert shown("15 * * * *", "2026-03-29T01:00:00+01:00", 2, "Europe/Berlin") == [
        "2026-03-29T01:15+01:00",
        "2026-03-29T03:15+02:00",
    ]


def test_half_an_hour_is_changed_on_lord_howe():
    assert shown("15 2 * * *", "2026-10-03T12:00:00+10:30", 2, "Australia/Lord_Howe") == [
        "2026-10-04T02:30+11:00",
        "2026-10-05T02:15+11:00",
    ]


# --- the rest ---------------------------------------------------------------------------


def test_start_and_end_bound_the_ticks():
    times = {"start_at": ms("2026-05-02T00:00:00Z"), "end_at": ms("2026-05-04T00:00:00Z")}
    ticks = shown("0 0 * * *", "2026-04-01T00:00:00Z", 9, **times)
    assert [tick[:10] for tick in ticks] == ["2026-05-02", "2026-05-03", "2026-05-04"]
    cron = check_cron({"pattern": "0 0 * * *", **times})
    assert len(last_ticks(cron, 0, ms("2027-01-01T00:00:00Z"), 9)) == 3


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ({}, "either a pattern or every"),
        ({"pattern": "@daily", "every_ms": 5_000}, "either a pattern or every"),
        ({"every_ms": 999}, "every_ms 999 is not a whole number from 1000"),
        ({"every_ms": 1.5}, "every_ms 1.5"),
        ({"every_ms": 5_000, "zone": "Asia/Tokyo"}, "zone Asia/Tokyo belongs to a pattern"),
        ({"pattern": "@daily", "zone": "europe/berlin"}, "did you mean Europe/Berlin?"),
        ({"pattern": "@daily", "zone": "../../etc/passwd"}, "is no time zone"),
        ({"pattern": "@daily", "zone": "localtime"}, "is no time zone"),
        ({"pattern": "@daily", "zone": None}, "zone None is no time zone"),
        ({"pattern": "@daily", "zone": "x" * 9_999}, "is no time zone"),
        ({"pattern": "@daily", "start_at": 2, "end_at": 1}, "end is before start"),
        ({"pattern": "@daily", "start_at": -1}, "start_at -1"),
        ({"pattern": "@daily", "end_at": 1 << 60}, "end_at"),
        ({"pattern": "@daily", "limit": True}, "limit True"),
        ({"pattern": "@daily", "overlap": "maybe"}, "overlap 'maybe' is not one of skip, allow"),
        (
            {"pattern": "@daily", "misfire": "twice"},
            "misfire 'twice' is not one of",
        ),
        ({"pattern": "@daily", "jitter": 5}, "unknown option 'jitter' of a schedule; known are"),
    ],
)
def test_a_refusal_names_option_value_and_bound(wire, words):
    assert words in refused(**wire)


def test_it_travels_as_what_differs_from_the_defaults():
    cron = check_cron({"pattern": "@daily", "misfire": "once", "zone": "UTC"})
    assert cron.to_wire() == {"pattern": "@daily"}
    full = {
        "pattern": "0 0 * * *",
        "zone": "Asia/Tokyo",
        "start_at": 1,
        "end_at": 2,
        "limit": 3,
        "overlap": "allow",
        "misfire": "all",
    }
    assert check_cron(full).to_wire() == full
    assert check_cron(check_cron(full).to_wire()) == check_cron(full)


@pytest.mark.parametrize("n", [0, 1_001, True, "5", 2.0])
def test_how_many_ticks_are_shown_is_bounded(n):
    with pytest.raises(BadOption, match="is not a whole number from 1 to 1000"):
        check_count(n)


def test_ticks_end_before_dates_do():
    cron = check_cron({"pattern": "0 0 29 2 */7", "start_at": 240_000_000_000_000})
    assert len(next_ticks(cron, 0, 1_000)) < 1_000
    assert next_ticks(Cron("@yearly"), ms("9800-01-01T00:00:00Z"), 1_000)[-1] < 253_402_300_799_000


def test_every_zone_is_there_and_nothing_else_is_opened():
    assert zone_of("UTC").utcoffset(datetime(2026, 1, 1, tzinfo=UTC)).total_seconds() == 0
    assert len(FIELDS) == 6
    assert check_cron({"pattern": "@daily", "zone": "America/Argentina/Ushuaia"})


def test_the_libraries_are_imported_when_they_are_needed():
    import subprocess

    code = "import sys, pyq.parsing, pyq.schedules; print('cronsim' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# --- records ----------------------------------------------------------------------------


def test_a_record_travels_whole_and_forward():
    record = Schedule(
        "nightly",
        check_cron({"pattern": "@daily"}),
        "emails",
        "report",
        b"data",
        {"priority": 1},
        last_tick=5,
    )
    assert schedule_from_wire(record.to_wire()) == record
    newer = {**record.to_wire(), "colour": "red"}
    newer["cron"] = {**newer["cron"], "jitter": 5}
    assert schedule_from_wire(newer) == record


def test_the_ids_of_a_tick_follow_from_the_tick():
    ids = {
        id_of_tick(name, tick, queue)
        for name in ("a", "b")
        for tick in (1_750_000_000_000, 1_750_000_001_000)
        for queue in ("emails", "sms")
    }
    assert len(ids) == 8
    one = id_of_tick("a", 1_750_000_000_000, "emails")
    assert one == id_of_tick("a", 1_750_000_000_000, "emails")
    assert time_of_id(one) == 1_750_000_000_000
    assert slot_of_id(one) == slot_of("emails")
    assert (one[6] >> 4, one[8] >> 6) == (7, 0b10), "a UUIDv7"
    assert job_id_of_tick("a", 17) == "cron/a/17"


@pytest.mark.parametrize("name", NO_TEMPLATE)
def test_what_belongs_to_one_job_is_no_option_of_all(name):
    with pytest.raises(BadOption, match=f"{name} belongs to one job"):
        check_template({name: 1})


def test_options_are_checked_and_kept_as_given():
    assert check_template({"tags": ["a"], "delay_ms": 5, "run_at": 0, "timeout_ms": 0}) == {
        "tags": ("a",),
        "delay_ms": 5,
        "run_at": 0,
        "timeout_ms": 0,
    }
    assert check_template(None) == {}
    with pytest.raises(BadOption, match="priority"):
        check_template({"priority": "high"})


@pytest.mark.parametrize("name", ["", "a" * 257, "a\0b", None, 5])
def test_a_name_is_a_text(name):
    with pytest.raises(BadOption, match="name of a schedule"):
        check_schedule_name(name)
