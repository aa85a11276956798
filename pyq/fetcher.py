"""The worker's hands: pulls jobs for free slots, sends what became of them, gives back the rest.

One thread with one connection. Decides everything about leases, so that no two threads
can disagree about a job; handlers run elsewhere (`handoff.py`), heartbeats too.
"""

import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from pyq.connection import Connection, Pending
from pyq.context import JobContext
from pyq.errors import ERRORS_BY_STATUS, Conflict, PyqError, Status
from pyq.handoff import ENDINGS, Handoff, failure
from pyq.lanes import NEWS_VERBS, OUT_VERBS, Lane, lanes_of
from pyq.limits import BATCH_JOBS_MAX, REPEAT_MS_MAX, REQUEST_MS_DEFAULT
from pyq.wire import ROUTER, Verb, WireError, status_of, unpack_body

PULL_WAIT_MS = 30_000
PULL_BUDGET_MS = PULL_WAIT_MS + REQUEST_MS_DEFAULT
HOLD_S = 0.002  # finished jobs wait this long for more of them, while jobs wait for a thread
LAST_WORDS_S = 5.0  # at the end: how long the answers to acks are waited for
UNPULL_MS = 1_000
GOODBYE_MS = 1_000
_PAUSE_S, _PAUSE_S_MAX = 0.1, 1.0
_IDLE_MS = 1_000

log = logging.getLogger("pyq.worker")


