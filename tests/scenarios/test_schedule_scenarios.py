"""Records of schedules: added, changed, suspended, removed, and how far they have come."""

import pytest

from pyq.errors import Status
from pyq.limits import DAY_MS, TICK_AHEAD_MS
from tests.support.shards import (
    WALL_0,
    a_shard,
    ask_schedules,
    fired,
    schedule,
    schedules,
    suspend,
    tick,
    unschedule,
)

JOB = b"j" * 16


def test_a_schedule_is_kept_with_everything_that_was_said_of_it(shard, maybe_restart):
    call = schedule(
        shard,
        pattern="0 6 * * MON",
        zone="Europe/Paris",
        limit=3,
        overlap="allow",
        misfire="all",
        payload=b"data",
        options={"priority": 5, "tags": ["a"], "backoff": [1_000, 1, 1_000, 0, [5]]},
    )
    assert call.body[0] == "added"
    maybe_restart()
    (kept,) = schedules(shard).values()
    assert kept.cron.to_wire() == {
        "pattern": "0 6 * * MON",
        "zone": "Europe/Paris",
        "limit": 3,
        "overlap": "allow",
        "misfire": "all",
    }
    assert (kept.queue, kept.job, kept.payload) == ("emails", "report", b"data")
    assert kept.options["priority"] == 5
    assert kept.since == kept.anchor_at == kept.changed_at == WALL_0
    assert (kept.last_tick, kept.fired_count, kept.paused) == (0, 0, False)


def test_the_same_words_again_change_nothing(shard, maybe_restart):
    schedule(shard, options={"tags": ["a", "b"]})
    fired(shard, WALL_0 + 1, job_id=JOB)
    before = schedules(shard)
    maybe_restart()
    assert schedule(shard, options={"tags": ["a", "b"]}, at=9_000).body[0] == "unchanged"
    assert schedules(shard) == before


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"pattern": "*/2 * * * *"}, True),
        ({"zone": "Asia/Tokyo"}, True),
        ({"limit": 9}, False),
        ({"misfire": "all"}, False),
        ({"payload": b"q"}, False),
        ({"queue": "sms"}, True),
        ({"options": {"priority": 1}}, False),
    ],
)
def test_a_change_keeps_what_has_happened_and_is_no_reason_to_fire_for_the_past(
    shard, maybe_restart, change, anew
):
    schedule(shard)
    suspend(shard)
    fired(shard, WALL_0 + 1, job_id=JOB)
    maybe_restart()
    assert schedule(shard, at=60_000, **change).body[0] == "changed"
    maybe_restart()
    (kept,) = schedules(shard).values()
    assert (kept.last_tick, kept.fired_count, kept.last_job) == (WALL_0 + 1, 1, JOB)
    assert kept.paused
    moved = WALL_0 + 60_000 if anew else WALL_0
    assert (kept.since, kept.anchor_at) == (moved, moved)


def test_a_tick_moves_a_schedule_forward_only(shard, maybe_restart):
    schedule(shard)
    first = WALL_0 + 60_000
    assert fired(shard, first, job_id=JOB, at=60_000).body == (first, 1, 0, JOB)
    maybe_restart()
    for earlier in (first, first - 60_000):
        assert fired(shard, earlier, job_id=b"k" * 16, skipped=7).body == (first, 1, 0, JOB)
    second = first + 60_000
    assert fired(shard, second, skipped=3, at=120_000).body == (second, 1, 3, JOB)
    maybe_restart()
    assert schedules(shard)["nightly"].skipped_count == 3


def test_a_tick_ahead_of_the_clock_is_refused(shard):
    schedule(shard)
    assert fired(shard, WALL_0 + TICK_AHEAD_MS).status is Status.OK
    assert fired(shard, WALL_0 + TICK_AHEAD_MS + 1).status is Status.CONFLICT


def test_an_interval_goes_on_when_the_clock_is_set_back(shard):
    schedule(shard, pattern="", every_ms=60_000)
    fired(shard, WALL_0 + 60_000, at=60_000)
    shard.clock.wall_shift = -7_200_000
    assert fired(shard, WALL_0 + 120_000, at=120_000).status is Status.OK
    assert fired(shard, WALL_0 + 180_000, at=180_000).status is Status.OK
    assert fired(shard, WALL_0 + 240_001).status is Status.CONFLICT, "more than one interval"


def test_suspend_says_whether_it_changed_and_resume_leaves_out_what_was_slept_through(
    shard, maybe_restart
):
    schedule(shard)
    assert suspend(shard).body == (1,)
    assert suspend(shard).body == (0,)
    maybe_restart()
    assert schedules(shard)["nightly"].paused
    assert suspend(shard, paused=False, at=600_000).body == (1,)
    maybe_restart()
    kept = schedules(shard)["nightly"]
    assert not kept.paused
    assert (kept.since, kept.anchor_at) == (WALL_0 + 600_000, WALL_0)


def test_remove_and_add_remember_the_last_tick_and_count_anew(shard, maybe_restart):
    schedule(shard)
    fired(shard, WALL_0 + 1, job_id=JOB)
    assert unschedule(shard).body == (1,)
    assert unschedule(shard).body == (0,)
    assert schedules(shard) == {}
    maybe_restart()
    assert fired(shard, WALL_0 + 2, job_id=JOB).body[0] == WALL_0 + 2, "it was on its way"
    assert schedule(shard, at=5_000).body[0] == "added"
    maybe_restart()
    kept = schedules(shard)["nightly"]
    assert (kept.last_tick, kept.last_job, kept.fired_count) == (WALL_0 + 2, JOB, 0)
    assert kept.since == WALL_0 + 5_000


