"""`pyq-cluster cron`: what is wrong with a command line, and what needs no cluster."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from cluster.cli import main
from cluster.cron_views import interval, schedules_json, schedules_table, when
from cluster.probes import Answer
from cluster.views import health_of
from pyq.errors import Status


def said(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["cron", *arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out.strip(), captured.err.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add"], "missing argument 'NAME'"),
        (["add", "a", "@daily"], "say what to run: --command for a shell command, or --job NAME"),
        (["add", "a", "@daily", "--command", "x", "--job", "y"], "say what to run"),
        (["add", "a", "@daily", "--command", " "], "the command is empty"),
        (["add", "a", "@daily", "--command", "x", "--payload", "1"], "--payload goes with --job"),
        (["add", "a", "@daily", "--job", "x", "--payload", "{"], "it is not JSON"),
        (["add", "a", "@daily", "--job", "x", "--start", "soon"], "'soon' is not a moment such as"),
        (["add", "a", "@daily", "--job", "x", "--misfire", "twice"], "--misfire"),
        (["add", "a", "@daily", "--job", "x", "--limit", "0"], "--limit"),
        (["next", "@daily", "-n", "0"], "-n"),
        (["next", "61 * * * *"], "minute '61' is not supported"),
        (["next", "@daily", "--zone", "Europe/Berln"], "did you mean Europe/Berlin?"),
        (["remove"], "missing argument 'NAME'"),
        (["run", "x"], "no such command 'run'"),
    ],
)
def test_usage_errors_are_one_sentence(capsys, arguments, words):
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["list", "pause x", "resume x", "remove x", "run-now x"])
def test_without_a_cluster_it_is_said_soon(capsys, command):
    began = time.monotonic()
    code, _, err = said(capsys, *command.split(), "--url", "tcp://127.0.0.1:9")
    assert code == 4
    assert "pyq-cluster up" in err
    assert time.monotonic() - began < 3


def test_the_next_ticks_of_a_pattern_need_no_cluster(capsys):
    arguments = ("next", "0 12 * * *", "-n", "2", "--zone", "Asia/Tokyo")
    code, out, err = said(capsys, *arguments, "--url", "tcp://127.0.0.1:9")
    assert (code, err) == (0, "")
    first, second = (datetime.fromisoformat(line) for line in out.splitlines())
    assert first.utcoffset() == timedelta(hours=9)
    assert (first.hour, second - first) == (12, timedelta(days=1))
    assert first > datetime.now(UTC)
    _, out, _ = said(capsys, *arguments, "--json")
    assert json.loads(out) == [first.isoformat(sep=" "), second.isoformat(sep=" ")]


def test_a_step_that_does_not_divide_is_pointed_out_beside_the_answer(capsys):
    code, out, err = said(capsys, "next", "*/47 * * * *", "-n", "2")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert err == (
        "mind: */47 does not divide the 60 minutes: after minute 47 comes minute 0, 13 later;"
        " an even interval is every=47m"
    )


# --- what is shown ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1s"), (2.5, "2.5s"), (60, "1m"), (2_820, "47m"), (5_400, "1h30m"), (90_061, "1d1h1m1s")],
)
def test_an_interval_is_shown_as_it_is_written(seconds, text):
    assert interval(seconds) == text


def test_a_moment_is_shown_by_the_clocks_of_its_zone():
    zone = UTC
    assert when(datetime(2026, 5, 1, 8, 30, tzinfo=zone)) == "2026-05-01 08:30:00+00:00"
    assert when(datetime(2026, 5, 1, 8, 30, 1, 5_000, tzinfo=zone)).startswith(
        "2026-05-01 08:30:01."
    )
    assert when(None) == "never"
    assert when(None, "-") == "-"


def a_view(**fields: object) -> dict[str, object]:
    view: dict[str, object] = {
        "name": "nightly", "pattern": "0 6 * * *", "every": None, "zone": "Asia/Tokyo",
        "queue": "shell", "job": "shell", "data": {"command": "backup  --all"}, "limit": None,
        "paused": False, "next_tick": None, "last_tick": None, "fired_count": 3,
        "skipped_count": 1,
    }  # fmt: skip
    return {**view, **fields}


def test_a_list_says_when_what_and_how_far():
    text = schedules_table(
        [
            a_view(limit=9),
            a_view(name="beat", pattern=None, every=2_820.0, job="pulse", data=None, paused=True),
        ]
    )
    head, first, second = text.splitlines()
    assert head.split()[0] == "name"
    assert "0 6 * * *  Asia/Tokyo  shell  never" in first
    assert "3/9" in first
    assert first.endswith("backup  --all")
    assert "every 47m  -" in second
    assert "paused" in second
    assert second.endswith("pulse")


def test_json_says_everything():
    tick = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)
    (found,) = json.loads(schedules_json([a_view(next_tick=tick, data=b"\xff")]))
    assert found["next_tick"] == "2026-05-01T08:30:00+00:00"
    assert found["data"] == "\\xff"


# --- health -----------------------------------------------------------------------------


def probed(**info: object) -> Answer:
    return Answer(Status.OK, 0, ("coordinator", b"", 0, {"pid": 5, **info}))


def test_health_names_schedules_that_fail_and_those_that_a_clock_silenced():
    failing = {"schedules": 2, "failing": (("nightly", "the shard is down"),), "silent": ()}
    found = health_of("coordinator", probed(healthy=False, tasks=(("cron", 5, 1),), cron=failing))
    assert not found.ok
    assert "keeps failing at: cron, schedule nightly: the shard is down" in found.detail
    silent = {"schedules": 2, "failing": (), "silent": ("nightly",)}
    found = health_of("coordinator", probed(healthy=True, tasks=(), cron=silent))
    assert found.ok
    assert "the clock was set back" in found.detail
    assert "nightly" in found.detail
