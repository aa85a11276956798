"""Options of a job: when it is due, by which name it is known, what a queue lays under them."""

import pytest

from pyq.errors import Status
from pyq.limits import AGING_MS, DAY_MS, TOMBSTONE_MS_MAX
from pyq.parsing import parse
from pyq.routes import slot_of
from pyq.wire import Header, Verb
from tests.support.sayings import bulk, exists, purge, settle_all, statuses
from tests.support.shards import (
    REPEAT,
    WALL_0,
    ack,
    cancel,
    configure,
    counts,
    drain,
    fail,
    get,
    pull,
    push,
    repeat,
    result,
    tick,
    view,
)

# --- when it is due -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"delay_ms": 1_000}, {"run_at": WALL_0 + 1_000}])
def test_a_job_is_due_to_the_millisecond(shard, options, maybe_restart):
    push(shard, "a", **options)
    maybe_restart()
    assert pull(shard, at=999).jobs == []
    assert pull(shard, at=1_000).names == "a"


def test_a_time_that_has_passed_is_now(shard):
    pushed = push(shard, "a", run_at=WALL_0)
    assert view(shard, pushed.id)["state"] == "waiting"
    assert view(shard, pushed.id)["run_at"] is None


def test_a_delay_counts_from_acceptance(shard):
    push(shard, "a", delay_ms=1_000, at=500)
    assert pull(shard, at=1_499).jobs == []
    assert pull(shard, at=1_500).names == "a"


def test_jobs_of_one_moment_become_ready_in_order_of_acceptance(shard):
    push(shard, "a", run_at=WALL_0 + 2_000)
    push(shard, "b", delay_ms=2_000)
    push(shard, "c", run_at=WALL_0 + 2_000)
    shard.restart()
    assert pull(shard, jobs_max=9, at=5_000).names == "abc"


# --- one message, unlike jobs ---------------------------------------------------------------


def test_jobs_of_one_message_may_differ_in_everything(shard):
    answer = bulk(
        shard,
        a={},
        b={"priority": 5},
        c={"delay_ms": 1_000, "priority": 9},
        d={"job_id": "order-1"},
        e={"job_id": "order-1"},
        f={"unique": "key", "group": "g"},
        g={"group": "g", "priority": 5},
        h={"lifo": True},
        i={"unique": "key"},
        j={"ttl_ms": 500},
    )
    assert [(index, detail[2]) for index, _, detail in answer.exceptions] == [
        (4, "waiting"),
        (8, "waiting"),
    ]
    assert counts(shard)["emails"] == {"waiting": 7, "delayed": 1}
    shard.restart()
    tick(shard, at=1_000)

    assert counts(shard)["emails"] == {"waiting": 7}
    assert settle_all(shard) == "cbhadfg"


def test_tags_and_meta_are_shown(shard, maybe_restart):
    pushed = push(shard, "a", tags=["red", "blue", "red"], meta=b"\x00\xff")
    maybe_restart()
    seen = view(shard, pushed.id)
    assert (seen["tags"], seen["meta"]) == (("red", "blue"), b"\x00\xff")


# --- custom ids -------------------------------------------------------------------------------

ENDS = {
    "completed": lambda shard, job: ack(shard, job),
    "dead": lambda shard, job: fail(shard, job, unrecoverable=True),
}


def test_a_custom_id_is_unique_in_its_queue_only(shard):
    """Not global: the same id in another queue is another job, never a silent success."""
    first = push(shard, "a", job_id="order-1")
    other = push(shard, "b", job_id="order-1", queue="sms")
    assert other.accepted
    assert exists(push(shard, "a", job_id="order-1")) == (first.id, "waiting")
    assert len(get(shard, "order-1")) == 2


@pytest.mark.parametrize("end", ENDS)
def test_a_custom_id_is_known_as_long_as_the_record(shard, end):
    first = push(shard, "a", job_id="order-1")
    ENDS[end](shard, pull(shard).job)
    shard.restart()
    tick(shard, at=TOMBSTONE_MS_MAX + 2 * AGING_MS)
    assert exists(push(shard, "a", job_id="order-1")) == (first.id, end)


def remove_by_cancel(shard):
    first = push(shard, "a", job_id="order-1")
    cancel(shard, first.id)
    return first


def remove_by_drain(shard):
    first = push(shard, "a", job_id="order-1")
    drain(shard)
    return first


def remove_by_ttl(shard):
    first = push(shard, "a", job_id="order-1", ttl_ms=10)
    tick(shard, at=10)
    return first


def remove_by_replacement(shard):
    first = push(shard, "a", job_id="order-1", unique="key")
    push(shard, "b", unique="key", on_conflict="replace")
    return first


def forget_at_completion(shard):
    first = push(shard, "a", job_id="order-1", keep_completed=False)
    ack(shard, pull(shard).job)
    return first