class Fetcher:
    """Feeds handler threads with jobs from all shards that own one of the worker's queues."""

    def __init__(
        self,
        url: str,
        worker_id: str,
        queues: tuple[str, ...],
        concurrency: int,
        lease_ms: int,
        handoff: Handoff,
        timeout_slack_ms: int = 0,
    ) -> None:
        self.url = url
        self.worker_id = worker_id
        self.queues = queues
        self.held: dict[bytes, JobContext] = {}  # by token; until the cluster knows the end
        self.lanes: list[Lane] = []
        self.stop_at: float | None = None  # when running handlers are given up; None: not stopping
        self.all_lost = False
        self.on_shorter_lease: Callable[[], None] = lambda: None  # heartbeats must hurry
        self._lane_of: dict[str, Lane] = {}
        self._shards = 0
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._handoff = handoff
        self._timeout_slack_ms = timeout_slack_ms
        self._running = 0  # jobs with the handler threads
        self._lost = 0  # threads stuck in a handler whose job has timed out
        self._hold_until = 0.0
        self._timeouts: list[tuple[float, int, JobContext]] = []
        self._numbers = itertools.count()
        self._stopping = False
        self._give_up_at = math.inf
        self._silent = False  # the cluster does not answer; said once
        self._connection = Connection(url)
        self._connection.watch(handoff.fd)
        self._connection.on_stray = self._on_stray

    def stop(self, grace_s: float) -> None:
        """Pull no more; give running handlers `grace_s` seconds. Callable from any thread."""
        at = time.monotonic() + grace_s
        self.stop_at = at if self.stop_at is None else min(at, self.stop_at)
        self._handoff.wake()

    # --- the loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, and all that can be said has been said."""
        self._learn_shards()
        while True:
            now = time.monotonic()
            self._take_notes()
            self._end_timeouts(now)
            if self.stop_at is not None and self._stopped(now):
                return
            self._send(now)
            self._wait(now)

    def say_goodbye(self) -> None:
        """Tell the shards that this worker is gone, and close the connection."""
        connection = self._connection
        pendings = [
            connection.send(Verb.GOODBYE, [self.worker_id], queue=lane.route, budget_ms=GOODBYE_MS)
            for lane in self.lanes
        ]
        for pending in pendings:
            try:
                connection.wait(pending)
            except PyqError:
                continue  # the leases were given back one by one; the rest is courtesy
        connection.close()

    def _wait(self, now: float) -> None:
        handoff = self._handoff
        handoff.asleep = True
        if handoff.notes and handoff.ready.empty():
            timeout_ms = 0
        else:
            timeout_ms = self._timeout_ms(now)
        finished = self._connection.poll(timeout_ms)
        handoff.asleep = False
        if self._connection.interrupted:
            handoff.drain()
        for pending in finished:
            self._on_finished(pending)
        if self._connection.shards != self._shards:
            self._regroup()

    def _timeout_ms(self, now: float) -> int:
        until = now + _IDLE_MS / 1_000
        if now < self._hold_until:
            until = min(until, self._hold_until)
        elif not self._handoff.ready.empty():
            until = min(until, now + HOLD_S)
        if self._timeouts:
            until = min(until, self._timeouts[0][0])
        if self.stop_at is not None:
            until = min(until, max(now, self.stop_at) + 0.01, self._give_up_at)
        for lane in self.lanes:
            if lane.pull is None and now < lane.pull_after:
                until = min(until, lane.pull_after)
        return max(0, math.ceil((until - now) * 1_000))

    def _learn_shards(self) -> None:
        """Ask the router for the number of shards until it answers or the worker is stopped."""
        while not self._connection.shards and self.stop_at is None:
            try:
                self._connection.request(Verb.PING, [], slot=ROUTER, budget_ms=_IDLE_MS)
            except PyqError as error:
                self._note_silence(error)
        self._regroup()

    def _regroup(self) -> None:
        """Group the queues by shard again: at first, and after a reshard of the cluster."""
        old_lanes = self.lanes
        self._shards = self._connection.shards
        lease_ms = min((lane.lease_ms for lane in old_lanes), default=self._lease_ms)
        self.lanes = lanes_of(self.queues, self._shards, lease_ms) if self._shards else []
        self._lane_of = {queue: lane for lane in self.lanes for queue in lane.queues}
        received = max((lane.last_received for lane in old_lanes), default=0)
        for lane in self.lanes:
            lane.last_received = received  # or its first pull would free what we run
        for lane in old_lanes:
            if lane.pull is not None:
                self._connection.forget(lane.pull)  # an answer is a stray, and given back
            for verb, outbox in lane.outboxes.items():
                for context, item, size in zip(
                    outbox.contexts, outbox.items, outbox.sizes, strict=True
                ):
                    home = self.lanes[0] if context is None else self._lane_of[context.queue]
                    home.outboxes[verb].add(context, item, size)

    # --- jobs in ------------------------------------------------------------------------------

    def _on_pull_reply(self, lane: Lane, pending: Pending) -> None:
        assert pending.reply is not None, "only a pull that was answered comes here"
        lane.last_received = max(lane.last_received, pending.sequence)
        lane.refusals_count = 0
        if self._silent:
            log.info("the cluster answers again")
            self._silent = False
        lease_ms, groups = pending.reply.body
        now = time.monotonic()
        free = 0 if self._stopping else self._free
        contexts: list[JobContext] = []
        for queue, jobs in groups:
            contexts += [JobContext(self._handoff, queue, job, lease_ms) for job in jobs]
        held = self.held
        for context in contexts[:free]:
            held[context.token] = context
            if context.timeout_ms:
                self._watch_timeout(context, now)
        put = self._handoff.ready.put
        for context in contexts[:free]:
            put(context)
        self._running += min(len(contexts), free)
        if contexts and lane.note_lease(lease_ms, now):
            self.on_shorter_lease()
        for context in contexts[free:]:
            self._give_back(context)
        self._hold_until = now + HOLD_S

    @property
    def _free(self) -> int:
        return self._concurrency - self._running - self._lost

    def _give_back(self, context: JobContext) -> None:
        lane = self._lane_of.get(context.queue, self.lanes[0])
        lane.outboxes[Verb.RELEASE].add(context, (context.id_bytes, context.token, 0), 0)

    def _on_stray(self, header: bytes, body: bytes) -> None:
        """Give back jobs that came for a pull we no longer wait for, unless we have them."""
        if header[1] != Verb.PULL or status_of(header) != Status.OK or not self.lanes:
            return
        try:
            lease_ms, groups = unpack_body(body)
            for queue, jobs in groups:
                for job in jobs:
                    context = JobContext(self._handoff, queue, job, lease_ms)
                    if context.token not in self.held:
                        self._give_back(context)
        except (WireError, TypeError, ValueError):
            return

    # --- outcomes out -------------------------------------------------------------------------

    def _take_notes(self) -> None:
        """Sort what handlers said into the outboxes."""
        notes, lane_of = self._handoff.notes, self._lane_of
        while notes:
            context, verb, item, size = notes.popleft()
            if verb in ENDINGS:
                if context.settled:
                    self._lost -= context.timed_out  # the stuck thread is back
                    continue
                context.settled = True
                self._running -= 1
            elif context.settled:
                continue  # said after the end
            elif verb is Verb.LOG:
                item = _numbered(context, item)
            lane_of[context.queue].outboxes[verb].add(context, item, size)

    def _send(self, now: float) -> None:
        held_back = now < self._hold_until and not self._handoff.ready.empty()
        for lane in self.lanes:
            pull = None if held_back else self._next_pull(lane, now)
            for verb in OUT_VERBS:
                outbox = lane.outboxes[verb]
                if not outbox.items or held_back:
                    continue
                if verb is Verb.ACK and pull is not None:
                    self._connection.transmit(self._message(lane, verb), pull)
                    pull = None
                    continue
                hurry = verb in NEWS_VERBS and lane.has_endings
                while outbox.items and (hurry or not outbox.in_flight_count):
                    self._connection.transmit(self._message(lane, verb))
            if pull is not None:
                self._connection.transmit(pull)

    def _message(self, lane: Lane, verb: Verb) -> Pending:
        outbox = lane.outboxes[verb]
        contexts, items = outbox.take()
        outbox.in_flight_count += 1
        pending = self._connection.prepare(
            verb, (items,), queue=lane.route, budget_ms=REPEAT_MS_MAX
        )
        pending.context = (lane, contexts)
        return pending

    def _next_pull(self, lane: Lane, now: float) -> Pending | None:
        """Return a pull for the free slots, if there are any and none is under way."""
        if self._stopping or lane.pull is not None or now < lane.pull_after:
            return None
        jobs_max = min(self._free, BATCH_JOBS_MAX)
        if jobs_max <= 0:
            return None
        body = (
            self.worker_id,
            lane.queues,
            jobs_max,
            PULL_WAIT_MS,
            self._lease_ms,
            lane.last_received,
        )
        pending = self._connection.prepare(
            Verb.PULL, body, queue=lane.route, budget_ms=PULL_BUDGET_MS
        )
        pending.context = (lane, [])
        lane.pull = pending
        return pending

    # --- answers ------------------------------------------------------------------------------

    def _on_finished(self, pending: Pending) -> None:
        if pending.context is None:
            return
        lane, contexts = pending.context
        if pending.verb == Verb.PULL:
            if lane.pull is pending:
                lane.pull = None
            if pending.error is None:
                self._on_pull_reply(lane, pending)
            else:
                self._on_pull_refused(lane, pending.error)
        elif pending.verb == Verb.UNPULL:
            self._on_unpulled(lane, pending)
        else:
            self._on_told(lane, pending, contexts)

    def _on_pull_refused(self, lane: Lane, error: PyqError) -> None:
        lane.refusals_count += 1
        pause_s = min(_PAUSE_S * 2.0 ** min(lane.refusals_count - 1, 10), _PAUSE_S_MAX)
        lane.pull_after = time.monotonic() + pause_s
        if not isinstance(error, Conflict):  # SUPERSEDED: a newer pull of ours is known
            self._note_silence(error)

    def _on_told(self, lane: Lane, pending: Pending, contexts: list[JobContext | None]) -> None:
        """Note the answer to a batch: the cluster knows the end of these jobs."""
        lane.outboxes[Verb(pending.verb)].in_flight_count -= 1
        if pending.verb in ENDINGS:
            held = self.held
            for context in contexts:
                if context is not None:
                    held.pop(context.token, None)
        if pending.error is not None:
            log.warning(
                "%s of %d jobs was not taken: %s",
                Verb(pending.verb).name,
                len(contexts),
                pending.error,
            )
            return
        assert pending.reply is not None, "a finished request has a reply or an error"
        for index, status, detail in pending.reply.body[1]:
            self._on_refused_item(Verb(pending.verb), contexts[index], status, detail)

    def _on_refused_item(
        self, verb: Verb, context: JobContext | None, status: int, detail: Any
    ) -> None:
        if status == Status.OK or context is None:
            return
        if verb not in ENDINGS and context.settled:
            return  # news that came after the end
        if status == Status.STALE_TOKEN:
            context.lost = True
        elif verb is Verb.BLOCK:  # the lease is ours still: end the attempt in another way
            _, fail, item, size = failure(context, f"it cannot wait for these jobs: {detail}")
            self._lane_of[context.queue].outboxes[fail].add(context, item, size)
        kind = ERRORS_BY_STATUS.get(status, PyqError)  # type: ignore[call-overload]
        level = logging.DEBUG if verb is Verb.RELEASE else logging.WARNING
        log.log(level, "%s of %r was not taken: %s %s", verb.name, context, kind.__name__, detail)

    def _note_silence(self, error: PyqError) -> None:
        if not self._silent:
            log.warning("cannot pull, trying again until it works: %s", error)
            self._silent = True

    # --- timeouts -----------------------------------------------------------------------------

    def _watch_timeout(self, context: JobContext, now: float) -> None:
        context.deadline = time.time() + context.timeout_ms / 1_000
        if len(self._timeouts) > 2 * len(self.held) + 64:  # most have ended before their time
            self._timeouts = [entry for entry in self._timeouts if not entry[2].settled]
            heapq.heapify(self._timeouts)
        at = now + (context.timeout_ms + self._timeout_slack_ms) / 1_000
        heapq.heappush(self._timeouts, (at, next(self._numbers), context))

    def _end_timeouts(self, now: float) -> None:
        """Fail attempts that took too long. Their threads cannot be stopped: a slot is lost."""
        while self._timeouts and self._timeouts[0][0] <= now:
            context = heapq.heappop(self._timeouts)[2]
            if context.settled:
                continue
            context.timed_out = True
            context.settled = True
            self._running -= 1
            self._lost += 1
            _, verb, item, size = failure(
                context, f"timeout after {context.timeout_ms / 1_000:g} s"
            )
            self._lane_of[context.queue].outboxes[verb].add(context, item, size)
            log.warning("%r timed out; its thread is lost until the handler returns", context)
        if self._lost >= self._concurrency and not self.all_lost:
            self.all_lost = True
            log.error("every thread is stuck in a handler that timed out: stopping")
            self.stop(0)

    # --- the end ------------------------------------------------------------------------------

    def _stopped(self, now: float) -> bool:
        """Take the next step of a stop; True when nothing is left to do."""
        assert self.stop_at is not None, "only a worker that stops comes here"
        if not self._stopping:
            self._stopping = True
            self._withdraw_pulls()
            self._give_back_unstarted()
        if self._running and now >= self.stop_at:
            self._give_up_running()
        if self._running:
            return False
        if self._give_up_at == math.inf:
            self._give_up_at = now + LAST_WORDS_S
        pulls_open = any(lane.pull is not None for lane in self.lanes)
        all_said = not pulls_open and not any(lane.has_waiting for lane in self.lanes)
        return (all_said and not self._connection.outstanding_count) or now >= self._give_up_at

    def _withdraw_pulls(self) -> None:
        for lane in self.lanes:
            if lane.pull is not None:
                pending = self._connection.send(
                    Verb.UNPULL, [lane.pull.request_id], queue=lane.route, budget_ms=UNPULL_MS
                )
                pending.context = (lane, [])

    def _on_unpulled(self, lane: Lane, pending: Pending) -> None:
        """The pull is gone. If it was answered before, its jobs are on their way: wait for them."""
        withdrawn = pending.reply is None or pending.reply.body[0]
        if withdrawn and lane.pull is not None:
            self._connection.forget(lane.pull)
            lane.pull = None
        elif lane.pull is not None:
            lane.pull.deadline = min(lane.pull.deadline, time.monotonic() + UNPULL_MS / 1_000)

    def _give_back_unstarted(self) -> None:
        ready = self._handoff.ready
        while not ready.empty():
            try:
                context = ready.get_nowait()
            except Exception:  # a thread was faster: queue.Empty
                return
            if context is not None:
                self._settle_by_release(context)

    def _give_up_running(self) -> None:
        for context in list(self.held.values()):
            if not context.settled:
                context.released = True
                self._settle_by_release(context)

    def _settle_by_release(self, context: JobContext) -> None:
        context.settled = True
        self._running -= 1
        self._give_back(context)


def _numbered(context: JobContext, item: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a log line its number within the lease, so that a repeat of the message adds none.

    Here and not where it was written: a handler may write from several threads.
    """
    job_id, token, _, lines = item
    context.lines_count += len(lines)
    return job_id, token, context.lines_count, lines
