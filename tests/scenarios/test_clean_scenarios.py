"""DRAIN, CLEAN, OBLITERATE: what is thrown away by the queue, a page at a time."""

import pytest

from pyq.errors import Status
from pyq.job import COMPLETED, DEAD, DELAYED, WAITING
from pyq.messages import Ack, Clean, Drain, Obliterate
from tests.support.sayings import a_push, bulk, exists, settle_all
from tests.support.shards import (
    REPEAT,
    ack,
    cancel,
    clean,
    configure,
    counts,
    drain,
    events,
    fail,
    get,
    heartbeat,
    log,
    obliterate,
    page,
    pause,
    promote,
    pull,
    push,
    release,
    repeat,
    result,
    retry,
    stall,
    state_of,
    tick,
    update,
    view,
)


def in_every_state(shard):
    """One job in each state, named by its first letter; returns id by letter."""
    ids = {}
    for name, end in (("c", ack), ("x", fail), ("a", None)):
        ids[name] = push(shard, name, attempts=1, job_id=f"order-{name}", priority=9).id
        job = pull(shard).job
        if end is not None:
            end(shard, job)
    ids["w"] = push(shard, "w", job_id="order-w").id
    ids["d"] = push(shard, "d", job_id="order-d", delay_ms=60_000).id
    return ids


def names(shard):
    return "".join(sorted(seen["name"] for seen in page(shard)[0]))


# --- drain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delayed", "left"), [(False, "acdx"), (True, "acx")])
def test_a_drain_removes_what_waits_and_nothing_else(shard, delayed, left, maybe_restart):
    ids = in_every_state(shard)
    waiting = result(shard, ids["w"], wait_ms=60_000)
    assert drain(shard, delayed=delayed) == 1 + delayed
    assert waiting.body == ("removed", None, "")
    maybe_restart()
    assert names(shard) == left
    assert result(shard, ids["w"]).body == ("removed", None, "")
    assert exists(push(shard, "w", job_id="order-w")) == (ids["w"], "removed")


def test_a_drain_goes_by_pages_in_order_of_acceptance(shard):
    bulk(shard, a={}, b={"delay_ms": 60_000}, c={"priority": 9}, d={}, e={"lifo": True})
    removed, after = 0, 0
    seen = []
    while after is not None:
        count, after = shard.send(Drain(shard.origin("admin"), "emails", True, after, 2))[0].body
        removed += count
        seen.append(names(shard))
    assert removed == 5
    assert seen[:2] == ["cde", "e"]
    assert seen[-1] == ""


def test_a_drain_leaves_other_queues_alone(shard):
    push(shard, "a")
    push(shard, "b", queue="sms")
    assert drain(shard) == 1
    assert drain(shard, "nobody") == 0
    assert pull(shard, "sms").names == "b"


def test_a_drained_job_is_not_revived_by_a_late_repeat(shard, maybe_restart):
    pushed = push(shard, "a")
    drain(shard)
    maybe_restart()
    assert exists(repeat(shard, pushed)) == (pushed.id, "removed")


def test_what_is_between_two_attempts_is_drained_as_it_stands(shard):
    push(shard, *"ab")
    a, b = pull(shard, jobs_max=2).jobs
    fail(shard, a)
    release(shard, b)
    assert drain(shard) == 1
    assert names(shard) == "a"
    assert drain(shard, delayed=True) == 1


def test_the_last_holder_of_a_drained_job_cannot_complete_it(shard):
    push(shard, "a", backoff=[0, 1, 0, 0, []])
    job = pull(shard).job
    stall(shard, job)
    drain(shard)
    assert ack(shard, job).stale


def test_a_push_and_a_drain_of_one_turn(shard, maybe_restart):
    shard.send(
        a_push(shard, a={}, b={"delay_ms": 50}),
        Drain(shard.origin("admin"), "emails", True),
        a_push(shard, c={}),
    )
    maybe_restart()
    assert names(shard) == "c"


# --- clean ----------------------------------------------------------------------------------------

STATES = {"w": WAITING, "d": DELAYED, "c": COMPLETED, "x": DEAD}


@pytest.mark.parametrize("name", STATES)
def test_a_clean_removes_one_state(shard, name, maybe_restart):
    in_every_state(shard)
    assert clean(shard, STATES[name]) == 1
    maybe_restart()
    assert names(shard) == "acdwx".replace(name, "")
    assert STATES[name].word not in counts(shard)["emails"]
    assert clean(shard, STATES[name]) == 0


@pytest.mark.parametrize(
    ("name", "word", "known"),
    [
        ("w", "removed", "removed"),
        ("d", "removed", "removed"),
        ("c", "result_expired", "forgotten"),
        ("x", "dead", "forgotten"),
    ],
)
def test_what_ended_before_keeps_its_tombstone(shard, name, word, known, maybe_restart):
    ids = in_every_state(shard)
    clean(shard, STATES[name])
    maybe_restart()
    assert result(shard, ids[name]).body == (word, None, "")
    assert exists(push(shard, name, job_id=f"order-{name}")) == (ids[name], known)


