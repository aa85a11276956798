"""The worker runtime's public face: a Worker with run, start and stop.

Owns the threads and what signals mean. Pulling and acking is in `fetcher.py`, the pulse
in `heartbeats.py`, running one job in `handoff.py`.
"""

import contextlib
import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from pyq.connection import cluster_url
from pyq.context import JobContext
from pyq.durations import Duration, duration_ms
from pyq.errors import BadOption, UsageError
from pyq.fetcher import LAST_WORDS_S, Fetcher
from pyq.handoff import Handler, Handoff
from pyq.heartbeats import Heartbeats
from pyq.limits import (
    CONCURRENCY_MAX,
    DAY_MS,
    GRACE_MS_DEFAULT,
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    PULL_QUEUES_MAX,
    TIMEOUT_GRACE_MS,
    WORKER_NAME_MAX,
)
from pyq.options import check_name, check_queue
from pyq.outcomes import Failed

log = logging.getLogger("pyq.worker")


class Worker:
    """Runs jobs of one or more queues in threads.

    - `handler`: called with a JobContext; what it returns is the job's result, what it raises
      fails the attempt (see `pyq.Retry`, `Discard`, `Release`, `Failed`). Or a dict of
      handlers by job name
    - `url`: the router's address; None: PYQ_URL, else tcp://127.0.0.1:6789
    - `concurrency`: how many handlers run at once, 1 to 1,000
    - `lease`: how long a job stays ours without a heartbeat, 0.1 s to an hour; a queue's setting
      of that name goes before it
    - `grace`: how long running handlers may go on after a stop, up to a day
    - `name`: the worker's id, 1 to 128 characters; None: host, pid and four random digits
    - `timeout_slack`: for handlers that keep to `job.deadline` by themselves: how much later the
      worker ends an attempt whose handler has not; below 5 s, when the cluster would

    Raises BadOption or UsageError for anything else. A cluster that is not there yet, or
    goes away, is waited for.
    """

    def __init__(
        self,
        *queues: str,
        handler: Handler | Mapping[str, Handler],
        url: str | None = None,
        concurrency: int = 8,
        lease: Duration = LEASE_MS_DEFAULT / 1_000,
        grace: Duration = GRACE_MS_DEFAULT / 1_000,
        name: str | None = None,
        timeout_slack: Duration = 0,
    ) -> None:
        self.queues = _checked_queues(queues)
        self.url = cluster_url(url)
        self.concurrency = _checked_concurrency(concurrency)
        self.id = _default_id() if name is None else check_name(name, "name", WORKER_NAME_MAX)
        self._handler = _checked_handler(handler)
        self._lease_ms = duration_ms(lease, "lease", LEASE_MS_MIN, LEASE_MS_MAX)
        self._grace_s = duration_ms(grace, "grace", 0, DAY_MS) / 1_000
        slack_ms_max = TIMEOUT_GRACE_MS - 1
        self._timeout_slack_ms = duration_ms(timeout_slack, "timeout_slack", 0, slack_ms_max)
        self._fetcher: Fetcher | None = None
        self._done = threading.Event()
        self._failed = False
        self._stop_count = 0

    def run(self) -> None:
        """Work until told to stop: by SIGTERM or SIGINT, by `pyq-cluster worker stop`, by `stop`.

        The first signal lets running handlers finish within `grace` and gives back the rest; the
        second gives back everything at once. Signals are handled in the main thread only.
        Exits the process with status 1 when the worker had to end by itself: every thread stuck
        in a handler that timed out, or an internal error.
        """
        with self._signals():
            self.start()
            while not self._done.wait(1.0):
                pass
        if self._failed:
            raise SystemExit(1)

    def start(self) -> "Worker":
        """Work in background threads and return at once. Signals are left alone."""
        if self._fetcher is not None:
            raise UsageError("this worker was started before; make a new one")
        handoff = Handoff(self.url)
        self._fetcher = Fetcher(
            self.url,
            self.id,
            self.queues,
            self.concurrency,
            self._lease_ms,
            handoff,
            self._timeout_slack_ms,
        )
        if self._stop_count:  # a signal was faster
            self._fetcher.stop(self._grace_s)
        for number in range(self.concurrency):
            self._thread(f"handler-{number}", handoff.work, self._handler)
        self._thread("fetcher", self._fetch, self._fetcher, handoff)
        return self

    def stop(self, *, grace: Duration | None = None) -> None:
        """Stop as after SIGTERM and wait until it is done.

        `grace` replaces the worker's own; 0 gives back at once what runs.
        """
        grace_s = self._grace_s
        if grace is not None:
            grace_s = duration_ms(grace, "grace", 0, DAY_MS) / 1_000
        if self._fetcher is None:
            return
        self._fetcher.stop(grace_s)
        self._done.wait(grace_s + 2 * LAST_WORDS_S)

    @property
    def running(self) -> bool:
        """True from `start` until everything is given back and said."""
        return self._fetcher is not None and not self._done.is_set()

    @property
    def stopping(self) -> bool:
        """True once it was told to stop: by a signal, by `stop`, or through the cluster."""
        return self._fetcher is not None and self._fetcher.stop_at is not None

    @property
    def failed(self) -> bool:
        """True if it ended by itself: every thread stuck in a timed-out handler, or an error."""
        return self._failed

    def __enter__(self) -> "Worker":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- threads ------------------------------------------------------------------------------

    def _thread(self, name: str, target: Any, *args: Any) -> threading.Thread:
        # Daemons: a handler that never returns must not keep the process alive.
        thread = threading.Thread(target=target, args=args, name=f"pyq-{name}", daemon=True)
        thread.start()
        return thread

    def _fetch(self, fetcher: Fetcher, handoff: Handoff) -> None:
        """The body of the fetcher's thread: everything from the first pull to the goodbye."""
        heartbeats = Heartbeats(fetcher, self._registration(), self._on_directive)
        fetcher.on_shorter_lease = heartbeats.wake
        thread = self._thread("heartbeats", heartbeats.run)
        try:
            fetcher.run()
            self._failed = fetcher.all_lost
        except Exception:
            log.exception("the worker failed")
            self._failed = True
        # No heartbeat after the goodbye: it would make the worker known again.
        heartbeats.end()
        thread.join(LAST_WORDS_S)
        heartbeats.close()
        with contextlib.suppress(Exception):
            fetcher.say_goodbye()
        for _ in range(self.concurrency):
            handoff.ready.put(None)
        handoff.close()
        self._done.set()

    def _registration(self) -> list[Any]:
        host = os.uname().nodename[:WORKER_NAME_MAX]
        started_at = time.time_ns() // 1_000_000
        return [self.id, host, os.getpid(), self.concurrency, started_at, list(self.queues)]

    def _on_directive(self) -> None:
        if self._fetcher is not None and self._fetcher.stop_at is None:
            log.info("told to stop")
            self._fetcher.stop(self._grace_s)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_count += 1
        if self._fetcher is not None:
            self._fetcher.stop(self._grace_s if self._stop_count == 1 else 0)


