"""`import pyq` is light: pyzmq and msgpack, nothing of the server."""

import subprocess
import sys

import pyq

_HEAVY = (
    "apsw", "asyncio", "click", "cluster", "logging", "psutil", "pyq.worker", "rich", "router",
    "shardnode", "structlog", "zmq.asyncio", "zmq.utils.monitor",
)  # fmt: skip


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, pyq; print([name for name in {_HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in pyq.__all__:
        assert getattr(pyq, name).__name__ == name
