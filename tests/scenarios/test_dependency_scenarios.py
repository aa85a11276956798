"""Jobs that depend on others, on one shard: blocked, released, dead, held, and what is kept."""

import pytest

from pyq.errors import Status
from pyq.job import BLOCKED, COMPLETED, DEAD
from pyq.limits import (
    AGING_MS,
    COMPLETED_MS_MIN,
    DEPENDS_MAX,
    SETTLED_MAX,
    TOMBSTONE_MS_MAX,
)
from pyq.messages import Block
from tests.support.sayings import bulk, exists, purge, settle_all, statuses
from tests.support.shards import (
    REPEAT,
    ack,
    block,
    cancel,
    clean,
    configure,
    counts,
    dead_stats,
    drain,
    events,
    fail,
    new_job,
    obliterate,
    page,
    pause,
    promote,
    pull,
    push,
    release,
    repeat,
    result,
    resume,
    retry,
    stall,
    state_of,
    states,
    tick,
    update,
    view,
)

SOON = COMPLETED_MS_MIN + 2_000


def kill_next(shard, queue="emails", error="boom"):
    """Lease the next job and let it fail for good."""
    leased = pull(shard, queue).job
    fail(shard, leased, error=error, unrecoverable=True)
    return leased.id


def a_dead_job(shard, name="a", queue="emails"):
    job_id = push(shard, name, queue=queue).id
    assert kill_next(shard, queue) == job_id
    return job_id


def a_completed_job(shard, name="a", value=b"r", **options):
    job_id = push(shard, name, **options).id
    assert ack(shard, pull(shard).job, result=value).accepted
    return job_id


def ends(shard, job_id):
    """How the jobs that a job depends on have ended, as its view says."""
    return [word for _, word in view(shard, job_id)["depends_on"]]


# --- released ---------------------------------------------------------------------------


def test_a_job_waits_until_those_it_depends_on_have_completed(shard, maybe_restart):
    first, second = push(shard, "a").id, push(shard, "b").id
    third = push(shard, "c", depends_on=[first, second]).id
    maybe_restart()
    assert state_of(shard, third) == "blocked"
    assert ends(shard, third) == ["pending", "pending"]
    leased = pull(shard, jobs_max=9)
    assert leased.names == "ab", "a blocked job is never leased (I13)"
    ack(shard, leased.jobs[0])
    maybe_restart()
    assert ends(shard, third) == ["completed", "pending"]
    assert not pull(shard).jobs
    ack(shard, leased.jobs[1])
    assert pull(shard).job.id == third


def test_who_waits_for_a_job_gets_it_in_the_commit_that_releases_it(shard):
    first = push(shard, "a", queue="x").id
    push(shard, "b", queue="y", depends_on=[first])
    parked = pull(shard, "y", wait_ms=1_000)
    ack(shard, pull(shard, "x").job)
    assert parked.names == "b"


def test_one_that_has_completed_before_counts(shard, maybe_restart):
    first = a_completed_job(shard)
    maybe_restart()
    assert state_of(shard, push(shard, "b", depends_on=[first]).id) == "waiting"


def test_of_one_that_was_forgotten_the_tombstone_counts(shard, maybe_restart):
    first = a_completed_job(shard, keep_completed=False)
    assert states(shard, first).exceptions == [(0, Status.OK, "completed")]
    maybe_restart()
    job_id = push(shard, "b", depends_on=[first]).id
    assert state_of(shard, job_id) == "waiting"
    assert ends(shard, job_id) == ["completed"]


def test_one_of_the_same_batch_counts(shard):
    command = bulk(shard, a={})
    rows = [new_job(shard, "b", "emails"), None]
    rows[1] = new_job(shard, "c", "emails", depends_on=[rows[0][0], command.id])
    command.command.jobs[:] = rows
    command.command.origin = shard.origin("producer")
    call = shard.send(command.command)[0]
    assert call.accepted
    assert settle_all(shard) == "abc"


