"""The relay's plan: what it asks whom and when, with answers and time given by hand."""

from typing import Any

import pytest

from cluster.coordinator.relay import (
    COUNTED_MS,
    DELIVER_MS,
    GAP_MS,
    LATE_MS,
    PATIENCE_MS,
    RETRY_MS,
    SLOW_WAIT_MS,
    WAIT_MS,
    Errand,
    Relays,
)
from cluster.probes import Answer
from pyq.errors import Status
from pyq.wire import Verb

ROW = ("watch", b"j" * 16, 0, "")


class Plan:
    """The relays of four shards, of which only that of shard 0 has something to do."""

    def __init__(self) -> None:
        self.relays = Relays(4, 0)
        self.at = 0
        self.asked: list[Errand] = []
        self.go(0)
        self.others = [errand for errand in self.asked if errand.source]
        self.asked = [errand for errand in self.asked if not errand.source]

    def go(self, at: int) -> None:
        """Let the time be `at`."""
        self.at = at
        self.asked += self.relays.take_due(at)

    def take(self, verb: Verb, shard: int = 0) -> Errand:
        """The one request of this kind that was sent."""
        (found,) = [e for e in self.asked if (e.verb, e.shard) == (verb, shard)]
        self.asked.remove(found)
        return found

    def answer(self, errand: Errand, body: Any, status: Status = Status.OK) -> None:
        self.relays.conclude(errand, Answer(status, 1, body), self.at)
        self.go(self.at)

    def rows(self, *parts: tuple[int, int, int]) -> list[Errand]:
        """The source hands out [target, first, count of rows]; returns the deliveries."""
        body = (tuple((target, first, (ROW,) * count) for target, first, count in parts),)
        self.answer(self.take(Verb.OUTBOX), body)
        return [self.take(Verb.DELIVER, target) for target, _, _ in parts]

    @property
    def troubles(self) -> list[str]:
        return [f"{task}: {reason}" for task, reason in self.relays.take_troubles()]


@pytest.fixture
def plan() -> Plan:
    return Plan()


def test_a_single_shard_has_nothing_to_carry():
    relays = Relays(1, 0)
    assert relays.take_due(0) == []
    assert relays.next_wakeup() is None
    assert relays.table(0) == []
    assert relays.healthy


def test_every_shard_is_asked_at_once_with_a_long_poll(plan):
    poll = plan.take(Verb.OUTBOX)
    assert poll.body == ([], [], 1_000, WAIT_MS)
    assert poll.timeout_ms == WAIT_MS + LATE_MS
    assert [errand.shard for errand in plan.others] == [1, 2, 3]
    assert not plan.asked


def test_rows_go_to_all_targets_together_and_are_confirmed_with_the_next_question(plan):
    first, second = plan.rows((1, 5, 2), (3, 1, 1))
    assert first.body == (0, 5, (ROW, ROW))
    assert second.body == (0, 1, (ROW,))
    plan.answer(first, (6,))
    assert not plan.asked, "not before all have answered"
    plan.answer(second, (1,))
    assert plan.take(Verb.OUTBOX).body[0] == [(1, 6), (3, 1)]


def test_what_was_confirmed_is_not_confirmed_again_unless_the_answer_was_lost(plan):
    plan.answer(plan.rows((1, 1, 1))[0], (1,))
    lost = plan.take(Verb.OUTBOX)
    plan.go(plan.at + lost.timeout_ms)
    plan.go(plan.at + RETRY_MS)
    again = plan.take(Verb.OUTBOX)
    assert again.body[0] == [(1, 1)]
    plan.answer(again, ((),))
    plan.go(plan.at + SLOW_WAIT_MS)
    assert plan.take(Verb.OUTBOX).body[0] == []


def test_a_target_that_does_not_answer_holds_up_nobody_for_long(plan):
    plan.answer(plan.rows((1, 1, 1), (2, 1, 1))[0], (1,))
    plan.go(PATIENCE_MS - 1)
    assert not plan.asked
    plan.go(PATIENCE_MS)
    poll = plan.take(Verb.OUTBOX)
    assert poll.body == ([(1, 1)], [2], 1_000, SLOW_WAIT_MS)
    plan.answer(poll, (((1, 2, (ROW,)),),))
    plan.answer(plan.take(Verb.DELIVER, 1), (2,))
    plan.go(DELIVER_MS)
    assert plan.relays.table(plan.at)[0][1] == 1


def test_a_late_answer_of_a_slow_target_counts_and_its_rows_flow_again(plan):
    (slow,) = plan.rows((2, 1, 1))
    plan.go(PATIENCE_MS)
    poll = plan.take(Verb.OUTBOX)
    plan.answer(slow, (1,))
    plan.answer(poll, ((),))
    plan.go(plan.at + SLOW_WAIT_MS)
    poll = plan.take(Verb.OUTBOX)
    assert (poll.body[0], poll.body[1]) == ([(2, 1)], [])


def test_a_target_that_failed_is_left_out_for_a_while(plan):
    (failed,) = plan.rows((2, 1, 1))
    plan.at = 10
    plan.answer(failed, ("down", 0), Status.UNAVAILABLE)
    poll = plan.take(Verb.OUTBOX)
    assert poll.body == ([], [2], 1_000, RETRY_MS)
    plan.at = 10 + RETRY_MS
    plan.answer(poll, ((),))
    plan.go(plan.at)
    assert plan.take(Verb.OUTBOX).body[1] == [], "it has another chance"
    assert not plan.troubles


