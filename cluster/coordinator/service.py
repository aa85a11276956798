"""The shell of the coordinator: its sockets and its loop.

A client of the router like any other, but attached: the router forwards it requests for the
coordinator. Keeps nothing on disk, and everything it does is harmless when done twice.
What is due when: `agenda.py`; what a task asks for: a pure module each (`sweeps.py`);
what shards tell each other: `relay.py`; what fires by the clock: `cron.py`.
"""

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import zmq

from cluster.answers import Request, pong, reply_to, requests_of, unsupported
from cluster.coordinator.agenda import Agenda
from cluster.coordinator.cron import (
    ASKED_MAX,
    POLL_TIMEOUT_MS,
    Crons,
    Now,
    add_polls,
    shard_of_poll,
)
from cluster.coordinator.relay import Errand, Relays
from cluster.coordinator.sweeps import add_sweeps, next_sweep, shard_of_sweep
from cluster.probes import Answer, Question
from pyq.errors import Status
from pyq.limits import FRAME_BYTES_MAX
from pyq.log import get_logger
from pyq.process import StopSignal, endpoint, unlink_endpoint
from pyq.wire import (
    ROUTER,
    Verb,
    WireError,
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)

_ATTACH = "attach"
_ATTACH_MS = 1_000
_RECONNECT_MS = 20
_RECONNECT_MS_MAX = 100
_TURN_MESSAGES_MAX = 256
_ERRANDS_MAX = 10_000  # twice what the relays of 64 shards can have under way


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What the command line says."""

    router: str
    runtime: str
    shards: int


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _now() -> Now:
    return Now(time.time_ns() // 1_000_000, _now_ms())


class Coordinator:
    """One coordinator: an agenda, a socket to the router, a socket for probes."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self._log: Any = get_logger("coordinator")
        self._incarnation = os.urandom(8)
        self._sequence = 0
        self._asked: dict[bytes, str] = {}  # request id -> task
        self._errands: dict[bytes, Errand] = {}  # request id -> what a relay asked
        self._agenda = Agenda()
        self._agenda.add(_ATTACH, _now_ms(), timeout_ms=_ATTACH_MS, retry_ms=_ATTACH_MS)
        add_sweeps(self._agenda, config.shards, _now_ms())
        self._relays = Relays(config.shards, _now_ms())
        add_polls(self._agenda, config.shards, _now_ms())
        self._crons = Crons(config.shards, _now())
        self._fires: dict[bytes, tuple[str, int]] = {}  # request id -> key of the question
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router_there = True
        # Between the end of a connection and the start of the next one the socket may still
        # take messages, and loses them.
        self._broken = False
        self._router = self._connect()
        self._monitor = self._watch_router()
        self._server = self._listen()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        stop = StopSignal()
        poller = zmq.Poller()
        for readable in (stop.fd, self._router, self._monitor, self._server):
            poller.register(readable, zmq.POLLIN)
        self._log.info("coordinator_ready", shards=self._config.shards)
        while not stop.count:
            wakeup_ms = self._next_wakeup()
            # Without a router we wait until there is one: the socket is writable then.
            waits = not self._router_there and not self._broken
            poller.modify(self._router, zmq.POLLIN | zmq.POLLOUT if waits else zmq.POLLIN)
            events = dict(poller.poll(max(0, wakeup_ms - _now_ms())))
            if events.get(self._router, 0) & zmq.POLLOUT:
                self._router_there = True
                self._agenda.hasten(_now_ms())
                self._crons.hasten(_now())
            if events.get(self._monitor):
                self._hear_monitor()
            self._hear_router()
            self._hear_probes()
            self._work(_now_ms())
            self._carry(_now_ms())
            self._fire(_now())
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(0)
        self._server.close(0)
        self._context.term()

    # --- the agenda -----------------------------------------------------------------------

    def _work(self, now_ms: int) -> None:
        for name in self._agenda.overdue(now_ms):
            self._fail(name, now_ms, "no answer in time")
        for name in self._agenda.take_due(now_ms):
            if not self._ask(name, *self._question_of(name)):
                self._fail(name, now_ms, "the router is not reachable")

    def _question_of(self, task: str) -> tuple[Question, int]:
        """Return what a task asks for, and how long it waits for the answer."""
        shard = shard_of_sweep(task)
        if shard is not None:  # slots below N are the shards' own numbers
            return Question(Verb.SWEEP, slot=shard), _ATTACH_MS
        shard = shard_of_poll(task)
        if shard is not None:
            return Question(Verb.SCHEDULES, shard, self._crons.poll(shard)), POLL_TIMEOUT_MS
        return Question(Verb.ATTACH, ROUTER), _ATTACH_MS

    def _ask(self, task: str, question: Question, timeout_ms: int) -> bool:
        """Send what a task asks for; False if there is no router to take it."""
        request_id = self._send(question, timeout_ms)
        if request_id is None:
            return False
        self._asked[request_id] = task
        return True

    def _send(self, question: Question, timeout_ms: int, flags: int = 0) -> bytes | None:
        """Send a request; return its id, or None if there is no router to take it."""
        if self._broken:
            return None
        self._sequence += 1
        request_id = self._incarnation + self._sequence.to_bytes(8, "big")
        header = pack_header(
            question.verb,
            request_id,
            flags=flags,
            slot=question.slot,
            deadline_ms=timeout_ms,
            queue=question.queue,
        )
        try:
            self._router.send_multipart((header, pack_body(list(question.body))), zmq.NOBLOCK)
        except zmq.Again:
            self._router_there = False
            return None
        return request_id

    def _conclude(self, name: str, answer: Answer, now_ms: int) -> None:
        if not answer.ok:
            self._fail(name, now_ms, answer.sentence or f"status {answer.status}")
            return
        next_due_ms = self._next_due(name, answer.body, now_ms)
        if next_due_ms is None:
            self._fail(name, now_ms, "the reply makes no sense")
            return
        self._agenda.succeeded(name, now_ms, next_due_ms)

    def _fail(self, name: str, now_ms: int, reason: str) -> None:
        self._asked = {asked: task for asked, task in self._asked.items() if task != name}
        if self._agenda.failed(name, now_ms):
            self._log.critical("task_keeps_failing", task=name, reason=reason)

    def _next_due(self, task: str, body: Any, now_ms: int) -> int | None:
        """Return when a task that was answered is due again; None if that makes no sense."""
        if task == _ATTACH:
            return now_ms + _ATTACH_MS
        shard = shard_of_poll(task)
        if shard is not None:
            return now_ms if self._crons.heard_of(shard, body, _now()) else None
        return next_sweep(body, now_ms)

    # --- the relays -----------------------------------------------------------------------

    def _carry(self, now_ms: int) -> None:
        """Send what the relays want sent. Without a router they wait: see `_hear_monitor`."""
        if self._router_there:
            for errand in self._relays.take_due(now_ms):
                question = Question(errand.verb, errand.shard, errand.body)
                request_id = self._send(question, errand.timeout_ms)
                if request_id is None:
                    self._relays.lost(now_ms)
                    break
                self._errands[request_id] = errand
            if len(self._errands) > _ERRANDS_MAX:  # mostly such as were never answered
                still = self._relays.under_way()
                kept = [entry for entry in self._errands.items() if id(entry[1]) in still]
                self._errands = dict(kept)
        for trouble in self._relays.take_troubles():
            self._log.critical("task_keeps_failing", task=trouble.task, reason=trouble.reason)

    # --- cron -----------------------------------------------------------------------------

    def _fire(self, now: Now) -> None:
        """Send what schedules ask for, and log what they say."""
        for ask in self._crons.take_due(now):
            question = Question(ask.verb, ask.slot, ask.body, ask.queue)
            request_id = self._send(question, ask.timeout_ms, ask.flags)
            if request_id is None:
                self._crons.not_sent(ask.key, "the router is not reachable", now)
                continue
            self._fires[request_id] = ask.key
            if len(self._fires) > 2 * ASKED_MAX:  # of those never answered the first is longest
                del self._fires[next(iter(self._fires))]
        for note in self._crons.notes:
            getattr(self._log, note.level)(note.event, **note.facts)
        self._crons.notes.clear()

    def _next_wakeup(self) -> int:
        wakeup_ms = self._agenda.next_wakeup()
        assert wakeup_ms is not None, "the agenda is never empty"
        carry_ms = self._relays.next_wakeup() if self._router_there else None
        fire_ms = self._crons.next_wakeup(_now())
        return min(at for at in (wakeup_ms, carry_ms, fire_ms) if at is not None)

    # --- the sockets ----------------------------------------------------------------------

    def _connect(self) -> zmq.Socket[bytes]:
        router: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.IMMEDIATE, 1)  # nothing piles up for a router that is not there
        router.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        router.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        router.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        router.connect(self._config.router)
        return router

    def _watch_router(self) -> zmq.Socket[bytes]:
        """Return a socket that tells when the connection to the router broke, or is new."""
        address = "inproc://router-monitor"
        self._router.monitor(address, zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED)
        monitor: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.connect(address)
        return monitor

    def _hear_monitor(self) -> None:
        """If the connection to the router broke, nothing that is under way will be answered."""
        broke = False
        while self._monitor.poll(0):
            event = self._monitor.recv_multipart()[0]
            self._broken = int.from_bytes(event[:2], sys.byteorder) == zmq.Event.DISCONNECTED
            broke = broke or self._broken
        if not broke:
            return
        now_ms = _now_ms()
        self._router_there = False
        self._errands.clear()
        self._relays.lost(now_ms)
        fires, self._fires = self._fires, {}
        for key in fires.values():
            self._crons.not_sent(key, "the router went away", _now())
        for name in set(self._asked.values()):
            if self._agenda.is_under_way(name):
                self._fail(name, now_ms, "the router went away")

    def _listen(self) -> zmq.Socket[bytes]:
        address = endpoint(self._config.runtime, "coordinator")
        unlink_endpoint(address)
        server: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        server.setsockopt(zmq.LINGER, 0)
        server.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        server.bind(address)
        return server

    def _hear_router(self) -> None:
        """Take in replies to our own requests [header, body] and what the router forwards
        [client address, header, body]."""
        for _ in range(_TURN_MESSAGES_MAX):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 2:
                self._hear_reply(frames[0], frames[1])
            elif len(frames) == 3:
                self._answer_all(self._router, frames)

    def _hear_reply(self, header_frame: bytes, body_frame: bytes) -> None:
        try:
            header, body = unpack_header(header_frame), unpack_body(body_frame)
        except WireError as error:
            self._log.warning("bad_reply", reason=str(error))
            return
        errand = self._errands.pop(header.request_id, None)
        if errand is not None:
            answer = Answer(header.status, header.epoch, body)
            self._relays.conclude(errand, answer, _now_ms())
            return
        key = self._fires.pop(header.request_id, None)
        if key is not None:
            self._crons.heard(key, header.status, body, _now())
            return
        name = self._asked.pop(header.request_id, None)
        if name is not None and self._agenda.is_under_way(name):
            self._conclude(name, Answer(header.status, header.epoch, body), _now_ms())

    def _hear_probes(self) -> None:
        for _ in range(_TURN_MESSAGES_MAX):
            try:
                frames = self._server.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answer_all(self._server, frames)

    def _answer_all(self, socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
        for request in requests_of(frames):
            try:
                socket.send_multipart(self._reply(request), zmq.NOBLOCK)
            except zmq.Again:
                self._log.warning("reply_dropped", verb=request.header.verb)

    def _reply(self, request: Request) -> list[bytes]:
        if request.header.verb != Verb.PING:
            return unsupported(request, "coordinator")
        info = {
            "pid": os.getpid(),
            "healthy": self._agenda.healthy and self._relays.healthy and self._crons.healthy,
            "tasks": [
                *self._agenda.table(_now_ms()),
                *self._relays.table(_now_ms()),
                self._crons.row(_now()),
            ],
            "cron": self._crons.report(_now()),
        }
        return reply_to(request, Status.OK, pong("coordinator", self._incarnation, info))
