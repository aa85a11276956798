"""Several shards under test, joined by the pure relay of the coordinator.

One clock for all; no router: a call goes to the shard of its queue or job. Messages of the
relay travel through `Post`, which a test may let lose, repeat or hold them back. A restart
of a shard, of the relay, or of the machine may come between any two steps.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from cluster.coordinator.relay import Errand, Relays
from cluster.probes import Answer
from pyq.errors import Status
from pyq.ids import slot_of_id
from pyq.messages import Command, Deliver, Outbox, Row
from pyq.routes import shard_of, slot_of
from pyq.wire import Verb
from shardnode.storage.memory import MemoryStore
from shardnode.storage.store import Store
from tests.support.shards import Call, Clock, Rig

STEPS_MAX = 100_000


class Message(NamedTuple):
    """A request of the relay on its way to a shard, or the answer on its way back."""

    errand: Errand
    answer: Answer | None  # None: it is the request


class Net:
    """N shards of one cluster, each with a store, and a relay that carries their rows."""

    def __init__(
        self,
        shards_count: int = 4,
        make_store: Callable[[int], Store] = lambda shard: MemoryStore(),
        checked: bool = True,
        rig_class: type[Rig] = Rig,
    ) -> None:
        self.clock = Clock()
        self.rigs = [
            rig_class(make_store(shard), shard, shards_count, checked=checked)
            for shard in range(shards_count)
        ]
        for rig in self.rigs:
            rig.clock = self.clock
        self._sent = count(1)
        self.on_the_way: list[Message] = []
        self._polls: dict[int, list[tuple[Errand, Call]]] = defaultdict(list)
        self.carried: list[tuple[int, int, Row]] = []  # source, target, row; as often as brought
        self.troubles: list[str] = []
        self.restart_relay()

    # --- where things live ---------------------------------------------------------------------

    def __getitem__(self, where: str | bytes | int) -> Rig:
        """The shard of a queue (text), of a job (its id), or by its number."""
        if isinstance(where, int):
            return self.rigs[where]
        slot = slot_of(where) if isinstance(where, str) else slot_of_id(where)
        return self.rigs[shard_of(slot, len(self.rigs))]

    def queue_on(self, shard: int, number: int = 0) -> str:
        """The name of a queue that lives on a shard; another one for each number."""
        names = (f"queue-{n}" for n in count())
        fitting = (name for name in names if self[name] is self.rigs[shard])
        return next(name for n, name in enumerate(fitting) if n == number)

    # --- the relay, step by step ---------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.rigs[0].now_ms

    def restart_relay(self) -> None:
        """The coordinator is killed and started again: it knows nothing, and is sent nothing."""
        self.relays = Relays(len(self.rigs), self.now_ms)
        self.on_the_way.clear()
        self._polls.clear()

    def restart_shard(self, shard: int) -> None:
        """A shard is killed and started again; the router tells who waits for it to ask again."""
        self.rigs[shard].restart()
        for errand, _ in self._polls.pop(shard, []):
            self.on_the_way.append(Message(errand, Answer(Status.RETRY, 0, ("again", 0))))

    def send_due(self) -> None:
        """The relay sends what is due."""
        due = self.relays.take_due(self.now_ms)
        self.on_the_way += [Message(errand, None) for errand in due]
        self.troubles += [f"{task}: {reason}" for task, reason in self.relays.take_troubles()]

    def arrive(self, message: Message) -> None:
        """A request reaches its shard, or an answer the relay."""
        errand = message.errand
        if message.answer is not None:
            self.relays.conclude(errand, message.answer, self.now_ms)
            return
        rig = self.rigs[errand.shard]
        call = rig.send(self._command(rig, errand))[0]
        if errand.verb is Verb.OUTBOX:
            self._polls[errand.shard].append((errand, call))
        else:
            self.carried += [(errand.source, errand.shard, Row(*row)) for row in errand.body[2]]
            self._reply(errand, call)
        self.collect()

    def collect(self) -> None:
        """Answers that shards have given meanwhile set out for the relay."""
        for polls in self._polls.values():
            for errand, call in [*polls]:
                if not call.waits:
                    polls.remove((errand, call))
                    self._reply(errand, call)

    def _reply(self, errand: Errand, call: Call) -> None:
        answer = Answer(call.answer.status, 1, call.answer.body)
        self.on_the_way.append(Message(errand, answer))

    def _command(self, rig: Rig, errand: Errand) -> Command:
        deadline_ms = rig.now_ms + errand.timeout_ms
        origin = rig.origin("relay", next(self._sent), deadline_ms=deadline_ms)
        if errand.verb is Verb.OUTBOX:
            return Outbox(origin, *errand.body)
        source, first, rows = errand.body
        return Deliver(origin, source, first, [Row(*row) for row in rows])

    # --- as a whole ----------------------------------------------------------------------------

    def flow(self) -> None:
        """Carry everything, without faults and within this millisecond, until all is quiet."""
        for _ in range(STEPS_MAX):
            self.collect()
            self.send_due()
            if self.on_the_way:
                self.arrive(self.on_the_way.pop(0))
            elif not self._turn_if_due():
                return
        raise AssertionError("it goes on for ever")

    def pass_time(self, ms: int) -> None:
        """Time passes without faults: everybody wakes up when he wants to."""
        end = self.clock.at + ms
        while True:
            self.flow()
            now_ms = self.now_ms
            wakeups = [rig.shard.next_wakeup(self.clock.now()) for rig in self.rigs]
            wakeups.append(self.relays.next_wakeup())
            next_ms = min((at for at in wakeups if at is not None), default=now_ms + ms)
            at = self.clock.at + max(1, next_ms - now_ms)
            if at > end:
                break
            self.clock.at = at
            for rig in self.rigs:
                rig.send()
        self.clock.at = end
        for rig in self.rigs:
            rig.send()
        self.flow()

    def _turn_if_due(self) -> bool:
        """Shards that have left something for their next turn take it."""
        now_ms = self.now_ms
        due = [
            rig
            for rig in self.rigs
            if rig.state.fallout or rig.state.unasked or rig.state.rewatch_at <= now_ms
        ]
        due = [rig for rig in due if rig.state.awaited or rig.state.fallout]
        for rig in due:
            rig.send()
        return bool(due)


def a_net(shards_count: int = 4, **fields: Any) -> Net:
    """Empty shards in memory."""
    return Net(shards_count, **fields)
