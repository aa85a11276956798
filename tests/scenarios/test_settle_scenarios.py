"""ACK, FAIL, RELEASE, EXTEND, PROGRESS: only the holder of the lease decides, and only once."""

import pytest

from pyq.errors import Status
from pyq.limits import HISTORY_MAX
from pyq.messages import (
    Ack,
    Cancel,
    Extend,
    Fail,
    Get,
    Heartbeat,
    Progress,
    Purge,
    Release,
    Result,
    Retry,
)
from tests.support.shards import (
    REPEAT,
    a_shard,
    ack,
    counts,
    extend,
    fail,
    page,
    progress,
    pull,
    push,
    release,
    repeat,
    result,
    stall,
    state_of,
    sweep,
    sweeps,
    tick,
    undelivered,
    view,
)

NO_JITTER = [1_000, 2.0, 3_600_000, 0.0, []]
AT_ONCE = [0, 2.0, 0, 0.0, []]

# --- ack --------------------------------------------------------------------------------


def test_an_acked_job_is_completed_with_its_result():
    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job

    assert ack(shard, job, result=b"\x00result", at=70).accepted
    seen = view(shard, pushed.id)
    assert (seen["state"], seen["result"]) == ("completed", b"\x00result")
    assert seen["finished_at"] == seen["created_at"] + 70


def test_an_acked_job_is_never_leased_again():
    shard = a_shard()
    push(shard, "a")
    ack(shard, pull(shard).job)
    shard.restart()

    assert pull(shard, at=10_000_000).names == ""


def test_many_jobs_are_acked_item_by_item():
    shard = a_shard()
    push(shard, *"abc")
    a, b, c = pull(shard, jobs_max=3).jobs
    foreign = b._replace(token=bytes(20))
    acked = ack(shard, a, foreign, c)

    assert [(index, status) for index, status, _ in acked.exceptions] == [(1, Status.STALE_TOKEN)]
    assert counts(shard)["emails"] == {"active": 1, "completed": 2}


def test_jobs_of_several_queues_are_acked_together():
    shard = a_shard()
    push(shard, "a", queue="one")
    push(shard, "b", queue="two")
    assert ack(shard, *pull(shard, "one", "two", jobs_max=2).jobs).accepted

    assert counts(shard) == {"one": {"completed": 1}, "two": {"completed": 1}}


def test_a_stale_token_changes_nothing():
    shard = a_shard()
    push(shard, "a")
    first = pull(shard).job
    release(shard, first)
    second = pull(shard, client="other").job

    assert ack(shard, first, result=b"mine").stale
    assert fail(shard, first).stale
    assert release(shard, first).stale
    assert extend(shard, first, lease_ms=60_000).stale
    assert progress(shard, first, value=b"9").stale
    seen = view(shard, first.id)
    assert (seen["state"], seen["result"], seen["progress"]) == ("active", None, None)
    assert ack(shard, second, result=b"ours").accepted


def test_a_token_of_another_job_is_stale():
    shard = a_shard()
    push(shard, "a", "b")
    a, b = pull(shard, jobs_max=2).jobs

    assert ack(shard, a._replace(token=b.token)).stale


def test_an_unknown_job_is_stale():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job._replace(id=shard.an_id("emails"))

    assert ack(shard, job).stale
    assert ack(shard, job, flags=REPEAT).stale


def test_a_job_named_twice_in_one_ack_completes_once():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    acked = ack(shard, job, job, result=b"r")

    assert acked.exceptions == [(1, Status.OK, "replayed")]
    assert counts(shard)["emails"] == {"completed": 1}


def test_only_a_flagged_repeat_looks_for_its_first_sending():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    acked = ack(shard, job)

    assert ack(shard, job).stale
    assert repeat(shard, acked).replayed


@pytest.mark.parametrize("keep_completed", [True, False])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_repeated_ack_is_answered_ok(keep_completed, restarted):
    shard = a_shard()
    push(shard, "a", keep_completed=keep_completed)
    job = pull(shard).job
    ack(shard, job, result=b"r")
    if restarted:
        shard.restart()

    assert ack(shard, job, result=b"other", flags=REPEAT).replayed
    assert ack(shard, job._replace(token=bytes(20)), flags=REPEAT).stale
    if keep_completed:
        assert view(shard, job.id)["result"] == b"r", "the first one counts"


def test_an_ack_and_its_repeat_in_one_turn():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    items = [(job.id, job.token, None)]
    first = Ack(shard.origin("worker-a"), items)
    again = Ack(shard.origin("worker-a", flags=REPEAT), items)
    one, two = shard.send(first, again)

    assert one.accepted
    assert two.replayed


