"""Whether a cluster is ready as its users see it: everyone answers through the router.

Each process answers its own probe a moment before the router has found it; `up` says `ready`
only after this check, so that the very next command works.
"""

import zmq

from cluster.probes import Asker, Question
from pyq.wire import COORDINATOR, Verb

_AGAIN_MS = 50
_TIMEOUT_MS = 1_000


class Readiness:
    """Pings coordinator and shards through the router until each has answered once."""

    def __init__(
        self, router: str, context: zmq.Context[zmq.Socket[bytes]], shards: list[int], now_ms: int
    ) -> None:
        self._asker = Asker(router, context)
        self._due = dict.fromkeys([COORDINATOR, *shards], now_ms)  # who has not answered yet
        self._asked: dict[bytes, int] = {}

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """What becomes readable when there is something to hear."""
        return self._asker.socket

    def turn(self, now_ms: int) -> bool:
        """Take in answers and ask on; return True when all have answered."""
        for request_id, answer in self._asker.receive():
            slot = self._asked.pop(request_id, None)
            if slot in self._due and answer.ok:
                del self._due[slot]
            elif slot in self._due:
                self._due[slot] = now_ms + _AGAIN_MS
        for slot, due_ms in self._due.items():
            if due_ms > now_ms:
                continue
            asked = self._asker.send(Question(Verb.PING, slot=slot), _TIMEOUT_MS)
            self._due[slot] = now_ms + (_AGAIN_MS if asked is None else _TIMEOUT_MS)
            if asked is not None:
                self._asked[asked] = slot
        return not self._due

    def next_wakeup(self) -> int:
        """Return when somebody has to be asked again."""
        return min(self._due.values())

    def close(self) -> None:
        """Close the socket."""
        self._asker.close()
