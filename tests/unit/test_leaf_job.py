"""The table of moves, and the words of states."""

import pytest

from pyq.job import BLOCKED, COMPLETED, DEAD, GONE, LEGAL, MOVES, STATE_WORDS, WAITING, JobState


def test_numbers_of_states_are_on_disks_and_never_change():
    assert {state.name: int(state) for state in JobState} == {
        "WAITING": 1,
        "DELAYED": 2,
        "BLOCKED": 3,
        "ACTIVE": 4,
        "COMPLETED": 5,
        "DEAD": 6,
        "GONE": 7,
    }


def test_rows_say_what_the_table_says():
    for source in range(8):
        for target in range(1, 8):
            key = (JobState(source) if source else None, JobState(target))
            assert LEGAL[source][target] == (key in MOVES)


@pytest.mark.parametrize("end", [COMPLETED, DEAD])
def test_an_ended_job_only_leaves_or_is_retried(end):
    assert {target for source, target in MOVES if source is end} == {GONE, WAITING, BLOCKED}


def test_nothing_is_gone_and_comes_back():
    assert not any(source is GONE for source, _ in MOVES)


def test_every_state_but_gone_has_its_word():
    for state in JobState:
        assert (STATE_WORDS.get(state.word) is state) == (state is not GONE)
