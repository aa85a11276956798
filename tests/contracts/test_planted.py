"""The planted bugs of tests/planted still fit the code. Running them takes minutes."""

from pathlib import Path

import pytest

from tests.planted.bugs import BUGS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.wrong)
def test_a_planted_bug_has_its_place(bug):
    text = (ROOT / bug.file).read_text()
    assert text.count(bug.before) == 1
    compile(text.replace(bug.before, bug.after), bug.file, "exec")
