"""What the coordinator does when: due tasks, outcomes, failures in a row; and the sweeps."""

import pytest

from cluster.coordinator.agenda import CRITICAL_FAILURES, Agenda
from cluster.coordinator.sweeps import (
    SWEEP_RETRY_MS,
    SWEEP_TIMEOUT_MS,
    add_sweeps,
    next_sweep,
    shard_of_sweep,
    sweep_name,
)
from pyq.limits import SWEEP_MS_MAX, SWEEP_MS_MIN


def an_agenda(*names: str, due_ms: int = 0) -> Agenda:
    agenda = Agenda()
    for name in names:
        agenda.add(name, due_ms, timeout_ms=500, retry_ms=1_000)
    return agenda


def fail(agenda: Agenda, name: str, times: int, at: int = 0) -> list[bool]:
    """Run and fail a task; return what `failed` said each time."""
    said = []
    for _ in range(times):
        assert name in agenda.take_due(at)
        said.append(agenda.failed(name, at))
        at += 1_000
    return said


def test_a_task_is_taken_when_it_is_due_and_not_twice():
    agenda = an_agenda("a", due_ms=100)
    assert agenda.take_due(99) == []
    assert agenda.take_due(100) == ["a"]
    assert agenda.is_under_way("a")
    assert agenda.take_due(100) == []


def test_success_says_when_the_next_run_is_due():
    agenda = an_agenda("a")
    agenda.take_due(0)
    agenda.succeeded("a", 10, 5_000)
    assert not agenda.is_under_way("a")
    assert agenda.next_wakeup() == 5_000
    assert agenda.take_due(5_000) == ["a"]


def test_a_run_without_an_outcome_is_overdue():
    agenda = an_agenda("a")
    agenda.take_due(0)
    assert agenda.next_wakeup() == 500
    assert agenda.overdue(499) == []
    assert agenda.overdue(500) == ["a"]
    agenda.failed("a", 500)
    assert agenda.overdue(500) == []
    assert agenda.next_wakeup() == 1_500


def test_five_failures_in_a_row_make_a_task_critical_once():
    agenda = an_agenda("a")
    said = fail(agenda, "a", CRITICAL_FAILURES + 2)
    assert said == [False] * 4 + [True] + [False] * 2
    assert not agenda.healthy


def test_a_critical_task_goes_on_being_tried_and_success_resets_it():
    agenda = an_agenda("a")
    fail(agenda, "a", CRITICAL_FAILURES)
    at = CRITICAL_FAILURES * 1_000
    assert agenda.take_due(at) == ["a"]
    agenda.succeeded("a", at, at + 1_000)
    assert agenda.healthy
    assert fail(agenda, "a", CRITICAL_FAILURES - 1, at + 1_000) == [False] * 4


def test_one_failing_task_delays_no_other():
    agenda = an_agenda("a", "b")
    assert agenda.take_due(0) == ["a", "b"]
    agenda.succeeded("b", 10, 20)
    assert agenda.take_due(20) == ["b"]  # a is still under way


def test_what_failed_can_be_hastened_and_nothing_else():
    agenda = an_agenda("failed", "fine", "running")
    agenda.take_due(0)
    agenda.failed("failed", 0)
    agenda.succeeded("fine", 0, 9_000)
    agenda.hasten(10)
    assert agenda.take_due(10) == ["failed"]


def test_the_table_shows_failures_and_the_age_of_the_last_success():
    agenda = an_agenda("a", "b")
    agenda.take_due(0)
    agenda.succeeded("a", 10, 1_000)
    agenda.failed("b", 10)
    assert agenda.table(30) == [["a", 0, 20], ["b", 1, -1]]


def test_an_empty_agenda_wants_no_wakeup():
    assert Agenda().next_wakeup() is None
    assert Agenda().healthy


def test_two_tasks_of_one_name_are_a_mistake_of_ours():
    agenda = an_agenda("a")
    with pytest.raises(AssertionError):
        agenda.add("a", 0, timeout_ms=1, retry_ms=1)


# --- sweeps -------------------------------------------------------------------------------------


def test_every_shard_is_swept_at_once_after_the_start():
    agenda = Agenda()
    add_sweeps(agenda, 4, 7)
    assert [shard_of_sweep(name) for name in agenda.take_due(7)] == [0, 1, 2, 3]


def test_a_silent_shard_is_swept_again_and_the_others_go_on():
    agenda = Agenda()
    add_sweeps(agenda, 2, 0)
    agenda.take_due(0)
    agenda.succeeded(sweep_name(1), 5, 300)
    assert agenda.take_due(300) == [sweep_name(1)]
    assert agenda.overdue(SWEEP_TIMEOUT_MS) == [sweep_name(0)]
    agenda.failed(sweep_name(0), SWEEP_TIMEOUT_MS)
    assert sweep_name(0) in agenda.take_due(SWEEP_TIMEOUT_MS + SWEEP_RETRY_MS)


@pytest.mark.parametrize(
    ("asked_ms", "waits_ms"),
    [(0, SWEEP_MS_MIN), (-5, SWEEP_MS_MIN), (1_000, 1_000), (1 << 40, SWEEP_MS_MAX)],
)
def test_the_shard_says_when_the_next_sweep_is_due_within_bounds(asked_ms, waits_ms):
    assert next_sweep((asked_ms, 0, 0), 100) == 100 + waits_ms


@pytest.mark.parametrize("body", [(), (1,), ("soon", 0, 0), None, (None, 0, 0), (True, 0, 0)])
def test_a_reply_that_makes_no_sense_is_none(body):
    assert next_sweep(body, 0) is None


def test_other_tasks_are_no_sweeps():
    assert shard_of_sweep("attach") is None
