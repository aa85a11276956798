"""The coordinator's cron over shards in memory: every tick has its job, and only one."""

import os
import random

import pytest

from cluster.coordinator.agenda import CRITICAL_FAILURES
from cluster.coordinator.cron import ASKED_MAX, MISFIRE_MS, RETRY_MS, Ask
from pyq.errors import Status
from pyq.job import JobState
from pyq.limits import DAY_MS, HOUR_MS, SECOND_MS, TICKS_MAX
from pyq.routes import shard_of, slot_of
from pyq.wire import Flag, Verb
from tests.support.crons import CronRig, Killed, since_start
from tests.support.shards import WALL_0, cancel, clean, configure, fail, fired, pull, push

MINUTE_MS = 60 * SECOND_MS
FIRST = since_start("2025-06-15T15:07:00Z")  # the first full minute after the start
MINUTES = [FIRST + n * MINUTE_MS for n in range(100)]


@pytest.fixture
def rig():
    return CronRig()


def dies_at(rig: CronRig, verb: Verb, before: bool = False) -> None:
    """The coordinator is killed at the next question of a verb: on its way, or on the way back."""

    def die(ask: Ask) -> None:
        if ask.verb is verb:
            rig.before = rig.after = lambda ask: None
            raise Killed

    if before:
        rig.before = die
    else:
        rig.after = die


# --- ticks ------------------------------------------------------------------------------


def test_every_tick_has_its_job_at_its_time(rig):
    rig.add(overlap="allow", payload=b"data", options={"priority": 7})
    for number, minute in enumerate(MINUTES[:5]):
        rig.run(minute - 1)
        assert len(rig.ticks()) == number, "early"
        rig.run(minute)
        assert rig.ticks() == MINUTES[: number + 1]
    job = rig.jobs()[0]
    assert (job["name"], job["priority"]) == ("report", 7)
    record = rig.record()
    assert (record.last_tick - WALL_0, record.fired_count) == (MINUTES[4], 5)
    assert record.last_job == rig.jobs()[-1]["id"]


def test_it_sleeps_until_the_next_tick_however_far_it_is(rig):
    rig.add(pattern="0 0 1 1 *")
    rig.run(1)
    rig.wakeups, rig.asked = 0, []
    new_year = since_start("2026-01-01T00:00:00Z")
    rig.run(new_year)
    assert rig.wakeups == 1
    assert [ask.verb for ask in rig.asked] == [Verb.PUSH, Verb.FIRED]
    assert rig.ticks() == [new_year]


def test_a_job_is_on_the_disk_before_its_tick_is_recorded(rig):
    rig.add()
    rig.run(FIRST)
    assert [(ask.verb, ask.flags) for ask in rig.asked] == [
        (Verb.PUSH, Flag.DURABLE),
        (Verb.FIRED, Flag.NONE),
    ]


def test_an_interval_counts_from_when_it_was_added_or_from_its_start(rig):
    rig.add("a", "", every_ms=90_000, overlap="allow")
    rig.add("b", "", every_ms=90_000, start_at=WALL_0 + 10_000, overlap="allow")
    rig.run(300_000)
    assert rig.ticks("a") == [90_000, 180_000, 270_000]
    assert rig.ticks("b") == [10_000, 100_000, 190_000, 280_000]


def test_nothing_fires_before_the_start_or_after_the_end(rig):
    rig.add(start_at=WALL_0 + MINUTES[2], end_at=WALL_0 + MINUTES[4], overlap="allow")
    rig.run(MINUTES[9])
    assert rig.ticks() == MINUTES[2:5]


def test_a_limit_counts_jobs_that_were_created(rig):
    rig.add(limit=2)  # and skips while the last one has not ended
    rig.run(MINUTES[3])
    rig.work()
    rig.run(MINUTES[9])
    rig.work()
    rig.run(MINUTES[12])
    assert rig.ticks() == [MINUTES[0], MINUTES[4]]
    assert (rig.record().fired_count, rig.record().skipped_count) == (2, 8 - 5)
    rig.add(limit=3)
    rig.run(MINUTES[14])
    assert rig.ticks() == [MINUTES[0], MINUTES[4], MINUTES[13]]


