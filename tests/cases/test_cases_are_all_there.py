"""No case is silently missing: each is a test, or is listed with the reason why it is none."""

from collections import Counter

from tests.cases.catalogue import CASES, LATER, NOT_OFFERED, PARTLY, promises, report


def test_every_case_is_kept_or_listed_exactly_once() -> None:
    places = Counter([*promises(), *NOT_OFFERED, *LATER])
    assert sorted(places) == CASES, report()
    twice = sorted(case for case, number in places.items() if number > 1)
    assert not twice, f"{', '.join(twice)} are tested and listed as not tested"


def test_every_reason_says_something() -> None:
    assert all({**NOT_OFFERED, **LATER, **PARTLY}.values())
    assert PARTLY.keys() <= promises().keys()


def test_every_test_of_a_case_names_its_promise_in_one_line() -> None:
    for case, about in promises().items():
        for promise in about:
            assert promise.text.endswith("."), f"{case}: {promise}"
