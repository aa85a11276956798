"""Cases F and G: schedules, where clocks are changed, at restarts, and when the clock is set."""

import random
import time
from itertools import pairwise

import pytest

from cluster.coordinator.cron import Ask
from pyq.wire import Verb
from tests.cases.adapter import Core, Refused, Surface, cron_hints, cron_preview
from tests.cases.levels import everywhere
from tests.support.crons import CronRig, Killed, since_start
from tests.support.shards import ack, heartbeat, pull, push, state_of, sweep, tick, view

SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS


def a_cluster(begin: str) -> CronRig:
    """Two shards and a coordinator, at a moment."""
    return CronRig(begin=begin)


def until(rig: CronRig, moment: str) -> None:
    rig.run(since_start(moment) - rig.clock.wall_shift)


def moments(*texts: str) -> list[int]:
    return [since_start(text) for text in texts]


# --- F. Cron --------------------------------------------------------------------------------------


def test_c21_an_hourly_job_goes_on_over_the_spring_gap() -> None:
    """An hourly job skips the hour that is left out and repeats none."""
    ticks = cron_preview("0 * * * *", "America/New_York", "2022-03-12T22:00:30-05:00", 6)
    assert ticks == [
        "2022-03-12T23:00-05:00",
        "2022-03-13T00:00-05:00",
        "2022-03-13T01:00-05:00",
        "2022-03-13T03:00-04:00",
        "2022-03-13T04:00-04:00",
        "2022-03-13T05:00-04:00",
    ]
    instants = [since_start(tick) for tick in ticks]
    assert {b - a for a, b in pairwise(instants)} == {HOUR_MS}


def test_c22_a_daily_job_in_the_gap_comes_at_its_end() -> None:
    """A time of day that is left out fires at the first moment after the gap, and next day on."""
    assert cron_preview("30 2 * * *", "America/New_York", "2026-03-07T12:00:00-05:00", 3) == [
        "2026-03-08T03:00-04:00",
        "2026-03-09T02:30-04:00",
        "2026-03-10T02:30-04:00",
    ]


def test_c23_in_the_repeated_hour_a_fixed_time_fires_once_and_steps_go_on() -> None:
    """In autumn a time of day has one job; what repeats has one each half hour that passes."""
    rig = a_cluster("2026-10-25T01:59:50+02:00")
    rig.add("fixed", "30 2 * * *", zone="Europe/Berlin", overlap="allow", queue="fixed")
    rig.add("steps", "*/30 * * * *", zone="Europe/Berlin", overlap="allow", queue="steps")
    until(rig, "2026-10-25T03:10:00+01:00")
    assert rig.ticks("fixed", "fixed") == moments("2026-10-25T02:30:00+02:00")
    assert rig.ticks("steps", "steps") == moments(
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:00:00+01:00",
    )
    assert len({job["id"] for job in rig.jobs("steps")}) == 5


@pytest.mark.parametrize("seed", range(5))
def test_c24_a_restart_around_the_tick_makes_no_second_job(seed: int) -> None:
    """Killed twenty times around its ticks, a schedule has one job for each of them."""
    dice = random.Random(seed)
    rig = a_cluster("2026-05-01T12:00:00Z")
    rig.add("each", "* * * * * *", overlap="allow")
    kills = 0

    def die(ask: Ask) -> None:
        if dice.random() < 0.4:
            raise Killed

    while kills < 20:
        rig.before, rig.after = dice.choice(((die, lambda ask: None), (lambda ask: None, die)))
        rig.run(rig.clock.at + dice.randrange(1, 1_500))
        if rig.crons is None:
            kills += 1
            rig.run(rig.clock.at + dice.choice((0, 1, 200, 900)))
            rig.before = rig.after = lambda ask: None
            rig.start()
    rig.run(rig.clock.at + 2_000)
    ticks = rig.ticks("each")
    assert len(set(ticks)) == len(ticks)
    assert len({job["job_id"] for job in rig.jobs()}) == len(ticks)
    assert rig.record("each").fired_count == len(ticks), "each was counted once"
    skipped = rig.record("each").skipped_count
    (first,) = moments("2026-05-01T12:00:01Z")
    assert len(ticks) + skipped == (ticks[-1] - first) // 1_000 + 1, "or skipped while down"


