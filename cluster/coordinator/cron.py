"""What fires by the clock: which schedules there are, which tick is next, what to ask for it.

Pure: answers and times come in, questions and the next wake-up go out. The records are the
shards'; what is here is read from them after each start. A tick's job has ids made of the
tick, so whoever pushes it again finds it, and its schedule's record moves forward only:
everything here is harmless when done twice, and nothing has to be remembered.

The road of a tick: has the last job ended (overlap), push the job, record the tick. The next
one sets out when that is done, so at most one job is pushed and not recorded.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from cluster.coordinator.agenda import CRITICAL_FAILURES, Agenda
from pyq.cron import check_cron, last_ticks, next_ticks
from pyq.errors import BadOption, Status
from pyq.ids import slot_of_id
from pyq.job import JobState
from pyq.limits import SCHEDULES_PAGE_MAX, TICKS_MAX
from pyq.schedule import Schedule, id_of_tick, job_id_of_tick, schedule_from_wire
from pyq.wire import BY_QUEUE, Flag, Verb

MISFIRE_MS = 60_000  # a tick that is later than this counts as missed
CLOCK_STEP_MS = 2_000  # somebody set the clock if it moves by more than this
POLL_MS = 30_000  # how long a shard has news wait for
POLL_TIMEOUT_MS = 35_000
ASK_MS = 2_000
RETRY_MS = 1_000
ASKED_MAX = 128  # questions under way
PLANS_MAX = 32  # schedules looked at per turn: one that slept for long costs some milliseconds
NAMES_MAX = 10  # of schedules in a report
_POLL = "cron shard-"
_ALIVE = {state.word for state in JobState if state < JobState.COMPLETED}


class Now(NamedTuple):
    """The time by both clocks."""

    wall_ms: int  # since 1970
    mono_ms: int


class Ask(NamedTuple):
    """A question for the cluster; its answer is to come back with the key."""

    key: tuple[str, int]  # schedule, number of the question
    verb: Verb
    body: Sequence[Any]
    queue: str = ""
    slot: int = BY_QUEUE
    flags: int = Flag.NONE
    timeout_ms: int = ASK_MS


class Note(NamedTuple):
    """What the log shall say."""

    level: str
    event: str
    facts: Mapping[str, Any]


class _Do(Enum):
    LOOK = auto()  # was this tick's job pushed, and its record lost?
    FIRE = auto()  # the two that follow, as far as they are needed
    CHECK = auto()  # has the last job ended?
    PUSH = auto()
    RECORD = auto()


class _Step(NamedTuple):
    do: _Do
    tick: int
    job_id: bytes = b""  # of a job that is pushed or recorded
    skipped: int = 0


class _Item:
    """One schedule, and where it stands."""

    __slots__ = (
        "asked",
        "base",
        "deadline_ms",
        "failures",
        "missed_until",
        "record",
        "shard",
        "shift",
        "steps",
        "tick",
    )

    def __init__(self, record: Schedule, shard: int, missed_until: int) -> None:
        self.record = record
        self.shard = shard
        self.missed_until = missed_until  # wall: ticks up to here came while nobody was there
        self.base = 0  # the tick is the first one after this
        self.tick: int | None = None  # the next one; None: there is none
        self.shift = 0  # ms by which an interval's ticks come early: the clock was set back
        self.steps: deque[_Step] = deque()  # on the way to the end of this tick
        self.asked = 0  # number of the question under way
        self.deadline_ms = 0  # ... and when it has failed, monotonic
        self.failures = 0  # in a row

    @property
    def due(self) -> int | None:
        """The wall millisecond of the next tick."""
        return None if self.tick is None else self.tick - self.shift

    @property
    def fires(self) -> bool:
        record = self.record
        return not (record.paused or record.removed_at or record.is_used_up)


class _Source:
    """What is known of the schedules of one shard."""

    __slots__ = ("after", "complete", "epoch", "loaded", "seen")

    def __init__(self) -> None:
        self.epoch = 0
        self.after = 0
        self.complete = False  # since the last reload
        self.loaded = False  # ever, since our start
        self.seen: set[str] = set()  # in the reload that is under way


def add_polls(agenda: Agenda, shards_count: int, now_ms: int) -> None:
    """Put one task per shard on the agenda: hear of its schedules, then of what changes."""
    for shard in range(shards_count):
        agenda.add(poll_name(shard), now_ms, timeout_ms=POLL_TIMEOUT_MS, retry_ms=RETRY_MS)


def poll_name(shard: int) -> str:
    """Return the name of a shard's task."""
    return f"{_POLL}{shard}"


