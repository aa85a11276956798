"""Answering: what supervisor and coordinator share on the replying side of a socket.

Takes the frames of a ROUTER apart into requests and builds replies. Shards and router have
their own, faster loops.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyq.errors import Status
from pyq.messages import error_body
from pyq.wire import Header, Verb, WireError, pack_body, pack_header, unpack_body, unpack_header


class Request(NamedTuple):
    """One request, checked as far as header and body go."""

    sender: bytes
    header: Header
    body: tuple[Any, ...]


def requests_of(frames: Sequence[bytes]) -> list[Request]:
    """Return the requests in a message [sender, header, body, (header, body)].

    What is no request of ours is left out: nobody on these sockets needs to be told.
    """
    sender, rest = frames[0], frames[1:]
    if len(rest) not in (2, 4):
        return []
    requests: list[Request] = []
    for at in range(0, len(rest), 2):
        try:
            header, body = unpack_header(rest[at]), unpack_body(rest[at + 1])
        except WireError:
            continue
        if header.status == Status.REQUEST and isinstance(body, tuple):
            requests.append(Request(sender, header, body))
    return requests


def reply_to(request: Request, status: Status, body: Sequence[Any]) -> list[bytes]:
    """Return the frames of a reply: [sender, header, body]."""
    header = request.header
    return [
        request.sender,
        pack_header(header.verb, header.request_id, status=status, slot=header.slot),
        pack_body(list(body)),
    ]


def pong(role: str, incarnation: bytes, info: dict[str, Any]) -> list[Any]:
    """Return the body that answers a PING."""
    return [role, incarnation, time.time_ns() // 1_000_000, info]


def unsupported(request: Request, role: str) -> list[bytes]:
    """Return the frames that refuse a verb which this process does not know."""
    verb = request.header.verb
    name = Verb(verb).name if verb in set(Verb) else str(verb)
    return reply_to(
        request, Status.UNSUPPORTED, error_body(f"verb {name} is not answered by the {role}")
    )