def test_a_repeated_ack_among_new_ones():
    shard = a_shard()
    push(shard, "a", "b")
    a, b = pull(shard, jobs_max=2).jobs
    ack(shard, a)

    assert ack(shard, a, b, flags=REPEAT).exceptions == [(0, Status.OK, "replayed")]


def test_a_late_ack_is_accepted_as_long_as_nobody_got_the_job():
    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job
    stall(shard, job)
    assert state_of(shard, pushed.id) == "delayed"

    assert ack(shard, job, result=b"late").accepted
    assert view(shard, pushed.id)["result"] == b"late"
    tick(shard, at=shard.clock.at + 600_000)
    assert pull(shard).names == "", "its due time finds it completed"


def test_a_late_ack_is_accepted_while_the_job_waits_in_line():
    shard = a_shard()
    push(shard, "a", "b", backoff=AT_ONCE)
    a = pull(shard).job
    stall(shard, a)
    assert state_of(shard, a.id) == "waiting"

    assert ack(shard, a).accepted
    assert pull(shard, jobs_max=9).names == "b"


def test_a_late_ack_survives_a_restart_before_it():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    stall(shard, job)
    shard.restart()

    assert ack(shard, job).accepted


def test_a_late_ack_is_refused_after_the_lease_moved_on():
    shard = a_shard()
    push(shard, "a", backoff=AT_ONCE)
    first = pull(shard).job
    stall(shard, first)
    second = pull(shard, client="other").job

    assert ack(shard, first).stale
    assert ack(shard, second).accepted
    assert ack(shard, first, flags=REPEAT).stale


def test_only_an_ack_may_be_late():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    stall(shard, job)

    assert fail(shard, job).stale
    assert release(shard, job).stale
    assert extend(shard, job, lease_ms=1_000).stale
    assert ack(shard, job).accepted


def test_late_acks_by_the_hundred_leave_the_line_clean():
    # Was a bug (I5): the entry was discarded before the job's state changed, so the compaction
    # that this set off took the job for a waiting one: its entry stayed, uncounted.
    shard = a_shard(checked=False)
    names = [f"job-{number}" for number in range(200)]
    push(shard, *names, backoff=AT_ONCE)
    jobs = pull(shard, jobs_max=200).jobs
    for job in (jobs[0], jobs[-1]):
        stall(shard, job)
    line = shard.state.queues["emails"].line
    for job in jobs[:-1]:
        ack(shard, job)
    assert line.count == 1
    stale = line.entries_count() - line.count
    assert stale == line._stale_count, "a stale entry that nobody counts"


# --- fail -------------------------------------------------------------------------------


def test_a_failed_job_waits_for_its_backoff():
    shard = a_shard()
    pushed = push(shard, "a", backoff=NO_JITTER)
    assert fail(shard, pull(shard).job, error="boom\nat line 3", traceback="tb").accepted

    seen = view(shard, pushed.id)
    assert (seen["state"], seen["failures"], seen["stalls"]) == ("delayed", 1, 0)
    assert (seen["error"], seen["traceback"]) == ("boom\nat line 3", "tb")
    assert seen["history"] == ((1, seen["created_at"], "boom"),)
    assert pull(shard, at=999).names == ""
    assert pull(shard, at=1_000).job.failures == 1


def test_each_backoff_doubles():
    shard = a_shard()
    pushed = push(shard, "a", backoff=NO_JITTER, attempts=5)
    delays = []
    for _ in range(4):
        fail(shard, pull(shard).job)
        run_at = view(shard, pushed.id)["run_at"]
        delays.append(run_at - view(shard, pushed.id)["updated_at"])
        tick(shard, at=shard.clock.at + delays[-1])
    assert delays == [1_000, 2_000, 4_000, 8_000]


def test_jitter_varies_by_a_fifth_at_most():
    shard = a_shard()
    push(shard, *[f"{number}" for number in range(100)])
    fail(shard, *pull(shard, jobs_max=100).jobs)
    run_at = {seen["run_at"] - seen["updated_at"] for seen in page(shard)[0]}

    assert len(run_at) > 20
    assert all(800 <= delay <= 1_200 for delay in run_at)


def test_a_job_dies_in_the_commit_of_its_last_failure():
    shard = a_shard()
    pushed = push(shard, "a", attempts=2, backoff=AT_ONCE)
    fail(shard, pull(shard).job, error="first")
    fail(shard, pull(shard).job, error="second")

    seen = view(shard, pushed.id)
    assert (seen["state"], seen["reason"], seen["error"]) == ("dead", "exhausted", "second")
    assert (seen["failures"], seen["attempt"]) == (2, 2)
    assert [error for _, _, error in seen["history"]] == ["first", "second"]
    shard.restart()
    assert pull(shard, at=10_000_000).names == ""


