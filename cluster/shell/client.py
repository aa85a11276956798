"""The worker's side of shell commands: one runner process, and what came of each command.

Owns the runner's start, its death and its end. Many threads may run commands at once;
one thread of its own reads the reports. What a job is, `handler.py` knows.
"""

import fcntl
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

import msgpack

from cluster.shell.output import as_text
from cluster.shell.processes import kill_sessions, look_at
from pyq.limits import OUTPUT_BYTES_MAX

READ_BYTES = 64 * 1024
STANDARD_FDS = 3  # 0, 1, 2: a runner must not find its socket there
STOP_PATIENCE_S = 5.0  # how long a runner may take to kill its commands and end
# A runner that has not ended a command so long after its timeout is stuck itself. Less than
# TIMEOUT_GRACE_MS, after which the server gives the job to somebody else.
STUCK_AFTER_S = 3.5
UNWANTED_EVERY_S = 0.1  # how often a run looks whether its command is still wanted

# What a command sees of its worker's environment. Everything else may be a secret of the
# worker (its token, a cloud's keys) and is the job's business only if the job names it.
ENVIRONMENT_KEPT = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP", "TZ", "TERM", "LANG",
    "LANGUAGE", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_DIR", "SSL_CERT_FILE",
))  # fmt: skip
LOCALE_PREFIX = "LC_"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one command."""

    exit_code: int | None = None  # None: ended by a signal, or never started
    signal: int | None = None
    output: str = ""  # what it wrote to stdout; see `escaped`
    error: str = ""  # what it wrote to stderr
    escaped: tuple[str, ...] = ()  # which of the two were not UTF-8 and are written with \xNN
    output_cut_bytes: int = 0
    error_cut_bytes: int = 0
    timed_out: bool = False
    left_count: int = 0  # processes it left running, killed with it
    duration_ms: int = 0
    failure: str = ""  # why there is neither exit code nor signal, if not by the command itself
    stopped: bool = False  # the runner was stopped: the command was killed for no fault of its own

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


def kept_environment(also: Sequence[str] = ()) -> dict[str, str]:
    """Return what commands see of this process's environment: the usual names, and `also`."""
    kept = ENVIRONMENT_KEPT.union(also)
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or name.startswith(LOCALE_PREFIX)
    }


