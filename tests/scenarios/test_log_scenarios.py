"""LOG and LOGS: lines of a job, numbered per lease so that a repeat adds none; the newest stay."""

import pytest

from pyq.errors import Status
from pyq.job import COMPLETED
from pyq.limits import LOG_LINES_MAX
from pyq.messages import Ack, Log, Logs, Progress
from tests.support.sayings import purge, statuses
from tests.support.shards import (
    WALL_0,
    ack,
    cancel,
    clean,
    drain,
    fail,
    log,
    logs,
    obliterate,
    progress,
    pull,
    push,
    release,
    repeat,
    retry,
    stall,
    tick,
    view,
)

AT_ONCE = [0, 1, 0, 0, []]


def a_running_job(shard, **options):
    push(shard, "a", **options)
    return pull(shard).job


def texts(shard, job):
    return [line[3] for line in logs(shard, job.id)]


def test_lines_are_kept_in_order_with_number_time_and_attempt(shard, maybe_restart):
    job = a_running_job(shard, backoff=AT_ONCE)
    log(shard, job, "one", "two", at=10)
    maybe_restart()
    log(shard, job, "three", first=3, at=20)
    fail(shard, job)
    again = pull(shard).job
    log(shard, again, "four", at=30)
    maybe_restart()
    assert logs(shard, job.id) == [
        (1, WALL_0 + 10, 1, "one"),
        (2, WALL_0 + 10, 1, "two"),
        (3, WALL_0 + 20, 1, "three"),
        (4, WALL_0 + 30, 2, "four"),
    ]


def test_a_repeat_adds_nothing(shard, maybe_restart):
    job = a_running_job(shard)
    logged = log(shard, job, "one", "two")
    maybe_restart()
    assert repeat(shard, logged).accepted
    assert texts(shard, job) == ["one", "two"]


def test_of_lines_that_overlap_only_the_new_ones_count(shard, maybe_restart):
    job = a_running_job(shard)
    log(shard, job, "one", "two")
    maybe_restart()
    log(shard, job, "two", "three", first=2)
    log(shard, job, "one", first=1)
    assert texts(shard, job) == ["one", "two", "three"]


def test_lines_that_were_lost_leave_no_gap_in_the_log(shard):
    job = a_running_job(shard)
    log(shard, job, "one")
    log(shard, job, "five", first=5)
    log(shard, job, "three", first=3)
    assert [(line[0], line[3]) for line in logs(shard, job.id)] == [(1, "one"), (2, "five")]


def test_one_message_may_write_to_one_job_twice(shard):
    job = a_running_job(shard)
    items = [(job.id, job.token, 1, ("one",)), (job.id, job.token, 1, ("one", "two"))]
    assert shard.send(Log(shard.origin("worker-l"), items))[0].accepted
    assert texts(shard, job) == ["one", "two"]


def test_no_lines_are_fine(shard):
    job = a_running_job(shard)
    assert log(shard, job).accepted
    assert logs(shard, job.id) == []


@pytest.mark.parametrize("interrupt", [release, fail, stall])
def test_each_lease_numbers_its_own_lines_from_one(shard, interrupt, maybe_restart):
    job = a_running_job(shard, backoff=AT_ONCE)
    log(shard, job, "one", "two")
    interrupt(shard, job)
    maybe_restart()
    again = pull(shard).job
    log(shard, again, "uno")
    log(shard, again, "uno", "dos")
    assert texts(shard, job) == ["one", "two", "uno", "dos"]


def test_a_stale_token_writes_nothing(shard):
    job = a_running_job(shard, backoff=AT_ONCE)
    stall(shard, job)
    assert log(shard, job, "late").stale
    new = pull(shard).job
    assert log(shard, job, "later").stale
    ack(shard, new)
    assert log(shard, new, "after").stale
    assert texts(shard, job) == []


def test_items_are_answered_one_by_one(shard):
    push(shard, *"ab")
    a, b = pull(shard, jobs_max=2).jobs
    ack(shard, a)
    items = [(job.id, job.token, 1, ("x",)) for job in (a, b)]
    answer = shard.send(Log(shard.origin("worker-l"), items))[0]
    assert statuses(answer) == [(0, Status.STALE_TOKEN)]
    assert texts(shard, b) == ["x"]


def test_the_newest_thousand_are_kept_and_numbers_go_on(shard, maybe_restart):
    job = a_running_job(shard)
    shard.checked = False
    for first in range(1, 1_301, 100):
        log(shard, job, *[f"line {n}" for n in range(first, first + 100)], first=first)
    shard.checked = True
    tick(shard)
    maybe_restart()
    kept = logs(shard, job.id)
    assert [kept[0][0], kept[-1][0], len(kept)] == [301, 1_300, LOG_LINES_MAX]
    assert kept[0][3] == "line 301"
    log(shard, job, "last", first=1_301)
    assert [logs(shard, job.id)[at][0] for at in (0, -1)] == [302, 1_301]


