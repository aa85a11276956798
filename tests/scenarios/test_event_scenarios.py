"""EVENTS: what happened, numbered, after a cursor; whoever fell behind is told that he did."""

import pytest

from pyq.limits import EVENTS_IDLE_MS, EVENTS_MAX, WAIT_MS_MAX
from pyq.messages import Ack, Events, Pull
from tests.support.sayings import a_push
from tests.support.shards import (
    MONO_0,
    WALL_0,
    ack,
    cancel,
    events,
    fail,
    progress,
    promote,
    pull,
    push,
    release,
    retry,
    stall,
    tick,
)

MINUTE = 60_000
AT_ONCE = [0, 1, 0, 0, []]


class Reader:
    """Somebody who reads on from where he was."""

    def __init__(self, shard, queue=""):
        self.shard = shard
        self.queue = queue
        self.epoch, self.after, missed, rows = events(shard, queue).body
        assert (missed, rows) == (0, ())
        self.start = self.after

    def numbers(self, rows):
        """Numbers of events since this reader came."""
        return [row[0] - self.start for row in rows]

    def ask(self, **fields):
        return events(self.shard, self.queue, self.epoch, self.after, **fields)

    def take(self, call):
        """Note the cursor of an answer; returns how many were missed, and the events."""
        self.epoch, self.after, missed, rows = call.body
        return missed, rows

    def read(self, **fields):
        missed, rows = self.take(self.ask(**fields))
        assert missed == 0
        return rows


def kinds(rows):
    return [row[1] for row in rows]


def told(rows):
    return [(row[1], row[5], row[6]) for row in rows]


# --- what is told -------------------------------------------------------------------------------


def test_an_event_says_number_kind_time_queue_job_and_detail(shard):
    reader = Reader(shard)
    pushed = push(shard, "a", at=50)
    delayed = push(shard, "b", queue="sms", delay_ms=1_000)
    number = reader.after + 1
    assert reader.read() == (
        (number, "added", WALL_0 + 50, "emails", pushed.id, "a", None),
        (number + 1, "added", WALL_0 + 50, "sms", delayed.id, "b", (WALL_0 + 1_050,)),
    )


def test_the_life_of_a_job_that_completes(shard):
    reader = Reader(shard)
    push(shard, "a", delay_ms=1_000)
    job = pull(shard, client="w-1", at=1_000).job
    progress(shard, job, value=b"50%")
    ack(shard, job, result=b"r")
    assert told(reader.read()) == [
        ("added", "a", (WALL_0 + 1_000,)),
        ("waiting", "a", None),
        ("active", "a", (1, "w-1")),
        ("progress", "a", (b"50%",)),
        ("completed", "a", None),
    ]


def test_a_failure_says_attempt_and_error_and_then_what_became_of_the_job(shard):
    reader = Reader(shard)
    push(shard, "a", attempts=3, backoff=[1_000, 1, 1_000, 0, []])
    fail(shard, pull(shard).job, error="first")
    fail(shard, pull(shard, at=1_000).job, error="second", retry_in_ms=0)
    fail(shard, pull(shard).job, error="last")
    rows = [row for row in told(reader.read()) if row[0] not in ("added", "active")]
    assert rows == [
        ("failed", "a", (1, "first")),
        ("delayed", "a", (WALL_0 + 1_000,)),
        ("waiting", "a", None),
        ("failed", "a", (2, "second")),
        ("waiting", "a", None),
        ("failed", "a", (3, "last")),
        ("dead", "a", ("exhausted", "last")),
    ]


def test_the_life_of_a_job_that_dies_and_is_retried(shard):
    reader = Reader(shard)
    push(shard, "a", attempts=1)
    job = pull(shard).job
    fail(shard, job, error="boom")
    retry(shard, job.id)
    ack(shard, pull(shard).job)
    retry(shard, job.id)
    assert kinds(reader.read()) == [
        "added", "active", "failed", "dead", "retried", "active", "completed", "retried",
    ]  # fmt: skip