@pytest.mark.parametrize("name", STATES)
def test_only_what_has_been_in_the_state_for_long_enough_is_removed(shard, name):
    in_every_state(shard)
    shard.clock.at = 999
    assert clean(shard, STATES[name], older_ms=1_000) == 0
    shard.clock.at = 1_000
    assert clean(shard, STATES[name], older_ms=1_000) == 1


def test_the_time_in_a_state_starts_with_the_state(shard):
    push(shard, "a", delay_ms=5_000)
    tick(shard, at=5_000)
    shard.clock.at = 5_999
    assert clean(shard, WAITING, older_ms=1_000) == 0
    release(shard, pull(shard).job)
    shard.clock.at = 6_500
    assert clean(shard, WAITING, older_ms=1_000) == 0
    shard.clock.at = 6_999
    assert clean(shard, WAITING, older_ms=1_000) == 1


def test_a_clean_goes_by_pages_and_skips_what_is_young(shard):
    push(shard, *"abc", at=0)
    push(shard, *"de", at=5_000)
    assert clean(shard, WAITING, older_ms=5_000, limit=2) == 3
    assert settle_all(shard) == "de"


def test_a_cleaned_completed_job_is_neither_found_nor_retried(shard):
    pushed = push(shard, "a")
    acked = ack(shard, pull(shard).job, result=b"r")
    clean(shard, COMPLETED)
    assert get(shard, pushed.id) == []
    assert [status for _, status, _ in retry(shard, pushed.id).exceptions] == [Status.NOT_FOUND]
    assert repeat(shard, acked).replayed


def test_a_completed_job_that_was_retried_and_cleaned_is_removed(shard, maybe_restart):
    pushed = push(shard, "a")
    ack(shard, pull(shard).job)
    maybe_restart()
    retry(shard, pushed.id)
    clean(shard, WAITING)
    assert result(shard, pushed.id).body[0] == "removed"


def test_a_clean_and_an_ack_of_one_turn_see_each_other(shard):
    push(shard, *"ab")
    a, b = pull(shard, jobs_max=2).jobs
    shard.send(
        Ack(shard.origin("worker-a"), [(a.id, a.token, None)]),
        Clean(shard.origin("admin"), "emails", COMPLETED),
        Ack(shard.origin("worker-b"), [(b.id, b.token, None)]),
    )
    assert names(shard) == "b"


# --- obliterate -----------------------------------------------------------------------------------


def test_nothing_of_a_queue_is_left(shard, maybe_restart):
    cancel(shard, in_every_state(shard)["a"])
    configure(shard, paused=True, concurrency=3, paused_groups=["g"], defaults={"priority": 2})
    push(shard, "k", unique="key", unique_ttl_ms=60_000, group="g")
    assert obliterate(shard, force=True) == 6
    maybe_restart()
    assert counts(shard) == {}
    assert page(shard) == ([], None)
    assert configure(shard)["concurrency"] == 0
    again = push(shard, "k", unique="key", job_id="order-c", group="g")
    assert again.accepted, "keys and custom ids are free"
    assert view(shard, again.id)["priority"] == 0
    assert pull(shard).names == "k"


def test_active_jobs_are_a_reason_to_refuse(shard, maybe_restart):
    push(shard, *"ab")
    job = pull(shard).job
    answer = shard.send(Obliterate(shard.origin("admin"), "emails"))[0]
    assert answer.status is Status.CONFLICT
    assert "1 jobs are active" in answer.body[0]
    maybe_restart()
    assert counts(shard)["emails"] == {"waiting": 1, "active": 1}
    assert ack(shard, job).accepted


@pytest.mark.parametrize("settle", [ack, fail, release])
def test_by_force_the_tokens_of_active_jobs_become_stale(shard, settle, maybe_restart):
    pushed = push(shard, "a")
    job = pull(shard).job
    waiting = result(shard, pushed.id, wait_ms=60_000)
    obliterate(shard, force=True)
    assert waiting.body == ("removed", None, "")
    maybe_restart()
    assert settle(shard, job).stale
    assert heartbeat(shard, job).stale
    assert result(shard, pushed.id).body == ("removed", None, "")


def test_ids_of_an_obliterated_queue_are_not_accepted_again(shard, maybe_restart):
    pushed = push(shard, *"abc", attempts=1)
    acked = ack(shard, pull(shard).job)
    fail(shard, pull(shard).job)
    obliterate(shard)
    maybe_restart()
    again = repeat(shard, pushed)
    assert [detail[2] for _, _, detail in again.exceptions] == ["forgotten", "forgotten", "removed"]
    assert repeat(shard, acked).replayed
    assert counts(shard).get("emails", {}) == {}