def test_one_that_comes_later_in_the_batch_is_not_known_yet(shard):
    late = new_job(shard, "late", "emails")
    early = new_job(shard, "early", "emails", depends_on=[late[0]])
    command = push(shard, "z").command
    command.origin, command.jobs = shard.origin("producer"), [early, late]
    assert statuses(shard.send(command)[0]) == [(0, Status.DEP_UNKNOWN)]
    assert settle_all(shard) == "zlate"


def test_an_unknown_one_is_refused_and_nothing_is_stored(shard):
    stranger = shard.an_id("emails")
    call = push(shard, "a", depends_on=[stranger])
    assert statuses(call) == [(0, Status.DEP_UNKNOWN)]
    assert counts(shard).get("emails", {}) == {}
    assert not page(shard)[0]
    assert repeat(shard, call).exceptions[0][1] == Status.DEP_UNKNOWN


def test_a_job_cannot_depend_on_itself(shard):
    own = shard.an_id("emails")
    assert statuses(push(shard, "a", ids=[own], depends_on=[own])) == [(0, Status.BAD_OPTION)]
    assert not page(shard)[0]


def test_a_job_named_twice_is_one(shard):
    first = push(shard, "a").id
    job_id = push(shard, "b", depends_on=[first, first]).id
    assert ends(shard, job_id) == ["pending"]
    assert settle_all(shard) == "ab"


def test_as_many_as_are_allowed(shard):
    shard.checked = False
    names = ["a"] * DEPENDS_MAX
    many = push(shard, *names).ids
    push(shard, "z", depends_on=many)
    shard.checked = True
    leased = pull(shard, jobs_max=DEPENDS_MAX).jobs
    ack(shard, *leased[:-1])
    assert not pull(shard).jobs
    ack(shard, leased[-1])
    assert pull(shard).names == "z"


def test_a_repeated_push_is_known_and_adds_no_dependent(shard, maybe_restart):
    first = push(shard, "a").id
    call = push(shard, "b", depends_on=[first])
    maybe_restart()
    assert exists(repeat(shard, call)) == (call.id, "blocked")
    assert settle_all(shard) == "ab"
    assert exists(repeat(shard, call)) == (call.id, "completed")


# --- a dependency that fails ---------------------------------------------------------------


def test_fail_makes_it_dead_with_a_reason_that_names_the_job(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first]).id
    third = push(shard, "c", depends_on=[second]).id
    maybe_restart()
    kill_next(shard, error="no such host")
    seen = view(shard, second)
    assert (seen["state"], seen["reason"], seen["attempt"]) == ("dead", "dependency", 0)
    assert "no such host" in seen["error"]
    assert first.hex() in seen["error"].replace("-", "")
    assert state_of(shard, third) == "dead", "and so on"
    assert dead_stats(shard)[1]["dependency"][0] == 2


def test_ignore_lets_it_run_and_read_how_it_ended(shard, maybe_restart):
    first, second = push(shard, "a").id, push(shard, "b").id
    third = push(shard, "c", depends_on=[first, second], on_dep_fail="ignore").id
    kill_next(shard)
    maybe_restart()
    assert state_of(shard, third) == "blocked", "the other one has not ended"
    ack(shard, pull(shard).job)
    assert pull(shard).job.id == third
    assert ends(shard, third) == ["dead", "completed"]
    assert result(shard, first).body == ("dead", None, "boom")


def test_hold_keeps_it_until_the_dependency_was_retried_and_completed(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], on_dep_fail="hold").id
    kill_next(shard)
    maybe_restart()
    assert ends(shard, second) == ["dead"]
    assert [seen["id"] for seen in page(shard, state=BLOCKED)[0]] == [second], "it is listed"
    retry(shard, first)
    maybe_restart()
    assert state_of(shard, second) == "blocked"
    ack(shard, pull(shard).job)
    assert pull(shard).job.id == second
    assert ends(shard, second) == ["completed"]


def test_one_that_is_dead_already_fails_it_at_once(shard):
    first = a_dead_job(shard)
    assert state_of(shard, push(shard, "b", depends_on=[first]).id) == "dead"
    ignoring = push(shard, "c", depends_on=[first], on_dep_fail="ignore").id
    assert state_of(shard, ignoring) == "waiting"
    holding = push(shard, "d", depends_on=[first], on_dep_fail="hold").id
    assert ends(shard, holding) == ["dead"]
    retry(shard, first)
    ack(shard, pull(shard).job)
    ack(shard, pull(shard).job)
    assert pull(shard).job.id == holding


