"""The router's shell: one loop that carries messages between clients and shards.

Owns the loop, the order in which sockets are read, and the stop. A turn reads at most
TURN_MESSAGES from each socket, so that nobody starves, and nothing in it blocks.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import zmq

from pyq.limits import SECOND_MS
from pyq.process import StopSignal
from router.config import Config
from router.front import close_front
from router.link import Link, LinkEvent
from router.replies import Replies
from router.requests import Requests
from router.rounds import Rounds
from router.state import RouterState

TURN_MESSAGES = 256
STOP_MS = SECOND_MS  # what outstanding requests get to be answered in after SIGTERM
# How long the loop sleeps at most while a gather is open or the router stops.
RESTLESS_MS = 50


class Server:
    """One router process. Raises PortInUse if it cannot listen."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        config: Config,
        stop: StopSignal,
        log: Any,
    ) -> None:
        self._state = RouterState(context, config, log, _mono_ms())
        self._requests = Requests(self._state)
        self._replies = Replies(self._state)
        self._rounds = Rounds(self._state)
        self._stop = stop
        self._stop_by_ms = 0
        self._front_behind = False  # this turn left requests unread
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], None]] = {}
        # Polled in this order: replies of a shard before the news of its death, both
        # before new requests.
        for link in self._state.links:
            self._listen(link.channel.socket, partial(self._drain_link, link))
        for link in self._state.links:
            self._listen(link.monitor, partial(self._drain_monitor, link))
        self._listen(self._state.front.socket, self._drain_front)
        self._listen(stop.fd, self._signalled)

    def run(self) -> None:
        """Serve until a signal says stop."""
        state = self._state
        state.log.info("router_ready", bind=state.config.bind, shards=len(state.links))
        try:
            while not self._finished():
                self._turn()
        finally:
            state.log.info("router_stopped", **asdict(state.counters))
            close_front(state.front)
            for link in state.links:
                link.close()

    def _turn(self) -> None:
        ready = self._poller.poll(self._sleep_ms())
        self._state.clock.turn(_mono_ms())
        self._front_behind = False
        for socket, _events in ready:
            self._handlers[socket]()
        if not self._front_behind:
            self._state.clock.reached_end()
        self._rounds.turn()

    def _sleep_ms(self) -> int:
        wait_ms = self._rounds.wait_ms()
        restless = len(self._state.gathers) or self._state.stopping
        return min(wait_ms, RESTLESS_MS) if restless else wait_ms

    def _listen(self, socket: Any, handler: Callable[[], None]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._handlers[socket] = handler

    def _drain_front(self) -> None:
        receive, take = self._state.front.receive, self._requests.take
        for _ in range(TURN_MESSAGES):
            frames = receive()
            if frames is None:
                return
            take(frames)
        self._front_behind = True

    def _drain_link(self, link: Link) -> None:
        receive, take = link.channel.receive, self._replies.take
        for _ in range(TURN_MESSAGES):
            frames = receive()
            if frames is None:
                return
            take(link, frames)

    def _drain_monitor(self, link: Link) -> None:
        while (event := link.next_event()) is not None:
            if event is LinkEvent.UP:
                self._state.log.info("shard_up", shard=link.number)
                self._state.ping(link)
            else:
                self._state.log.warning("shard_down", shard=link.number)
                self._state.fail(link.outstanding.take_all())

    def _signalled(self) -> None:
        self._stop.drain()
        if self._stop.count and not self._state.stopping:
            self._state.stopping = True
            self._stop_by_ms = self._state.clock.now_ms + STOP_MS

    def _finished(self) -> bool:
        if not self._state.stopping:
            return False
        if self._stop.count > 1 or self._state.clock.now_ms >= self._stop_by_ms:
            return True
        owing = any(link.outstanding.owes_replies() for link in self._state.links)
        return not owing and not len(self._state.gathers)


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000
