"""What the processes of a cluster share: endpoints, exit codes, death with the parent, signals.

Not imported by applications. Router, shards, coordinator and supervisor use it from
their shells; nothing pure may import it.
"""

import os
import signal
import sys
from enum import IntEnum
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1


class ExitCode(IntEnum):
    """How a process of the cluster ends."""

    OK = 0
    USAGE = 64
    PORT_IN_USE = 69
    INTERNAL = 70
    LOCKED = 73  # the data directory belongs to a running cluster
    IO = 74  # damage, or the disk failed
    DISK_FULL = 75  # tried again until there is space


def endpoint(runtime: str | Path, process: str) -> str:
    """Return the ZeroMQ address at which a process of the cluster answers.

    `process` is `router`, `coordinator`, `supervisor` or `shard-N`; `runtime` the short
    private folder that holds the sockets (an ipc path must fit 107 bytes).
    """
    return f"ipc://{runtime}/{process}.sock"


def unlink_endpoint(address: str) -> None:
    """Remove the socket file of a dead process; the caller holds the lock of its data."""
    Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies; exit at once if it is gone already.

    `parent_pid` is the pid the parent passed on the command line; 0: run without a parent.
    """
    if not parent_pid:
        return
    import ctypes  # 8 ms that a command line without children need not pay

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(ExitCode.INTERNAL)


class StopSignal:
    """SIGTERM and SIGINT, and `also` others, as something a poll loop can see.

    `fd` becomes readable when a signal arrived: a handler that only sets a flag never ends
    a blocking poll, which the C library repeats. `count` is how many have arrived.
    """

    def __init__(self, *also: signal.Signals) -> None:
        self.count = 0
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, *also):
            signal.signal(number, self._received)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def drain(self) -> None:
        """Empty the pipe after `fd` was readable."""
        try:
            while os.read(self.fd, 256):
                pass
        except BlockingIOError:
            pass
