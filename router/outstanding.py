"""Requests that were forwarded and not yet answered: one bounded table per shard.

Pure. An entry is what it takes to answer in the shard's place: where the reply goes and
the header that was sent. The table is in the order of sending, so that whoever asks for
old entries stops at the first young one.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyq.limits import BUSY_SHARE, OUTSTANDING_BYTES_MAX, OUTSTANDING_MAX
from pyq.wire import Verb, request_id_of, unpack_header

# Answers to what was asked too late are of use to nobody; the grace covers a client's clock.
EXPIRED_GRACE_MS = 5_000
# No honest request waits longer; bounds entries whose deadline lies years ahead.
ENTRY_MS_MAX = 600_000

# They add work.
ADDING_VERBS = frozenset((Verb.PUSH, Verb.PULL))
# They end work, and pass up to the whole bound. Everything else leaves them room.
ENDING_VERBS = frozenset(
    (
        *(Verb.ACK, Verb.FAIL, Verb.RELEASE, Verb.HEARTBEAT, Verb.EXTEND, Verb.PROGRESS, Verb.LOG),
        *(Verb.BLOCK, Verb.OUTBOX, Verb.DELIVER, Verb.OPEN, Verb.FIRED),
        *(Verb.UNPULL, Verb.RETURN, Verb.GOODBYE, Verb.SWEEP, Verb.PING),
    )
)
# Long polls: nobody waits for them when the router stops.
WAITING_VERBS = frozenset(
    (Verb.PULL, Verb.RESULT, Verb.HEARTBEAT, Verb.EVENTS, Verb.OUTBOX, Verb.SCHEDULES)
)
_VERB_AT = 1


class Entry(NamedTuple):
    """One request on its way."""

    address: bytes  # where the reply goes; empty: to the router itself
    header: bytes
    size: int
    sent_ms: int

    @property
    def request_id(self) -> bytes:
        return request_id_of(self.header)

    @property
    def verb(self) -> int:
        return self.header[_VERB_AT]


class Outstanding:
    """The table of one shard, or of the coordinator."""

    def __init__(
        self, count_max: int = OUTSTANDING_MAX, bytes_max: int = OUTSTANDING_BYTES_MAX
    ) -> None:
        self._entries: dict[bytes, Entry] = {}
        self._bytes = 0
        self._bounds = (count_max, bytes_max)
        self._adding_bounds = (int(count_max * BUSY_SHARE), int(bytes_max * BUSY_SHARE))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: bytes) -> bool:
        return request_id in self._entries

    @property
    def bytes_count(self) -> int:
        return self._bytes

    def admits(self, verb: int, size: int) -> bool:
        """Return whether one more request fits; what ends work has room to the last."""
        count_max, bytes_max = self._bounds if verb in ENDING_VERBS else self._adding_bounds
        return len(self._entries) < count_max and self._bytes + size <= bytes_max

    def add(self, address: bytes, header: bytes, size: int, now_ms: int) -> None:
        """Note a request that was sent. A repeat takes the place of the first, and its age anew."""
        request_id = request_id_of(header)
        before = self._entries.pop(request_id, None)
        if before is not None:
            self._bytes -= before.size
        self._entries[request_id] = Entry(address, header, size, now_ms)
        self._bytes += size

    def settle(self, request_id: bytes, address: bytes) -> Entry | None:
        """Remove and return the request that a reply to `address` answers.

        None if there is none, or if the same request was repeated from another address:
        that one is still owed its reply.
        """
        entry = self._entries.get(request_id)
        if entry is None or entry.address != address:
            return None
        del self._entries[request_id]
        self._bytes -= entry.size
        return entry

    def take_older(self, sent_ms: int) -> list[Entry]:
        """Remove and return what was sent at or before `sent_ms`."""
        return self._take(lambda entry: True, sent_ms)

    def take_all(self) -> list[Entry]:
        """Remove and return everything."""
        entries = list(self._entries.values())
        self._entries.clear()
        self._bytes = 0
        return entries

    def take_expired(self, now_ms: int) -> list[Entry]:
        """Remove and return what nobody waits for any more."""
        return self._take(
            lambda entry: (
                unpack_header(entry.header).deadline_ms + EXPIRED_GRACE_MS < now_ms
                or entry.sent_ms + ENTRY_MS_MAX < now_ms
            ),
            now_ms - EXPIRED_GRACE_MS,
        )

    def parked_pulls(self, sent_ms: int) -> list[Entry]:
        """Return the pulls sent at or before `sent_ms`: long polls by now."""
        return [
            entry for entry in self._older(sent_ms) if entry.verb == Verb.PULL and entry.address
        ]

    def owes_replies(self) -> bool:
        """Return whether a client waits for something that is no long poll."""
        return any(
            entry.address and entry.verb not in WAITING_VERBS for entry in self._entries.values()
        )

    def _older(self, sent_ms: int) -> Iterator[Entry]:
        for entry in self._entries.values():
            if entry.sent_ms > sent_ms:
                return
            yield entry

    def _take(self, wanted: Callable[[Entry], bool], sent_ms: int) -> list[Entry]:
        taken = [entry for entry in self._older(sent_ms) if wanted(entry)]
        for entry in taken:
            del self._entries[entry.request_id]
            self._bytes -= entry.size
        return taken