@pytest.mark.parametrize("clean", [True, False])
def test_c25_what_ran_before_a_restart_does_not_run_again_after_it(clean: bool) -> None:
    """A daily job that ran at 22:00 is not missed for a cluster that starts at 22:30."""
    rig = a_cluster("2026-05-01T21:59:58-04:00")
    rig.add("daily", "0 22 * * *", zone="America/Santiago")
    until(rig, "2026-05-01T22:00:05-04:00")
    assert rig.ticks("daily") == moments("2026-05-01T22:00:00-04:00")
    if clean:
        rig.work()
    until(rig, "2026-05-01T22:30:00-04:00")
    rig.kill()
    for shard in rig.shards:
        shard.restart()
    rig.start()
    until(rig, "2026-05-01T22:31:00-04:00")
    assert rig.ticks("daily") == moments("2026-05-01T22:00:00-04:00")
    until(rig, "2026-05-02T22:00:00-04:00")
    assert rig.crons is not None
    rig.work()
    until(rig, "2026-05-03T22:00:00-04:00")
    assert rig.ticks("daily")[-1:] == moments("2026-05-03T22:00:00-04:00")


@pytest.mark.parametrize(
    ("misfire", "first", "later"), [("once", 1, 1), ("skip", 0, 0), ("all", 1, 3)]
)
def test_c26_who_was_down_at_the_tick_makes_up_for_it_as_was_said(
    misfire: str, first: int, later: int
) -> None:
    """A tick that came while the service was down has its job soon after, if that was wished."""
    rig = a_cluster("2026-05-01T12:00:00+02:00")
    rig.add("paris", "0 16 * * *", zone="Europe/Paris", misfire=misfire, overlap="allow")
    until(rig, "2026-05-01T15:59:59+02:00")
    rig.kill()
    until(rig, "2026-05-01T16:00:16+02:00")
    rig.start()
    until(rig, "2026-05-01T16:00:18+02:00")
    assert rig.ticks("paris") == moments("2026-05-01T16:00:00+02:00")[:first]
    until(rig, "2026-05-01T17:00:00+02:00")
    rig.kill()
    until(rig, "2026-05-04T17:00:00+02:00")
    rig.start()
    rig.run(rig.clock.at + 2_000)
    ticks = rig.ticks("paris")
    assert len(ticks) == first + later
    if later:
        assert ticks[-1:] == moments("2026-05-04T16:00:00+02:00")
    record = rig.record("paris")
    assert record.fired_count == first + later
    assert record.fired_count + record.skipped_count == 4, "all are accounted for"
    until(rig, "2026-05-05T16:00:00+02:00")
    assert rig.ticks("paris")[-1:] == moments("2026-05-05T16:00:00+02:00")


@everywhere
def test_c27_a_date_that_never_comes_is_refused(product: Surface) -> None:
    """What can never fire, or is no pattern, is refused at once with the field's name."""
    product.cron_put("warm", "* * * * *")
    for pattern, words in {
        "0 0 31 2 *": "day-of-month '31'",
        "0 0 30 2 *": "day-of-month '30'",
        "0 0 31 4,6,9,11 *": "day-of-month '31'",
        "0 0 32 1 *": "day-of-month '32'",
        "61 * * * *": "minute '61'",
        "": "0 fields",
        "* * * *": "4 fields",
        "@yearlyish": "@yearlyish",
        "* " * 5_000: "10000 characters",
    }.items():
        began = time.perf_counter()
        with pytest.raises(Refused) as refused:
            product.cron_put("never", pattern)
        assert time.perf_counter() - began < 0.05
        assert refused.value.status == "BAD_OPTION"
        assert words in refused.value.sentence
    assert product.cron_put("leap", "0 0 29 2 *") == "added"
    assert cron_preview("0 0 29 2 *", after="2026-01-01T00:00:00Z", n=2) == [
        "2028-02-29T00:00+00:00",
        "2032-02-29T00:00+00:00",
    ]