@pytest.mark.parametrize("policy", ["fail", "ignore", "hold"])
@pytest.mark.parametrize("end", ["cancelled", "drained", "expired", "obliterated", "replaced"])
def test_a_dependency_that_is_taken_away_has_not_completed(shard, maybe_restart, policy, end):
    options = {"expired": {"ttl_ms": 1_000}, "replaced": {"unique": "k"}}.get(end, {})
    first = push(shard, "a", queue="x", **options).id
    second = push(shard, "b", queue="y", depends_on=[first], on_dep_fail=policy).id
    maybe_restart()
    if end == "cancelled":
        cancel(shard, first)
    elif end == "drained":
        drain(shard, "x")
    elif end == "expired":
        tick(shard, at=1_000)
    elif end == "obliterated":
        obliterate(shard, "x")
    else:
        push(shard, "n", queue="x", unique="k", on_conflict="replace")
    maybe_restart()
    seen = view(shard, second)
    assert seen["state"] == {"fail": "dead", "ignore": "waiting", "hold": "blocked"}[policy]
    gone = end if end in ("cancelled", "expired", "replaced") else "removed"
    assert ends(shard, second) == [gone]
    assert policy != "fail" or gone in seen["error"]


def test_a_dead_dependency_that_is_purged_leaves_a_held_job_listed(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], on_dep_fail="hold").id
    kill_next(shard)
    purge(shard, first)
    maybe_restart()
    assert ends(shard, second) == ["removed"]
    assert counts(shard)["emails"] == {"blocked": 1}
    assert cancel(shard, second).accepted


def test_an_active_dependency_that_is_cancelled_counts_when_its_worker_confirms(shard):
    first = push(shard, "a").id
    leased = pull(shard).job
    second = push(shard, "b", depends_on=[first]).id
    cancel(shard, first)
    assert state_of(shard, second) == "blocked"
    ack(shard, leased)
    assert view(shard, second)["reason"] == "dependency"


def test_a_failed_attempt_with_runs_left_and_a_stall_change_nothing(shard, maybe_restart):
    first = push(shard, "a", backoff=[1_000, 2.0, 1_000, 0.0, []]).id
    second = push(shard, "b", depends_on=[first]).id
    fail(shard, pull(shard).job)
    tick(shard, at=1_000)
    stall(shard, pull(shard, lease_ms=100).job)
    maybe_restart()
    tick(shard, at=shard.clock.at + 1_000)
    assert state_of(shard, second) == "blocked"
    ack(shard, pull(shard).job)
    assert pull(shard).job.id == second


# --- time -----------------------------------------------------------------------------------


def test_a_job_that_is_blocked_for_too_long_is_dead(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], dep_timeout_ms=5_000).id
    tick(shard, at=4_999)
    maybe_restart()
    assert state_of(shard, second) == "blocked"
    tick(shard, at=5_000)
    seen = view(shard, second)
    assert (seen["state"], seen["reason"]) == ("dead", "dep_timeout")
    assert "5 s" in seen["error"]
    assert settle_all(shard) == "a", "the dependency is not touched"


def test_the_timeout_ends_a_hold_but_not_what_was_released(shard):
    first = push(shard, "a").id
    held = push(shard, "b", depends_on=[first], on_dep_fail="hold", dep_timeout_ms=5_000).id
    kill_next(shard)
    second = push(shard, "c").id
    free = push(shard, "d", depends_on=[second], dep_timeout_ms=5_000).id
    ack(shard, pull(shard).job)
    tick(shard, at=5_000)
    assert view(shard, held)["reason"] == "dep_timeout"
    assert state_of(shard, free) == "waiting"


def test_the_timeout_makes_its_own_dependents_dead(shard):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], dep_timeout_ms=1).id
    third = push(shard, "c", depends_on=[second]).id
    tick(shard, at=1)
    assert [state_of(shard, job_id) for job_id in (second, third)] == ["dead", "dead"]


