"""docs/protocol.md and the code say the same: verbs, codes, flags, the header, the limits."""

import re
from pathlib import Path

import pytest

from pyq.errors import ERRORS_BY_STATUS, PyqError, Status
from pyq.job import MOVES, JobState
from pyq.options import DEFAULT_OPTIONS, OPTION_NAMES
from pyq.parsing import _PARSERS
from pyq.routes import slot_of
from pyq.settings import DEFAULT_SETTINGS, SETTING_NAMES
from pyq.wire import (
    ALL_SHARDS,
    BY_QUEUE,
    COORDINATOR,
    HEADER_BYTES,
    ROUTER,
    VERSION,
    Flag,
    Verb,
)

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, as lists of cells."""
    part = re.split(rf"^## {heading}$", PAGE, flags=re.M)[1]
    rows = []
    for line in part.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def test_the_table_of_verbs_is_the_enumeration():
    documented = {row[1]: int(row[0]) for row in table("Verbs")}
    assert documented == {verb.name: int(verb) for verb in Verb}


def test_the_table_of_codes_is_the_enumeration():
    documented = {row[1]: int(row[0]) for row in table("Codes")}
    assert documented == {
        status.name: int(status) for status in Status if status is not Status.REQUEST
    }


def test_codes_that_are_definite_are_numbered_below_those_that_are_not():
    kinds = {row[1]: row[2] for row in table("Codes")}
    for status in Status:
        if status >= 16:
            assert kinds[status.name] == ("definite" if status < 32 else "not definite")


@pytest.mark.parametrize("status", [s for s in Status if s >= 16], ids=lambda s: s.name)
def test_every_error_has_a_class(status):
    assert issubclass(ERRORS_BY_STATUS[status], PyqError)


@pytest.mark.parametrize("status", [s for s in Status if s >= 16], ids=lambda s: s.name)
def test_a_class_of_its_own_carries_its_code(status):
    known = ERRORS_BY_STATUS[status].status
    handled_inside = {Status.WRONG_SHARD, Status.SUPERSEDED, Status.RETRY}
    assert known is status or status in handled_inside


def test_flags_and_routes_are_documented():
    for flag in Flag:
        if flag:
            assert f"{int(flag)} {flag.name}" in PAGE
    for route in (BY_QUEUE, ALL_SHARDS, COORDINATOR, ROUTER):
        assert f"0x{route:04X}" in PAGE


def test_the_header_is_as_long_as_documented():
    rows = table("Frames") or re.findall(r"^\| (\d+) \| ([\d.]+) \|", PAGE, flags=re.M)
    ends = [int(row[0]) + int(row[1]) for row in rows if row[1].isdigit()]
    assert max(ends) == HEADER_BYTES
    assert f"### Header: {HEADER_BYTES} bytes" in PAGE
    assert f"version {VERSION}" in PAGE


def test_the_example_of_a_slot_is_right():
    queue, slot = re.search(r"`(\w+)` has the slot (\d+)", PAGE).groups()
    assert slot_of(queue) == int(slot)


def test_a_shard_knows_every_verb_but_those_of_others():
    others = {Verb.ATTACH, Verb.PROCESSES, Verb.SHUTDOWN}
    assert set(_PARSERS) == set(Verb) - others


def test_states_that_a_reply_names_are_words():
    assert {state.word for state in JobState} >= {"waiting", "active", "completed", "dead"}


def test_the_table_of_moves_is_the_one_in_the_code():
    documented = {(row[0], row[1]): row[2] for row in table("The life of a job")}
    assert documented == {
        (before.word if before else "-", after.word): when
        for (before, after), when in MOVES.items()
    }


def test_the_table_of_options_has_every_option_and_its_default():
    part = PAGE.split("| option | type | default | bounds |", 1)[1]
    lines = [line for line in part.split("\n\n")[0].splitlines() if line.startswith("| `")]
    rows = [line.strip("|").split("|") for line in lines]
    documented = {row[0].strip(" `"): row[2].strip(" `") for row in rows}
    assert documented.keys() == set(OPTION_NAMES)
    assert documented["attempts"] == str(DEFAULT_OPTIONS.attempts)
    assert documented["priority"] == str(DEFAULT_OPTIONS.priority)
    backoff = DEFAULT_OPTIONS.backoff.to_wire()
    assert documented["backoff"] == str([int(n) if n == int(n) else n for n in backoff[:4]] + [[]])


def test_the_table_of_settings_has_every_setting_and_its_default():
    part = PAGE.split("| setting | default | bounds and meaning |", 1)[1]
    lines = [line for line in part.split("\n\n")[0].splitlines() if line.startswith("| `")]
    documented = dict(
        [cell.strip(" `") for cell in line.strip("|").split("|")[:2]] for line in lines
    )
    assert documented.keys() == set(SETTING_NAMES)
    for name, default in documented.items():
        value = getattr(DEFAULT_SETTINGS, name)
        words = {True: "true", False: "false", (): "[]"}
        shown = "{}" if name == "defaults" else words.get(value, str(value))
        if type(value) is int:
            shown = str(value)
        assert default.split(" (")[0] == shown, name
