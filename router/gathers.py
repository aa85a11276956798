"""Requests that went to several shards and wait for all their answers.

Pure. Owns the router's own request ids, under which parts travel. A gather ends when the
last answer is there, or a little before its caller's deadline with what has come by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyq.errors import Status
from pyq.wire import pack_header, unpack_header
from router.fanout import NO_ANSWER, Answer, Part, merge_batch, merge_scatter
from router.outstanding import ENTRY_MS_MAX

# A partial answer must reach the caller before it gives up: a fifth of its time, at most this.
_EARLY_MS_MAX = 500
SCATTER = -1  # in place of a batch's number of items


@dataclass(slots=True)
class Gather:
    """One request in several parts."""

    address: bytes
    header: bytes  # as it will be forwarded: with an absolute deadline
    count: int  # items of a batch, or SCATTER
    parts: Sequence[Part]
    ids: Sequence[bytes]  # the request id of each part
    answers: list[Answer | None]
    missing: int
    due_ms: int

    def reply(self) -> list[bytes]:
        """Return the frames of the one reply, address first."""
        answers = [NO_ANSWER if answer is None else answer for answer in self.answers]
        flags = 0
        if self.count == SCATTER:
            flags, body = merge_scatter(self.parts, answers)
        else:
            body = merge_batch(self.count, self.parts, answers)
        asked = unpack_header(self.header)
        head = pack_header(asked.verb, asked.request_id, flags=flags, status=Status.OK)
        return [self.address, head, body]


class Gathers:
    """All gathers of a router."""

    def __init__(self, incarnation: bytes) -> None:
        self._incarnation = incarnation
        self._sequence = 0
        self._open: dict[bytes, tuple[Gather, int]] = {}  # by the request id of a part

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> bytes:
        """Return a new request id of the router itself."""
        self._sequence += 1
        return self._incarnation + self._sequence.to_bytes(8, "big")

    def open(
        self, address: bytes, header: bytes, count: int, parts: Sequence[Part], now_ms: int
    ) -> Gather:
        """Begin to wait for an answer to each of `parts`, at least one."""
        budget_ms = max(0, unpack_header(header).deadline_ms - now_ms)
        due_ms = now_ms + min(budget_ms - min(_EARLY_MS_MAX, budget_ms // 5), ENTRY_MS_MAX)
        ids = [self.next_id() for _ in parts]
        gather = Gather(address, header, count, parts, ids, [None] * len(parts), len(parts), due_ms)
        for index, request_id in enumerate(ids):
            self._open[request_id] = (gather, index)
        return gather

    def answer(self, request_id: bytes, answer: Answer) -> Gather | None:
        """Take the answer to one part; return the gather when that was the last."""
        found = self._open.pop(request_id, None)
        if found is None:
            return None
        gather, index = found
        gather.answers[index] = answer
        gather.missing -= 1
        return None if gather.missing else gather

    def take_due(self, now_ms: int) -> list[Gather]:
        """Remove and return the gathers that must answer with what they have."""
        due = {id(gather): gather for gather, _ in self._open.values() if gather.due_ms <= now_ms}
        for gather in due.values():
            for request_id in gather.ids:
                self._open.pop(request_id, None)
        return list(due.values())