def test_c28_every_47_minutes_is_an_interval_and_no_step() -> None:
    """A step that does not divide 60 does what cron says, with a hint; an interval is even."""
    assert cron_preview("*/47 * * * *", "UTC", "2026-01-01T00:00:00Z", 4) == [
        "2026-01-01T00:47+00:00",
        "2026-01-01T01:00+00:00",
        "2026-01-01T01:47+00:00",
        "2026-01-01T02:00+00:00",
    ]
    (hint,) = cron_hints("*/47 * * * *")
    assert "47 does not divide the 60 minutes" in hint
    assert cron_hints("*/15 * * * *") == []
    ticks = cron_preview(None, after="2026-01-01T00:00:00Z", n=3, every="47m")
    assert ticks == ["2026-01-01T00:47+00:00", "2026-01-01T01:34+00:00", "2026-01-01T02:21+00:00"]


# --- G. Clock -------------------------------------------------------------------------------------


def test_c29_a_clock_that_is_set_back_repeats_nothing_and_stops_nothing_that_elapses() -> None:
    """Set back by hours: leases go on, no tick comes twice, new schedules go by the new time."""
    rig = a_cluster("2026-05-01T12:00:10Z")
    home = rig.home("work")
    rig.add("minutely", "* * * * *", overlap="allow")
    rig.add("interval", "", every_ms=MINUTE_MS, overlap="allow", queue="sms")
    delayed = push(home, "b", queue="work", delay_ms=5 * MINUTE_MS)
    due = view(home, delayed.id)["run_at"]
    rig.run(3 * MINUTE_MS - 1_000)  # the last tick was that of 12:03
    fired = rig.ticks("minutely")
    rig.add("young", "* * * * *", overlap="allow", queue="young")
    push(home, "a", queue="work")
    lease = pull(home, "work", lease_ms=15_000).job
    rig.set_clock(-2 * HOUR_MS)
    assert rig.crons is not None
    assert rig.crons.report(rig.now)["silent"] == ["minutely"]
    assert "clock_stepped" in [note.event for note in rig.notes]
    set_back_at = rig.clock.at
    for _ in range(24):  # a worker, alive all the time
        rig.run(rig.clock.at + 5_000)
        assert heartbeat(home, lease).body == (1, (), ())
        assert sweep(home)[2] == 0, "a lease stalled"
    assert ack(home, lease).accepted
    assert rig.ticks("minutely") == fired, "silent until the clock has passed its last tick"
    assert len(rig.ticks("interval", "sms")) == 2 + 2, "by elapsed time"
    assert len(rig.ticks("young", "young")) == 2
    assert view(home, delayed.id)["run_at"] == due, "as it was stored"
    rig.run(set_back_at + 2 * HOUR_MS + 3 * MINUTE_MS)
    tick(home)
    assert state_of(home, delayed.id) == "waiting"
    ticks = rig.ticks("minutely")
    assert len(set(ticks)) == len(ticks)
    assert ticks == list(range(ticks[0], ticks[-1] + 1, MINUTE_MS)), "and then goes on"
    assert len(ticks) > len(fired)


def test_c27_and_no_schedule_is_left_of_what_was_refused(product: Core) -> None:
    """A refused schedule leaves nothing."""
    with pytest.raises(Refused):
        product.cron_put("never", "0 0 31 2 *")
    body = product.ask(Verb.SCHEDULES, [0, 0, 500, 0], slot=0).body
    assert body[3] == ()