def test_one_that_is_released_before_its_time_is_delayed(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], delay_ms=5_000).id
    tick(shard, at=1_000)
    ack(shard, pull(shard).job)
    maybe_restart()
    seen = view(shard, second)
    assert (seen["state"], seen["run_at"] - seen["created_at"]) == ("delayed", 5_000)
    tick(shard, at=4_999)
    assert not pull(shard).jobs
    tick(shard, at=5_000)
    assert pull(shard).job.id == second


def test_one_that_is_released_after_its_time_waits(shard):
    first = push(shard, "a").id
    push(shard, "b", depends_on=[first], delay_ms=5_000)
    tick(shard, at=6_000)
    ack(shard, pull(shard).job)
    assert pull(shard).names == "b"


def test_a_blocked_job_expires_and_settles_its_dependents(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], ttl_ms=5_000).id
    third = push(shard, "c", depends_on=[second]).id
    maybe_restart()
    tick(shard, at=5_000)
    assert states(shard, second).exceptions == [(0, Status.OK, "expired")]
    assert state_of(shard, third) == "dead"
    assert settle_all(shard) == "a"


def test_a_job_with_a_ttl_that_died_of_a_dependency_does_not_expire_after_its_retry(
    shard, maybe_restart
):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], ttl_ms=5_000).id
    kill_next(shard)
    retry(shard, first)
    retry(shard, second)
    maybe_restart()
    tick(shard, at=9_000)
    assert view(shard, second)["expires_at"] is None
    assert settle_all(shard) == "ab"


# --- other options ----------------------------------------------------------------------------


def test_a_blocked_job_does_not_hold_its_group(shard, maybe_restart):
    first = push(shard, "a").id
    push(shard, "b", group="g", depends_on=[first])
    push(shard, "c", group="g")
    maybe_restart()
    leased = pull(shard, jobs_max=9)
    assert leased.names == "ac"
    ack(shard, leased.jobs[0])
    maybe_restart()
    assert not pull(shard).jobs, "released, and behind the one that was ready first"
    ack(shard, leased.jobs[1])
    assert pull(shard).names == "b"


def test_a_blocked_holder_of_a_key_is_returned_or_replaced(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", unique="k", depends_on=[first]).id
    third = push(shard, "c", depends_on=[second]).id
    maybe_restart()
    assert exists(push(shard, "d", unique="k")) == (second, "blocked")
    assert push(shard, "e", unique="k", on_conflict="replace").accepted
    assert state_of(shard, third) == "dead"
    assert "replaced" in view(shard, third)["error"]
    assert settle_all(shard) == "ae"


def test_a_job_that_replaces_what_it_depends_on_hears_of_that(shard):
    first = push(shard, "a", unique="k").id
    options = {"unique": "k", "on_conflict": "replace", "depends_on": [first]}
    second = push(shard, "b", **options).id
    assert ends(shard, second) == ["replaced"]
    assert view(shard, second)["reason"] == "dependency"


def test_the_key_of_one_that_died_blocked_is_free(shard):
    first = push(shard, "a").id
    second = push(shard, "b", unique="k", depends_on=[first]).id
    kill_next(shard)
    assert push(shard, "c", unique="k").accepted
    assert statuses(retry(shard, second)) == [(0, Status.CONFLICT)]


def test_a_custom_id_is_known_while_its_job_is_blocked(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", job_id="one", depends_on=[first]).id
    maybe_restart()
    assert exists(push(shard, "b", job_id="one")) == (second, "blocked")
    assert settle_all(shard) == "ab"


def test_priority_and_payload_of_a_blocked_job_can_be_changed_and_it_is_not_promoted(
    shard, maybe_restart
):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first]).id
    third = push(shard, "c", depends_on=[first]).id
    assert statuses(promote(shard, second)) == [(0, Status.CONFLICT)]
    assert update(shard, third, priority=5, payload=b"new").accepted
    maybe_restart()
    ack(shard, pull(shard).job)
    leased = pull(shard).job
    assert (leased.id, leased.payload) == (third, b"new")


