"""Backoff for every n: never negative, never over the cap and its jitter, never an exception."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyq.backoff import backoff_ms
from pyq.limits import BACKOFF_BASE_MS_MAX, BACKOFF_CAP_MS_MAX, BACKOFF_FACTOR_MAX
from pyq.options import Backoff, check_options
from shardnode.core.dice import chance, tokens

shares = st.floats(0, 1, exclude_max=True)
ns = st.integers(1, 1 << 31)
backoffs = st.builds(
    lambda base, factor, cap, jitter: (
        check_options({"backoff": [base, factor, cap, jitter, []]}).backoff
    ),
    st.integers(0, BACKOFF_BASE_MS_MAX),
    st.floats(1, BACKOFF_FACTOR_MAX) | st.integers(1, BACKOFF_FACTOR_MAX),
    st.integers(0, BACKOFF_CAP_MS_MAX),
    st.floats(0, 1) | st.integers(0, 1),
)


@given(backoffs, ns, shares)
def test_a_delay_is_between_zero_and_the_cap_with_its_jitter(backoff, n, share):
    delay = backoff_ms(backoff, n, share)

    assert type(delay) is int
    assert 0 <= delay <= backoff.cap_ms * (1 + backoff.jitter)
    if backoff.base_ms == 0:
        assert delay == 0


@given(backoffs, ns)
def test_without_luck_delays_never_shrink(backoff, n):
    """Share one half is no jitter at all (I38)."""
    first, second = backoff_ms(backoff, n, 0.5), backoff_ms(backoff, n + 1, 0.5)
    assert first <= second <= backoff.cap_ms


@given(st.lists(st.integers(0, BACKOFF_CAP_MS_MAX), min_size=1, max_size=100), ns)
def test_explicit_steps_are_taken_in_order_and_the_last_one_repeats(steps, n):
    backoff = Backoff(jitter=0.0, steps_ms=tuple(steps))
    assert backoff_ms(backoff, n, 0.0) == steps[min(n, len(steps)) - 1]


@pytest.mark.parametrize("n", [1, 2, 3, 12, 13, 1_000, 1_100, 1 << 20, 1 << 31])
def test_the_default_is_a_second_doubled_up_to_an_hour(n):
    expected = min(3_600_000, 1_000 * 2 ** min(n - 1, 40))
    assert backoff_ms(Backoff(), n, 0.5) == expected


@given(st.binary(min_size=16, max_size=16), st.integers(1, 1 << 62))
def test_chance_is_a_share(seed, seq):
    assert 0 <= chance(seed, seq) < 1
    assert chance(seed, seq) == chance(seed, seq)


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 1 << 40),
    st.integers(0, 50),
)
def test_tokens_are_of_their_epoch_and_all_different(seed, epoch, counter, count):
    here, there = tokens(seed, epoch, counter, count), tokens(seed, epoch, counter + 1, count)
    assert all(len(token) == 20 and token[:4] == epoch.to_bytes(4, "big") for token in here)
    assert len({*here, *there}) == 2 * count
