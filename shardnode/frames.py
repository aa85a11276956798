"""Frames to commands, replies to frames: the shard's end of the wire.

Puts payloads and results where the core left references. Does not touch a socket.
"""

from collections.abc import Iterator
from typing import Any

import msgpack

from pyq.messages import (
    PAYLOAD_AT,
    Ack,
    Command,
    Origin,
    PayloadRef,
    Push,
    Reply,
    ResultRef,
    error_body,
)
from pyq.parsing import parse
from pyq.wire import (
    HEADER_BYTES,
    Flag,
    WireError,
    pack_header,
    request_id_of,
    unpack_body,
    unpack_header,
)
from shardnode.storage.store import Store


def read_message(frames: list[bytes]) -> Iterator[tuple[Command, int] | Reply]:
    """Yield the commands of a message with their number of jobs, or the refusal of a bad one.

    The first frame is the sender's identity; an odd number of frames after it begins with
    a return address, which only the router puts there.
    """
    rest = len(frames) - 1
    through_router = rest % 2 == 1
    first = 2 if through_router else 1
    if not 2 <= len(frames) - first <= 4:
        return  # a no-op, or nothing that has an answer
    sender = tuple(frames[:first])
    for at in range(first, len(frames), 2):
        header_frame, body_frame = frames[at], frames[at + 1]
        origin = Origin(b"", sender=sender, through_router=through_router)
        if len(header_frame) < HEADER_BYTES:
            continue
        origin.request_id = request_id_of(header_frame)
        origin.verb = header_frame[1]
        try:
            header = unpack_header(header_frame)
            origin.flags = header.flags
            if header.flags & Flag.ABSOLUTE:
                origin.deadline_ms = header.deadline_ms
            command = parse(header, origin, unpack_body(body_frame))
        except WireError as error:
            yield Reply(origin, error.status, error_body(str(error)))
            continue
        yield command, _jobs_count(command)


def _jobs_count(command: Command) -> int:
    if isinstance(command, Push):
        return len(command.jobs)
    return len(command.items) if isinstance(command, Ack) else 1


class ReplyEncoder:
    """Turns replies into frames. Reads payloads and results from the store on the way."""

    def __init__(self, store: Store, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._pack = msgpack.Packer(use_bin_type=True, default=self._resolve).pack

    def frames(self, reply: Reply) -> list[bytes]:
        """Return the frames of a reply, address first."""
        if reply.leased:
            self._fill(reply)
        origin = reply.origin
        header = pack_header(origin.verb, origin.request_id, status=reply.status, epoch=self._epoch)
        return [*origin.sender, header, self._pack(reply.body)]

    def _fill(self, reply: Reply) -> None:
        """Put the payloads into the rows of a pull reply.

        A job that ended in the same turn, after this reply to a repeat, may have none any
        more: its lease is over, and it is left out.
        """
        leased: Any = reply.leased
        payloads = self._store.payloads([row[PAYLOAD_AT] for row in leased])
        if len(payloads) < len(leased):
            for group in reply.body[1]:
                group[1] = [row for row in group[1] if row[PAYLOAD_AT] in payloads]
        for row in leased:
            row[PAYLOAD_AT] = payloads.get(row[PAYLOAD_AT])

    def _resolve(self, value: object) -> object:
        if isinstance(value, PayloadRef):
            return self._store.payloads([value.seq]).get(value.seq)
        if isinstance(value, ResultRef):
            return self._store.result(value.seq)
        raise TypeError(f"{type(value).__name__} cannot be sent")