def purge_when_dead(shard):
    first = push(shard, "a", job_id="order-1", attempts=1)
    fail(shard, pull(shard).job)
    purge(shard, first.id)
    return first


GOINGS = {
    remove_by_cancel: "cancelled",
    remove_by_drain: "removed",
    remove_by_ttl: "expired",
    remove_by_replacement: "replaced",
    forget_at_completion: "forgotten",
    purge_when_dead: "forgotten",
}


@pytest.mark.parametrize("leave", GOINGS)
def test_a_custom_id_is_known_for_seven_days_after_its_job_is_gone(shard, leave):
    """No bounded memory that forgets the oldest: as long as the tombstone, on disk."""
    first = leave(shard)
    shard.restart()
    tick(shard, at=TOMBSTONE_MS_MAX - DAY_MS)
    assert exists(push(shard, "a", job_id="order-1")) == (first.id, GOINGS[leave])
    tick(shard, at=TOMBSTONE_MS_MAX + 2 * AGING_MS)
    assert push(shard, "a", job_id="order-1").accepted


def test_a_custom_id_differs_in_size_or_name(shard):
    push(shard, "a", job_id="order-1", payload=b"123")
    for name, payload, mismatch in (("a", b"123", False), ("b", b"123", True), ("a", b"1", True)):
        answer = push(shard, name, job_id="order-1", payload=payload)
        assert answer.exceptions[0][2][3] is mismatch


# --- defaults of a queue ------------------------------------------------------------------------


def test_defaults_of_a_queue_are_laid_under_the_options_of_a_job(shard):
    configure(shard, defaults={"priority": 5, "attempts": 1, "tags": ["x"]})
    shard.restart()
    answer = bulk(shard, a={}, b={"priority": 9}, c={"tags": ["y"]})
    seen = [view(shard, job_id) for job_id in answer.ids]

    assert [view["priority"] for view in seen] == [5, 9, 5]
    assert [view["attempts"] for view in seen] == [1, 1, 1]
    assert [view["tags"] for view in seen] == [("x",), ("x",), ("y",)]


def test_defaults_concern_their_queue_and_what_comes_later(shard):
    before = push(shard, "a")
    configure(shard, defaults={"priority": 5})
    elsewhere = push(shard, "b", queue="sms")
    configure(shard, defaults=None)
    after = push(shard, "c")
    assert [view(shard, call.id)["priority"] for call in (before, elsewhere, after)] == [0, 0, 0]


def test_a_value_given_by_a_job_counts_although_it_is_the_usual_one(shard):
    configure(shard, defaults={"priority": 5, "delay_ms": 9_000})
    job_ids = [shard.an_id("emails") for _ in range(2)]
    given = ((job_ids[0], "a", b"", {"priority": 0}), (job_ids[1], "b", b"", None))
    header = Header(Verb.PUSH, 0, 0, slot_of("emails"), 0, 0, bytes(16), "emails")
    shard.send(parse(header, shard.origin("producer"), ({"delay_ms": 0}, given)))

    seen = [view(shard, job_id) for job_id in job_ids]
    assert [(one["priority"], one["state"]) for one in seen] == [(0, "waiting"), (5, "waiting")]


def test_what_is_refused_together_with_the_defaults_is_refused_alone(shard):
    configure(shard, defaults={"delay_ms": 5_000})
    answer = bulk(shard, a={}, b={"ttl_ms": 5_000}, c={"run_at": WALL_0 + 9}, d={"ttl_ms": 5_001})

    assert statuses(answer) == [(1, Status.BAD_OPTION), (2, Status.BAD_OPTION)]
    assert "ttl" in answer.exceptions[0][2]
    assert counts(shard)["emails"] == {"delayed": 2}


def test_a_repeat_is_known_although_the_defaults_would_refuse_it_now(shard):
    """BAD_OPTION is definite: it would say that the job was never accepted."""
    first = push(shard, "a", ttl_ms=1_000)
    configure(shard, defaults={"delay_ms": 5_000})
    assert exists(repeat(shard, first)) == (first.id, "waiting")


def test_defaults_may_say_how_completed_jobs_are_kept(shard):
    configure(shard, defaults={"keep_completed": False})
    pushed = push(shard, "a")
    ack(shard, pull(shard).job, result=b"r")
    assert counts(shard)["emails"] == {}
    assert result(shard, pushed.id).body == ("completed", b"r", "")


def test_a_first_sending_flagged_as_a_repeat_is_accepted_with_all_its_options(shard):
    answer = push(
        shard, "a", flags=REPEAT, unique="key", group="g", ttl_ms=50, job_id="order-1", priority=3
    )
    assert answer.accepted
    seen = view(shard, answer.id)
    assert (seen["unique"], seen["group"], seen["job_id"]) == ("key", "g", "order-1")
    assert seen["expires_at"] == WALL_0 + 50