def test_many_schedules_at_one_moment_each_have_their_job():
    rig = CronRig(checked=False)
    for number in range(300):
        rig.add(f"s-{number}", "0 16 * * *", queue=f"q-{number % 7}")
    most = 0

    def count(ask: Ask) -> None:
        nonlocal most
        most = max(most, len(rig.crons._asking))

    rig.before = count
    rig.run(since_start("2025-06-15T16:00:00Z"))
    assert sum(len(rig.jobs(f"q-{number}")) for number in range(7)) == 300
    assert most <= ASKED_MAX


# --- overlap ----------------------------------------------------------------------------


def test_a_tick_is_skipped_while_the_last_job_has_not_ended(rig):
    rig.add()
    rig.run(MINUTES[2])
    assert rig.ticks() == MINUTES[:1]
    assert (rig.record().fired_count, rig.record().skipped_count) == (1, 2)
    assert rig.work() == 1
    rig.run(MINUTES[3])
    assert rig.ticks() == [MINUTES[0], MINUTES[3]]


@pytest.mark.parametrize("how", ["cancelled", "cleaned", "dead"])
def test_any_end_of_the_last_job_ends_the_overlap(rig, how):
    rig.add(options={"attempts": 1})
    rig.run(MINUTES[0])
    home = rig.home("emails")
    (job,) = rig.jobs()
    if how == "cancelled":
        cancel(home, job["id"])
    elif how == "cleaned":
        clean(home, JobState.WAITING)
    else:
        fail(home, pull(home).job)
    rig.run(MINUTES[1])
    assert rig.record().fired_count == 2


def test_a_job_started_by_hand_is_no_overlap(rig):
    rig.add()
    push(rig.home("emails"), "report")
    rig.run(MINUTES[0])
    assert rig.ticks() == MINUTES[:1]


# --- killed -----------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_killed_between_the_push_and_its_record_the_tick_has_one_job_and_is_counted_once(
    rig, misfire, overlap
):
    rig.add(misfire=misfire, overlap=overlap)
    dies_at(rig, Verb.PUSH)
    rig.run(MINUTES[0])
    assert rig.crons is None
    assert rig.record().last_tick == 0
    rig.run(MINUTES[0] + 500)
    rig.start()
    assert rig.ticks() == MINUTES[:1]
    record = rig.record()
    assert (record.last_tick - WALL_0, record.fired_count) == (MINUTES[0], 1)
    assert record.last_job == rig.jobs()[0]["id"]
    rig.work()
    rig.run(MINUTES[1])
    assert rig.ticks() == MINUTES[:2]


def test_killed_after_the_push_and_down_for_long_the_old_job_still_counts(rig):
    """What was pushed and not recorded is found before the newest missed tick is made up for."""
    rig.add(limit=2)
    dies_at(rig, Verb.PUSH)
    rig.run(MINUTES[5] + 1)
    rig.start()
    record = rig.record()
    assert rig.ticks() == MINUTES[:1], "the first job has not ended: no other beside it"
    assert (record.fired_count, record.skipped_count) == (1, 5)
    rig.work()
    rig.run(MINUTES[20])
    assert rig.ticks() == [MINUTES[0], MINUTES[6]]


def test_killed_before_the_push_the_tick_is_made_up_for(rig):
    rig.add()
    dies_at(rig, Verb.PUSH, before=True)
    rig.run(MINUTES[0] + 1_000)
    assert rig.ticks() == []
    rig.start()
    assert rig.ticks() == MINUTES[:1]


def test_killed_after_the_record_nothing_is_left_to_do(rig):
    rig.add()
    dies_at(rig, Verb.FIRED)
    rig.run(MINUTES[0] + 1_000)
    rig.asked = []
    rig.start()
    assert rig.asked == []
    assert rig.ticks() == MINUTES[:1]


