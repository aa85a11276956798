"""The coordinator's cron over shards in memory, under a clock that only tests move.

What `cluster/coordinator/service.py` does with sockets is done here with calls: questions
become frames' bodies, are parsed as a shard parses them, and are answered at once, unless a
test says that somebody is down, or kills the coordinator at a question.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from cluster.coordinator.cron import Ask, Crons, Note, Now
from pyq.errors import Status
from pyq.messages import Origin
from pyq.parsing import parse
from pyq.routes import shard_of, slot_of
from pyq.schedule import Schedule
from pyq.wire import BY_QUEUE, Verb, pack_body, pack_header, unpack_body, unpack_header
from tests.support.shards import (
    MONO_0,
    WALL_0,
    Clock,
    Rig,
    a_shard,
    ack,
    page,
    pull,
    schedule,
    schedules,
    suspend,
    unschedule,
)

START = "2025-06-15T15:06:40Z"  # of the clock, a Sunday


class Killed(Exception):
    """The coordinator died."""


class CronRig:
    """Shards and a coordinator. `at` is milliseconds since the start, as for a Rig."""

    def __init__(self, shards_count: int = 2, checked: bool = True, begin: str = START) -> None:
        self.clock = Clock()
        self.clock.wall_shift = since_start(begin)
        self.shards = [
            a_shard(shard=shard, shards_count=shards_count, checked=checked)
            for shard in range(shards_count)
        ]
        for shard in self.shards:
            shard.clock = self.clock
        self.down: set[int] = set()  # shards that do not answer
        self.crons: Crons | None = None  # None: it is down
        self.asked: list[Ask] = []
        self.notes: list[Note] = []
        self.wakeups = 0
        # Called before and after a question reaches its shard; may raise Killed.
        self.before: Callable[[Ask], None] = lambda ask: None
        self.after: Callable[[Ask], None] = lambda ask: None
        self.start()

    # --- the coordinator ----------------------------------------------------------------------

    @property
    def now(self) -> Now:
        wall_ms = WALL_0 + self.clock.at + self.clock.wall_shift
        return Now(wall_ms, MONO_0 + self.clock.at)

    def start(self) -> None:
        self.crons = Crons(len(self.shards), self.now)
        self.settle()

    def kill(self) -> None:
        self.crons = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def set_clock(self, by_ms: int) -> None:
        """Somebody sets the clock of the machine; the coordinator notices within a second."""
        self.clock.wall_shift += by_ms
        self.run(self.clock.at + 1)

    def run(self, until: int) -> None:
        """Let time pass, from one wake-up to the next."""
        while self.clock.at < until:
            self.settle()
            next_ms = self.crons.next_wakeup(self.now) if self.crons is not None else None
            at = until if next_ms is None else min(until, next_ms - MONO_0)
            assert next_ms is None or at > self.clock.at, "it would spin"
            self.clock.at = max(at, self.clock.at)
            self.wakeups += next_ms is not None
        self.settle()

    def settle(self) -> None:
        """Ask and answer until nothing is to be done now."""
        try:
            while self.crons is not None:
                for number in range(len(self.shards)):
                    self._poll(number)
                asks = self.crons.take_due(self.now)
                self.notes += self.crons.notes
                self.crons.notes.clear()
                for ask in asks:
                    self._answer(ask)
                if not asks:
                    return
        except Killed:
            self.kill()

    def _poll(self, number: int) -> None:
        assert self.crons is not None
        if number in self.down:
            return
        while True:
            epoch, after, limit, _ = self.crons.poll(number)
            status, body = self._send(number, Verb.SCHEDULES, [epoch, after, limit, 0], slot=number)
            assert status is Status.OK
            assert self.crons.heard_of(number, body, self.now)
            if not body[2]:
                return

    def _answer(self, ask: Ask) -> None:
        assert self.crons is not None
        self.asked.append(ask)
        self.before(ask)
        slot = slot_of(ask.queue) if ask.slot == BY_QUEUE else ask.slot
        number = shard_of(slot, len(self.shards))
        if number in self.down:
            self.crons.heard(ask.key, Status.UNAVAILABLE, ("the shard is down", 0), self.now)
            return
        status, body = self._send(number, ask.verb, ask.body, ask.queue, ask.slot, ask.flags)
        self.after(ask)
        self.crons.heard(ask.key, status, body, self.now)

    def _send(
        self,
        number: int,
        verb: Verb,
        body: Any,
        queue: str = "",
        slot: int = BY_QUEUE,
        flags: int = 0,
    ) -> tuple[Status, Any]:
        rig = self.shards[number]
        origin: Origin = rig.origin("cron", flags=flags)
        header = unpack_header(pack_header(verb, origin.request_id, slot=slot, queue=queue))
        command = parse(header, origin, unpack_body(pack_body(list(body))))
        call = rig.send(command)[0]
        return call.status, call.body

    # --- what users do ------------------------------------------------------------------------

    def home(self, name: str) -> Rig:
        return self.shards[shard_of(slot_of(name), len(self.shards))]

    def add(self, name: str = "nightly", pattern: str = "* * * * *", **fields: Any) -> str:
        word: str = schedule(self.home(name), name, pattern, **fields).body[0]
        self.settle()
        return word

    def pause(self, name: str = "nightly") -> None:
        suspend(self.home(name), name)
        self.settle()

    def resume(self, name: str = "nightly") -> None:
        suspend(self.home(name), name, paused=False)
        self.settle()

    def remove(self, name: str = "nightly") -> None:
        unschedule(self.home(name), name)
        self.settle()

    def record(self, name: str = "nightly") -> Schedule:
        return schedules(self.home(name), name)[name]

    def jobs(self, queue: str = "emails") -> list[dict[str, Any]]:
        return page(self.home(queue), queue=queue, limit=1_000)[0]

    def ticks(self, name: str = "nightly", queue: str = "emails") -> list[int]:
        """The ticks of a schedule's jobs, in the order in which they were accepted, in ms since
        the start.
        """
        prefix = f"cron/{name}/"
        ids = [view["job_id"] or "" for view in self.jobs(queue)]
        return [int(i.removeprefix(prefix)) - WALL_0 for i in ids if i.startswith(prefix)]

    def work(self, queue: str = "emails") -> int:
        """Run all jobs of a queue that wait; return how many."""
        rig = self.home(queue)
        leased = pull(rig, queue, jobs_max=1_000).jobs
        if leased:
            ack(rig, *leased)
        return len(leased)


def since_start(moment: str) -> int:
    """Return a moment in ISO form as milliseconds since the start of the clock."""
    return round(datetime.fromisoformat(moment).timestamp() * 1_000) - WALL_0
