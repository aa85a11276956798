"""One process of the cluster as its supervisor holds it: the process, its probe, its life.

Spawns, signals and reaps; when to do so is decided by `restarts.Life` and the supervisor.
"""

import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import zmq

from cluster.probes import Asker, Question
from cluster.processes import environment
from cluster.restarts import PROBE_MS, Life
from pyq.process import ExitCode
from pyq.wire import ROUTER, Verb

_EXIT_WORDS = {
    ExitCode.USAGE: "it refuses its command line or its data",
    ExitCode.PORT_IN_USE: "its address is in use",
    ExitCode.INTERNAL: "an internal error",
    ExitCode.LOCKED: "its data is locked by another process",
    ExitCode.IO: "its data is damaged, or the disk failed",
    ExitCode.DISK_FULL: "its disk is full; free some space",
}


class Child:
    """A process of the cluster, over all its starts."""

    def __init__(self, name: str, argv: Sequence[str], address: str, life: Life) -> None:
        self.name = name
        self.life = life
        self.asker: Asker | None = None
        self.started_at = 0  # wall milliseconds
        self.last_exit: int | None = None
        self._argv = argv
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of the running process, 0 if there is none."""
        return self._process.pid if self._process else 0

    def start(self, context: zmq.Context[zmq.Socket[bytes]], now_ms: int) -> None:
        """Spawn the process, in a session of its own: Ctrl-C is the supervisor's to pass on.

        Raises OSError if there is no room for another process.
        """
        self.life.started(now_ms)
        self.started_at = time.time_ns() // 1_000_000
        self._process = subprocess.Popen(
            self._argv,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output belongs to the supervisor's own line
            start_new_session=True,
        )
        # A new socket for each start: no answer of an earlier process can be taken for this one's.
        self.asker = Asker(self._address, context)

    def reap(self) -> bool:
        """Return True if the process has ended; forget it then."""
        if self._process is None or self._process.poll() is None:
            return False
        self.last_exit = self._process.returncode
        self._process = None
        if self.asker is not None:
            self.asker.close()
            self.asker = None
        return True

    def probe(self, now_ms: int) -> None:
        """Send a PING. A full buffer is as good: the process is not reading."""
        if self.asker is not None:
            self.asker.send(Question(Verb.PING, ROUTER), 10 * PROBE_MS)
            self.life.probed(now_ms)

    def hear(self, now_ms: int) -> bool:
        """Take in answers to probes; return True if the process has just become ready."""
        if self.asker is None or not any(answer.ok for _, answer in self.asker.receive()):
            return False
        return self.life.answered(now_ms)

    def terminate(self) -> None:
        """Ask the process to stop."""
        self.life.stopping()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        else:
            self.life.stopped()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def view(self) -> dict[str, Any]:
        """Return what PROCESSES says about it."""
        return {
            "name": self.name,
            "pid": self.pid,
            "state": str(self.life.state),
            "restarts": self.life.restarts_count,
            "started_at": self.started_at,
            "last_exit": self.last_exit,
        }


def exit_words(code: int) -> str:
    """Say what an exit code (negative: a signal) means."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    words = _EXIT_WORDS.get(ExitCode(code)) if code in set(ExitCode) else None
    return f"exit code {code}: {words}" if words else f"exit code {code}"
