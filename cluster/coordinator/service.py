"""The shell of the coordinator: its sockets and its loop.

A client of the router like any other, but attached: the router forwards it requests for the
coordinator. Keeps nothing on disk, and everything it does is harmless when done twice.
What is due when: `agenda.py`; what a task asks for: a pure module each (`sweeps.py`).
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import zmq

from cluster.answers import Request, pong, reply_to, requests_of, unsupported
from cluster.coordinator.agenda import Agenda
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


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What the command line says."""

    router: str
    runtime: str
    shards: int


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Coordinator:
    """One coordinator: an agenda, a socket to the router, a socket for probes."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self._log: Any = get_logger("coordinator")
        self._incarnation = os.urandom(8)
        self._sequence = 0
        self._asked: dict[bytes, str] = {}  # request id -> task
        self._agenda = Agenda()
        self._agenda.add(_ATTACH, _now_ms(), timeout_ms=_ATTACH_MS, retry_ms=_ATTACH_MS)
        add_sweeps(self._agenda, config.shards, _now_ms())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router_there = True
        self._router = self._connect()
        self._server = self._listen()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        stop = StopSignal()
        poller = zmq.Poller()
        for readable in (stop.fd, self._router, self._server):
            poller.register(readable, zmq.POLLIN)
        self._log.info("coordinator_ready", shards=self._config.shards)
        while not stop.count:
            wakeup_ms = self._agenda.next_wakeup()
            assert wakeup_ms is not None, "the agenda is never empty"
            # Without a router we wait until there is one: the socket is writable then.
            interest = zmq.POLLIN if self._router_there else zmq.POLLIN | zmq.POLLOUT
            poller.modify(self._router, interest)
            events = dict(poller.poll(max(0, wakeup_ms - _now_ms())))
            if events.get(self._router, 0) & zmq.POLLOUT:
                self._router_there = True
                self._agenda.hasten(_now_ms())
            self._hear_router()
            self._hear_probes()
            self._work(_now_ms())
        self._router.close(0)
        self._server.close(0)
        self._context.term()

    # --- the agenda -----------------------------------------------------------------------

    def _work(self, now_ms: int) -> None:
        for name in self._agenda.overdue(now_ms):
            self._fail(name, now_ms, "no answer in time")
        for name in self._agenda.take_due(now_ms):
            shard = shard_of_sweep(name)
            question = Question(Verb.ATTACH, ROUTER) if shard is None else _sweep(shard)
            if not self._ask(name, question):
                self._fail(name, now_ms, "the router is not reachable")

    def _ask(self, task: str, question: Question) -> bool:
        """Send what a task asks for; False if there is no router to take it."""
        self._sequence += 1
        request_id = self._incarnation + self._sequence.to_bytes(8, "big")
        header = pack_header(question.verb, request_id, slot=question.slot, deadline_ms=_ATTACH_MS)
        try:
            self._router.send_multipart((header, pack_body(list(question.body))), zmq.NOBLOCK)
        except zmq.Again:
            self._router_there = False
            return False
        self._asked[request_id] = task
        return True

    def _conclude(self, name: str, answer: Answer, now_ms: int) -> None:
        if not answer.ok:
            self._fail(name, now_ms, answer.sentence or f"status {answer.status}")
            return
        next_due_ms = now_ms + _ATTACH_MS if name == _ATTACH else next_sweep(answer.body, now_ms)
        if next_due_ms is None:
            self._fail(name, now_ms, "the reply makes no sense")
            return
        self._agenda.succeeded(name, now_ms, next_due_ms)

    def _fail(self, name: str, now_ms: int, reason: str) -> None:
        self._asked = {asked: task for asked, task in self._asked.items() if task != name}
        if self._agenda.failed(name, now_ms):
            self._log.critical("task_keeps_failing", task=name, reason=reason)

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
            "healthy": self._agenda.healthy,
            "tasks": self._agenda.table(_now_ms()),
        }
        return reply_to(request, Status.OK, pong("coordinator", self._incarnation, info))


def _sweep(shard: int) -> Question:
    return Question(Verb.SWEEP, slot=shard)  # slots below N are the shards' own numbers
