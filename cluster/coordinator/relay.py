"""Carrying rows between shards: per source shard one loop of OUTBOX and DELIVER.

Pure: says what to ask whom, and when; the time comes with each call. Nothing here has to
survive: shards number the rows, apply each once, and keep them until they are confirmed, so
whoever starts afresh merely carries some of them twice. A target that fails, or is slow, is
left out for a while and holds up no other.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cluster.coordinator.agenda import CRITICAL_FAILURES
from cluster.probes import Answer
from pyq.errors import Status
from pyq.limits import BATCH_JOBS_MAX, SHARDS_MAX
from pyq.wire import Verb

WAIT_MS = 20_000  # of the long poll for rows
LATE_MS = 2_000  # what the reply to a long poll may take beyond that
DELIVER_MS = 2_000  # a target that does not answer for so long has failed
PATIENCE_MS = 50  # ... and after so long the others go on without it
SLOW_WAIT_MS = 100  # of the long poll while a target has not answered yet
RETRY_MS = 200  # after a failure
COUNTED_MS = 1_000  # failures within this time are one: a restart of a shard is none of concern
GAP_MS = 60_000  # rows are missing: trying again mends nothing, but somebody may have


class Errand(NamedTuple):
    """One request that a relay wants to be sent."""

    source: int  # whose relay it is
    verb: Verb
    shard: int  # who is asked
    body: tuple[Any, ...]
    timeout_ms: int


class Trouble(NamedTuple):
    """What somebody has to look at."""

    task: str
    reason: str


@dataclass(slots=True)
class Streak:
    """Failures in a row; several within a second count once."""

    failures: int = 0
    counted_ms: int | None = None

    @property
    def critical(self) -> bool:
        """Whether it failed so often in a row that somebody has to look."""
        return self.failures >= CRITICAL_FAILURES

    def failed(self, now_ms: int) -> bool:
        """Count a failure. Return True if it becomes critical by that."""
        if self.counted_ms is not None and now_ms - self.counted_ms < COUNTED_MS:
            return False
        self.counted_ms = now_ms
        self.failures += 1
        return self.failures == CRITICAL_FAILURES

    def succeeded(self) -> None:
        """It works (again)."""
        self.failures, self.counted_ms = 0, None


@dataclass(slots=True)
class Lane:
    """The way from a source to one target."""

    under_way: Errand | None = None
    deadline_ms: int = 0
    retry_ms: int | None = None  # left out until then
    accepted: int = 0  # number of the last row that the source knows to be applied
    broken: bool = False  # rows are missing
    streak: Streak = field(default_factory=Streak)


class Relay:
    """The loop of one source shard."""

    def __init__(self, source: int, now_ms: int) -> None:
        self.name = f"relay shard-{source}"
        self.source = source
        self._due_ms: int | None = now_ms  # of the next OUTBOX; None: under way
        self._poll: Errand | None = None
        self._polled_ms = 0
        self._deadline_ms = 0
        self._confirmed: dict[int, int] = {}  # to be told to the source
        self._lanes: dict[int, Lane] = {}
        self._ready: list[Errand] = []  # deliveries to be sent now
        self._streak = Streak()
        self._ok_ms: int | None = None
        self._troubles: list[Trouble] = []

    # --- what is to be done --------------------------------------------------------------------

    def take_due(self, now_ms: int) -> list[Errand]:
        """Return what is to be sent now. Each is under way until it is concluded, or too late."""
        if self._poll is not None and now_ms >= self._deadline_ms:
            self._poll_failed("no answer in time", now_ms)
        for target, lane in self._lanes.items():
            if lane.under_way is not None and now_ms >= lane.deadline_ms:
                self._lane_failed(target, lane, "no answer in time", now_ms)
        ready, self._ready = self._ready, []
        if self._due_ms is not None and now_ms >= self._due_ms:
            ready.append(self._next_poll(now_ms))
        return ready

    def next_wakeup(self) -> int:
        """Return when `take_due` has something to do, if nothing is concluded before."""
        times = [lane.deadline_ms for lane in self._lanes.values() if lane.under_way is not None]
        times.append(self._deadline_ms if self._due_ms is None else self._due_ms)
        return 0 if self._ready else min(times)

    def conclude(self, errand: Errand, answer: Answer, now_ms: int) -> None:
        """Take an answer in. One that comes too late is of no use to anybody."""
        if errand is self._poll:
            self._polled(errand, answer, now_ms)
            return
        lane = self._lanes.get(errand.shard)
        if lane is not None and errand is lane.under_way:
            self._delivered(errand, lane, answer, now_ms)

    def lost(self, now_ms: int) -> None:
        """The connection broke: what is under way has no answer, and nobody is to blame."""
        self._poll, self._due_ms = None, now_ms
        self._ready.clear()
        for lane in self._lanes.values():
            lane.under_way = None

    # --- what is known of it -------------------------------------------------------------------

    def under_way(self) -> list[Errand]:
        """Return what has not been answered yet, nor given up."""
        asked = [self._poll, *(lane.under_way for lane in self._lanes.values())]
        return [errand for errand in asked if errand is not None]

    @property
    def healthy(self) -> bool:
        """Whether nobody has to look."""
        lanes = self._lanes.values()
        return not self._streak.critical and not any(
            lane.streak.critical or lane.broken for lane in lanes
        )

    def row(self, now_ms: int) -> list[Any]:
        """Return [name, failures in a row, ms since the last success or -1]."""
        failures = [self._streak.failures, *(lane.streak.failures for lane in self._lanes.values())]
        return [self.name, max(failures), -1 if self._ok_ms is None else now_ms - self._ok_ms]

    def take_troubles(self) -> list[Trouble]:
        """Return what is to be logged as critical, once."""
        troubles, self._troubles = self._troubles, []
        return troubles

    # --- OUTBOX --------------------------------------------------------------------------------

    def _next_poll(self, now_ms: int) -> Errand:
        skipped: list[int] = []
        wait_ms = WAIT_MS
        for target, lane in self._lanes.items():
            if lane.under_way is not None:
                skipped.append(target)
                wait_ms = min(wait_ms, SLOW_WAIT_MS)
            elif lane.retry_ms is not None and lane.retry_ms > now_ms:
                skipped.append(target)
                wait_ms = min(wait_ms, lane.retry_ms - now_ms)
            else:
                lane.retry_ms = None
        body = (list(self._confirmed.items()), skipped, BATCH_JOBS_MAX, wait_ms)
        timeout_ms = wait_ms + LATE_MS
        self._poll = Errand(self.source, Verb.OUTBOX, self.source, body, timeout_ms)
        self._due_ms, self._polled_ms, self._deadline_ms = None, now_ms, now_ms + timeout_ms
        return self._poll

    def _polled(self, errand: Errand, answer: Answer, now_ms: int) -> None:
        if answer.status == Status.RETRY:  # the shard was restarted, or is about to be
            self._poll, self._due_ms = None, now_ms + 1
            return
        parts = _parts_of(answer, self.source)
        if parts is None:
            reason = answer.sentence or "the reply of OUTBOX makes no sense"
            self._poll_failed(reason, now_ms)
            return
        self._streak.succeeded()
        self._ok_ms = now_ms
        self._poll = None
        for target, number in errand.body[0]:
            self._lanes[target].accepted = number
            if self._confirmed.get(target) == number:
                del self._confirmed[target]
        for part in parts:
            self._start(part, now_ms)
        if self._ready:
            self._due_ms = now_ms + PATIENCE_MS
        else:  # nothing to carry; a shard that cannot let us wait must not make us spin
            self._due_ms = max(now_ms, self._polled_ms + min(SLOW_WAIT_MS, errand.body[3]))

    def _poll_failed(self, reason: str, now_ms: int) -> None:
        self._poll, self._due_ms = None, now_ms + RETRY_MS
        if self._streak.failed(now_ms):
            self._troubles.append(Trouble(self.name, reason))

    # --- DELIVER -------------------------------------------------------------------------------

    def _start(self, part: tuple[int, int, tuple[Any, ...]], now_ms: int) -> None:
        target, first, rows = part
        lane = self._lanes.setdefault(target, Lane())
        if first <= lane.accepted:
            sentence = (
                f"shard {target} has row {lane.accepted} of shard {self.source}, which has"
                f" numbered a row {first} anew: shard {self.source} has lost data"
            )
            self._break(target, lane, sentence, now_ms)
            return
        body = (self.source, first, rows)
        lane.under_way = Errand(self.source, Verb.DELIVER, target, body, DELIVER_MS)
        lane.deadline_ms = now_ms + DELIVER_MS
        self._ready.append(lane.under_way)

    def _delivered(self, errand: Errand, lane: Lane, answer: Answer, now_ms: int) -> None:
        target, first = errand.shard, errand.body[1]
        cursor = _cursor_of(answer)
        if cursor is None or cursor == first - 1:
            reason = answer.sentence or "the reply of DELIVER makes no sense"
            self._lane_failed(target, lane, reason, now_ms)
            return
        lane.under_way = None
        if cursor < first - 1:
            sentence = (
                f"shard {target} has rows of shard {self.source} up to {cursor}, and the next"
                f" that is left is {first}: shard {target} has lost data"
            )
            self._break(target, lane, sentence, now_ms)
        else:
            lane.streak.succeeded()
            lane.broken = False
            self._confirmed[target] = cursor
        self._go_on(now_ms)

    def _lane_failed(self, target: int, lane: Lane, reason: str, now_ms: int) -> None:
        lane.under_way = None
        lane.retry_ms = now_ms + RETRY_MS
        if lane.streak.failed(now_ms):
            self._troubles.append(Trouble(f"{self.name} to shard-{target}", reason))
        self._go_on(now_ms)

    def _break(self, target: int, lane: Lane, sentence: str, now_ms: int) -> None:
        """Rows are missing on the way to a target: no repeating helps."""
        if not lane.broken:
            self._troubles.append(Trouble(f"{self.name} to shard-{target}", sentence))
        lane.broken = True
        lane.retry_ms = now_ms + GAP_MS

    def _go_on(self, now_ms: int) -> None:
        """Ask for the next rows at once if all targets have answered."""
        if self._poll is None and not any(lane.under_way for lane in self._lanes.values()):
            self._due_ms = now_ms


class Relays:
    """The relays of all shards. Of a single one there is nothing to carry."""

    def __init__(self, shards_count: int, now_ms: int) -> None:
        sources = range(shards_count) if shards_count > 1 else ()
        self._relays = [Relay(source, now_ms) for source in sources]

    def take_due(self, now_ms: int) -> list[Errand]:
        """Return what is to be sent now."""
        return [errand for relay in self._relays for errand in relay.take_due(now_ms)]

    def conclude(self, errand: Errand, answer: Answer, now_ms: int) -> None:
        """Take an answer in."""
        self._relays[errand.source].conclude(errand, answer, now_ms)

    def lost(self, now_ms: int) -> None:
        """The connection broke: everything under way is asked again."""
        for relay in self._relays:
            relay.lost(now_ms)

    def under_way(self) -> set[int]:
        """Return what has not been answered yet, by identity."""
        return {id(errand) for relay in self._relays for errand in relay.under_way()}

    def next_wakeup(self) -> int | None:
        """Return when `take_due` has something to do; None without relays."""
        return min((relay.next_wakeup() for relay in self._relays), default=None)

    def take_troubles(self) -> list[Trouble]:
        """Return what is to be logged as critical, once."""
        return [trouble for relay in self._relays for trouble in relay.take_troubles()]

    @property
    def healthy(self) -> bool:
        """Whether nobody has to look."""
        return all(relay.healthy for relay in self._relays)

    def table(self, now_ms: int) -> list[list[Any]]:
        """Return [name, failures in a row, ms since the last success or -1] of every relay."""
        return [relay.row(now_ms) for relay in self._relays]


def _parts_of(answer: Answer, source: int) -> list[tuple[int, int, tuple[Any, ...]]] | None:
    """Return what an OUTBOX was answered, [target, first, rows] each; None if it was not."""
    body = answer.body
    if not answer.ok or not isinstance(body, tuple) or not body or not isinstance(body[0], tuple):
        return None
    parts: list[tuple[int, int, tuple[Any, ...]]] = []
    for part in body[0]:
        if not isinstance(part, tuple) or len(part) != 3:
            return None
        target, first, rows = part
        if type(target) is not int or not 0 <= target < SHARDS_MAX or target == source:
            return None
        if type(first) is not int or first < 1 or not isinstance(rows, tuple) or not rows:
            return None
        parts.append((target, first, rows))
    return parts


def _cursor_of(answer: Answer) -> int | None:
    """Return the number of the last row that a target has applied; None if it did not say."""
    body = answer.body
    if not answer.ok or not isinstance(body, tuple) or len(body) != 1 or type(body[0]) is not int:
        return None
    return body[0]