def test_a_paused_queue_goes_on_to_settle(shard):
    first = push(shard, "a", queue="x").id
    push(shard, "b", depends_on=[first])
    pause(shard)
    ack(shard, pull(shard, "x").job)
    assert counts(shard)["emails"] == {"waiting": 1}
    resume(shard)
    assert pull(shard).names == "b"


def test_events_tell_of_the_way_of_a_blocked_job(shard):
    events(shard, "y")
    first = push(shard, "a", queue="x").id
    start = events(shard, "y").body
    second = push(shard, "b", queue="y", depends_on=[first]).id
    ack(shard, pull(shard, "x").job)
    leased = pull(shard, "y").job
    block(shard, leased, push(shard, "c", queue="x").id)
    happened = events(shard, "y", start[0], start[1]).body[3]
    assert [(event[1], event[4]) for event in happened] == [
        ("added", second), ("waiting", second), ("active", second), ("blocked", second),
    ]  # fmt: skip
    assert happened[-1][6] == (1,)


# --- cancel, drain, clean, obliterate of the dependents ----------------------------------------


def test_a_blocked_job_can_be_cancelled(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first]).id
    maybe_restart()
    assert cancel(shard, second).accepted
    maybe_restart()
    assert settle_all(shard) == "a"
    assert states(shard, second).exceptions == [(0, Status.OK, "cancelled")]


def test_blocked_jobs_are_drained_with_the_delayed_and_cleaned_by_their_state(shard):
    first = push(shard, "a", queue="x").id
    push(shard, *"bc", depends_on=[first])
    drain(shard)
    assert counts(shard)["emails"] == {"blocked": 2}
    assert clean(shard, BLOCKED, older_ms=1) == 0
    drain(shard, delayed=True)
    assert counts(shard).get("emails", {}) == {}
    push(shard, *"de", depends_on=[first])
    assert clean(shard, BLOCKED) == 2
    push(shard, *"fg", depends_on=[first])
    assert obliterate(shard) == 2
    assert not shard.state.awaited


# --- what is kept (C16) -------------------------------------------------------------------------


def test_the_result_of_a_job_that_is_not_kept_stays_until_its_dependents_have_ended(
    shard, maybe_restart
):
    first = push(shard, "a", keep_completed=False).id
    push(shard, "b", depends_on=[first])
    push(shard, "c", depends_on=[first])
    ack(shard, pull(shard).job, result=b"r")
    maybe_restart()
    tick(shard, at=15_000)
    assert result(shard, first).body == ("completed", b"r", "")
    assert counts(shard)["emails"] == {"completed": 1, "waiting": 2}
    ack(shard, pull(shard).job)
    maybe_restart()
    assert result(shard, first).body[1] == b"r", "one of them has not ended"
    ack(shard, pull(shard).job)
    maybe_restart()
    assert result(shard, first).body[0] == "result_expired"
    assert counts(shard)["emails"] == {"completed": 2}


@pytest.mark.parametrize("keep", [{"keep_count": 1}, {"keep_ms": COMPLETED_MS_MIN}, {}])
def test_retention_passes_over_a_record_that_is_needed(shard, maybe_restart, keep):
    configure(shard, keep_count=1)
    first = push(shard, "a", **keep).id
    push(shard, "b", depends_on=[first], delay_ms=10 * SOON)
    ack(shard, pull(shard).job, result=b"r")
    for name in "cde":
        a_completed_job(shard, name)
    tick(shard, at=SOON)
    maybe_restart()
    tick(shard, at=2 * SOON)
    kept = [seen["name"] for seen in page(shard, state=COMPLETED)[0]]
    assert kept == ["a", "e"]
    assert result(shard, first).body[1] == b"r"
    tick(shard, at=10 * SOON)
    ack(shard, pull(shard).job)
    tick(shard, at=12 * SOON)
    assert result(shard, first).body[0] == "result_expired"


def test_a_record_is_needed_again_after_a_dead_dependent_was_retried(shard, maybe_restart):
    configure(shard, keep_count=0)
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first]).id
    ack(shard, pull(shard).job, result=b"r")
    kill_next(shard)
    retry(shard, second)
    tick(shard)
    maybe_restart()
    tick(shard, at=SOON)
    assert result(shard, first).body[1] == b"r"
    assert settle_all(shard) == "b"


