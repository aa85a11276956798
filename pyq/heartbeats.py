"""The worker's pulse: renews leases, keeps the worker registered, hears when it shall stop.

A thread of its own with its own connection, so that neither a busy handler nor a slow
fetcher can cost a lease. One long poll per shard; the next beat follows within a third
of the shortest lease that is held.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from pyq.connection import Connection, Pending
from pyq.context import JobContext
from pyq.errors import Status
from pyq.fetcher import Fetcher
from pyq.lanes import Lane
from pyq.limits import BATCH_JOBS_MAX, REQUEST_MS_DEFAULT
from pyq.wire import Verb

_STOP, _BEAT = "stop", "beat"  # directives; messages.DIRECTIVE_STOP, DIRECTIVE_BEAT
_CANCEL = "cancel_requested"  # said of a lease; messages.CANCEL_REQUESTED
_AGAIN_S = 0.1  # after news the next poll is soon there: more may come, leases are renewed
_IDLE_MS = 1_000
_BEAT_MS_MAX = (
    20_000  # however long the lease: a shard forgets a worker that is silent for a minute
)

log = logging.getLogger("pyq.worker")


class _Pulse:
    """One shard's heartbeat."""

    __slots__ = ("contexts", "lane", "lease_ms", "next_at", "pending", "sent_at")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.lease_ms = lane.lease_ms  # that the last beat kept to
        self.pending: Pending | None = None
        self.contexts: list[JobContext] = []
        self.next_at = 0.0
        self.sent_at = 0.0

    def is_due(self, now: float) -> bool:
        """True when it is time, or a lease came that is shorter than those we kept to."""
        if self.pending is None and self.next_at <= now:
            return True
        return self.lane.lease_ms < self.lease_ms


class Heartbeats:
    """Beats for everything the fetcher holds until told to end."""

    def __init__(self, fetcher: Fetcher, worker: list[Any], on_stop: Callable[[], None]) -> None:
        self.ended = False
        self._fetcher = fetcher
        self._worker = worker  # as the protocol wants it
        self._on_stop = on_stop
        self._connection = Connection(fetcher.url)
        self._lanes: list[Lane] = []
        self._pulses: list[_Pulse] = []
        self._fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._connection.watch(self._fd)

    def wake(self) -> None:
        """Look at the leases again, now. Callable from any thread."""
        with contextlib.suppress(OSError):  # full, or closed: nobody waits
            os.write(self._write_fd, b"x")

    def end(self) -> None:
        """Let `run` return soon. Callable from any thread."""
        self.ended = True
        self.wake()

    def close(self) -> None:
        """Close the pipe, after `run` has returned."""
        write_fd, self._write_fd = self._write_fd, -1
        os.close(write_fd)
        os.close(self._fd)

    def run(self) -> None:
        """Beat until `ended`. Should it fail, the worker stops: its leases would run out."""
        try:
            self._run()
        except Exception:
            log.exception("heartbeats failed; the worker stops")
            self._on_stop()

    def _run(self) -> None:
        while not self.ended:
            self._follow_lanes()
            now = time.monotonic()
            for pulse in self._pulses:
                if pulse.is_due(now):
                    self._beat(pulse, now)
            finished = self._connection.poll(self._timeout_ms(now))
            if self._connection.interrupted:
                self._empty_pipe()
            for pending in finished:
                if pending.context is not None:
                    self._on_answer(pending.context, pending)
        self._connection.close()

    def _empty_pipe(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._fd, 256)) == 256:
                pass

    def _follow_lanes(self) -> None:
        """Take over the fetcher's lanes when they are known, or have changed."""
        if self._fetcher.lanes is not self._lanes:
            self._lanes = self._fetcher.lanes
            self._pulses = [_Pulse(lane) for lane in self._lanes]

    def _timeout_ms(self, now: float) -> float:
        if not self._pulses:
            return 50
        waits = [pulse.next_at - now for pulse in self._pulses if pulse.pending is None]
        return min([_IDLE_MS, *(max(0.0, wait) * 1_000 for wait in waits)])

    def _beat(self, pulse: _Pulse, now: float) -> None:
        queues = set(pulse.lane.queues)
        pulse.contexts = [
            context
            for context in list(self._fetcher.held.values())
            if context.queue in queues and not context.lost
        ]
        contexts = pulse.contexts
        pulse.lease_ms = min([pulse.lane.lease_ms, *(context.lease_ms for context in contexts)])
        third_ms = min(pulse.lease_ms // 3, _BEAT_MS_MAX)
        # Beyond one message's worth: the first ones are beaten for without waiting.
        for first in range(0, len(contexts) - BATCH_JOBS_MAX, BATCH_JOBS_MAX):
            self._send(pulse, contexts[first : first + BATCH_JOBS_MAX], wait_ms=0)
        rest = contexts[(len(contexts) - 1) // BATCH_JOBS_MAX * BATCH_JOBS_MAX :]
        pulse.pending = self._send(pulse, rest, wait_ms=third_ms)
        pulse.sent_at = now
        pulse.next_at = now + third_ms / 1_000

    def _send(self, pulse: _Pulse, contexts: list[JobContext], wait_ms: int) -> Pending:
        items = [(context.id_bytes, context.token) for context in contexts]
        pending = self._connection.send(
            Verb.HEARTBEAT,
            (items, self._worker, wait_ms),
            queue=pulse.lane.route,
            budget_ms=wait_ms + REQUEST_MS_DEFAULT,
        )
        pending.context = (pulse, contexts)
        return pending

    def _on_answer(self, asked: tuple[_Pulse, list[JobContext]], pending: Pending) -> None:
        pulse, contexts = asked
        if pulse.pending is pending:
            pulse.pending = None
        if pending.reply is None:
            log.debug("heartbeat without an answer: %s", pending.error)
            return
        _, exceptions, directives = pending.reply.body
        news = False
        for index, status, detail in exceptions:
            if status == Status.OK:
                news |= detail == _CANCEL and self._note_cancel(contexts[index])
                continue
            news = True
            if status == Status.STALE_TOKEN:
                self._note_lost(contexts[index])
        if news:
            pulse.next_at = min(pulse.next_at, pulse.sent_at + _AGAIN_S)
        if _BEAT in directives:
            pulse.next_at = 0.0
        if _STOP in directives:
            self._on_stop()

    def _note_cancel(self, context: JobContext) -> bool:
        """Tell the handler that its job is taken back; False if it was told before."""
        if context.cancel_requested:
            return False
        context.cancel_requested = True
        if not context.settled:
            log.info("%r is cancelled", context)
        return True

    def _note_lost(self, context: JobContext) -> None:
        if not context.settled and not context.lost:
            log.warning("the lease of %r has ended; its result may not count", context)
        context.lost = True