def test_a_removed_schedule_is_forgotten_after_a_week(shard, maybe_restart):
    schedule(shard)
    unschedule(shard)
    schedule(shard, "later")
    unschedule(shard, "later", at=DAY_MS)
    tick(shard, at=7 * DAY_MS - 1)
    assert len(shard.state.schedules) == 2
    tick(shard, at=7 * DAY_MS + 1_000)
    assert [kept.name for kept in shard.state.schedules] == ["later"]
    maybe_restart()
    assert [kept.name for kept in shard.state.schedules] == ["later"]
    assert fired(shard, WALL_0 + 1).status is Status.NOT_FOUND
    tick(shard, at=8 * DAY_MS + 2_000)
    assert len(shard.state.schedules) == 0


def test_what_is_not_there_is_not_found(shard):
    assert suspend(shard).status is Status.NOT_FOUND
    assert fired(shard, WALL_0).status is Status.NOT_FOUND
    assert unschedule(shard).body == (0,)
    assert schedules(shard, name="nightly") == {}
    schedule(shard)
    unschedule(shard)
    assert suspend(shard).status is Status.NOT_FOUND


def test_a_reader_hears_of_every_change_once_and_of_no_tick(shard):
    schedule(shard, "a")
    schedule(shard, "b")
    epoch, after, more, views = ask_schedules(shard, wait_ms=60_000).body
    assert [view["name"] for view in views] == ["a", "b"]
    assert not more
    waiting = ask_schedules(shard, epoch=epoch, after=after, wait_ms=60_000)
    fired(shard, WALL_0 + 1, "a")
    schedule(shard, "a")  # the same again
    assert waiting.waits
    suspend(shard, "a")
    _, after, _, views = waiting.body
    assert [(view["name"], view["paused"]) for view in views] == [("a", True)]
    waiting = ask_schedules(shard, epoch=epoch, after=after, wait_ms=60_000)
    unschedule(shard, "b")
    _, after, _, (view,) = waiting.body
    assert (view["name"], view["removed_at"]) == ("b", WALL_0)
    waiting = ask_schedules(shard, epoch=epoch, after=after, wait_ms=60_000)
    tick(shard, at=60_000)
    assert waiting.body == (epoch, after, False, ())


def test_an_empty_shard_has_its_reader_wait(shard):
    epoch, after, _, views = ask_schedules(shard, wait_ms=60_000).body
    assert views == ()
    waiting = ask_schedules(shard, epoch=epoch, after=after, wait_ms=60_000)
    assert waiting.waits
    schedule(shard)
    assert [view["name"] for view in waiting.body[3]] == ["nightly"]


def test_a_reader_from_before_a_restart_gets_everything_again(shard):
    schedule(shard, "a")
    epoch, after, _, _ = ask_schedules(shard).body
    shard.restart()
    again, _, _, views = ask_schedules(shard, epoch=epoch, after=after, wait_ms=60_000).body
    assert again == epoch + 1
    assert [view["name"] for view in views] == ["a"]


def test_pages_follow_each_other(shard):
    for name in "abcde":
        schedule(shard, name)
    seen, after, more = [], 0, True
    while more:
        _, after, more, views = ask_schedules(
            shard, epoch=shard.state.epoch, after=after, limit=2
        ).body
        seen += [view["name"] for view in views]
    assert seen == list("abcde")


def test_a_page_ends_before_it_is_too_large(shard):
    for number in range(60):
        schedule(shard, f"s-{number}", payload=bytes(100_000))
    _, _, more, views = ask_schedules(shard).body
    assert more
    assert len(views) == 41


def test_a_full_disk_refuses_new_schedules_and_records_ticks(shard):
    schedule(shard)
    shard.disk_low = True
    assert schedule(shard, "other").status is Status.DISK_FULL
    assert fired(shard, WALL_0 + 1).status is Status.OK
    assert suspend(shard).status is Status.OK


def test_there_are_bounds(shard, monkeypatch):
    monkeypatch.setattr("shardnode.core.operations.schedules.SCHEDULES_MAX", 2)
    schedule(shard, "a")
    schedule(shard, "b")
    assert schedule(shard, "c").status is Status.BUSY
    assert schedule(shard, "a", payload=b"other").body[0] == "changed"
    for name in "ab":
        unschedule(shard, name)
    for name in "cde":
        assert schedule(shard, name).body[0] == "added"
        unschedule(shard, name, at=shard.clock.at + 1)
    assert [kept.name for kept in shard.state.schedules] == ["d", "e"]
    monkeypatch.setattr("shardnode.core.operations.schedules.SCHEDULES_BYTES_MAX", 3)
    assert schedule(shard, "f", payload=b"1234").status is Status.BUSY


def test_a_schedule_of_another_shard_is_not_taken():
    rig = a_shard(shard=0, shards_count=2)
    codes = [call.status for call in (schedule(rig, "a"), schedule(rig, "b"))]
    assert sorted(codes) == [Status.OK, Status.WRONG_SHARD]