def test_what_cannot_succeed_dies_at_once():
    shard = a_shard()
    pushed = push(shard, "a", attempts=9)
    fail(shard, pull(shard).job, unrecoverable=True)

    assert view(shard, pushed.id)["reason"] == "unrecoverable"


def test_a_worker_may_say_when_to_try_again():
    shard = a_shard()
    push(shard, "a")
    fail(shard, pull(shard).job, retry_in_ms=77)

    assert pull(shard, at=76).names == ""
    assert pull(shard, at=77).job.failures == 1


def test_saying_when_to_try_again_does_not_save_the_last_attempt():
    shard = a_shard()
    pushed = push(shard, "a", attempts=1)
    fail(shard, pull(shard).job, retry_in_ms=77)

    assert state_of(shard, pushed.id) == "dead"


def test_a_retried_job_joins_the_tail():
    shard = a_shard()
    push(shard, *"abc")
    fail(shard, pull(shard).job, retry_in_ms=0)

    assert pull(shard, jobs_max=9).names == "bca"
    shard.restart()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_repeated_fail_counts_once(attempts, restarted):
    shard = a_shard()
    pushed = push(shard, "a", attempts=attempts)
    job = pull(shard).job
    fail(shard, job)
    if restarted:
        shard.restart()

    assert fail(shard, job, flags=REPEAT).replayed
    assert view(shard, pushed.id)["failures"] == 1


def test_a_job_named_twice_in_one_fail_counts_once():
    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job

    assert fail(shard, job, job).exceptions == [(1, Status.OK, "replayed")]
    assert view(shard, pushed.id)["failures"] == 1


def test_a_job_named_twice_in_its_last_fail_is_replayed_too():
    # Was a bug (P7): the first item kills the job, so the second found no job and said stale.
    shard = a_shard()
    push(shard, "a", attempts=1)
    job = pull(shard).job

    assert fail(shard, job, job).exceptions == [(1, Status.OK, "replayed")]


def test_the_fail_of_a_lease_that_stalled_to_death_was_never_accepted():
    # Was a bug (P7, minor): settle._refuse looks only whether the job is dead under this token, so
    # a fail that was refused (its error is lost) is told that it had been accepted before.
    shard = a_shard()
    pushed = push(shard, "a", backoff=AT_ONCE)
    for _ in range(4):
        job = pull(shard).job
        stall(shard, job)
    assert view(shard, pushed.id)["reason"] == "stalled"
    assert fail(shard, job).stale

    assert fail(shard, job, flags=REPEAT).stale


def test_a_fail_may_bring_a_result():
    shard = a_shard()
    pushed = push(shard, "a", attempts=1)
    fail(shard, pull(shard).job, result=b"exit 1")

    assert view(shard, pushed.id)["result"] == b"exit 1"


def test_the_result_of_a_failed_attempt_is_not_the_result_of_the_job():
    # Was a bug (I10): the ack brings no result, so what the failed attempt had left is served as
    # the result of the completed job. lifecycle.complete never clears it.
    shard = a_shard()
    pushed = push(shard, "a", backoff=AT_ONCE)
    fail(shard, pull(shard).job, result=b"exit 1")
    ack(shard, pull(shard).job, result=None)

    assert result(shard, pushed.id).body[:2] == ("completed", None)


def test_a_completed_job_has_no_error():
    # Was a bug (minor): RESULT of a stored completed job carries the error of an earlier attempt;
    # who had waited for it is answered without one.
    shard = a_shard()
    pushed = push(shard, "a", backoff=AT_ONCE)
    fail(shard, pull(shard).job)
    waiting = result(shard, pushed.id, wait_ms=1_000)
    ack(shard, pull(shard).job)

    assert waiting.body == ("completed", None, "")
    assert result(shard, pushed.id).body == waiting.body


def test_the_history_keeps_the_last_twenty():
    shard = a_shard()
    pushed = push(shard, "a", attempts=100, backoff=AT_ONCE)
    for number in range(HISTORY_MAX + 5):
        fail(shard, pull(shard).job, error=f"error {number}")
    history = view(shard, pushed.id)["history"]

    assert len(history) == HISTORY_MAX
    assert [attempt for attempt, _, _ in history] == list(range(6, HISTORY_MAX + 6))
    assert history[-1][2] == f"error {HISTORY_MAX + 4}"


