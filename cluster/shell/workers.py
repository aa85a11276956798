"""Workers for shell jobs in the foreground of a terminal or a service manager.

Owns their start, the lines they print, and how signals end them: a command is dead before
its job is given back. Pulling jobs, leases and acks are `pyq.Worker`'s, the commands the
runner's.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Full, Queue
from typing import Any

from cluster.shell.client import Runner, kept_environment
from cluster.shell.handler import shell_handler
from pyq.limits import GRACE_MS_DEFAULT, SECOND_MS, TIMEOUT_GRACE_MS
from pyq.outcomes import Discard, Failed, Release
from pyq.process import ExitCode, StopSignal
from pyq.worker import Worker

LOOK_EVERY_S = 0.1  # how often the foreground looks at its workers
# A worker would give up a running handler this long after we have killed its command: the
# handler returns in time to give the job back by itself.
AFTER_KILL_S = 5.0
# The runner ends a command at its timeout and keeps its output; the worker's own end of the
# attempt is the net below. Before the server's, later than a stuck runner is found out.
TIMEOUT_SLACK_S = TIMEOUT_GRACE_MS / SECOND_MS - 0.5
LINES_MAX = 1_000  # lines that wait for a slow terminal; more are dropped and counted
LAST_LINES_S = 1.0


def run_workers(
    url: str | None,
    queues: Sequence[str],
    count: int,
    concurrency: int = 1,
    *,
    environment_also: Sequence[str] = (),
    grace_s: float = GRACE_MS_DEFAULT / SECOND_MS,
) -> int:
    """Run `count` workers until they were told to stop; return an exit code.

    The first SIGTERM or SIGINT lets running commands finish within `grace_s`, the second
    kills them; either way what is not finished is given back. Call it in the main thread.
    `environment_also` names variables of this process that commands may see, too.
    """
    # A terminal that is closed stops a worker as Ctrl-C does; under nohup it goes on.
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    stop_signal = StopSignal(*([signal.SIGHUP] if hangup else []))
    printer = Printer()
    environment = kept_environment(environment_also)
    workers = [
        ShellWorker(index, url, queues, concurrency, environment, grace_s, printer.say)
        for index in range(1, count + 1)
    ]
    printer.say(_first_line(workers[0].worker, count))
    for worker in workers:
        worker.start()
    try:
        _wait_for_end(workers, stop_signal, grace_s, printer.say)
    finally:
        for worker in workers:
            worker.kill_commands()
        printer.close()
    failed = any(worker.worker.failed for worker in workers)
    return ExitCode.INTERNAL if failed else ExitCode.OK


class ShellWorker:
    """One worker and its runner."""

    def __init__(
        self,
        index: int,
        url: str | None,
        queues: Sequence[str],
        concurrency: int,
        environment: Mapping[str, str],
        grace_s: float,
        say: Callable[[str], None],
    ) -> None:
        host = os.uname().nodename
        self._label = f"[{host}-{index}]"
        self._say = say
        self._grace_s = grace_s
        self._kill_at = float("inf")
        self._runner = Runner(environment=environment)
        self._handle = shell_handler(self._runner, self._started)
        self.worker = Worker(
            *queues,
            handler=self._announced,
            url=url,
            concurrency=concurrency,
            grace=grace_s + AFTER_KILL_S,
            name=f"{host}-{os.getpid()}-{index}",
            timeout_slack=TIMEOUT_SLACK_S,
        )

    def start(self) -> None:
        """Start the runner before the worker: threads of its own would make it slower."""
        self._runner.start()
        self.worker.start()

    @property
    def running(self) -> bool:
        return self.worker.running

    def stop(self) -> None:
        """Pull no more. Returns at once; `look` kills what is still running after the grace."""
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s)
        self._stop_within(self._grace_s + AFTER_KILL_S)

    def stop_now(self) -> None:
        """Kill what is running; its jobs are given back."""
        self.kill_commands()
        self._stop_within(AFTER_KILL_S)

    def look(self) -> None:
        """Do what is due: called every now and then."""
        # Told to stop from elsewhere, through its heartbeat.
        if self._kill_at == float("inf") and self.worker.stopping:
            self._kill_at = time.monotonic() + self._grace_s
        if self._kill_at <= time.monotonic():
            self.kill_commands()

    def kill_commands(self) -> None:
        """End the runner and with it every command. Harmless when repeated."""
        self._runner.stop()

    def _stop_within(self, grace_s: float) -> None:
        # In a thread: it returns only when the worker has ended.
        threading.Thread(target=self.worker.stop, kwargs={"grace": grace_s}, daemon=True).start()

    def _started(self, job: Any, pid: int) -> None:
        self._say(f"{self._label} {_name_of(job)} started")

    def _announced(self, job: Any) -> dict[str, Any]:
        name = f"{self._label} {_name_of(job)}"
        try:
            result = self._handle(job)
        except Failed as failure:
            self._say(f"{name} failed ({failure}, {failure.result['duration_ms']} ms)")
            raise
        except Release:
            self._say(f"{name} given back")
            raise
        except Discard as verdict:
            self._say(f"{name} discarded ({verdict})")
            raise
        self._say(f"{name} completed (exit 0, {result['duration_ms']} ms)")
        return result


class Printer:
    """Prints lines from many threads in a thread of its own.

    A terminal that stands still (Ctrl-S), a full pipe or a closed one holds up no job.
    """

    def __init__(self) -> None:
        self._lines: Queue[str | None] = Queue(LINES_MAX)
        self._dropped_count = 0
        self._thread = threading.Thread(target=self._print, name="shell-printer", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Print a line soon, or count it as dropped."""
        try:
            self._lines.put_nowait(line)
        except Full:
            self._dropped_count += 1

    def close(self) -> None:
        """Print what is left, within a second."""
        with suppress(Full):
            self._lines.put(None, timeout=LAST_LINES_S)
        self._thread.join(LAST_LINES_S)

    def _print(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped_count, self._dropped_count = self._dropped_count, 0
            if dropped_count:
                line += f"\n[{dropped_count} lines were not printed]"
            # Nobody reads it any more, or cannot show it: the work goes on.
            with suppress(OSError, ValueError, AttributeError):
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()


def _wait_for_end(
    workers: Sequence[ShellWorker],
    stop_signal: StopSignal,
    grace_s: float,
    say: Callable[[str], None],
) -> None:
    seen_count = told_count = 0
    while any(worker.running for worker in workers):
        select.select([stop_signal.fd], [], [], LOOK_EVERY_S)
        stop_signal.drain()
        if not seen_count and any(worker.worker.stopping for worker in workers):
            told_count = 1  # by `worker stop`: as good as the first signal
        asked_count = stop_signal.count + told_count
        if asked_count and not seen_count:
            say(f"stopping: running commands have {grace_s:g} s; Ctrl-C kills them now")
            for worker in workers:
                worker.stop()
        if asked_count > 1 and seen_count <= 1:
            say("killing running commands; their jobs are given back")
            for worker in workers:
                worker.stop_now()
        seen_count = asked_count
        for worker in workers:
            worker.look()


def _first_line(worker: Worker, count: int) -> str:
    named = f"queue {worker.queues[0]}" if len(worker.queues) == 1 else "queues "
    if len(worker.queues) > 1:
        named += ", ".join(worker.queues)
    workers = "1 worker" if count == 1 else f"{count} workers"
    return f"{workers} on {named} at {worker.url}; Ctrl-C finishes what runs and stops"


def _name_of(job: Any) -> str:
    """Return the custom id, or else the id, fit for one line of a terminal."""
    return "".join(char if char.isprintable() else "?" for char in job.job_id or job.id)
