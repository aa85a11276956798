"""When a request is repeated, and what is known when its time is over."""

import pytest

from pyq.errors import Status
from pyq.repeats import AT_ONCE_S, LATER_S, LATER_S_MAX, Known, Repeats


def a_request(*, sent: int = 1) -> Repeats:
    repeats = Repeats()
    for _ in range(sent):
        repeats.sent()
    return repeats


AGAIN = (Status.RETRY, Status.BUSY, Status.UNAVAILABLE, Status.WRONG_SHARD, Status.UNKNOWN)


def test_an_unknown_outcome_is_asked_about_again_and_stays_in_doubt() -> None:
    repeats = a_request()
    assert repeats.answered(Status.UNKNOWN, 0) == LATER_S
    assert repeats.known_at_deadline() is Known.UNKNOWN


@pytest.mark.parametrize(
    "status",
    [s for s in Status if s not in AGAIN],
)
def test_other_answers_are_final(status: Status) -> None:
    assert a_request().answered(status, 50) is None


def test_retry_is_repeated_at_once_with_a_small_growing_delay() -> None:
    repeats = a_request()
    delays = []
    for _ in range(20):
        delays.append(repeats.answered(Status.RETRY, 0))
        repeats.sent()

    assert delays[0] == AT_ONCE_S
    assert delays == sorted(delays)  # type: ignore[type-var]
    assert delays[-1] == LATER_S


def test_busy_says_itself_when() -> None:
    assert a_request().answered(Status.BUSY, 250) == 0.25


def test_unavailable_backs_off_to_a_second() -> None:
    repeats = a_request()
    delays = []
    for _ in range(8):
        delays.append(repeats.answered(Status.UNAVAILABLE, 0))
        repeats.sent()

    assert delays[:3] == [LATER_S, 2 * LATER_S, 4 * LATER_S]
    assert delays[-1] == LATER_S_MAX


def test_a_request_that_never_left_had_no_effect() -> None:
    assert a_request(sent=0).known_at_deadline() is Known.NEVER_SENT


def test_silence_after_sending_is_unknown() -> None:
    assert a_request().known_at_deadline() is Known.UNKNOWN


def test_a_last_definite_refusal_is_what_is_known() -> None:
    repeats = a_request()
    repeats.answered(Status.BUSY, 50)

    assert repeats.known_at_deadline() is Known.REFUSED


def test_a_refusal_says_nothing_about_a_lost_earlier_copy() -> None:
    repeats = a_request(sent=2)  # the first copy was never answered
    repeats.answered(Status.BUSY, 50)
    repeats.answered(Status.BUSY, 50)

    assert repeats.known_at_deadline() is Known.UNKNOWN


def test_a_refusal_after_retry_leaves_the_outcome_open() -> None:
    repeats = a_request()
    repeats.answered(Status.RETRY, 0)
    repeats.sent()
    repeats.answered(Status.UNAVAILABLE, 0)

    assert repeats.known_at_deadline() is Known.UNKNOWN