def shard_of_poll(name: str) -> int | None:
    """Return the shard whose schedules a task asks for, or None if it is another task."""
    return int(name.removeprefix(_POLL)) if name.startswith(_POLL) else None


class Crons:
    """All schedules of the cluster."""

    def __init__(self, shards_count: int, now: Now) -> None:
        self._sources = [_Source() for _ in range(shards_count)]
        self._items: dict[str, _Item] = {}
        self._due: list[tuple[int, str]] = []  # heap; entries may be void
        self._retries: list[tuple[int, str]] = []  # heap, monotonic
        self._ready: deque[str] = deque()  # have a step to take
        self._asking: dict[str, int] = {}  # deadlines of questions under way
        self._asked_count = 0
        self._failing: dict[str, str] = {}  # schedule -> reason
        self._unreadable: dict[str, str] = {}
        self._ahead: set[str] = set()  # may have fired last at a time that is still to come
        self._ok_ms: int | None = None
        self._offset = now.wall_ms - now.mono_ms
        self.notes: list[Note] = []  # for the log; whoever writes it empties this

    # --- hearing of schedules -----------------------------------------------------------------

    def poll(self, shard: int) -> tuple[int, int, int, int]:
        """Return the body of the question for a shard's schedules, or for what is new."""
        source = self._sources[shard]
        wait_ms = POLL_MS if source.complete else 0
        return source.epoch, source.after, SCHEDULES_PAGE_MAX, wait_ms

    def heard_of(self, shard: int, body: Any, now: Now) -> bool:
        """Take in the answer to a poll; False if it makes no sense."""
        self._mind_the_clock(now)
        try:
            epoch, after, more, views = body
            named = [(str(view["name"]), view) for view in views]
        except (TypeError, ValueError, KeyError):
            return False
        source = self._sources[shard]
        if epoch != source.epoch:  # the shard was started since, and tells everything again
            source.epoch, source.complete, source.seen = epoch, False, set()
        source.after = after
        for name, view in named:
            source.seen.add(name)
            self._take_view(name, view, shard, now)
        if not more and not source.complete:
            gone = [name for name, item in self._items.items() if item.shard == shard]
            for name in gone:
                if name not in source.seen:
                    self._drop(name)
            source.complete = source.loaded = True
            source.seen = set()
        return True

    def _take_view(self, name: str, view: Mapping[str, Any], shard: int, now: Now) -> None:
        try:
            record = schedule_from_wire(view)
            if not record.removed_at:
                check_cron(view["cron"])
        except (BadOption, TypeError, KeyError) as error:  # a zone that is not known any more
            if name not in self._unreadable:
                facts = {"schedule": name, "reason": str(error)}
                self.notes.append(Note("critical", "schedule_unreadable", facts))
            self._drop(name)
            self._unreadable[name] = str(error)
            return
        self._unreadable.pop(name, None)
        item = self._items.get(name)
        if item is None:
            if record.removed_at:
                return
            missed_until = 0 if self._sources[shard].loaded else now.wall_ms
            item = self._items[name] = _Item(record, shard, missed_until)
        elif item.record == record:
            return
        else:
            item.record = record
            self._cut_short(item)
        if not item.steps:
            self._look_ahead(item, now, afresh=True)

    def _cut_short(self, item: _Item) -> None:
        """What was planned for a schedule as it was is void, but for what has begun."""
        step = item.steps[0] if item.steps else None
        begun = step is not None and (item.asked or (step.do is _Do.RECORD and step.job_id))
        item.steps = deque([step]) if step is not None and begun else deque()
        if not begun:
            item.failures = 0
            self._failing.pop(item.record.name, None)

    def _drop(self, name: str) -> None:
        self._items.pop(name, None)
        self._asking.pop(name, None)
        self._failing.pop(name, None)
        self._unreadable.pop(name, None)
        self._ahead.discard(name)

    # --- what is due --------------------------------------------------------------------------

    def take_due(self, now: Now) -> list[Ask]:
        """Return what to ask now."""
        self._mind_the_clock(now)
        for name, deadline_ms in list(self._asking.items()):
            if deadline_ms <= now.mono_ms:
                self._fail(self._items[name], "no answer in time", now)
        while self._retries and self._retries[0][0] <= now.mono_ms:
            self._ready.append(heappop(self._retries)[1])
        planned = 0
        while (item := self._next_due(now)) is not None and planned < PLANS_MAX:
            heappop(self._due)
            self._plan(item, now)
            planned += 1
        asks: list[Ask] = []
        while self._ready and len(self._asking) < ASKED_MAX:
            ready = self._items.get(self._ready.popleft())
            if ready is not None and ready.steps and not ready.asked:
                ask = self._ask(ready, now)
                if ask is not None:
                    asks.append(ask)
        return asks

    def next_wakeup(self, now: Now) -> int | None:
        """Return the monotonic millisecond at which something is to be done, or None."""
        if self._ready and len(self._asking) < ASKED_MAX:
            return now.mono_ms
        times = [*self._asking.values()]
        if self._retries:
            times.append(self._retries[0][0])
        self._skip_void()
        if self._due:
            times.append(now.mono_ms + max(0, self._due[0][0] - now.wall_ms))
        return min(times, default=None)

    def hasten(self, now: Now) -> None:
        """Try again now what has failed: its cause may be gone."""
        self._retries = [(min(at, now.mono_ms), name) for at, name in self._retries]
        heapify(self._retries)

    def _next_due(self, now: Now) -> _Item | None:
        self._skip_void()
        if self._due and self._due[0][0] <= now.wall_ms:
            return self._items[self._due[0][1]]
        return None

    def _skip_void(self) -> None:
        while self._due:
            due, name = self._due[0]
            item = self._items.get(name)
            if item is not None and item.due == due and not item.steps:
                return
            heappop(self._due)

    def _look_ahead(self, item: _Item, now: Now, afresh: bool) -> None:
        """Find the next tick of a schedule that has nothing under way.

        `afresh`: its record is new to us, so where its interval stands is to be found out.
        """
        record, cron = item.record, item.record.cron
        if record.removed_at:
            self._drop(record.name)
            return
        # `since` may lie ahead if the clock was set back: who never fired need not wait for it.
        item.base = max(record.last_tick, min(record.since, now.wall_ms))
        ticks = next_ticks(cron, item.base, 1, record.anchor_at) if item.fires else []
        item.tick = ticks[0] if ticks else None
        if afresh:
            item.shift = 0
            began = not cron.start_at or record.last_tick >= cron.start_at
            if cron.every_ms and began and item.tick is not None:
                item.shift = max(0, item.tick - now.wall_ms - cron.every_ms)
        if not cron.every_ms and record.last_tick > now.wall_ms + CLOCK_STEP_MS:
            self._ahead.add(record.name)
        if item.due is not None:
            heappush(self._due, (item.due, record.name))

    def _plan(self, item: _Item, now: Now) -> None:
        """A tick is due, or was: decide what becomes of it, and of those that were missed."""
        record = item.record
        assert item.tick is not None, "what is due has a tick"
        missed_until = max(item.missed_until, now.wall_ms + item.shift - MISFIRE_MS)
        if item.tick > missed_until:
            item.steps.append(_Step(_Do.FIRE, item.tick))
        else:
            missed = last_ticks(
                record.cron, item.base, missed_until, TICKS_MAX + 1, record.anchor_at
            )
            kept_max = {"skip": 0, "once": 1, "all": TICKS_MAX}[record.cron.misfire]
            dropped = missed[: max(0, len(missed) - kept_max)]
            if dropped:
                # Whoever was here before us may have pushed the first of them, and no other.
                item.steps.append(_Step(_Do.LOOK, item.tick))
                item.steps.append(_Step(_Do.RECORD, dropped[-1], skipped=len(dropped)))
            item.steps += [_Step(_Do.FIRE, tick) for tick in missed[len(dropped) :]]
            facts = {"schedule": record.name, "missed": len(missed), "dropped": len(dropped)}
            self.notes.append(Note("warning", "ticks_missed", facts))
        self._ready.append(record.name)

    def _ask(self, item: _Item, now: Now) -> Ask | None:
        """Return the question of the next step, or None if nothing is to be asked any more."""
        step, record = item.steps[0], item.record
        if step.do is _Do.FIRE:
            item.steps.popleft()
            if not item.fires:
                item.steps.clear()
                self._look_ahead(item, now, afresh=False)
                return None
            item.steps.appendleft(_Step(_Do.PUSH, step.tick))
            if record.cron.overlap == "skip" and record.last_job:
                item.steps.appendleft(_Step(_Do.CHECK, step.tick))
            step = item.steps[0]
        self._asked_count += 1
        item.asked = self._asked_count
        item.deadline_ms = self._asking[record.name] = now.mono_ms + ASK_MS
        key = (record.name, item.asked)
        match step.do:
            case _Do.LOOK:
                wanted = id_of_tick(record.name, step.tick, record.queue)
                return Ask(key, Verb.RESULT, (wanted, 0), slot=slot_of_id(wanted))
            case _Do.CHECK:
                last = record.last_job
                return Ask(key, Verb.RESULT, (last, 0), slot=slot_of_id(last))
            case _Do.PUSH:
                job_id = id_of_tick(record.name, step.tick, record.queue)
                item.steps[0] = step._replace(job_id=job_id)
                body = (None, (_job_of(record, step.tick, job_id),))
                # On the disk before the tick is: a power failure must not lose what is recorded.
                return Ask(key, Verb.PUSH, body, record.queue, flags=Flag.DURABLE)
        return Ask(key, Verb.FIRED, (step.tick, step.job_id or None, step.skipped), record.name)

    # --- answers ------------------------------------------------------------------------------

    def heard(self, key: tuple[str, int], status: int, body: Any, now: Now) -> None:
        """Take in the answer to a question."""
        item = self._items.get(key[0])
        if item is None or item.asked != key[1]:
            return
        self._asking.pop(key[0], None)
        item.asked = 0
        try:
            reason = self._conclude(item, status, body)
        except (TypeError, ValueError, IndexError, KeyError):
            reason = "the reply makes no sense"
        if reason:
            self._fail(item, reason, now)
            return
        if key[0] not in self._items:
            return
        item.failures = 0
        self._failing.pop(key[0], None)
        self._ok_ms = now.mono_ms
        if item.steps:
            self._ready.append(key[0])
        else:
            self._look_ahead(item, now, afresh=False)

    def not_sent(self, key: tuple[str, int], reason: str, now: Now) -> None:
        """A question could not even be asked."""
        item = self._items.get(key[0])
        if item is not None and item.asked == key[1]:
            self._fail(item, reason, now)

    def _conclude(self, item: _Item, status: int, body: Any) -> str:
        """Take the step that an answer allows; return why it allows none, or nothing."""
        step = item.steps[0]
        match step.do:
            case _Do.LOOK | _Do.CHECK if status in (Status.OK, Status.NOT_FOUND):
                known, alive = status == Status.OK, status == Status.OK and body[0] in _ALIVE
                if step.do is _Do.LOOK and known:
                    job_id = id_of_tick(item.record.name, step.tick, item.record.queue)
                    item.steps = deque([_Step(_Do.RECORD, step.tick, job_id)])
                elif step.do is _Do.CHECK and alive:
                    self._replace_tick(item, _Step(_Do.RECORD, step.tick, skipped=1))
                else:
                    item.steps.popleft()
                return ""
            case _Do.PUSH if status == Status.OK:
                return self._pushed(item, step, body[1])
            case _Do.RECORD if status == Status.OK:
                item.steps.popleft()
                self._recorded(item, body)
                return ""
            case _Do.RECORD if status == Status.NOT_FOUND:
                self._drop(item.record.name)
                return ""
        return str(body[0]) or f"status {status}"

    def _pushed(self, item: _Item, step: _Step, exceptions: Any) -> str:
        """The job of a tick is there, or its queue has another one in its place."""
        for _, status, detail in exceptions:
            if status != Status.OK:
                return f"queue {item.record.queue}: {detail}"
            if detail[1] != step.job_id:  # its unique key is held, or its custom id was taken
                self._replace_tick(item, _Step(_Do.RECORD, step.tick, skipped=1))
                return ""
        self._replace_tick(item, _Step(_Do.RECORD, step.tick, step.job_id))
        return ""

    def _replace_tick(self, item: _Item, record: _Step) -> None:
        """What is left of the road of a tick is to record it."""
        while item.steps and item.steps[0].tick == record.tick:
            item.steps.popleft()
        item.steps.appendleft(record)

    def _recorded(self, item: _Item, body: Any) -> None:
        last_tick, fired_count, skipped_count, last_job = body
        fields = {name: getattr(item.record, name) for name in Schedule.__slots__}
        fields |= {"last_tick": last_tick, "fired_count": fired_count}
        fields |= {"skipped_count": skipped_count, "last_job": last_job}
        item.record = Schedule(**fields)

    def _fail(self, item: _Item, reason: str, now: Now) -> None:
        """A question failed; it is asked again, for as long as it takes."""
        name = item.record.name
        self._asking.pop(name, None)
        item.asked = 0
        item.failures += 1
        self._failing[name] = reason
        heappush(self._retries, (now.mono_ms + RETRY_MS, name))
        if item.failures == CRITICAL_FAILURES:
            facts = {"schedule": name, "reason": reason}
            self.notes.append(Note("critical", "schedule_keeps_failing", facts))

    # --- the clock ----------------------------------------------------------------------------

    def _mind_the_clock(self, now: Now) -> None:
        """Notice when somebody has set the clock.

        Intervals go on by elapsed time. A pattern that has fired is silent until the clock has
        passed its last tick again; one that never did goes by the new time.
        """
        offset = now.wall_ms - now.mono_ms
        step_ms, self._offset = offset - self._offset, offset
        if abs(step_ms) <= CLOCK_STEP_MS:
            return
        self.notes.append(Note("warning", "clock_stepped", {"by_ms": step_ms}))
        self._due = []
        for name, item in list(self._items.items()):
            if item.record.cron.every_ms:
                item.shift = max(0, item.shift - step_ms)
                if item.due is not None:
                    self._due.append((item.due, name))
            elif not item.steps:
                self._look_ahead(item, now, afresh=False)
        heapify(self._due)

    # --- looking ------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether no schedule failed so often in a row that somebody has to look."""
        failing = (self._items[name].failures for name in self._failing)
        return not self._unreadable and all(count < CRITICAL_FAILURES for count in failing)

    def row(self, now: Now) -> list[Any]:
        """Return [name, failures in a row, ms since the last success or -1], as of a task."""
        failures = max((self._items[name].failures for name in self._failing), default=0)
        if self._unreadable:
            failures = max(failures, CRITICAL_FAILURES)
        return ["cron", failures, -1 if self._ok_ms is None else now.mono_ms - self._ok_ms]

    def report(self, now: Now) -> dict[str, Any]:
        """Return what a probe shall know: how many there are, which fail, which are silent."""
        failing = {**self._unreadable, **self._failing}
        silent = [
            name
            for name in self._ahead
            if self._items[name].record.last_tick > now.wall_ms + CLOCK_STEP_MS
        ]
        self._ahead = set(silent)
        return {
            "schedules": len(self._items),
            "failing": sorted(failing.items())[:NAMES_MAX],
            "silent": sorted(silent)[:NAMES_MAX],  # until the clock, set back, has passed them
        }


def _job_of(record: Schedule, tick: int, job_id: bytes) -> tuple[bytes, str, bytes, dict[str, Any]]:
    """Return the job of a tick as PUSH takes it."""
    options = {**record.options, "job_id": job_id_of_tick(record.name, tick)}
    return job_id, record.job, record.payload, options