def test_two_coordinators_at_once_make_one_job_per_tick(rig):
    rig.add(overlap="allow")
    other = CronRig()
    other.shards, other.clock = rig.shards, rig.clock
    other.start()
    for minute in MINUTES[:3]:
        rig.clock.at = minute
        rig.settle()
        other.settle()
    assert rig.ticks() == MINUTES[:3]
    assert rig.record().fired_count == 3


RESTARTS = int(os.environ.get("PYQ_CRON_RESTARTS", "300"))


def test_killed_hundreds_of_times_every_tick_has_one_job_and_none_is_missing_that_was_attended():
    """`PYQ_CRON_RESTARTS=10000` is the number of the promise."""
    dice = random.Random(17)
    rig = CronRig(checked=False)
    rig.add("each", "* * * * * *", overlap="allow")
    rig.add("fifth", "*/5 * * * * *", misfire="all", overlap="allow", queue="sms")
    attended: list[int] = []
    seen: list[int] = []
    kills = 0

    def die_sometimes(ask: Ask) -> None:
        if dice.random() < 0.15:
            raise Killed

    rig.before = rig.after = die_sometimes
    while kills < RESTARTS:
        second = (rig.clock.at // 1_000 + 1) * 1_000
        rig.run(second + dice.choice((0, 1, 400)))
        if rig.crons is None:
            kills += 1
            rig.run(rig.clock.at + dice.choice((1, 300, 700)))
            rig.start()
        else:
            attended.append(second)
        if kills % 50 == 0:
            seen += _ended(rig, "emails")
    rig.before = rig.after = lambda ask: None
    rig.restart()
    rig.run(rig.clock.at + 6_000)
    seen += _ended(rig, "emails")
    assert len(seen) == len(set(seen)), "a tick twice"
    assert set(attended) <= set(seen), "a tick is missing although somebody was there"
    fifth = rig.ticks("fifth", "sms")
    first = 5_000 - since_start("2025-06-15T15:06:40Z")
    assert fifth == list(range(first, fifth[-1] + 1, 5_000)), "all: none is missing, ever"


def _ended(rig: CronRig, queue: str) -> list[int]:
    """The ticks of the jobs so far, which are run and forgotten, for speed."""
    ticks = rig.ticks("each", queue)
    rig.work(queue)
    clean(rig.home(queue), JobState.COMPLETED, queue)
    return ticks


# --- missed -----------------------------------------------------------------------------


def missed(misfire: str, overlap: str = "allow") -> CronRig:
    """A daily schedule whose coordinator was down for three of its ticks."""
    rig = CronRig()
    rig.add(pattern="0 16 * * *", misfire=misfire, overlap=overlap)
    rig.run(HOUR_MS)
    rig.work()
    rig.kill()
    rig.run(HOUR_MS + 3 * DAY_MS)
    rig.start()
    return rig


FOUR = since_start("2025-06-15T16:00:00Z")


@pytest.mark.parametrize(
    ("misfire", "days", "skipped"), [("skip", [], 3), ("once", [3], 2), ("all", [1, 2, 3], 0)]
)
def test_ticks_missed_while_nobody_was_there_are_made_up_for_as_was_said(misfire, days, skipped):
    rig = missed(misfire)
    assert rig.ticks() == [FOUR] + [FOUR + day * DAY_MS for day in days]
    record = rig.record()
    assert (record.fired_count, record.skipped_count) == (1 + len(days), skipped)
    assert record.last_tick - WALL_0 == FOUR + 3 * DAY_MS
    rig.run(FOUR + 4 * DAY_MS)
    assert rig.ticks()[-1] == FOUR + 4 * DAY_MS
    assert [note.event for note in rig.notes] == ["ticks_missed"]


def test_all_that_were_missed_do_not_run_beside_each_other_unless_they_may():
    assert missed("all", "skip").record().skipped_count == 2


def test_a_short_absence_counts_too():
    rig = CronRig()
    rig.add("skips", "0 16 * * *", misfire="skip")
    rig.add("makes-up", "0 16 * * *", misfire="once", queue="sms")
    rig.run(FOUR - 1_000)
    rig.kill()
    rig.run(FOUR + 16_000)
    rig.start()
    rig.run(FOUR + HOUR_MS)
    assert rig.ticks("skips") == []
    assert rig.ticks("makes-up", "sms") == [FOUR]


def test_of_very_many_missed_ticks_the_newest_thousand_are_made_up_for():
    rig = CronRig(checked=False)
    rig.add(misfire="all", overlap="allow")
    rig.kill()
    rig.run(2_000 * MINUTE_MS)
    rig.start()
    last = (2_000 * MINUTE_MS - FIRST) // MINUTE_MS * MINUTE_MS + FIRST
    ticks = rig.ticks()
    assert len(ticks) == TICKS_MAX
    assert (ticks[0], ticks[-1]) == (last - (TICKS_MAX - 1) * MINUTE_MS, last)


def test_a_coordinator_that_stood_still_makes_up_for_what_is_less_than_a_minute_old(rig):
    rig.add("each", "* * * * * *", overlap="allow", misfire="skip")
    rig.run(5_000)
    rig.clock.at = 5_000 + MISFIRE_MS + 20_000  # SIGSTOP, SIGCONT
    rig.settle()
    ticks = rig.ticks("each")
    assert ticks == list(range(1_000, 5_001, 1_000)) + list(range(26_000, 85_001, 1_000))
    assert rig.record("each").skipped_count == 20


# --- paused, removed, changed -----------------------------------------------------------


def test_what_was_slept_through_is_not_made_up_for(rig):
    rig.add(misfire="all", overlap="allow")
    rig.run(MINUTES[0])
    rig.pause()
    rig.run(MINUTES[5])
    rig.restart()
    rig.run(MINUTES[6] + 1)
    rig.resume()
    rig.run(MINUTES[8])
    assert rig.ticks() == [MINUTES[0], MINUTES[7], MINUTES[8]]


def test_remove_and_add_do_not_fire_a_tick_again(rig):
    for _ in range(3):
        rig.add(overlap="allow")
        rig.run(MINUTES[0])
        rig.remove()
    rig.run(MINUTES[1])
    rig.add(overlap="allow")
    rig.restart()
    rig.run(MINUTES[2])
    assert rig.ticks() == [MINUTES[0], MINUTES[2]]


def test_the_same_words_again_at_each_deployment_change_nothing(rig):
    for minute in MINUTES[:4]:
        assert rig.add(overlap="allow") in ("added", "unchanged")
        rig.run(minute - 1)
        assert rig.add(overlap="allow") == "unchanged"
        rig.run(minute + 1)
    assert rig.ticks() == MINUTES[:4]


def test_a_changed_pattern_holds_at_once_and_not_for_the_past(rig):
    rig.add(pattern="0 * * * *", overlap="allow", misfire="all")
    rig.run(FOUR + 30 * MINUTE_MS)
    rig.add(pattern="15 * * * *", overlap="allow", misfire="all")
    rig.run(FOUR + 2 * HOUR_MS)
    assert rig.ticks() == [FOUR, FOUR + HOUR_MS + 15 * MINUTE_MS]


def test_changed_while_its_job_is_on_the_way_the_tick_is_recorded(rig):
    rig.add(overlap="allow")

    def change(ask: Ask) -> None:
        if ask.verb is Verb.PUSH:
            rig.after = lambda ask: None
            rig.add(overlap="allow", queue="sms")

    rig.after = change
    rig.run(MINUTES[1])
    assert rig.ticks() == MINUTES[:1]
    assert rig.ticks(queue="sms") == [MINUTES[1]]
    assert rig.record().fired_count == 2


def test_removed_while_its_job_is_on_the_way_it_is_remembered(rig):
    rig.add(overlap="allow")

    def remove(ask: Ask) -> None:
        if ask.verb is Verb.PUSH:
            rig.after = lambda ask: None
            rig.remove()

    rig.after = remove
    rig.run(MINUTES[2])
    assert rig.ticks() == MINUTES[:1]
    assert rig.home("nightly").state.schedules.get("nightly").last_tick - WALL_0 == MINUTES[0]
    assert rig.crons.report(rig.now)["schedules"] == 0


# --- the clock is set -------------------------------------------------------------------


def test_set_back_a_pattern_is_silent_until_its_last_tick_has_passed(rig):
    rig.add(overlap="allow")
    rig.run(MINUTES[9])
    rig.set_clock(-5 * MINUTE_MS)
    assert rig.crons.report(rig.now)["silent"] == ["nightly"]
    rig.run(MINUTES[9] + 5 * MINUTE_MS)
    assert rig.ticks() == MINUTES[:10]
    rig.restart()
    rig.run(MINUTES[9] + 6 * MINUTE_MS)
    assert rig.ticks() == MINUTES[:11]
    assert rig.crons.report(rig.now)["silent"] == []
    assert "clock_stepped" in [note.event for note in rig.notes]


def test_set_back_an_interval_goes_on_by_elapsed_time(rig):
    rig.add("beat", "", every_ms=10_000, overlap="allow")
    rig.run(25_000)
    rig.set_clock(-HOUR_MS)
    for number in range(3, 8):
        rig.run(number * 10_000 - 1)
        assert len(rig.ticks("beat")) == number - 1
        rig.run(number * 10_000)
        assert len(rig.ticks("beat")) == number
    assert rig.ticks("beat") == list(range(10_000, 70_001, 10_000)), "ids go on, too"
    rig.restart()  # who comes later sees no more than a last tick ahead of the clock
    rig.run(70_000 + 10_000)
    assert rig.ticks("beat")[-1] == 80_000
    rig.run(100_000)
    assert rig.ticks("beat")[-1] == 100_000


def test_set_back_and_forward_again_an_interval_is_where_it_was(rig):
    rig.add("beat", "", every_ms=10_000, overlap="allow")
    rig.run(15_000)
    rig.set_clock(-HOUR_MS)
    rig.run(35_000)
    rig.set_clock(HOUR_MS)
    rig.run(60_000)
    assert rig.ticks("beat") == list(range(10_000, 60_001, 10_000))


def test_set_back_who_never_fired_goes_by_the_new_time(rig):
    rig.add()
    rig.run(1_000)
    rig.set_clock(-2 * HOUR_MS)
    rig.run(1_000 + MINUTE_MS)
    (tick,) = rig.ticks()
    assert tick == MINUTES[0] - 2 * HOUR_MS


def test_set_back_while_nobody_was_there_who_never_fired_goes_by_the_new_time_too(rig):
    rig.add("a")
    rig.add("b", "", every_ms=MINUTE_MS)
    rig.kill()
    rig.clock.wall_shift -= 2 * HOUR_MS
    rig.run(5_000)
    rig.start()
    rig.run(5_000 + MINUTE_MS)
    assert len(rig.ticks("a")) == 1
    assert len(rig.ticks("b")) == 1


def test_set_forward_what_is_passed_over_is_missed(rig):
    rig.add(overlap="allow")
    rig.run(MINUTES[0])
    rig.set_clock(HOUR_MS)
    rig.run(MINUTES[0] + 2_000)
    late = MINUTES[0] + HOUR_MS
    assert rig.ticks() == [MINUTES[0], late - MINUTE_MS, late]
    assert rig.record().skipped_count == 58


# --- trouble ----------------------------------------------------------------------------


def two_shards(rig: CronRig) -> tuple[str, str]:
    """The names of two queues on different shards."""
    names = [f"q-{number}" for number in range(20)]
    first = names[0]
    other = next(name for name in names if shard_of(slot_of(name) ^ slot_of(first), 2))
    return first, other


def test_a_shard_that_is_down_holds_up_nobody_else_and_gets_its_jobs_later(rig):
    dead, alive = two_shards(rig)
    rig.add(dead, overlap="allow", queue=dead)
    rig.add(alive, overlap="allow", queue=alive)
    rig.run(1)
    rig.down = {shard_of(slot_of(dead), 2)}
    rig.run(MINUTES[0] + 30_000)
    assert rig.ticks(alive, alive) == MINUTES[:1]
    rig.down = set()
    rig.run(MINUTES[0] + 31_000 + RETRY_MS)
    assert rig.ticks(dead, dead) == MINUTES[:1]
    assert rig.crons.healthy


def test_five_failures_in_a_row_are_critical_and_it_goes_on_trying(rig):
    dead, alive = two_shards(rig)
    rig.add(alive, queue=dead)
    rig.run(1)
    rig.down = {shard_of(slot_of(dead), 2)}
    rig.run(MINUTES[0] + (CRITICAL_FAILURES - 1) * RETRY_MS - 1)
    assert rig.crons.healthy
    rig.run(MINUTES[0] + CRITICAL_FAILURES * RETRY_MS)
    assert not rig.crons.healthy
    assert rig.crons.row(rig.now)[:2] == ["cron", CRITICAL_FAILURES + 1]
    assert rig.crons.report(rig.now)["failing"] == [(alive, "the shard is down")]
    critical = [note for note in rig.notes if note.level == "critical"]
    assert [note.event for note in critical] == ["schedule_keeps_failing"]
    rig.down = set()
    rig.run(MINUTES[0] + 10_000)
    assert rig.crons.healthy
    assert rig.ticks(alive, dead) == MINUTES[:1]


def test_while_a_tick_cannot_be_recorded_the_next_one_waits(rig):
    home, target = two_shards(rig)
    rig.add(home, "* * * * * *", queue=target, overlap="allow")
    rig.run(1_500)
    rig.down = {shard_of(slot_of(home), 2)}
    rig.run(5_500)
    assert rig.ticks(home, target) == [1_000, 2_000]
    rig.down = set()
    rig.run(8_000)
    assert rig.ticks(home, target) == list(range(1_000, 8_001, 1_000))
    assert rig.record(home).fired_count == 8


def test_a_question_without_an_answer_is_asked_again(rig):
    rig.add()
    rig.clock.at = FIRST
    lost = rig.crons.take_due(rig.now)
    assert [ask.verb for ask in lost] == [Verb.PUSH]
    assert rig.crons.next_wakeup(rig.now) == rig.now.mono_ms + lost[0].timeout_ms
    rig.run(FIRST + 10_000)
    assert rig.ticks() == MINUTES[:1]
    rig.crons.heard(lost[0].key, Status.OK, (1, ()), rig.now)  # far too late: nobody is confused
    rig.work()
    rig.run(MINUTES[1])
    assert rig.ticks() == MINUTES[:2]


def test_a_router_that_is_back_hastens_what_failed(rig):
    rig.add()
    rig.clock.at = FIRST
    (ask,) = rig.crons.take_due(rig.now)
    rig.crons.not_sent(ask.key, "the router is not reachable", rig.now)
    rig.clock.at += 100
    assert rig.crons.take_due(rig.now) == []
    rig.crons.hasten(rig.now)
    rig.settle()
    assert rig.ticks() == MINUTES[:1]


@pytest.mark.parametrize("reply", [None, (), (1,), (1, ((0,),)), "words", {"a": 1}])
def test_an_answer_that_makes_no_sense_is_a_failure(rig, reply):
    rig.add()
    rig.clock.at = FIRST
    (ask,) = rig.crons.take_due(rig.now)
    rig.crons.heard(ask.key, Status.OK, reply, rig.now)
    assert rig.crons.report(rig.now)["failing"]
    rig.run(FIRST + 2_000)
    assert rig.ticks() == MINUTES[:1]


@pytest.mark.parametrize("reply", [None, (), (1, 2, False, ({"no": "name"},)), (1, 2, False, 3)])
def test_a_list_that_makes_no_sense_is_not_taken(rig, reply):
    assert not rig.crons.heard_of(0, reply, rig.now)


def test_a_queue_that_refuses_the_job_is_asked_for_ever_and_others_go_on(rig):
    rig.add("bad", options={"ttl_ms": 5_000})
    rig.add("good", queue="sms")
    configure(rig.home("emails"), defaults={"delay_ms": 10_000})
    rig.run(MINUTES[0] + 30_000)
    assert rig.ticks("good", "sms") == MINUTES[:1]
    assert not rig.crons.healthy
    assert "ttl" in rig.crons.report(rig.now)["failing"][0][1]
    configure(rig.home("emails"), defaults=None)
    rig.run(MINUTES[0] + 32_000)
    assert rig.ticks("bad") == MINUTES[:1]
    assert rig.crons.healthy


def test_a_failing_schedule_that_is_paused_is_no_concern(rig):
    rig.add("bad", options={"ttl_ms": 5_000})
    configure(rig.home("emails"), defaults={"delay_ms": 10_000})
    rig.run(MINUTES[0] + 30_000)
    assert not rig.crons.healthy
    rig.pause("bad")
    assert rig.crons.healthy
    rig.run(MINUTES[5])
    assert rig.crons.report(rig.now)["failing"] == []


def test_a_unique_key_that_is_held_skips_the_tick(rig):
    rig.add(overlap="allow", options={"unique": "k"})
    rig.run(MINUTES[1])
    assert rig.ticks() == MINUTES[:1]
    assert (rig.record().fired_count, rig.record().skipped_count) == (1, 1)


def test_a_custom_id_that_somebody_took_skips_the_tick(rig):
    home = rig.home("emails")
    push(home, "x", job_id=f"cron/nightly/{WALL_0 + FIRST}")
    rig.add(overlap="allow")
    rig.run(MINUTES[1])
    assert (rig.record().fired_count, rig.record().skipped_count) == (1, 1)
    assert len(rig.jobs()) == 2, "somebody's, and that of the second tick"


def test_a_shard_that_was_restarted_tells_its_schedules_again(rig):
    rig.add(overlap="allow")
    rig.add("gone", overlap="allow", queue="sms")
    rig.run(MINUTES[0])
    for shard in rig.shards:
        shard.restart()
        shard.clock = rig.clock
    fired(rig.home("nightly"), WALL_0 + MINUTES[1], at=MINUTES[1])  # by somebody else
    for shard in rig.shards:
        shard.restart()
    rig.run(MINUTES[2])
    assert rig.ticks() == [MINUTES[0], MINUTES[2]]


def test_a_schedule_whose_shard_forgot_it_is_dropped(rig):
    rig.add(overlap="allow")
    home = rig.home("nightly")
    home.state.schedules.drop("nightly")
    rig.run(MINUTES[1])
    assert rig.ticks() == MINUTES[:1]
    assert rig.crons.report(rig.now)["schedules"] == 0
    rig.add("nightly")
    home.state.schedules.drop("nightly")
    home.state.epoch += 1
    rig.settle()
    assert rig.crons.report(rig.now)["schedules"] == 0


def test_a_schedule_that_cannot_be_read_is_said_loudly_and_harms_no_other(rig, monkeypatch):
    rig.add("good", overlap="allow")
    rig.add("bad", zone="Asia/Tokyo")
    monkeypatch.setattr("pyq.cron._zone_names", lambda: frozenset(["UTC"]))
    rig.restart()
    assert not rig.crons.healthy
    assert [name for name, _ in rig.crons.report(rig.now)["failing"]] == ["bad"]
    assert [note.event for note in rig.notes] == ["schedule_unreadable"]
    rig.run(MINUTES[0])
    assert rig.ticks("good") == MINUTES[:1]
    rig.remove("bad")
    assert rig.crons.healthy
