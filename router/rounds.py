"""What the router does without being asked: pings, no-ops to parked pullers, and forgetting.

Shell. A ROUTER socket never says that a peer left; only sending to it does. So parked
pullers get a no-op twice a second, and a pull nobody waits for is withdrawn.
"""

from pyq.wire import Verb, pack_body, unpack_header
from router.channel import Delivery
from router.link import Link
from router.outstanding import Entry
from router.state import RouterState

TICK_MS = 500


class Rounds:
    """Handles the passing of time."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._tick_at_ms = state.clock.now_ms
        self._ticks_count = 0

    def wait_ms(self) -> int:
        """Return how long the loop may sleep."""
        return max(0, self._tick_at_ms - self._state.clock.now_ms)

    def turn(self) -> None:
        """Do what is due."""
        state = self._state
        if len(state.gathers):
            for gather in state.gathers.take_due(state.clock.now_ms):
                state.finish(gather)
        if state.clock.now_ms >= self._tick_at_ms:
            self._tick_at_ms = state.clock.now_ms + TICK_MS
            self._ticks_count += 1
            self._tick()

    def _tick(self) -> None:
        # Every other shard, so each of them once a second and never all at once.
        for link in self._state.links[self._ticks_count % 2 :: 2]:
            self._state.ping(link)
            expired = link.outstanding.take_expired(self._state.clock.now_ms)
            self._state.counters.expired += len(expired)
        self._watch_coordinator()
        self._touch_parked_pullers()

    def _watch_coordinator(self) -> None:
        state = self._state
        expired = state.coordinator.outstanding.take_expired(state.clock.now_ms)
        state.counters.expired += len(expired)
        orphaned = state.coordinator.detach_if_silent(state.clock.now_ms)
        if orphaned is not None:
            state.log.warning("coordinator_lost")
            state.fail(orphaned)

    def _touch_parked_pullers(self) -> None:
        parked: dict[bytes, list[tuple[Link, Entry]]] = {}
        for link in self._state.links:
            for entry in link.outstanding.parked_pulls(self._state.clock.now_ms - TICK_MS):
                parked.setdefault(entry.address, []).append((link, entry))
        self._state.counters.noops += len(parked)
        for address, pulls in parked.items():
            if self._state.front.send([address, b""]) is Delivery.GONE:
                for link, entry in pulls:
                    self._withdraw(link, entry)

    def _withdraw(self, link: Link, entry: Entry) -> None:
        state = self._state
        link.outstanding.settle(entry.request_id, entry.address)
        state.counters.pulls_withdrawn += 1
        pull = unpack_header(entry.header)
        own = state.own_header(
            link, Verb.UNPULL, state.gathers.next_id(), slot=pull.slot, queue=pull.queue
        )
        link.send([b"", own, pack_body([entry.request_id])])
