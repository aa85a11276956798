"""The runner: a small process beside each worker that spawns shell commands and ends them.

Owns the commands from spawn to reaping: their pipes, timeouts and what they leave behind.
It talks to its worker over one inherited socket, in msgpack. When that socket or the
worker ends, even by SIGKILL, it kills every command first: a re-run elsewhere must never
run beside the first. Knows nothing of jobs, queues or retries; one thread, one selector.
"""

import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any

import msgpack

from cluster.shell.output import Capture
from cluster.shell.processes import (
    Process,
    adopt_orphans,
    kill_sessions,
    look_at,
    may_have_orphans,
    reap_orphans,
    signal_sessions,
)

TERM_GRACE_S = 1.0  # from SIGTERM to SIGKILL after a timeout; the server gives up 5 s after it
DRAIN_S = 0.5  # how long a pipe may stay open after its command has ended
READ_BYTES = 64 * 1024  # what a pipe holds
REAP_EVERY_S = 1.0  # how long an adopted process may stay a zombie
KILL_PATIENCE_S = 0.1  # the loop stands still for so long at most when leftovers won't die

# What a shell reports for a command that isn't there, or can't be executed.
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


class Command:
    """One command from its spawn to its report."""

    def __init__(
        self,
        number: int,
        process: "subprocess.Popen[bytes]",
        timeout_ms: int,
        now: float,
        output_bytes_max: int,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.number = number
        self.process = process
        self.pid = process.pid  # of its process group and session, too
        self.pidfd = os.pidfd_open(process.pid)
        self.output = Capture(output_bytes_max)
        self.error = Capture(output_bytes_max)
        self.open_pipes: dict[IO[bytes], Capture] = {
            process.stdout: self.output,
            process.stderr: self.error,
        }
        self.started_at = now
        self.timeout_at = now + timeout_ms / 1_000 if timeout_ms else float("inf")
        self.kill_at = float("inf")
        self.drained_at = float("inf")
        self.duration_ms = 0
        self.timed_out = False
        # Who got SIGTERM: when some of them are dead, nothing else may connect us with the rest.
        self.terminated: list[Process] = []

    @property
    def exited(self) -> bool:
        return self.drained_at != float("inf")

    def due_at(self) -> float:
        """Return when this command wants to be looked at, if nothing happens before."""
        return self.drained_at if self.exited else min(self.timeout_at, self.kill_at)


class RunnerLoop:
    """Turns requests into processes and their ends into reports."""

    def __init__(self, worker: socket.socket, worker_pid: int, output_bytes_max: int) -> None:
        self._worker = worker
        self._worker_pid = worker_pid
        self._output_bytes_max = output_bytes_max
        self._attached = True
        self._requests = msgpack.Unpacker(use_list=False)
        self._reports = bytearray()
        self._commands: dict[int, Command] = {}
        self._has_children = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the worker is gone, then leave nothing running."""
        self._watch_worker()
        try:
            while self._attached:
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self._look_at_the_time(time.monotonic())
                self._has_children = reap_orphans(self._pids())
                self._send_reports()
        finally:
            self._end_all()

    # --- the worker ---------------------------------------------------------------------

    def _watch_worker(self) -> None:
        self._worker.setblocking(False)
        self._selector.register(self._worker, selectors.EVENT_READ, self._receive)
        # The socket alone would do, but a child forked by the worker may hold its other end.
        try:
            worker_pidfd = os.pidfd_open(self._worker_pid)
        except ProcessLookupError:
            self._detach()
            return
        self._selector.register(worker_pidfd, selectors.EVENT_READ, self._detach)
        if os.getppid() != self._worker_pid:
            self._detach()

    def _detach(self) -> None:
        self._attached = False

    def _receive(self) -> None:
        try:
            data = self._worker.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._detach()
            return
        self._requests.feed(data)
        for verb, *arguments in self._requests:
            if verb == "run":
                self._spawn(*arguments)
            elif verb == "kill":
                self._kill(*arguments)

    def _report(self, *message: Any) -> None:
        self._reports += msgpack.packb(message)

    def _send_reports(self) -> None:
        if self._reports:
            try:
                sent = self._worker.send(self._reports)
                del self._reports[:sent]
            except (BlockingIOError, InterruptedError):
                pass  # a stopped worker must not keep us from watching the clock
            except OSError:
                self._detach()
                return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._reports else 0)
        self._selector.modify(self._worker, events, self._receive)

    # --- a command ----------------------------------------------------------------------

    def _spawn(
        self,
        number: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        timeout_ms: int,
    ) -> None:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=env,
                # Its own session, so its own group; and no terminal from which to ask a password.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._report("not_started", number, *_why_not_started(error, argv, cwd))
            return
        command = Command(number, process, timeout_ms, time.monotonic(), self._output_bytes_max)
        self._commands[number] = command
        for pipe in command.open_pipes:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(
                pipe, selectors.EVENT_READ, partial(self._read_pipe, command, pipe)
            )
        self._selector.register(
            command.pidfd, selectors.EVENT_READ, partial(self._command_exited, command)
        )
        seen = look_at(command.pid)
        self._report("started", number, command.pid, seen.started if seen else 0)
        # At once: if we are killed, the worker can only kill what it knows of.
        self._send_reports()

    def _read_pipe(self, command: Command, pipe: IO[bytes]) -> None:
        if pipe not in command.open_pipes:
            return  # closed earlier in this turn
        try:
            data = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if data:
            command.open_pipes[pipe].write(data)
            return
        self._close_pipe(command, pipe)
        if command.exited and not command.open_pipes:
            self._finish(command)

    def _close_pipe(self, command: Command, pipe: IO[bytes]) -> None:
        self._selector.unregister(pipe)
        pipe.close()
        del command.open_pipes[pipe]

    def _command_exited(self, command: Command) -> None:
        now = time.monotonic()
        self._selector.unregister(command.pidfd)
        os.close(command.pidfd)
        command.duration_ms = int((now - command.started_at) * 1_000)
        command.drained_at = now + DRAIN_S
        if not command.open_pipes:
            self._finish(command)

    def _finish(self, command: Command) -> None:
        """End what the command left running, reap it, report.

        The command stays a zombie until here, so that nobody else can get its pid while
        we kill by it.
        """
        left_count = self._kill_leftovers(command)
        for pipe in list(command.open_pipes):
            self._close_pipe(command, pipe)
        _, status = os.waitpid(command.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        command.process.returncode = code  # else Popen would wait for it, too
        del self._commands[command.number]
        self._report(
            "ended",
            command.number,
            code if code >= 0 else None,
            -code if code < 0 else None,
            *command.output.close(),
            *command.error.close(),
            command.timed_out,
            left_count,
            command.duration_ms,
        )

    def _kill_leftovers(self, command: Command) -> int:
        """Kill what outlived the command; return how many processes that were."""
        left_count = 0
        if command.terminated or may_have_orphans(self._pids()):
            left_count = kill_sessions({command.pid}, KILL_PATIENCE_S, command.terminated)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(command.pid, signal.SIGKILL)
        return left_count

    def _kill(self, number: int) -> None:
        command = self._commands.get(number)
        if command is not None and not command.exited:
            kill_sessions({command.pid}, KILL_PATIENCE_S, command.terminated)

    # --- time ---------------------------------------------------------------------------

    def _patience_s(self) -> float | None:
        if not self._has_children:
            return None
        due_at = min((each.due_at() for each in self._commands.values()), default=float("inf"))
        return max(0.0, min(due_at - time.monotonic(), REAP_EVERY_S))

    def _look_at_the_time(self, now: float) -> None:
        for command in [each for each in self._commands.values() if each.due_at() <= now]:
            if command.exited:
                self._finish(command)
            elif command.kill_at <= now:
                command.kill_at = float("inf")
                kill_sessions({command.pid}, KILL_PATIENCE_S, command.terminated)
            else:
                command.timed_out = True
                command.timeout_at = float("inf")
                command.kill_at = now + TERM_GRACE_S
                command.terminated = signal_sessions({command.pid}, signal.SIGTERM)

    # --- the end ------------------------------------------------------------------------

    def _pids(self) -> set[int]:
        return {command.pid for command in self._commands.values()}

    def _end_all(self) -> None:
        commands = self._commands.values()
        terminated = [process for command in commands for process in command.terminated]
        kill_sessions(self._pids(), known=terminated)
        for command in self._commands.values():
            command.process.returncode = -signal.SIGKILL  # else Popen would wait for it, too
        reap_orphans(())


def _why_not_started(
    error: OSError | ValueError, argv: Sequence[str], cwd: str | None
) -> tuple[int | None, str]:
    """Return an exit code like a shell's, or None, and a sentence."""
    if not isinstance(error, OSError):
        return None, f"the command cannot be started: {error}"
    if cwd is not None and error.filename == cwd:
        return None, f"the folder {cwd!r} cannot be entered: {os.strerror(error.errno or 0)}"
    codes = {errno.ENOENT: EXIT_NOT_FOUND, errno.EACCES: EXIT_NOT_EXECUTABLE}
    return codes.get(error.errno or 0), f"{argv[0]}: {os.strerror(error.errno or 0)}"


def main() -> None:
    """Run commands for the worker at the other end of an inherited socket."""
    # Only `client.py` starts us: no parser, whose import is a third of our start. The bound
    # comes as an argument because an import of anything in pyq brings ZeroMQ along: 6 MB.
    fd, worker_pid, output_bytes_max = (int(argument) for argument in sys.argv[1:])
    # Signals meant for the worker may reach us; only the worker's end ends us. Handlers,
    # not SIG_IGN: commands would inherit an ignored signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    adopt_orphans()
    RunnerLoop(socket.socket(fileno=fd), worker_pid, output_bytes_max).run()


if __name__ == "__main__":
    main()