def test_the_bound_is_exact(shard):
    job = a_running_job(shard)
    log(shard, job, *["x"] * LOG_LINES_MAX)
    assert len(logs(shard, job.id)) == LOG_LINES_MAX
    log(shard, job, "y", first=LOG_LINES_MAX + 1)
    assert [line[0] for line in logs(shard, job.id)] == [*range(2, LOG_LINES_MAX + 2)]


def test_many_lines_of_one_turn_keep_the_newest(shard):
    job = a_running_job(shard)
    commands = [
        Log(shard.origin("worker-l"), [(job.id, job.token, first, ("x",) * 600)])
        for first in (1, 601, 1_201)
    ]
    shard.send(*commands)
    assert [line[0] for line in logs(shard, job.id)] == [*range(801, 1_801)]


def test_a_log_is_read_in_pages(shard):
    job = a_running_job(shard)
    log(shard, job, *"abcde")
    collected, after = "", 0
    while after is not None:
        command = Logs(shard.origin("admin"), job.id, after, 2)
        lines, after = shard.send(command)[0].body
        assert len(lines) <= 2
        collected += "".join(line[3] for line in lines)
    assert collected == "abcde"


@pytest.mark.parametrize("end", ["completed", "dead"])
def test_an_ended_job_keeps_its_log_as_long_as_its_record(shard, end, maybe_restart):
    job = a_running_job(shard, attempts=1)
    log(shard, job, "one")
    ack(shard, job) if end == "completed" else fail(shard, job)
    maybe_restart()
    assert texts(shard, job) == ["one"]
    clean(shard, COMPLETED) if end == "completed" else purge(shard, job.id)
    maybe_restart()
    answer = shard.send(Logs(shard.origin("admin"), job.id))[0]
    assert answer.status is Status.NOT_FOUND


def is_cancelled(shard, job):
    cancel(shard, job.id)
    release(shard, job)


def is_drained(shard, job):
    release(shard, job)
    drain(shard)


def is_obliterated(shard, job):
    obliterate(shard, force=True)


def is_not_kept(shard, job):
    ack(shard, job)


@pytest.mark.parametrize("leave", [is_cancelled, is_drained, is_obliterated, is_not_kept])
def test_a_job_that_is_gone_takes_its_log_along(shard, leave, maybe_restart):
    job = a_running_job(shard, keep_completed=False)
    log(shard, job, "one")
    leave(shard, job)
    maybe_restart()
    assert shard.send(Logs(shard.origin("admin"), job.id))[0].status is Status.NOT_FOUND
    push(shard, "b")
    assert logs(shard, pull(shard).job.id) == []


@pytest.mark.parametrize("keep_completed", [True, False])
def test_lines_and_the_ack_of_one_turn(shard, keep_completed, maybe_restart):
    job = a_running_job(shard, keep_completed=keep_completed)
    logged, acked = shard.send(
        Log(shard.origin("worker-l"), [(job.id, job.token, 1, ("one",))]),
        Ack(shard.origin("worker-a"), [(job.id, job.token, None)]),
    )
    assert logged.accepted
    assert acked.accepted
    maybe_restart()
    if keep_completed:
        assert texts(shard, job) == ["one"]


def test_a_retried_completed_job_goes_on_with_its_log(shard, maybe_restart):
    job = a_running_job(shard)
    log(shard, job, "one")
    ack(shard, job)
    maybe_restart()
    retry(shard, job.id)
    log(shard, pull(shard).job, "two")
    assert [(line[0], line[3]) for line in logs(shard, job.id)] == [(1, "one"), (2, "two")]


def test_progress_survives_a_restart_beside_the_log(shard, maybe_restart):
    job = a_running_job(shard)
    shard.send(
        Log(shard.origin("worker-l"), [(job.id, job.token, 1, ("one",))]),
        Progress(shard.origin("worker-p"), [(job.id, job.token, b"50%")]),
    )
    maybe_restart()
    assert view(shard, job.id)["progress"] == b"50%"
    assert progress(shard, job, value=b"60%").accepted
    assert texts(shard, job) == ["one"]


def test_an_unknown_job_has_no_log(shard):
    nobody = shard.an_id("emails")
    assert shard.send(Logs(shard.origin("admin"), nobody))[0].status is Status.NOT_FOUND
