"""Completed jobs in order of their end, eight bytes each."""

from hypothesis import given
from hypothesis import strategies as st

from shardnode.core.state import Finished

MINUTE = 60_000


@given(
    st.lists(st.integers(0, 3_000), max_size=80),
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 30)), max_size=6),
)
def test_the_oldest_beyond_what_is_kept_are_taken_and_nothing_young(gaps, keep, takes):
    finished, model = Finished(), []
    at = 0
    for seq, gap in enumerate(gaps, 1):
        at += gap
        finished.add(at, (seq,))
        model.append((at, seq))
    before = 0
    for later, limit in takes:
        before += later
        taken = finished.take(keep, before, limit)
        assert taken == [seq for _, seq in model[: len(taken)]], "oldest first"
        assert all(ended_at < before for ended_at, _ in model[: len(taken)]), "nothing young"
        assert len(taken) <= limit
        del model[: len(taken)]
        assert len(model) >= min(keep, len(model) + len(taken))
        if len(taken) < limit and len(model) > keep:
            assert model[0][0] + 2_000 > before, "one that is old enough by seconds was left"
        assert list(finished) == [seq for _, seq in model]
        assert finished.count == len(model)


@given(
    st.lists(st.integers(0, 1_500), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 59), st.booleans(), st.integers(0, 4)), max_size=60),
)
def test_what_left_in_another_way_is_not_taken_and_may_come_again(gaps, moves):
    finished, model = Finished(), []
    at = 0
    for seq, gap in enumerate(gaps, 1):
        at += gap
        finished.add(at, (seq,))
        model.append((at, seq))
    for which, comes_again, count in moves:
        if model:
            ended_at, seq = model.pop(which % len(model))
            finished.discard(seq, ended_at)
            if comes_again:
                finished.add(at, (seq,))
                model.append((at, seq))
        taken = finished.take(len(model) - count, at + 2_000, 60) if count <= len(model) else []
        assert taken == [seq for _, seq in model[: len(taken)]]
        assert len(taken) <= count
        del model[: len(taken)]
        assert list(finished) == [seq for _, seq in model]
        assert finished.count == len(model)


def test_a_clock_that_is_set_back_loses_nothing():
    finished = Finished()
    for seq, at in enumerate([10_000, 5_000, 5_500, 20_000], 1):
        finished.add(at, (seq,))

    assert list(finished) == [1, 2, 3, 4]
    assert finished.take(0, 100_000, 10) == [1, 2, 3, 4]