def test_a_parked_pull_waits_on_and_is_served_by_the_next_push(shard):
    pause(shard)
    push(shard, *"ab")
    parked = pull(shard, wait_ms=60_000)
    obliterate(shard)
    assert parked.waits
    push(shard, "c", at=10_000)
    assert parked.names == "c"
    shard.restart()
    assert counts(shard) == {"emails": {"active": 1}}


def test_a_pull_parked_on_several_queues_survives_the_end_of_one(shard):
    configure(shard, "sms", paused=True)
    push(shard, "x", queue="sms")
    parked = pull(shard, "emails", "sms", "mail", "sms", wait_ms=60_000)
    other = pull(shard, "mail", "sms", client="w-2", wait_ms=1_000)
    obliterate(shard, "sms")
    tick(shard, at=1_000)
    assert other.jobs == []
    push(shard, "y", queue="sms")
    assert parked.names == "y"


def test_a_pull_parked_on_an_obliterated_queue_ends_in_its_time(shard):
    push(shard, "a", delay_ms=500)
    parked = pull(shard, wait_ms=1_000)
    obliterate(shard)
    tick(shard, at=1_000)
    assert parked.jobs == []
    obliterate(shard)
    assert counts(shard) == {}


def test_what_was_leased_between_two_pages_is_gone_with_the_next(shard):
    configure(shard, concurrency=1)
    push(shard, *"abc")
    job = pull(shard).job
    parked = pull(shard, client="w-2", wait_ms=60_000)
    obliterate(shard, force=True, limit=1)
    assert ack(shard, job).stale
    assert parked.waits or ack(shard, parked.job).stale
    shard.restart()
    push(shard, "d")
    assert pull(shard).names == "d"


def test_a_queue_goes_and_comes_again_and_again(shard):
    for name in "abc":
        push(shard, name, job_id="order-1", unique="key", unique_ttl_ms=60_000, delay_ms=100)
        configure(shard, rate_max=1, rate_per_ms=60_000)
        tick(shard, at=shard.clock.at + 100)
        ack(shard, pull(shard).job)
        assert obliterate(shard) == 1
        shard.restart()
    assert counts(shard) == {}
    tick(shard, at=1_000_000)


def test_an_obliterated_queue_and_its_heir_of_one_turn(shard):
    push(shard, "a", job_id="order-1")
    gone, pushed = shard.send(
        Obliterate(shard.origin("admin"), "emails"), a_push(shard, b={"job_id": "order-1"})
    )
    assert gone.body == (1, None)
    assert pushed.accepted
    shard.restart()
    assert [seen["name"] for seen in get(shard, "order-1")] == ["b"]


def test_pages_go_on_until_the_queue_is_gone(shard):
    push(shard, *"abcde")
    answers, after = [], 0
    while after is not None:
        command = Obliterate(shard.origin("admin"), "emails", False, after, 2)
        count, after = shard.send(command)[0].body
        answers.append(count)
    assert answers == [2, 2, 1]
    assert counts(shard) == {}


def test_what_is_pushed_between_two_pages_goes_too(shard):
    push(shard, *"abc")
    _, after = shard.send(Obliterate(shard.origin("admin"), "emails", False, 0, 2))[0].body
    pushed = push(shard, "d")
    promote(shard, pushed.id), update(shard, pushed.id, priority=3)
    while after is not None:
        _, after = shard.send(Obliterate(shard.origin("admin"), "emails", False, after, 2))[0].body
    assert counts(shard) == {}
    assert result(shard, pushed.id).body[0] == "removed"


def test_an_unknown_queue_is_gone_already(shard):
    assert obliterate(shard, "nobody") == 0


def test_the_lingering_result_and_the_log_of_its_jobs(shard):
    push(shard, "a", keep_completed=False)
    job = pull(shard).job
    log(shard, job, "one")
    ack(shard, job, result=b"r")
    obliterate(shard)
    assert result(shard, job.id).body[0] in ("completed", "result_expired")
    tick(shard, at=10_000)
    assert result(shard, job.id).body[0] == "result_expired"


def test_events_tell_of_each_job(shard):
    push(shard, *"ab", attempts=1)
    fail(shard, pull(shard).job)
    epoch, after, _, _ = events(shard).body
    obliterate(shard)
    told = events(shard, epoch=epoch, after=after).body[3]
    told = [row for row in told if row[1] != "paused"]  # which an obliterate does first
    assert [(row[1], row[5], row[6]) for row in told] == [
        ("removed", "a", ("removed",)),
        ("removed", "b", ("removed",)),
    ]


def test_a_job_of_another_queue_with_the_same_custom_id_stays(shard):
    other = push(shard, "b", job_id="order-1", queue="sms")
    push(shard, "a", job_id="order-1")
    obliterate(shard)
    assert [seen["id"] for seen in get(shard, "order-1")] == [other.id]
    assert exists(push(shard, "b", job_id="order-1", queue="sms", flags=REPEAT))[0] == other.id
    assert state_of(shard, other.id) == "waiting"
