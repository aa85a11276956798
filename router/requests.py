"""What clients and the coordinator send: each message is forwarded, answered or refused.

Shell. The hot path is `_forward`: route from the cached hash, stamp the deadline, send,
note. Bodies are touched only to split a batch that spans shards.
"""

import os
import time
from collections.abc import Sequence

from pyq.errors import Status
from pyq.messages import batch_answer
from pyq.wire import (
    HEADER_BYTES,
    WireError,
    pack_body,
    request_id_of,
    status_of,
    with_absolute_deadline,
)
from router.channel import Delivery
from router.fanout import Answer, Part, part_header, refusal, scatter, split
from router.gathers import SCATTER
from router.health import pong
from router.link import Link
from router.outstanding import ADDING_VERBS, Outstanding
from router.routing import Route, Target, route_of
from router.state import (
    BUSY,
    EMPTY_BODY,
    NO_COORDINATOR,
    STOPPING,
    VERB_AT,
    RouterState,
    shard_down,
)


class Requests:
    """Handles the messages of the front socket."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._handlers = {
            Target.SPLIT: self._split,
            Target.SCATTER: self._scatter,
            Target.COORDINATOR: self._to_coordinator,
            Target.PONG: self._pong,
            Target.ATTACH: self._attach,
            Target.REFUSAL: self._refuse,
        }

    def take(self, frames: list[bytes]) -> None:
        """Handle one message, address first."""
        count = len(frames)
        if count == 3:
            self._request(frames[0], frames[1], frames[2])
        elif count == 5:
            self._two_requests(frames)
        elif count == 4:
            self._from_coordinator(frames)
        elif count != 2:  # two: address and no-op
            self._state.counters.frames_bad += 1

    def _request(self, address: bytes, header: bytes, body: bytes) -> None:
        if not self._is_request(header):
            self._state.counters.frames_bad += 1  # an answer to a reply would make a circle
            return
        route = route_of(header, len(self._state.links))
        if route.target is Target.SHARD:
            self._forward(self._state.links[route.shard], address, header, body)
        else:
            self._handlers[route.target](address, header, body, route)

    def _forward(self, link: Link, address: bytes, header: bytes, body: bytes) -> None:
        state = self._state
        answer = self._refusal(link.outstanding, header, len(header) + len(body))
        if answer is None:
            stamped = with_absolute_deadline(header, state.clock.arrived_ms)
            if link.forward([address, stamped, body], state.clock.now_ms):
                return
            answer = shard_down(link.number)
        state.refuse(address, header, answer)

    def _two_requests(self, frames: list[bytes]) -> None:
        """Forward an ACK and the next PULL as one message if one shard takes both."""
        address, first, first_body, second, second_body = frames
        link = self._common_link(first, second, sum(map(len, frames)))
        if link is not None:
            clock = self._state.clock
            frames[1] = with_absolute_deadline(first, clock.arrived_ms)
            frames[3] = with_absolute_deadline(second, clock.arrived_ms)
            if link.forward(frames, clock.now_ms):
                return
        # Apart each gets its own answer: the pull may meet a bound that the ack passes.
        self._request(address, first, first_body)
        self._request(address, second, second_body)

    def _common_link(self, first: bytes, second: bytes, size: int) -> Link | None:
        if not (self._is_request(first) and self._is_request(second)):
            return None
        links = self._state.links
        route = route_of(first, len(links))
        if route.target is not Target.SHARD or route != route_of(second, len(links)):
            return None
        table = links[route.shard].outstanding
        if self._refusal(table, first, size) or self._refusal(table, second, size):
            return None
        return links[route.shard]

    def _is_request(self, header: bytes) -> bool:
        return len(header) >= HEADER_BYTES and not status_of(header)

    def _refusal(self, table: Outstanding, header: bytes, size: int) -> Answer | None:
        """Return why a request cannot be taken now, or None."""
        verb = header[VERB_AT]
        if self._state.stopping and verb in ADDING_VERBS:
            return STOPPING
        return None if table.admits(verb, size) else BUSY

    # --- everything that does not go to one shard as it is ----------------------------------

    def _split(self, address: bytes, header: bytes, body: bytes, route: Route) -> None:
        try:
            count, parts = split(body, len(self._state.links))
        except WireError as error:
            self._state.refuse(address, header, refusal(error.status, str(error)))
            return
        if not parts:
            nothing = Answer(Status.OK, 0, pack_body(batch_answer(0, [])))
            self._state.answer(address, header, nothing)
            return
        self._spread(address, header, count, parts)

    def _scatter(self, address: bytes, header: bytes, body: bytes, route: Route) -> None:
        self._spread(address, header, SCATTER, scatter(body, len(self._state.links)))

    def _spread(self, address: bytes, header: bytes, count: int, parts: Sequence[Part]) -> None:
        """Send each part to its shard; the gather replies when all have answered."""
        state = self._state
        stamped = with_absolute_deadline(header, state.clock.arrived_ms)
        gather = state.gathers.open(address, stamped, count, parts, state.clock.now_ms)
        for part, request_id in zip(parts, gather.ids, strict=True):
            link = state.links[part.shard]
            own = part_header(stamped, part, request_id)
            answer = self._refusal(link.outstanding, own, len(own) + len(part.body))
            if answer is None and not link.forward([b"", own, part.body], state.clock.now_ms):
                answer = shard_down(link.number)
            if answer is not None:
                state.take_part(request_id, answer)

    def _to_coordinator(self, address: bytes, header: bytes, body: bytes, route: Route) -> None:
        state, coordinator = self._state, self._state.coordinator
        if not coordinator.address:
            state.refuse(address, header, NO_COORDINATOR)
            return
        size = len(header) + len(body)
        answer = self._refusal(coordinator.outstanding, header, size)
        if answer is None:
            stamped = with_absolute_deadline(header, state.clock.arrived_ms)
            delivery = state.front.send([coordinator.address, address, stamped, body])
            if delivery is Delivery.DONE:
                coordinator.outstanding.add(address, stamped, size, state.clock.now_ms)
                return
            answer = NO_COORDINATOR if delivery is Delivery.GONE else BUSY
        state.refuse(address, header, answer)

    def _from_coordinator(self, frames: list[bytes]) -> None:
        """Pass on what the coordinator answers to a client, and only to one that asked it."""
        state = self._state
        sender, client, header, _body = frames
        if sender == state.coordinator.address and len(header) >= HEADER_BYTES:
            request_id = request_id_of(header)
            if status_of(header) and state.coordinator.outstanding.settle(request_id, client):
                state.deliver(frames[1:])
                return
        state.counters.frames_bad += 1

    def _pong(self, address: bytes, header: bytes, body: bytes, route: Route) -> None:
        state = self._state
        said = pong(
            state.incarnation,
            time.time_ns() // 1_000_000,
            os.getpid(),
            state.links,
            bool(state.coordinator.address),
            state.counters,
        )
        state.answer(address, header, Answer(Status.OK, 0, pack_body(said)))

    def _attach(self, address: bytes, header: bytes, body: bytes, route: Route) -> None:
        state = self._state
        orphaned = state.coordinator.attach(address, state.clock.now_ms)
        if orphaned is not None:
            state.log.info("coordinator_attached")
            state.fail(orphaned)
        state.answer(address, header, Answer(Status.OK, 0, EMPTY_BODY))

    def _refuse(self, address: bytes, header: bytes, body: bytes, route: Route) -> None:
        self._state.refuse(address, header, refusal(route.status, route.sentence))
