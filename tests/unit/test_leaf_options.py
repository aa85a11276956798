"""Options: every bound from both sides; a refusal names option, value and bound."""

import pytest

from pyq.errors import BadOption
from pyq.limits import (
    ATTEMPTS_MAX,
    BACKOFF_BASE_MS_MAX,
    BACKOFF_CAP_MS_MAX,
    BACKOFF_FACTOR_MAX,
    BACKOFF_STEPS_MAX,
    DELAY_MS_MAX,
    JOB_ID_MAX,
    NAME_MAX,
    PRIORITY_MAX,
    QUEUE_NAME_MAX,
    TIMEOUT_MS_MAX,
)
from pyq.options import DEFAULT_OPTIONS, Options, check_name, check_options, check_queue

RIGHT = [
    ("priority", [-PRIORITY_MAX, 0, PRIORITY_MAX]),
    ("delay_ms", [0, 1, DELAY_MS_MAX]),
    ("run_at", [0, 1, 1 << 53]),
    ("attempts", [1, ATTEMPTS_MAX]),
    ("timeout_ms", [0, TIMEOUT_MS_MAX]),
    ("job_id", ["", "x", "x" * JOB_ID_MAX, "naïve \N{SNOWMAN}", "a/b\n\x1b[0m%s"]),
    ("keep_completed", [True, False]),
    (
        "backoff",
        [
            [0, 1.0, 0, 0.0, []],
            [BACKOFF_BASE_MS_MAX, BACKOFF_FACTOR_MAX, BACKOFF_CAP_MS_MAX, 1, []],
            [1, 2.0, 3, 0.5, [0, BACKOFF_CAP_MS_MAX]],
            [1, 2.0, 3, 0.5, [1] * BACKOFF_STEPS_MAX],
        ],
    ),
]
WRONG = [
    ("priority", [-PRIORITY_MAX - 1, PRIORITY_MAX + 1, 1.0, True, "1", None]),
    ("delay_ms", [-1, DELAY_MS_MAX + 1, 0.5, False]),
    ("run_at", [-1, (1 << 53) + 1]),
    ("attempts", [0, -1, ATTEMPTS_MAX + 1, True]),
    ("timeout_ms", [-1, TIMEOUT_MS_MAX + 1]),
    ("job_id", ["x" * (JOB_ID_MAX + 1), "a\0b", "\ud800", 5, b"x", None]),
    ("keep_completed", [0, 1, None, "yes"]),
    (
        "backoff",
        [
            None,
            [],
            [1, 2.0, 3, 0.5],
            [-1, 2.0, 3, 0.5, []],
            [BACKOFF_BASE_MS_MAX + 1, 2.0, 3, 0.5, []],
            [1, 0.99, 3, 0.5, []],
            [1, float("nan"), 3, 0.5, []],
            [1, float("inf"), 3, 0.5, []],
            [1, True, 3, 0.5, []],
            [1, 2.0, BACKOFF_CAP_MS_MAX + 1, 0.5, []],
            [1, 2.0, 3, -0.1, []],
            [1, 2.0, 3, 1.1, []],
            [1, 2.0, 3, 0.5, [-1]],
            [1, 2.0, 3, 0.5, [1] * (BACKOFF_STEPS_MAX + 1)],
            [1, 2.0, 3, 0.5, None],
        ],
    ),
]


def flat(table):
    return [(name, value) for name, values in table for value in values]


@pytest.mark.parametrize(("name", "value"), flat(RIGHT))
def test_a_value_on_the_edge_is_taken_and_comes_back(name, value):
    options = check_options({name: value})
    assert check_options(options.to_wire()) == options


@pytest.mark.parametrize(("name", "value"), flat(WRONG))
def test_a_value_beyond_the_edge_is_refused_by_name(name, value):
    with pytest.raises(BadOption, match=name):
        check_options({name: value})


def test_an_unknown_option_is_refused_never_ignored():
    with pytest.raises(BadOption, match="'prioritaet'"):
        check_options({"prioritaet": 1})


def test_delay_and_run_at_exclude_each_other_also_when_one_is_common():
    with pytest.raises(BadOption, match="exclude"):
        check_options({"delay_ms": 1, "run_at": 1})
    with pytest.raises(BadOption, match="exclude"):
        check_options({"delay_ms": 1}, Options(run_at=1))


def test_a_job_overlays_the_options_of_its_message():
    common = Options(priority=3, attempts=7)
    assert check_options({"priority": 4}, common) == Options(priority=4, attempts=7)
    assert check_options(None, common) is common
    assert check_options({}, common) is common


def test_defaults_travel_as_nothing():
    assert DEFAULT_OPTIONS.to_wire() is None
    assert Options(priority=1).to_wire() == {"priority": 1}


@pytest.mark.parametrize("length", [1, QUEUE_NAME_MAX])
def test_names_of_any_characters(length):
    assert check_queue("\N{SNOWMAN}" * length)
    assert check_name("\n" * min(length, NAME_MAX))


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0", "\udfff", None, b"x", 5, ("x",)])
def test_what_is_no_name(name):
    with pytest.raises(BadOption, match="queue"):
        check_queue(name)


def test_a_refusal_cuts_a_long_value():
    with pytest.raises(BadOption) as refusal:
        check_options({"job_id": "x" * 1_000_000})
    assert len(str(refusal.value)) < 200


def test_a_refusal_cuts_the_name_of_a_long_option():
    with pytest.raises(BadOption) as refusal:
        check_options({"x" * 1_000_000: 1})
    assert len(str(refusal.value)) < 1_000
