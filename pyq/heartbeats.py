"""The worker's pulse: renews leases, keeps the worker registered, hears when it shall stop.

A thread of its own with its own connection, so that neither a busy handler nor a slow
fetcher can cost a lease. One long poll per shard; the next beat follows within a third
of a lease.
"""

import logging
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

_STOP = "stop"  # the one directive there is; messages.DIRECTIVE_STOP
_AGAIN_S = 0.1  # after leases were found lost: the others are renewed at once
_IDLE_MS = 1_000
_BEAT_MS_MAX = (
    20_000  # however long the lease: a shard forgets a worker that is silent for a minute
)

log = logging.getLogger("pyq.worker")


class _Pulse:
    """One shard's heartbeat."""

    __slots__ = ("contexts", "lane", "next_at", "pending", "sent_at")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.pending: Pending | None = None
        self.contexts: list[JobContext] = []
        self.next_at = 0.0
        self.sent_at = 0.0


class Heartbeats:
    """Beats for everything the fetcher holds until told to end."""

    def __init__(
        self, fetcher: Fetcher, worker: list[Any], lease_ms: int, on_stop: Callable[[], None]
    ) -> None:
        self.ended = False
        self._fetcher = fetcher
        self._worker = worker  # as the protocol wants it
        self._third_ms = min(lease_ms // 3, _BEAT_MS_MAX)
        self._on_stop = on_stop
        self._connection = Connection(fetcher.url)
        self._lanes: list[Lane] = []
        self._pulses: list[_Pulse] = []

    def watch(self, fd: int) -> None:
        """Return from `run` soon after `fd` becomes readable and `ended` is set."""
        self._connection.watch(fd)

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
                if pulse.pending is None and pulse.next_at <= now:
                    self._beat(pulse, now)
            for pending in self._connection.poll(self._timeout_ms(now)):
                if pending.context is not None:
                    self._on_answer(pending.context, pending)
        self._connection.close()

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
        # Beyond one message's worth: the first ones are beaten for without waiting.
        for first in range(0, len(contexts) - BATCH_JOBS_MAX, BATCH_JOBS_MAX):
            self._send(pulse, contexts[first : first + BATCH_JOBS_MAX], wait_ms=0)
        rest = contexts[(len(contexts) - 1) // BATCH_JOBS_MAX * BATCH_JOBS_MAX :]
        pulse.pending = self._send(pulse, rest, wait_ms=self._third_ms)
        pulse.sent_at = now
        pulse.next_at = now + self._third_ms / 1_000

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
        for index, status, _ in exceptions:
            if status == Status.STALE_TOKEN:
                self._note_lost(contexts[index])
        if exceptions:
            pulse.next_at = min(pulse.next_at, pulse.sent_at + _AGAIN_S)
        if _STOP in directives:
            self._on_stop()

    def _note_lost(self, context: JobContext) -> None:
        if not context.settled and not context.lost:
            log.warning("the lease of %r has ended; its result may not count", context)
        context.lost = True
