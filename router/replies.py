"""What shards send: replies for clients, and answers to what the router itself asked.

Shell. The hot path is `take`: settle the entry, pass the frames on as they are. A pull
reply whose client is gone goes back, so that its leases end now and not by stalling.
"""

from pyq.errors import Status
from pyq.messages import TOKEN_BYTES
from pyq.wire import HEADER_BYTES, Header, Verb, WireError, request_id_of, status_of, unpack_header
from router.channel import Delivery
from router.fanout import Answer
from router.link import Link
from router.outstanding import Entry
from router.state import VERB_AT, RouterState


class Replies:
    """Handles the messages of the shards' sockets."""

    def __init__(self, state: RouterState) -> None:
        self._state = state

    def take(self, link: Link, frames: list[bytes]) -> None:
        """Handle one message of a shard: return address, header, body."""
        if len(frames) != 3 or len(frames[1]) < HEADER_BYTES:
            self._state.counters.frames_bad += 1
            return
        address, header, body = frames
        entry = link.outstanding.settle(request_id_of(header), address)
        if not address:
            self._own_answer(link, header, body, entry)
        elif self._state.deliver(frames) is not Delivery.DONE:
            self._return_pull(link, header, body)

    def _own_answer(self, link: Link, header: bytes, body: bytes, entry: Entry | None) -> None:
        if entry is None:
            return  # to an UNPULL or a RETURN, or too late for its gather
        try:
            said = unpack_header(header)
        except WireError:
            self._state.counters.frames_bad += 1
            return
        if said.verb == Verb.PING and said.status == Status.OK:
            self._learn_epoch(link, said, entry)
        self._state.take_part(said.request_id, Answer(said.status, said.epoch, body))

    def _learn_epoch(self, link: Link, said: Header, ping: Entry) -> None:
        """A shard that started anew knows nothing of what was sent before this ping."""
        if link.epoch not in (0, said.epoch):
            self._state.log.info("shard_epoch", shard=link.number, epoch=said.epoch)
            self._state.fail(link.outstanding.take_older(ping.sent_ms))
        link.epoch = said.epoch

    def _return_pull(self, link: Link, header: bytes, body: bytes) -> None:
        if header[VERB_AT] != Verb.PULL or status_of(header) != Status.OK:
            return
        if len(body) < TOKEN_BYTES:
            return  # too short for a lease: it granted nothing
        request_id = request_id_of(header)
        if request_id in link.outstanding:
            return  # repeated from a new address, which gets the same leases: keep them
        self._state.counters.pulls_returned += 1
        own = self._state.own_header(link, Verb.RETURN, request_id)
        link.send([b"", own, body])