def test_five_failures_in_a_row_are_critical_and_one_success_mends_it(plan):
    for number in range(5):
        assert plan.relays.healthy, number
        plan.answer(plan.rows((2, 1, 1))[0], ("down", 0), Status.UNAVAILABLE)
        plan.answer(plan.take(Verb.OUTBOX), ((),))
        plan.go(plan.at + COUNTED_MS)
    assert plan.troubles == ["relay shard-0 to shard-2: down"]
    assert not plan.relays.healthy
    assert plan.relays.table(plan.at)[0][:2] == ["relay shard-0", 5]
    plan.answer(plan.rows((2, 1, 1))[0], (1,))
    assert plan.relays.healthy
    assert not plan.troubles


def test_failures_within_a_second_are_one(plan):
    poll = plan.take(Verb.OUTBOX)
    for at in range(0, COUNTED_MS, RETRY_MS):
        plan.at = at
        plan.answer(poll, ("down", 0), Status.UNAVAILABLE)
        plan.go(at + RETRY_MS)
        poll = plan.take(Verb.OUTBOX)
    assert plan.relays.table(plan.at)[0][1] == 1


def test_a_source_that_was_restarted_is_asked_again_at_once_without_blame(plan):
    plan.answer(plan.take(Verb.OUTBOX), ("again", 0), Status.RETRY)
    plan.go(1)
    plan.take(Verb.OUTBOX)
    assert plan.relays.table(1)[0][1] == 0


def test_a_target_that_lost_rows_is_critical_once_and_does_not_make_it_spin(plan):
    plan.answer(plan.rows((3, 10, 2))[0], (4,))
    assert plan.troubles == [
        "relay shard-0 to shard-3: shard 3 has rows of shard 0 up to 4, and the next that is"
        " left is 10: shard 3 has lost data"
    ]
    assert not plan.relays.healthy
    poll = plan.take(Verb.OUTBOX)
    assert (poll.body[1], poll.body[3]) == ([3], WAIT_MS)
    plan.at = GAP_MS
    plan.answer(poll, ((),))
    plan.answer(plan.rows((3, 10, 2))[0], (4,))
    assert not plan.troubles, "it was said"
    plan.at = 2 * GAP_MS
    plan.answer(plan.take(Verb.OUTBOX), ((),))
    plan.answer(plan.rows((3, 10, 2))[0], (11,))
    assert plan.relays.healthy


def test_a_source_that_lost_rows_is_critical_too(plan):
    plan.answer(plan.rows((3, 10, 1))[0], (10,))
    assert plan.rows() == []
    plan.go(plan.at + SLOW_WAIT_MS)
    poll = plan.take(Verb.OUTBOX)
    plan.answer(poll, (((3, 2, (ROW,)),),))
    assert not plan.asked
    assert "shard 0 has lost data" in plan.troubles[0]
    assert not plan.relays.healthy


def test_a_target_that_has_more_than_was_sent_is_believed(plan):
    """Another relay, before this one, may have brought it."""
    plan.answer(plan.rows((1, 3, 2))[0], (7,))
    assert plan.take(Verb.OUTBOX).body[0] == [(1, 7)]


def test_an_empty_answer_that_comes_too_early_does_not_make_it_spin(plan):
    plan.answer(plan.take(Verb.OUTBOX), ((),))
    assert not plan.asked
    plan.go(SLOW_WAIT_MS)
    plan.take(Verb.OUTBOX)


@pytest.mark.parametrize(
    "body",
    [None, (), (1,), ((1,),), (((0, 1, (ROW,)),),), (((1, 0, (ROW,)),),), (((64, 1, (ROW,)),),),
     (((1, 1, ()),),), ((("1", 1, (ROW,)),),), (((1, True, (ROW,)),),)],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_a_failure(plan, body):
    plan.answer(plan.take(Verb.OUTBOX), body)
    assert plan.relays.table(0)[0][1] == 1
    plan.go(RETRY_MS)
    plan.take(Verb.OUTBOX)


@pytest.mark.parametrize("body", [None, (), ("6",), (True,), (6, 7), (4,)])
def test_a_cursor_that_makes_no_sense_is_a_failure_of_the_target(plan, body):
    plan.answer(plan.rows((1, 5, 2))[0], body)
    assert plan.relays.table(0)[0][1] == 1
    assert plan.take(Verb.OUTBOX).body[1] == [1]


def test_when_the_connection_breaks_everything_is_asked_anew_and_old_answers_are_void(plan):
    (delivery,) = plan.rows((1, 1, 1))
    plan.relays.lost(plan.at)
    plan.go(plan.at)
    polls = [errand for errand in plan.asked if errand.verb is Verb.OUTBOX]
    assert [errand.source for errand in polls] == [0, 1, 2, 3]
    plan.asked = [polls[0]]
    plan.answer(delivery, (1,))
    assert polls[0].body[0] == []
    assert plan.rows((1, 1, 1)), "carried twice, which the target knows"


def test_it_sleeps_until_something_is_due_or_too_late(plan):
    assert plan.relays.next_wakeup() == WAIT_MS + LATE_MS
    plan.rows((1, 1, 1))
    assert plan.relays.next_wakeup() == PATIENCE_MS
    plan.go(PATIENCE_MS)
    assert plan.relays.next_wakeup() == DELIVER_MS