def _checked_queues(queues: tuple[str, ...]) -> tuple[str, ...]:
    if not queues:
        raise UsageError("a worker needs at least one queue")
    unique = tuple(dict.fromkeys(check_queue(queue) for queue in queues))
    if len(unique) > PULL_QUEUES_MAX:
        raise BadOption(f"{len(unique)} queues are more than {PULL_QUEUES_MAX}")
    return unique


def _checked_concurrency(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= CONCURRENCY_MAX:
        raise BadOption(f"concurrency {value!r} is not a whole number from 1 to {CONCURRENCY_MAX}")
    return value


def _checked_handler(handler: Any) -> Handler:
    if isinstance(handler, Mapping):
        return _by_name({name: _checked_handler(own) for name, own in handler.items()})
    if not callable(handler):
        raise UsageError(f"handler {handler!r} cannot be called")
    if inspect.iscoroutinefunction(handler):
        raise UsageError("handler is a coroutine function; a worker runs plain functions")
    plain: Handler = handler
    return plain


def _by_name(handlers: dict[str, Handler]) -> Handler:
    def handle(job: JobContext) -> Any:
        own = handlers.get(job.name)
        if own is None:
            raise Failed(f"this worker has no handler for jobs named {job.name!r}")
        return own(job)

    return handle


def _default_id() -> str:
    host = os.uname().nodename[:80]
    return f"{host}-{os.getpid()}-{os.urandom(2).hex()}"