class Runner:
    """A runner process, started when it is first needed and again after its death.

    `environment` is what commands see; by default `kept_environment()`.
    """

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(kept_environment() if environment is None else environment)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """The process id of the runner, if one is there."""
        life = self._life
        return life.process.pid if life else None

    def start(self) -> None:
        """Start the runner process now rather than with the first command."""
        with self._lock:
            self._living()

    def run(
        self,
        command: str,
        timeout_ms: int = 0,
        on_started: Callable[[int], None] | None = None,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        unwanted: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Run `command` under /bin/sh, or `argv` without a shell, and return what came of it.

        `on_started` gets the pid of the command, which is its process group and session.
        `unwanted` is asked again and again while the command runs: when true, it is killed.
        Returns as well when the command could not start or its runner died.
        """
        inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        with self._lock:
            if self._stopped:
                return Outcome(stopped=True, failure="the runner is stopped")
            life = self._living()
            number = next(self._numbers)
            life.runs[number] = inbox
        program = list(argv) or ["/bin/sh", "-c", "--", command]  # it may begin with a dash
        environment = {**self._environment, **(env or {})}
        try:
            life.request("run", number, program, environment, cwd, timeout_ms)
            return _await(life, number, inbox, timeout_ms, on_started, unwanted)
        except BaseException:  # Ctrl-C in the calling thread, or `on_started` failed
            life.request("kill", number)
            raise

    def kill(self, pid: int) -> None:
        """Kill the command that `on_started` named, with all its processes. Its run returns."""
        life = self._life
        if life is not None:
            life.kill(pid)

    def stop(self) -> None:
        """Kill what still runs and end the runner for good. Runs return with `stopped` set."""
        with self._lock:
            self._stopped = True
            life, self._life = self._life, None
        if life is not None:
            life.stop()

    def _living(self) -> "_Life":
        if self._stopped:
            raise RuntimeError("a stopped runner cannot start again; make a new one")
        if self._life is None:
            self._life = _Life(self._forget)
        return self._life

    def _forget(self, life: "_Life") -> None:
        with self._lock:
            if self._life is life:
                self._life = None


class _Life:
    """One runner process from start to death, and the runs it still owes a report."""

    def __init__(self, forget: Callable[["_Life"], None]) -> None:
        self.runs: dict[int, SimpleQueue[tuple[Any, ...]]] = {}
        self._forget = forget
        self._started: dict[int, tuple[int, int]] = {}  # number -> pid and its start time
        self._stopping = False
        self._write_lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        try:
            self.process = _spawn_runner(theirs)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._reader = threading.Thread(target=self._read, name="shell-runner", daemon=True)
        self._reader.start()

    def request(self, *message: Any) -> None:
        # If it is dead, the reader finds out and reports.
        with self._write_lock, suppress(OSError):
            self._socket.sendall(msgpack.packb(message))

    def kill(self, pid: int) -> None:
        for number, (started_pid, _) in list(self._started.items()):
            if started_pid == pid:
                self.request("kill", number)

    def stop(self) -> None:
        self._stopping = True
        with suppress(OSError):  # it may be dead already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()

    def _read(self) -> None:
        reports = msgpack.Unpacker(use_list=False)
        while data := self._receive():
            reports.feed(data)
            for kind, number, *rest in reports:
                self._deliver(kind, number, rest)
        self._bury()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except OSError:
            return b""

    def _deliver(self, kind: str, number: int, rest: list[Any]) -> None:
        if kind == "started":
            self._started[number] = (rest[0], rest[1])
            self.runs[number].put((kind, *rest))
            return
        self._started.pop(number, None)
        self.runs.pop(number).put((kind, *rest))

    def _bury(self) -> None:
        """Make sure that no command outlives the runner, then tell those who wait."""
        try:
            code = self.process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code != 0:
            # It may have spawned something in its last millisecond that we never heard of;
            # nothing short of a second supervisor closes that gap.
            kill_sessions({pid for pid, since in self._started.values() if _is_same(pid, since)})
        self._forget(self)
        self._socket.close()
        kind = "stopped" if self._stopping else "lost"
        for run in list(self.runs.values()):
            run.put((kind, f"signal:{-code}" if code < 0 else f"exit {code}"))
        self.runs.clear()


def _spawn_runner(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    # Above the standard descriptors, even if the worker was started with these closed.
    fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, STANDARD_FDS)
    numbers = (fd, os.getpid(), OUTPUT_BYTES_MAX)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "cluster.shell.runner", *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if _is_open(2) else subprocess.DEVNULL,  # where its traceback would go
            pass_fds=(fd,),
            # A PYTHONPATH with "." in it would import whatever lies in the current folder.
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            start_new_session=True,  # Ctrl-C is for the worker
        )
    finally:
        os.close(fd)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _is_same(pid: int, started: int) -> bool:
    """Return whether `pid` is still the process we know, or has ended: its children may live."""
    process = look_at(pid)
    return process is None or process.started == started


def _await(
    life: _Life,
    number: int,
    inbox: "SimpleQueue[tuple[Any, ...]]",
    timeout_ms: int,
    on_started: Callable[[int], None] | None,
    unwanted: Callable[[], bool] | None,
) -> Outcome:
    stuck_at = time.monotonic() + timeout_ms / 1_000 + STUCK_AFTER_S if timeout_ms else inf
    look_every_s = inf if unwanted is None else UNWANTED_EVERY_S
    while True:
        patience_s = min(look_every_s, max(0.0, stuck_at - time.monotonic()))
        try:
            kind, *rest = inbox.get(timeout=None if patience_s == inf else patience_s)
        except Empty:
            if unwanted is not None and unwanted():
                life.request("kill", number)
                unwanted, look_every_s = None, inf
            if time.monotonic() >= stuck_at:
                life.process.kill()  # its death is reported like any other
                stuck_at = inf
            continue
        if kind != "started":
            return _outcome(kind, rest)
        if on_started is not None:
            on_started(rest[0])


def _outcome(kind: str, rest: Sequence[Any]) -> Outcome:
    if kind == "not_started":
        exit_code, sentence = rest
        return Outcome(exit_code, error=sentence, failure="" if exit_code else sentence)
    if kind == "stopped":
        return Outcome(stopped=True, failure="the worker stopped; the command was killed")
    if kind == "lost":
        return Outcome(failure=f"the runner died ({rest[0]}); the command was killed")
    exit_code, signal, raw, cut, raw_error, error_cut, timed_out, left_count, duration_ms = rest
    output, output_escaped = as_text(raw)
    error, error_escaped = as_text(raw_error)
    flags = {"output": output_escaped, "error": error_escaped}
    return Outcome(
        exit_code,
        signal,
        output,
        error,
        tuple(name for name, is_escaped in flags.items() if is_escaped),
        cut,
        error_cut,
        timed_out,
        left_count,
        duration_ms,
    )