def test_a_stall_says_how_many_there_were_and_what_became_of_the_job(shard):
    reader = Reader(shard)
    push(shard, "a", backoff=[5_000, 1, 5_000, 0, []])
    stall(shard, pull(shard).job)
    stalled_at = WALL_0 + shard.clock.at
    assert told(reader.read())[2:] == [
        ("stalled", "a", (1,)),
        ("delayed", "a", (stalled_at + 5_000,)),
    ]
    stall(shard, pull(shard, at=shard.clock.at + 5_000).job)
    assert [row[6] for row in reader.read() if row[1] == "stalled"] == [(2,)]


def test_what_is_given_back_waits_or_is_put_off(shard):
    reader = Reader(shard)
    push(shard, "a")
    release(shard, pull(shard).job)
    release(shard, pull(shard).job, delay_ms=500)
    assert told(reader.read())[-3:] == [
        ("waiting", "a", None),
        ("active", "a", (1, "worker")),
        ("delayed", "a", (WALL_0 + 500,)),
    ]


def test_what_leaves_says_its_verdict(shard):
    reader = Reader(shard)
    cancel(shard, push(shard, "a").id)
    push(shard, "b", ttl_ms=100)
    tick(shard, at=100)
    push(shard, "c", unique="key")
    push(shard, "d", unique="key", on_conflict="replace")
    removed = [row for row in told(reader.read()) if row[0] == "removed"]
    assert removed == [
        ("removed", "a", ("cancelled",)),
        ("removed", "b", ("expired",)),
        ("removed", "c", ("replaced",)),
    ]


def test_a_job_is_added_before_anything_else_happens_to_it(shard):
    """Also if a later job of the same message replaces it, or puts it off."""
    reader = Reader(shard)
    push(shard, *"ab", unique="key", on_conflict="replace")
    assert told(reader.read()) == [
        ("added", "a", None),
        ("removed", "a", ("replaced",)),
        ("added", "b", None),
    ]


def test_promotion_and_readiness_are_the_same_to_a_reader(shard):
    pushed = push(shard, *"ab", delay_ms=1_000)
    reader = Reader(shard)
    promote(shard, pushed.ids[0])
    tick(shard, at=1_000)
    assert told(reader.read()) == [("waiting", "a", None), ("waiting", "b", None)]


def test_each_job_of_a_batch_has_an_event(shard):
    reader = Reader(shard)
    push(shard, *"abc")
    ack(shard, *pull(shard, jobs_max=9).jobs)
    rows = reader.read()
    assert kinds(rows) == ["added"] * 3 + ["active"] * 3 + ["completed"] * 3
    assert reader.numbers(rows) == [*range(1, 10)]


# --- cursor -----------------------------------------------------------------------------------


def test_from_now_on_is_answered_at_once_and_empty(shard):
    push(shard, "a")
    epoch, after, missed, rows = events(shard, wait_ms=MINUTE).body
    assert (epoch, missed, rows) == (1, 0, ())
    push(shard, "b")
    assert events(shard).body == (1, after + 1, 0, ())