def test_clean_passes_over_what_is_needed_and_obliterate_does_not(shard, maybe_restart):
    first = push(shard, "a", queue="x").id
    second = push(shard, "b", depends_on=[first]).id
    ack(shard, pull(shard, "x").job, result=b"r")
    assert clean(shard, COMPLETED, "x") == 0
    maybe_restart()
    assert result(shard, first).body[1] == b"r"
    obliterate(shard, "x")
    maybe_restart()
    assert result(shard, first).body[0] == "result_expired"
    assert (state_of(shard, second), ends(shard, second)) == ("waiting", ["completed"])
    assert settle_all(shard) == "b"


def test_a_dependency_that_is_retried_after_it_completed_does_not_block_again(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first]).id
    ack(shard, pull(shard).job)
    retry(shard, first)
    maybe_restart()
    leased = pull(shard, jobs_max=2).jobs
    assert {job.id for job in leased} == {first, second}
    fail(shard, *leased[1:], unrecoverable=True)
    ack(shard, leased[0])


# --- retry of the dependent ---------------------------------------------------------------------


def test_a_retried_dependent_waits_for_what_has_not_completed(shard, maybe_restart):
    first, other = push(shard, "a").id, push(shard, "o").id
    second = push(shard, "b", depends_on=[first, other]).id
    kill_next(shard)
    ack(shard, pull(shard).job)
    assert retry(shard, second).accepted
    tick(shard)
    assert view(shard, second)["reason"] == "dependency", "the dependency is still dead"
    retry(shard, first)
    retry(shard, second)
    maybe_restart()
    assert state_of(shard, second) == "blocked"
    ack(shard, pull(shard).job)
    assert pull(shard).job.id == second


def test_a_retried_dependent_whose_dependencies_completed_runs_at_once(shard, maybe_restart):
    first = push(shard, "a", keep_completed=False).id
    second = push(shard, "b", depends_on=[first]).id
    ack(shard, pull(shard).job)
    kill_next(shard)
    maybe_restart()
    retry(shard, second)
    assert state_of(shard, second) == "waiting"
    maybe_restart()
    assert settle_all(shard) == "b"


def test_what_completed_counts_for_a_retry_when_nothing_is_left_of_it(shard):
    first = push(shard, "a", keep_completed=False).id
    second = push(shard, "b", depends_on=[first]).id
    ack(shard, pull(shard).job)
    kill_next(shard)
    tick(shard, at=TOMBSTONE_MS_MAX + 2 * AGING_MS)
    assert states(shard, first).exceptions[0][1] == Status.NOT_FOUND
    assert retry(shard, second).accepted
    tick(shard)
    assert settle_all(shard) == "b"


def test_a_completed_dependent_can_be_retried(shard):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first]).id
    assert settle_all(shard) == "ab"
    assert retry(shard, second).accepted
    assert settle_all(shard) == "b"


def test_the_timeout_of_a_retried_dependent_begins_anew(shard, maybe_restart):
    first = push(shard, "a").id
    second = push(shard, "b", depends_on=[first], dep_timeout_ms=5_000).id
    tick(shard, at=5_000)
    retry(shard, second)
    maybe_restart()
    tick(shard, at=9_999)
    assert state_of(shard, second) == "blocked"
    tick(shard, at=10_000)
    assert view(shard, second)["reason"] == "dep_timeout"


# --- BLOCK --------------------------------------------------------------------------------------


def test_a_running_parent_adds_children_and_runs_again_when_they_completed(shard, maybe_restart):
    parent = push(shard, "p", attempts=1).id
    leased = pull(shard).job
    child = push(shard, "c").id
    assert block(shard, leased, child).accepted
    maybe_restart()
    assert (state_of(shard, parent), ends(shard, parent)) == ("blocked", ["pending"])
    assert ack(shard, leased).stale, "its lease is over"
    ack(shard, pull(shard).job)
    again = pull(shard).job
    assert (again.id, again.attempt, again.failures) == (parent, 1, 0), "nothing was charged"
    assert again.fence > leased.fence
    more = push(shard, "d").id
    assert block(shard, again, more).accepted
    maybe_restart()
    assert ends(shard, parent) == ["completed", "pending"]
    ack(shard, pull(shard).job)
    last = pull(shard).job
    assert ack(shard, last).accepted
    assert ack(shard, last, flags=REPEAT).replayed


