"""Asking any process of the cluster something, directly: one DEALER, small requests, a deadline.

The supervisor uses an `Asker` from its poll loop, the command line through `ask` and
`gather`. No repeating, no coalescing: whoever wants a client uses `pyq`.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import zmq

from pyq.errors import ERRORS_BY_STATUS, Busy, PyqError, Status, Unreachable
from pyq.limits import FRAME_BYTES_MAX
from pyq.wire import (
    BY_QUEUE,
    Verb,
    WireError,
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)

_RECONNECT_MS = 20
_RECONNECT_MS_MAX = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply: its status, the epoch of who answered, and the unpacked body."""

    status: int
    epoch: int
    body: Any

    @property
    def ok(self) -> bool:
        """Whether the request was done."""
        return self.status == Status.OK

    @property
    def sentence(self) -> str:
        """What a refusal says."""
        return str(self.body[0]) if not self.ok and self.body else ""

    def value(self) -> Any:
        """Return the body, or raise the error that the status stands for."""
        if self.ok:
            return self.body
        kind = ERRORS_BY_STATUS.get(Status(self.status), PyqError)
        if issubclass(kind, Busy):
            raise Busy(self.sentence, self.body[1] / 1_000)
        raise kind(self.sentence)


@dataclass(frozen=True, slots=True)
class Question:
    """One request to be asked."""

    verb: Verb
    slot: int = BY_QUEUE
    body: Sequence[Any] = ()
    queue: str = ""


class Asker:
    """One DEALER socket to one address."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        self._own_context = context is None
        self._context = context or zmq.Context()
        self._incarnation = os.urandom(8)
        self._sequence = 0
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise Unreachable(f"{address} is not an address one can connect to: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; what is under way is forgotten."""
        self.socket.close(0)
        if self._own_context:
            self._context.term()

    def send(self, question: Question, timeout_ms: int) -> bytes | None:
        """Send a request without waiting; return its id, or None if the buffer is full."""
        self._sequence += 1
        request_id = self._incarnation + self._sequence.to_bytes(8, "big")
        header = pack_header(
            question.verb,
            request_id,
            slot=question.slot,
            deadline_ms=timeout_ms,
            queue=question.queue,
        )
        try:
            self.socket.send_multipart((header, pack_body(list(question.body))), zmq.NOBLOCK)
        except zmq.Again:
            return None
        return request_id

    def receive(self) -> list[tuple[bytes, Answer]]:
        """Return all replies that have arrived, without waiting; what is not ours is left out."""
        answers: list[tuple[bytes, Answer]] = []
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return answers
            for at in range(0, len(frames) - 1, 2):
                try:
                    header, body = unpack_header(frames[at]), unpack_body(frames[at + 1])
                except WireError:
                    continue
                answers.append((header.request_id, Answer(header.status, header.epoch, body)))

    def gather(self, questions: Iterable[Question], timeout_ms: int) -> list[Answer | None]:
        """Ask everything at once; return the answers in order, None where none came in time."""
        deadline = time.monotonic() + timeout_ms / 1_000
        ids = [self.send(question, timeout_ms) for question in questions]
        answers: dict[bytes, Answer] = {}
        missing = {request_id for request_id in ids if request_id is not None}
        while missing:
            remaining_ms = int((deadline - time.monotonic()) * 1_000)
            if remaining_ms <= 0 or not self.socket.poll(remaining_ms):
                break
            for request_id, answer in self.receive():
                answers[request_id] = answer
                missing.discard(request_id)
        return [None if request_id is None else answers.get(request_id) for request_id in ids]

    def ask(self, question: Question, timeout_ms: int) -> Answer:
        """Ask one thing; raise Unreachable if no answer comes in time."""
        (answer,) = self.gather((question,), timeout_ms)
        if answer is None:
            raise Unreachable(f"no answer within {timeout_ms} ms")
        return answer


def ask(address: str, question: Question, timeout_ms: int) -> Answer:
    """Ask one process one thing over a socket of its own."""
    with Asker(address) as asker:
        return asker.ask(question, timeout_ms)