def test_a_limit_cuts_and_the_cursor_goes_on(shard):
    reader = Reader(shard)
    push(shard, *"abcde")
    assert [len(reader.read(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_cursor_may_be_used_twice(shard):
    reader = Reader(shard)
    push(shard, *"ab")
    assert reader.ask().body == reader.ask().body
    assert reader.ask(limit=1).body[3] == reader.ask().body[3][:1]


def test_a_reader_of_a_queue_gets_only_its_events(shard):
    reader = Reader(shard, "sms")
    push(shard, "a")
    push(shard, "b", queue="sms")
    push(shard, *"cd")
    rows = reader.read()
    assert [row[5] for row in rows] == ["b"]
    assert reader.numbers(rows) == [2], "numbers have holes"
    assert reader.after == reader.start + 4, "what is of others is not looked at again"
    push(shard, "e", queue="sms")
    assert reader.numbers(reader.read()) == [5]


def test_a_limit_and_a_queue_together(shard):
    reader = Reader(shard, "sms")
    for name in "abcdef":
        push(shard, name, queue="sms" if name in "ace" else "emails")
    assert [row[5] for row in reader.read(limit=2)] == ["a", "c"]
    assert [row[5] for row in reader.read(limit=2)] == ["e"]
    assert reader.read(limit=2) == ()


def test_two_readers_do_not_disturb_each_other(shard):
    one = Reader(shard)
    push(shard, "a")
    other = Reader(shard)
    push(shard, "b")
    assert len(one.read()) == 2
    assert len(other.read()) == 1


# --- gaps -------------------------------------------------------------------------------------


def fill(shard, count, queue="emails"):
    """As if that many events had happened: without looking at everything after each turn."""
    shard.checked = False
    for _ in range(count // 1_000):
        push(shard, *["x"] * 1_000, payload=b"", queue=queue)


def test_a_reader_who_falls_behind_is_told_how_many_he_missed(shard):
    reader = Reader(shard)
    push(shard, *"abc")
    fill(shard, EVENTS_MAX + 1_000)
    missed, rows = reader.take(reader.ask(limit=1))
    assert missed > 0
    assert reader.numbers(rows) == [missed + 1], "as many as lie before the first one told"
    total = missed + 1
    while rows := reader.read():
        total += len(rows)
    assert total == EVENTS_MAX + 1_003


def test_a_reader_who_keeps_up_misses_nothing(shard):
    reader = Reader(shard)
    for _ in range(3):
        fill(shard, EVENTS_MAX // 2)
        total = 0
        while rows := reader.read():
            total += len(rows)
        assert total == EVENTS_MAX // 2


def test_after_a_restart_the_gap_is_unknown(shard):
    reader = Reader(shard)
    push(shard, "a")
    shard.restart()
    push(shard, "b")
    call = reader.ask(wait_ms=MINUTE)
    assert not call.waits, "although it would have waited"
    assert reader.take(call) == (-1, ())
    push(shard, "c")
    assert told(reader.read()) == [("added", "c", None)]


def test_events_since_the_restart_come_with_the_gap(shard):
    reader = Reader(shard)
    shard.restart()
    events(shard)
    push(shard, "a")
    missed, rows = reader.take(reader.ask())
    assert missed == -1
    assert told(rows) == [("added", "a", None)]


def test_a_cursor_of_the_future_is_a_gap(shard):
    reader = Reader(shard)
    push(shard, "a")
    reader.after = 99
    missed, rows = reader.take(reader.ask())
    assert missed == -1
    assert kinds(rows) == ["added"]


# --- waiting ------------------------------------------------------------------------------------


def test_a_reader_waits_for_the_next_event_and_is_told_in_its_turn(shard):
    reader = Reader(shard)
    call = reader.ask(wait_ms=MINUTE)
    assert call.waits
    push(shard, "a")
    missed, rows = reader.take(call)
    assert (missed, told(rows)) == (0, [("added", "a", None)])


def test_all_that_a_command_did_is_told_together(shard):
    reader = Reader(shard)
    parked = pull(shard, wait_ms=MINUTE)
    call = reader.ask(wait_ms=MINUTE)
    push(shard, "a")
    assert parked.names == "a"
    assert kinds(call.body[3]) == ["added", "active"]


def test_an_event_and_the_question_for_it_in_one_turn(shard):
    reader = Reader(shard)
    _, asked = shard.send(
        a_push(shard, a={}),
        Events(shard.origin("reader"), "", reader.epoch, reader.after, 9, MINUTE),
    )
    assert kinds(asked.body[3]) == ["added"]
    reader.take(asked)
    asked, _ = shard.send(
        Events(shard.origin("reader"), "", reader.epoch, reader.after, 9, MINUTE),
        Pull(shard.origin("w-1"), "w-1", ("emails",)),
    )
    assert kinds(asked.body[3]) == ["active"]


def test_a_reader_is_answered_once_however_much_happens_in_a_turn(shard):
    push(shard, "a")
    job = pull(shard).job
    reader = Reader(shard)
    call = reader.ask(wait_ms=MINUTE)
    shard.send(
        Ack(shard.origin("worker-a"), [(job.id, job.token, None)]),
        a_push(shard, b={}),
    )
    reader.take(call)
    assert kinds([*call.body[3], *reader.read()]) == ["completed", "added"]


def test_what_a_timer_does_is_told(shard):
    push(shard, "a", delay_ms=1_000)
    reader = Reader(shard)
    call = reader.ask(wait_ms=MINUTE)
    tick(shard, at=1_000)
    assert kinds(call.body[3]) == ["waiting"]


def test_a_reader_of_a_queue_sleeps_through_the_events_of_others(shard):
    reader = Reader(shard, "sms")
    call = reader.ask(wait_ms=MINUTE)
    push(shard, *"abc")
    assert call.waits
    push(shard, "d", queue="sms")
    assert reader.numbers(call.body[3]) == [4]


def test_a_reader_waits_no_longer_than_he_said(shard):
    reader = Reader(shard, "sms")
    call = reader.ask(wait_ms=1_000)
    push(shard, "a")
    tick(shard, at=999)
    assert call.waits
    tick(shard, at=1_000)
    missed, rows = reader.take(call)
    assert (missed, rows, reader.after) == (0, (), reader.start + 1)


def test_a_reader_waits_no_longer_than_his_deadline(shard):
    reader = Reader(shard)
    origin = shard.origin("reader", deadline_ms=MONO_0 + 500)
    call = shard.send(Events(origin, "", reader.epoch, reader.after, 9, MINUTE))[0]
    tick(shard, at=500)
    assert call.body[3] == ()


def test_many_readers_wait_for_one_event(shard):
    readers = [Reader(shard) for _ in range(5)]
    calls = [reader.ask(wait_ms=MINUTE) for reader in readers]
    push(shard, "a")
    assert {call.body for call in calls} == {calls[0].body}


def test_a_limit_holds_for_who_waits(shard):
    reader = Reader(shard)
    call = reader.ask(wait_ms=MINUTE, limit=2)
    push(shard, *"abc")
    assert len(reader.take(call)[1]) == 2
    assert len(reader.read()) == 1


# --- recording ----------------------------------------------------------------------------------


def recorded(shard):
    return shard.state.events.on


def test_nothing_is_recorded_before_somebody_reads(shard):
    push(shard, "a")
    assert not recorded(shard)
    Reader(shard)
    assert recorded(shard)


def test_recording_ends_ten_minutes_after_the_last_reader(shard):
    reader = Reader(shard)
    tick(shard, at=EVENTS_IDLE_MS - 1)
    assert recorded(shard)
    reader.read()
    tick(shard, at=2 * EVENTS_IDLE_MS - 2)
    assert recorded(shard)
    tick(shard, at=2 * EVENTS_IDLE_MS + 1_000)
    assert not recorded(shard)


def test_a_reader_who_waits_keeps_it_going(shard):
    reader = Reader(shard)
    for at in range(0, 2 * EVENTS_IDLE_MS, WAIT_MS_MAX):
        call = reader.ask(wait_ms=WAIT_MS_MAX, at=at)
        tick(shard, at=at + WAIT_MS_MAX - 1)
        assert call.waits
    assert recorded(shard)


@pytest.mark.parametrize("queue", ["", "emails"])
def test_what_happened_while_nothing_was_recorded_is_an_unknown_gap(shard, queue):
    reader = Reader(shard, queue)
    push(shard, "a")
    reader.read()
    tick(shard, at=EVENTS_IDLE_MS + 1_000)
    push(shard, "b")
    missed, rows = reader.take(reader.ask())
    assert (missed, rows) == (-1, ())
    push(shard, "c")
    assert told(reader.read()) == [("added", "c", None)]


def test_a_reader_who_was_behind_when_recording_ended_has_an_unknown_gap(shard):
    reader = Reader(shard)
    push(shard, *"abc")
    tick(shard, at=EVENTS_IDLE_MS + 1_000)
    missed, _ = reader.take(reader.ask())
    assert missed == -1
