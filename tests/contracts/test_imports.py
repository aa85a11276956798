"""Which package may import which, and what pure modules may not know. Read with ast."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pyq", "shardnode", "router", "cluster")
LATE = re.compile(rf"({'|'.join(PACKAGES)})(\.[a-z_]+)+")
IMPURE = {
    "apsw", "asyncio", "logging", "os", "random", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "sqlite3", "structlog", "subprocess", "tempfile", "threading", "time",
    "datetime", "multiprocessing", "zmq",
}  # fmt: skip
NAMED_PURE = (
    "router/routing.py",
    "router/fanout.py",
    "cluster/topology.py",
    "cluster/restarts.py",
    "cluster/coordinator/agenda.py",
    "cluster/coordinator/cron.py",
    "cluster/coordinator/sweeps.py",
    "pyq/errors.py",
    "pyq/job.py",
    "pyq/limits.py",
    "pyq/messages.py",
    "pyq/options.py",
    "pyq/parsing.py",
    "pyq/routes.py",
    "pyq/schedule.py",
    "pyq/settings.py",
    "pyq/texts.py",
    "pyq/wire.py",
)
# `pyq.ids` is made of time and chance; what the core takes from it reads them from an id only.
IMPURE_OF_OURS = {
    "pyq.process", "pyq.connection", "pyq.client", "pyq.worker", "pyq.log", "pyq.handoff",
    "pyq.heartbeats", "pyq.fetcher", "pyq.queue", "pyq.handle", "pyq.bulk", "pyq.events",
    "pyq.deadletters", "pyq.listing", "pyq.schedules",
}  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def says_it_is_pure(path: Path) -> bool:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return any(
        line.startswith(("Pure.", "Pure:", "Pure,", "PURE")) for line in docstring.splitlines()
    )


def pure_modules() -> list[Path]:
    core = modules("shardnode/core")
    told = [path for package in PACKAGES for path in modules(package) if says_it_is_pure(path)]
    return sorted({*core, *told, *(ROOT / name for name in NAMED_PURE)})


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file, `from . import` refused."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively; name the package"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            written = node.args[0]
            while isinstance(written, ast.JoinedStr):  # f"cluster.commands.{name}": its beginning
                written = written.values[0]
            if isinstance(written, ast.Constant):
                found.add(str(written.value))
        elif isinstance(node, ast.Constant) and LATE.fullmatch(str(node.value)):
            found.add(str(node.value))  # in a table of names that are imported late
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", pure_modules(), ids=name_of)
def test_a_pure_module_knows_no_clock_no_dice_and_no_world(path):
    wrong = sorted({name.split(".")[0] for name in imports(path)} & IMPURE)
    assert not wrong, f"{name_of(path)} is pure and may not import {', '.join(wrong)}"
    ours = sorted(imports(path) & IMPURE_OF_OURS) if not name_of(path).startswith("pyq/") else []
    assert not ours, f"{name_of(path)} is pure and may not import {', '.join(ours)}"


def test_the_core_of_a_shard_does_not_know_its_store():
    for path in modules("shardnode/core"):
        allowed = ("shardnode.core", "pyq")
        wrong = [
            name
            for name in imports(path)
            if name.startswith("shardnode.") and not name.startswith(allowed)
        ]
        assert not wrong, f"{name_of(path)} is core and may not import {', '.join(wrong)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_point_to_pyq_only(package):
    allowed = {package, "pyq"}
    for path in modules(package):
        for name in sorted(imports(path)):
            target = name.split(".")[0]
            assert target not in PACKAGES or target in allowed, (
                f"{name_of(path)} imports {name}: the arrow from {package} to {target} is wrong"
            )
            assert target not in ("tests", "bench"), f"{name_of(path)} imports {name}"


def test_no_module_hides_in_the_list_of_pure_ones():
    for path in pure_modules():
        assert path.exists(), f"{name_of(path)} is named here but is not there"
    assert len(pure_modules()) > 25


LOADED = """
import sys
before = set(sys.modules)
import pyq
if {everything}:
    for name in pyq.__all__:
        getattr(pyq, name)
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
from importlib.metadata import packages_distributions
print(*sorted(loaded & {{*packages_distributions(), "asyncio", "sqlite3", "multiprocessing"}}))
"""


def loaded_by_pyq(everything: bool) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", LOADED.format(everything=everything)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split()) - set(PACKAGES)


def test_import_pyq_loads_pyzmq_and_msgpack_and_nobody_else():
    extra = sorted(loaded_by_pyq(everything=False) - {"zmq", "msgpack"})
    assert not extra, f"`import pyq` also loads {', '.join(extra)}, which applications pay for"


def test_all_of_pyq_needs_pyzmq_and_msgpack_and_nobody_else():
    known = {"zmq", "msgpack", "asyncio", "multiprocessing"}
    extra = sorted(loaded_by_pyq(everything=True) - known)
    assert not extra, f"pyq needs {', '.join(extra)}, which an application does not have"