def test_fail_and_ack_in_one_turn_the_first_counts():
    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job
    failed = Fail(shard.origin("worker-f"), [(job.id, job.token, "boom", "", None, False, -1)])
    acked = Ack(shard.origin("worker-a"), [(job.id, job.token, None)])
    first, second = shard.send(failed, acked)

    assert first.accepted
    assert second.stale
    assert state_of(shard, pushed.id) == "delayed"


# --- release ----------------------------------------------------------------------------


def test_a_released_job_keeps_its_place_and_is_not_charged():
    shard = a_shard()
    push(shard, *"abc")
    a, b = pull(shard, jobs_max=2).jobs
    release(shard, b)
    release(shard, a)

    again = pull(shard, jobs_max=3)
    assert again.names == "abc"
    assert [(job.attempt, job.failures) for job in again.jobs] == [(1, 0), (1, 0), (1, 0)]
    assert again.jobs[0].fence > a.fence, "but the fence grows"


def test_a_released_job_keeps_its_place_over_a_restart():
    shard = a_shard()
    push(shard, *"abc")
    a, b = pull(shard, jobs_max=2).jobs
    release(shard, b)
    shard.restart()
    release(shard, a)
    shard.restart()

    assert pull(shard, jobs_max=3).names == "abc"


def test_a_job_released_with_a_delay_joins_the_tail_when_it_is_due():
    shard = a_shard()
    push(shard, "a", "b")
    release(shard, pull(shard).job, delay_ms=1_000)
    assert pull(shard, at=999, jobs_max=9, client="other").names == "b"

    assert pull(shard, at=1_000).names == "a"


def test_a_repeated_release_is_answered_ok():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard).job
    release(shard, job)
    assert release(shard, job).replayed
    shard.restart()
    assert release(shard, job).replayed

    assert ack(shard, job).stale, "what was given back is not acked"


def test_what_was_returned_undelivered_can_be_leased_only_anew():
    shard = a_shard()
    push(shard, "a")
    pulled = pull(shard)
    undelivered(shard, pulled)

    assert ack(shard, pulled.job).stale
    assert pull(shard, client="other").job.fence > pulled.job.fence


# --- extend, progress -------------------------------------------------------------------


def test_an_extended_lease_lasts_as_long_as_asked():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard, lease_ms=1_000).job
    assert extend(shard, job, lease_ms=60_000).accepted

    assert sweeps(shard, until=59_999) == [0, 0]
    assert sweeps(shard, until=60_000) == [1, 0]
    assert sweeps(shard, until=60_250) == [0, 1]


def test_a_lease_can_be_shortened():
    shard = a_shard()
    push(shard, "a")
    job = pull(shard, lease_ms=60_000).job
    extend(shard, job, lease_ms=100)

    due_ms = sweep(shard, at=100)[0]
    assert sweep(shard, at=100 + due_ms)[1:] == [1, 0]


def test_progress_is_kept_with_the_job():
    shard = a_shard()
    pushed = push(shard, "a")
    job = pull(shard).job
    progress(shard, job, value=b"10")
    progress(shard, job, value=b"20")
    shard.restart()

    assert view(shard, pushed.id)["progress"] == b"20"
    assert ack(shard, job).accepted
    assert progress(shard, job, value=b"30").stale
    assert view(shard, pushed.id)["progress"] == b"20"


def test_a_job_of_another_shard_is_not_called_stale():
    # Was a bug: whoever believed it dropped work that was still his.
    shard = a_shard(shard=0, shards_count=2)
    stranger = (b"\1" * 14 + b"\0\1", bytes(20))
    origin = shard.origin("worker-a")
    commands = [
        Ack(origin, [(*stranger, None)]),
        Fail(shard.origin("worker-a"), [(*stranger, "boom", "", None, False, -1)]),
        Release(shard.origin("worker-a"), [(*stranger, 0)]),
        Extend(shard.origin("worker-a"), [(*stranger, 1_000)]),
        Progress(shard.origin("worker-a"), [(*stranger, b"")]),
        Heartbeat(shard.origin("worker-a"), [stranger]),
        Retry(shard.origin("admin"), [stranger[:1]]),
        Cancel(shard.origin("admin"), [stranger[:1]]),
        Purge(shard.origin("admin"), [stranger[:1]]),
    ]
    for command in commands:
        (answer,) = shard.send(command)
        assert answer.body[1][0][1] == Status.WRONG_SHARD, command
    for command in (
        Get(shard.origin("reader"), stranger[0]),
        Result(shard.origin("reader"), stranger[0]),
    ):
        assert shard.send(command)[0].status is Status.WRONG_SHARD
