"""`python -m tests.planted [word ...]`: plant each bug, run the tests, tell which one finds it.

With words only the bugs whose description has them. Ends with 1 if a bug was found by none.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted.bugs import BUGS, Bug

ROOT = Path(__file__).parents[2]
PACKAGES = ("pyq", "shardnode", "router", "cluster", "tests", "pyproject.toml")
# Those that speak in scenarios first: their names say best what is broken.
TESTS = ("tests/scenarios", "tests/unit", "tests/properties", "tests/simulation", "tests/cases")
DESELECT = "not live and not client and not shell and not cluster and not router"


def main() -> int:
    words = sys.argv[1:]
    bugs = [bug for bug in BUGS if all(word in bug.wrong for word in words)]
    if (broken := _who_finds(None)) is not None:
        print(f"the tests fail without any planted bug, first {broken}")
        return 1
    missed = 0
    for number, bug in enumerate(bugs, 1):
        found_by = _who_finds(bug)
        missed += found_by is None
        print(f"{number:2}  {bug.wrong}\n    {found_by or 'NOBODY FOUND IT'}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} found")
    return min(missed, 1)


def _who_finds(bug: Bug | None) -> str | None:
    """Return the first test that fails with a bug, or without any."""
    with tempfile.TemporaryDirectory(prefix="pyq-planted-") as folder:
        copy = Path(folder)
        for name in PACKAGES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        if bug is not None:
            _plant(bug, copy / bug.file)
        return _first_failure(copy)


def _plant(bug: Bug, path: Path) -> None:
    text = path.read_text()
    assert text.count(bug.before) == 1, f"the place of {bug.wrong!r} in {bug.file} has changed"
    path.write_text(text.replace(bug.before, bug.after))


def _first_failure(copy: Path) -> str | None:
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", DESELECT]
    tests = [test for test in TESTS if (copy / test).exists()]
    run = subprocess.run(
        [*command, *tests],
        cwd=copy,
        env={"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, flags=re.M)
    return found.group(1) if found else None


if __name__ == "__main__":
    sys.exit(main())