def test_a_repeated_block_is_known(shard, maybe_restart):
    push(shard, "p")
    leased = pull(shard).job
    child = push(shard, "c").id
    call = block(shard, leased, child)
    maybe_restart()
    assert repeat(shard, call).replayed
    assert block(shard, leased, child).replayed
    assert settle_all(shard) == "cp"


def test_a_stale_token_blocks_nothing(shard):
    push(shard, "p")
    leased = pull(shard, lease_ms=100).job
    child = push(shard, "c").id
    stall(shard, leased)
    assert block(shard, leased, child).stale


def test_a_parent_may_wait_for_what_has_ended(shard, maybe_restart):
    done = a_completed_job(shard, "a", keep_completed=False)
    parent = push(shard, "p").id
    assert block(shard, pull(shard).job, done).accepted
    maybe_restart()
    leased = pull(shard).job
    assert leased.id == parent
    dead = a_dead_job(shard, queue="x")
    assert block(shard, leased, dead).accepted
    assert view(shard, parent)["reason"] == "dependency"


def test_what_a_parent_may_not_wait_for_leaves_its_lease_as_it_is(shard):
    parent = push(shard, "p").id
    leased = pull(shard).job
    child = push(shard, "c", depends_on=[parent]).id
    grandchild = push(shard, "g", depends_on=[child]).id
    assert statuses(block(shard, leased, parent)) == [(0, Status.BAD_OPTION)], "itself"
    assert statuses(block(shard, leased, shard.an_id("x"))) == [(0, Status.DEP_UNKNOWN)]
    assert statuses(block(shard, leased, child)) == [(0, Status.BAD_OPTION)], "a circle (I28)"
    assert statuses(block(shard, leased, grandchild)) == [(0, Status.BAD_OPTION)], "a circle"
    assert ack(shard, leased).accepted
    assert settle_all(shard) == "cg"


def test_a_child_named_twice_is_one(shard):
    push(shard, "p")
    leased = pull(shard).job
    child = push(shard, "c").id
    assert block(shard, leased, child, child).accepted
    assert settle_all(shard) == "cp"


def test_no_more_children_than_a_job_may_depend_on(shard):
    shard.checked = False
    many = push(shard, *["a"] * DEPENDS_MAX, queue="x").ids
    parent = push(shard, "p").id
    assert block(shard, pull(shard).job, *many[:-1]).accepted
    ack(shard, *pull(shard, "x", jobs_max=DEPENDS_MAX - 1).jobs)
    leased = pull(shard).job
    assert leased.id == parent
    extra = push(shard, "y").id
    refused = block(shard, leased, many[-1], extra)
    assert statuses(refused) == [(0, Status.BAD_OPTION)]
    assert block(shard, leased, many[-1]).accepted


def test_a_parent_that_shall_be_cancelled_is_gone_when_it_blocks(shard, maybe_restart):
    parent = push(shard, "p").id
    leased = pull(shard).job
    child = push(shard, "c").id
    cancel(shard, parent)
    assert block(shard, leased, child).exceptions == [(0, Status.OK, "cancelled")]
    maybe_restart()
    assert states(shard, parent).exceptions == [(0, Status.OK, "cancelled")]
    assert settle_all(shard) == "c"


def test_a_blocked_parent_can_be_cancelled_and_its_children_run_all_the_same(shard):
    parent = push(shard, "p").id
    leased = pull(shard).job
    child = push(shard, "c").id
    block(shard, leased, child)
    cancel(shard, parent)
    assert settle_all(shard) == "c"
    assert block(shard, leased, child).stale


def test_a_child_that_fails_does_to_its_parent_what_the_parent_says(shard):
    for policy in ("fail", "ignore", "hold"):
        parent = push(shard, "p", on_dep_fail=policy).id
        leased = pull(shard).job
        block(shard, leased, push(shard, "c", queue="x").id)
        kill_next(shard, "x")
        after = {"fail": "dead", "ignore": "waiting", "hold": "blocked"}[policy]
        assert state_of(shard, parent) == after
        if after == "waiting":
            ack(shard, pull(shard).job)


