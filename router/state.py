"""Everything one router owns, on one page, and the few ways in which it answers by itself.

requests.py, replies.py and rounds.py work on this; server.py turns the loop. All of it
belongs to the one thread of the process.
"""

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import zmq

from pyq.errors import Status
from pyq.limits import BUSY_RETRY_MS, REQUEST_MS_DEFAULT
from pyq.wire import Flag, Verb, pack_body, pack_header, request_id_of
from router.channel import Channel, Delivery
from router.clock import ArrivalClock
from router.config import Config
from router.coordinator import Attached
from router.fanout import Answer, refusal
from router.front import open_front
from router.gathers import Gather, Gathers
from router.health import Counters
from router.link import Link
from router.outstanding import Entry

EMPTY_BODY = pack_body([])
VERB_AT = 1  # of a header, for paths too hot to take it apart


NO_COORDINATOR = refusal(Status.UNAVAILABLE, "no coordinator is attached for the moment; repeat")
STOPPING = refusal(Status.UNAVAILABLE, "the router is stopping; repeat")
BUSY = refusal(Status.BUSY, "too many requests wait for this shard; repeat later", BUSY_RETRY_MS)
LOST = refusal(Status.RETRY, "the receiver went away before it answered; repeat at once")


@lru_cache(maxsize=64)
def shard_down(shard: int) -> Answer:
    """Return the answer in place of a shard that cannot be reached."""
    return refusal(
        Status.UNAVAILABLE, f"shard {shard} is down for the moment; repeat until it is back"
    )


class RouterState:
    """What a router knows. Raises PortInUse if it cannot listen."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", config: Config, log: Any, now_ms: int
    ) -> None:
        self.config = config
        self.log = log
        self.clock = ArrivalClock(now_ms)
        self.counters = Counters()
        self.incarnation = os.urandom(8)
        self.gathers = Gathers(self.incarnation)
        self.coordinator = Attached()
        self.stopping = False
        self.front: Channel = open_front(context, config)
        self.links = [Link(context, config.runtime, shard) for shard in range(config.shards_count)]

    def deliver(self, frames: list[bytes]) -> Delivery:
        """Send `[address, ...]` to whoever is connected there; count what is lost."""
        delivery = self.front.send(frames)
        if delivery is not Delivery.DONE:
            self.counters.replies_dropped += 1
        return delivery

    def answer(self, address: bytes, header: bytes, answer: Answer) -> None:
        """Answer a request in the place of its receiver."""
        head = pack_header(header[VERB_AT], request_id_of(header), status=answer.status)
        self.deliver([address, head, answer.body])

    def refuse(self, address: bytes, header: bytes, answer: Answer) -> None:
        """Answer a request with an error."""
        self.counters.refused += 1
        if answer.status == Status.BUSY:
            self.counters.busy += 1
        self.answer(address, header, answer)

    def take_part(self, request_id: bytes, answer: Answer) -> None:
        """Give a gather the answer to one of its parts; it replies when that was the last."""
        complete = self.gathers.answer(request_id, answer)
        if complete is not None:
            self.finish(complete)

    def finish(self, gather: Gather) -> None:
        """Send a gather's one reply."""
        self.deliver(gather.reply())

    def fail(self, entries: Iterable[Entry]) -> None:
        """Answer RETRY to what a receiver that went away still owed."""
        for entry in entries:
            if entry.address:
                self.counters.retried += 1
                self.answer(entry.address, entry.header, LOST)
            else:
                self.take_part(entry.request_id, LOST)

    def own_header(
        self, link: Link, verb: Verb, request_id: bytes, slot: int | None = None, queue: str = ""
    ) -> bytes:
        """Return the header of a request of the router itself to a shard."""
        return pack_header(
            verb,
            request_id,
            flags=Flag.ABSOLUTE,
            slot=link.number if slot is None else slot,
            deadline_ms=self.clock.now_ms + REQUEST_MS_DEFAULT,
            queue=queue,
        )

    def ping(self, link: Link) -> None:
        """Ask a shard for its epoch; the shard learns from it that the router is alive."""
        header = self.own_header(link, Verb.PING, self.gathers.next_id())
        link.forward([b"", header, EMPTY_BODY], self.clock.now_ms)
