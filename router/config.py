"""The router's configuration: one frozen object, built and checked at the door.

`from_arguments` turns command line flags into a Config or raises UsageError with one
sentence. Nothing below `__main__` reads flags or the environment.
"""

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pyq.errors import UsageError
from pyq.limits import SHARDS_MAX
from pyq.process import endpoint

IPC_PATH_BYTES_MAX = 107  # sun_path of a Unix socket, without the closing NUL
_LONGEST_NAME = f"shard-{SHARDS_MAX - 1}"


@dataclass(frozen=True, slots=True)
class Config:
    """What one router process needs to know."""

    bind: str  # tcp://HOST:PORT, HOST a loopback address
    runtime: Path  # the folder of the cluster's ipc sockets
    shards_count: int  # a power of two
    parent_pid: int = 0  # 0: no parent to die with


class _Parser(argparse.ArgumentParser):
    """argparse, but a mistake is an exception of ours and not exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def from_arguments(arguments: Sequence[str]) -> Config:
    """Return the Config the flags describe. Raises UsageError with one sentence."""
    parser = _Parser(prog="python -P -m router", description="The router of a pyq-cluster.")
    parser.add_argument("--bind", default="tcp://127.0.0.1:6789", help="tcp://HOST:PORT")
    parser.add_argument("--runtime", required=True, type=Path, help="folder of the ipc sockets")
    parser.add_argument("--shards", required=True, type=int, help="how many shards, a power of 2")
    parser.add_argument("--parent", default=0, type=int, help="pid of the process to die with")
    given = parser.parse_args(arguments)
    return Config(
        bind=check_bind(given.bind),
        runtime=_check_runtime(given.runtime),
        shards_count=_check_shards(given.shards),
        parent_pid=given.parent,
    )


def check_bind(address: str) -> str:
    """Return the address as libzmq wants it, or raise UsageError.

    Only loopback: there is no authentication yet, so whoever can connect can do anything.
    """
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not colon or not port.isascii() or not port.isdigit():
        raise UsageError(f"--bind {address!r} is not of the form tcp://HOST:PORT")
    if not 1 <= int(port) <= 65_535:
        raise UsageError(f"--bind {address!r} has a port outside 1 to 65535")
    literal = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not _is_loopback(literal):
        raise UsageError(
            f"--bind {address!r} is not a loopback address (127.0.0.0/8, localhost, [::1]); "
            "others are refused until there is authentication"
        )
    return f"tcp://[{literal}]:{int(port)}" if ":" in literal else f"tcp://{literal}:{int(port)}"


def _is_loopback(literal: str) -> bool:
    try:
        address = ipaddress.ip_address(literal)
    except ValueError:
        return False
    return address in ipaddress.ip_network("127.0.0.0/8") or literal == "::1"


def _check_runtime(runtime: Path) -> Path:
    if not runtime.is_dir():
        raise UsageError(f"--runtime {str(runtime)!r} is not a folder")
    path = endpoint(runtime, _LONGEST_NAME).removeprefix("ipc://")
    if len(path.encode()) > IPC_PATH_BYTES_MAX:
        raise UsageError(
            f"--runtime {str(runtime)!r} is too long: "
            f"a socket's path has at most {IPC_PATH_BYTES_MAX} bytes"
        )
    return runtime


def _check_shards(count: int) -> int:
    if not 1 <= count <= SHARDS_MAX or count & (count - 1):
        raise UsageError(f"--shards {count} is not a power of two from 1 to {SHARDS_MAX}")
    return count