def test_a_parent_that_waits_gives_its_slot_back(shard):
    configure(shard, concurrency=1)
    push(shard, "p")
    leased = pull(shard).job
    child = push(shard, "c").id
    parked = pull(shard, client="other", wait_ms=1_000)
    block(shard, leased, child)
    assert parked.names == "c"


def test_the_timeout_of_a_parent_counts_from_each_time_it_blocks(shard, maybe_restart):
    parent = push(shard, "p", depends_on=[push(shard, "a").id], dep_timeout_ms=5_000).id
    ack(shard, pull(shard).job)
    tick(shard, at=4_000)
    block(shard, pull(shard).job, push(shard, "c").id)
    maybe_restart()
    tick(shard, at=8_999)
    assert state_of(shard, parent) == "blocked"
    tick(shard, at=9_000)
    assert view(shard, parent)["reason"] == "dep_timeout"


def test_a_batch_of_blocks_is_answered_item_by_item(shard):
    push(shard, *"pq")
    first, second = pull(shard, jobs_max=2).jobs
    child = push(shard, "c").id
    items = [(first.id, bytes(20), [child]), (second.id, second.token, [child])]
    call = shard.send(Block(shard.origin("worker"), items))[0]
    assert statuses(call) == [(0, Status.STALE_TOKEN)]
    release(shard, first)
    assert settle_all(shard) == "pcq"


# --- many -----------------------------------------------------------------------------------------


def test_a_long_chain_fails_within_the_budget_of_its_turns_and_without_recursion(shard):
    shard.checked = False
    length = 10_000
    ids = push(shard, "a").ids
    while len(ids) < length:
        rows = []
        for _ in range(min(1_000, length - len(ids))):
            rows.append(new_job(shard, "b", "emails", depends_on=[ids[-1]]))
            ids = [*ids, rows[-1][0]]
        command = bulk(shard).command
        command.origin, command.jobs = shard.origin("producer"), rows
        assert shard.send(command)[0].accepted
    assert counts(shard)["emails"] == {"waiting": 1, "blocked": length - 1}
    kill_next(shard)
    turns = 0
    while shard.state.fallout:
        assert dead_count(shard) == 1 + (turns + 1) * SETTLED_MAX
        assert shard.shard.next_wakeup(shard.clock.now()) <= shard.now_ms, "it goes on at once"
        tick(shard)
        turns += 1
    assert counts(shard)["emails"] == {"dead": length}
    assert turns == (length - 1) // SETTLED_MAX
    shard.checked = True
    tick(shard)


def test_many_dependents_are_released_turn_by_turn_and_a_restart_in_between_loses_none(shard):
    shard.checked = False
    many = 3 * SETTLED_MAX
    first = push(shard, "a", queue="x").id
    for _ in range(many // 1_000):
        push(shard, *["b"] * 1_000, depends_on=[first])
    ack(shard, pull(shard, "x").job)
    assert shard.state.queues["emails"].counts[BLOCKED] == many - SETTLED_MAX
    shard.restart()
    for _ in range(4):
        tick(shard)
    assert counts(shard)["emails"] == {"waiting": many}
    shard.checked = True
    tick(shard)


def test_a_start_repairs_a_fallout_that_was_lost(shard):
    shard.checked = False
    first = push(shard, "a", queue="x").id
    last = [push(shard, *["b"] * 1_000, depends_on=[first]).ids[-1] for _ in range(3)][-1]
    after = push(shard, "c", depends_on=[last]).id
    kill_next(shard, "x")
    assert shard.state.fallout
    shard.restart()
    assert not shard.state.fallout, "it was only in memory"
    for _ in range(3):
        tick(shard)
    assert dead_count(shard) == 3_001
    assert view(shard, after)["reason"] == "dependency"


def dead_count(shard, queue="emails"):
    """How many are dead, without a turn."""
    return shard.state.queues[queue].counts[DEAD]
