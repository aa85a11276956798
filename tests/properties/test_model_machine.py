"""A shard under random commands beside its reference, compared after every step.

The reference (tests/model) is the meaning in plain dicts. What happens here: all commands with all
options, time in small and large steps, a clock that is set, restarts, repeats, stale tokens.
`HYPOTHESIS_PROFILE=nightly` looks further.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pyq.errors import BadOption
from pyq.job import COMPLETED, DEAD, DELAYED, WAITING
from pyq.messages import (
    Ack,
    Cancel,
    Change,
    Clean,
    Configure,
    DeadStats,
    Drain,
    Extend,
    Fail,
    Goodbye,
    Heartbeat,
    Log,
    Logs,
    Obliterate,
    Pause,
    Progress,
    Promote,
    Pull,
    Purge,
    Push,
    Release,
    Result,
    Retry,
    Return,
    Sweep,
    Unpull,
    Update,
    Worker,
)
from pyq.options import check_options
from shardnode.storage.sqlite import SqliteStore
from tests.model.driver import Pair
from tests.model.reference import LIVE
from tests.support.shards import REPEAT, WALL_0, Call, Leased, Rig, a_shard

QUEUES = ("emails", "sms")
CLIENTS = ("w-1", "w-2", "w-3")

# Backoffs without jitter, so that due times can be foretold.
BACKOFFS = ([0, 1, 0, 0, []], [100, 2, 5_000, 0, []], [9, 1, 9, 0, [1_000, 0, 70]])

OPTIONS: list[dict[str, Any]] = [
    *({"delay_ms": ms} for ms in (1, 500, 20_000)),
    *({"run_at": WALL_0 + ms} for ms in (-9, 3_000, 30_000)),
    *({"priority": priority} for priority in (-1, 1)),
    *({"attempts": attempts} for attempts in (1, 2)),
    *({"backoff": backoff} for backoff in BACKOFFS),
    *({"ttl_ms": ms} for ms in (700, 10_000)),
    *({"job_id": name} for name in ("one", "two")),
    *({"unique": key} for key in ("k", "l")),
    *({"unique": "k", "on_conflict": what} for what in ("replace", "extend")),
    {"unique": "k", "unique_ttl_ms": 5_000},
    {"unique": "k", "unique_ttl_ms": 60_000, "on_conflict": "extend"},
    {"unique": "k", "unique_ttl_ms": 1_000, "on_conflict": "replace"},
    *({"group": group} for group in ("g", "g", "h")),
    {"lifo": True},
    {"timeout_ms": 1},
    {"timeout_ms": 3_000},
    {"keep_completed": False},
    {"keep_count": 1},
    {"keep_ms": 90_000},
    {"tags": ["t"]},
]

SETTINGS: list[dict[str, Any]] = [
    {"concurrency": 1},
    {"concurrency": 2},
    {"concurrency": None},
    {"rate_max": 2, "rate_per_ms": 1_000},
    {"rate_max": 1, "rate_per_ms": 20_000},
    {"rate_max": None, "rate_per_ms": None},
    {"rate_max": 3},
    {"group_concurrency": 2},
    {"group_concurrency": None},
    {"paused": True},
    {"paused": False},
    {"paused_groups": ["g", "h"]},
    {"paused_groups": None},
    {"lease_ms": 500},
    {"lease_ms": 20_000},
    {"lease_ms": None},
    {"max_stalls": 0},
    {"max_stalls": 1},
    {"keep_count": 0},
    {"keep_count": 2},
    {"keep_ms": 60_000},
    {"drop_oldest": True, "dead_max": 1},
    {"dead_ms": 60_000},
    {"auto_retry_ms": 1_000, "auto_retry_max": 2},
    {"auto_retry_ms": None, "auto_retry_max": None},
    {"defaults": {"delay_ms": 400, "attempts": 2}},
    {"defaults": {"lifo": True, "backoff": BACKOFFS[0]}},
    {"defaults": {"ttl_ms": 600, "priority": 1}},
    {"defaults": None},
    {"nonsense": 1},
]

QUEUE = st.sampled_from(QUEUES)
CLIENT = st.sampled_from(CLIENTS)
NUMBER = st.integers(0, 30)  # which of the jobs, leases or commands there were, newest first


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Options of several parts, as long as they may stand together."""
    merged: dict[str, Any] = {}
    for part in parts:
        try:
            check_options(merged | part)
        except BadOption:
            continue
        merged |= part
    return merged


OPTION_MAP = st.lists(st.sampled_from(OPTIONS), max_size=3).map(_merged)


class ModelMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.pair = Pair(self.a_rig())
        self.sent: list[Any] = []  # commands that can be repeated
        self.pulls: list[Any] = []

    def a_rig(self) -> Rig:
        return a_shard(checked=False)

    def send(self, command: Any) -> Call:
        if command not in self.sent:
            self.sent.append(command)
        return self.pair.send(command)

    def origin(self, client: str, again: bool = False) -> Any:
        return self.pair.rig.origin(client, flags=REPEAT if again else 0)

    def job(self, number: int) -> bytes:
        ids = self.pair.ids
        return ids[-1 - number % len(ids)]

    def lease(self, number: int) -> Leased:
        leases = self.pair.leases
        return leases[-1 - number % len(leases)]

    # --- producers ------------------------------------------------------------------------------

    @rule(
        queue=QUEUE,
        common=OPTION_MAP,
        own=st.lists(st.none() | OPTION_MAP, min_size=1, max_size=4),
        known=st.none() | NUMBER,
    )
    def push(self, queue, common, own, known):
        common = {"backoff": BACKOFFS[1]} | common  # the default has jitter
        given, jobs = [], []
        for number, options in enumerate(own):
            job_id = self.pair.rig.an_id(queue)
            if known is not None and number == 0 and self.pair.ids:
                job = self.pair.model.jobs.get(self.job(known))
                if job and job.queue == queue and job.state in LIVE:
                    job_id = job.id  # one that ended is known only to a flagged repeat
            name = f"{len(self.pair.ids) + number}"
            try:
                checked = check_options({**common, **(options or {})})
            except BadOption:
                options = None
                checked = check_options(common)
            jobs.append((job_id, name, b"x" * (number % 2), checked))
            given.append((*jobs[-1][:3], options))
        self.send(Push(self.origin("producer"), queue, jobs, common, given))

    @rule(number=NUMBER, wait_ms=st.sampled_from([0, 1_000, 30_000]))
    @precondition(lambda self: self.pair.ids)
    def ask_for_result(self, number, wait_ms):
        self.pair.send(Result(self.origin("asker"), self.job(number), wait_ms))

    # --- workers --------------------------------------------------------------------------------

    @rule(
        client=CLIENT,
        queues=st.sampled_from([QUEUES[:1], QUEUES[1:], QUEUES, QUEUES[::-1]]),
        jobs_max=st.integers(1, 4),
        wait_ms=st.sampled_from([0, 0, 1_000, 30_000]),
        lease_ms=st.sampled_from([100, 2_000, 15_000]),
        lost=st.sampled_from([False, False, True]),
    )
    def pull(self, client, queues, jobs_max, wait_ms, lease_ms, lost):
        origin = self.origin(client)
        received = 0 if lost else origin.sequence - 1
        command = Pull(origin, client, queues, jobs_max, wait_ms, lease_ms, received)
        self.pulls.append(command)
        self.send(command)

    @rule(number=NUMBER, what=st.sampled_from([Unpull, Return]))
    @precondition(lambda self: self.pulls)
    def take_back_a_pull(self, number, what):
        origin = self.pulls[-1 - number % len(self.pulls)].origin
        if what is Unpull:
            self.pair.send(Unpull(self.origin("router"), origin.request_id))
        else:
            self.pair.send(Return(type(origin)(origin.request_id)))

    @rule(client=CLIENT)
    def goodbye(self, client):
        for pull in list(self.pair.model.pulls):  # as a worker does before it leaves
            if pull.worker == client:
                self.pair.send(Unpull(self.origin("router"), pull.origin.request_id))
        self.pair.send(Goodbye(self.origin(client), client))

    @rule(
        numbers=st.lists(NUMBER, min_size=1, max_size=3),
        result=st.sampled_from([None, b"r"]),
        again=st.booleans(),
    )
    @precondition(lambda self: self.pair.leases)
    def ack(self, numbers, result, again):
        leases = [self.lease(number) for number in numbers]
        items = [(lease.id, lease.token, result) for lease in leases]
        self.send(Ack(self.origin("acker", again), items))

    @rule(
        numbers=st.lists(NUMBER, min_size=1, max_size=3),
        unrecoverable=st.sampled_from([False, False, False, True]),
        retry_in_ms=st.sampled_from([-1, -1, 0, 700]),
        result=st.sampled_from([None, b"f"]),
        again=st.booleans(),
    )
    @precondition(lambda self: self.pair.leases)
    def fail(self, numbers, unrecoverable, retry_in_ms, result, again):
        leases = [self.lease(number) for number in numbers]
        items = [
            (lease.id, lease.token, "boom", "", result, unrecoverable, retry_in_ms)
            for lease in leases
        ]
        self.send(Fail(self.origin("failer", again), items))

    @rule(numbers=st.lists(NUMBER, min_size=1, max_size=3), delay_ms=st.sampled_from([0, 0, 900]))
    @precondition(lambda self: self.pair.leases)
    def release(self, numbers, delay_ms):
        leases = [self.lease(number) for number in numbers]
        items = [(lease.id, lease.token, delay_ms) for lease in leases]
        self.send(Release(self.origin("releaser"), items))

    @rule(
        numbers=st.lists(NUMBER, max_size=3),
        client=st.none() | CLIENT,
        wait_ms=st.sampled_from([0, 1_000]),
    )
    def heartbeat(self, numbers, client, wait_ms):
        leases = [self.lease(number) for number in numbers if self.pair.leases]
        worker = Worker(client, "host", 1, 1, WALL_0, QUEUES) if client else None
        items = tuple((lease.id, lease.token) for lease in leases)
        self.pair.send(Heartbeat(self.origin("beater"), items, worker, wait_ms))

    @rule(
        number=NUMBER, lease_ms=st.sampled_from([100, 60_000]), value=st.sampled_from([b"1", b"2"])
    )
    @precondition(lambda self: self.pair.leases)
    def extend_and_tell(self, number, lease_ms, value):
        lease = self.lease(number)
        self.pair.send(Extend(self.origin("worker"), [(lease.id, lease.token, lease_ms)]))
        self.pair.send(Progress(self.origin("worker"), [(lease.id, lease.token, value)]))

    @rule(
        number=NUMBER,
        first=st.integers(1, 4),
        lines=st.lists(st.sampled_from("abc"), max_size=3),
        after=st.integers(0, 3),
        limit=st.integers(1, 3),
    )
    @precondition(lambda self: self.pair.leases)
    def log(self, number, first, lines, after, limit):
        lease = self.lease(number)
        self.send(Log(self.origin("worker"), [(lease.id, lease.token, first, lines)]))
        self.pair.send(Logs(self.origin("admin"), lease.id, after, limit))

    # --- operators ------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from([Cancel, Promote, Retry, Purge]),
        numbers=st.lists(NUMBER, min_size=1, max_size=3),
        again=st.booleans(),
    )
    @precondition(lambda self: self.pair.ids)
    def manage(self, what, numbers, again):
        items = [(self.job(number),) for number in numbers]
        self.send(what(self.origin("admin", again), items))

    @rule(
        number=NUMBER,
        priority=st.none() | st.integers(-1, 1),
        due=st.sampled_from(
            [{}, {"delay_ms": 0}, {"delay_ms": 800}, {"run_at": 1}, {"run_at": WALL_0 + 9_000}]
        ),
        payload=st.sampled_from([None, b"new"]),
    )
    @precondition(lambda self: self.pair.ids)
    def update(self, number, priority, due, payload):
        change = Change(self.job(number), priority, payload=payload, **due)
        self.pair.send(Update(self.origin("admin"), [change]))

    @rule(queue=QUEUE, changes=st.none() | st.sampled_from(SETTINGS))
    def configure(self, queue, changes):
        self.pair.send(Configure(self.origin("admin"), queue, changes))

    @rule(queue=QUEUE, paused=st.booleans(), group=st.sampled_from(["", "g"]))
    def pause(self, queue, paused, group):
        self.pair.send(Pause(self.origin("admin"), queue, paused, group))

    @rule(
        queue=QUEUE,
        what=st.sampled_from([None, None, *(WAITING, DELAYED, COMPLETED, DEAD), True, False]),
        yes=st.booleans(),
        limit=st.sampled_from([1, 1_000]),
        older_ms=st.sampled_from([0, 1_000]),
    )
    def remove(self, queue, what, yes, limit, older_ms):
        """Drain (delayed ones, too?), clean a state, or obliterate (active ones, too?)."""

        def page(after):
            origin = self.origin("admin")
            if what is None:
                return Drain(origin, queue, yes, after, limit)
            if type(what) is bool:
                return Obliterate(origin, queue, what, after, 1_000)
            return Clean(origin, queue, what, older_ms, after, limit)

        self.pair.pages(page)
        self.pair.send(DeadStats(self.origin("admin"), queue))

    # --- the world ------------------------------------------------------------------------------

    @rule(number=NUMBER)
    @precondition(lambda self: self.sent)
    def send_again(self, number):
        self.pair.repeat(self.sent[-1 - number % len(self.sent)])

    @rule(ms=st.sampled_from([1, 90, 1_000, 4_000, 20_000, 70_000]), late=st.booleans())
    def time_passes(self, ms, late):
        self.pair.time_passes(ms, late)

    @rule(times=st.integers(1, 6))
    def sweeps(self, times):
        for _ in range(times):
            due_ms = self.pair.send(Sweep(self.origin("coord"))).body[0]
            self.pair.time_passes(max(1, due_ms))

    @rule(ms=st.integers(-100_000, 100_000))
    def somebody_sets_the_clock(self, ms):
        self.pair.time_passes(shift=ms)

    @rule()
    def restart(self):
        self.pair.restart()

    @invariant()
    def both_say_the_same(self):
        self.pair.compare()


class ModelMachineOnDisk(ModelMachine):
    """The same over a file."""

    def a_rig(self) -> Rig:
        self.folder = TemporaryDirectory()
        return a_shard(self.a_store(), checked=False, reopen=self.reopened)

    def a_store(self) -> SqliteStore:
        return SqliteStore(Path(self.folder.name), {"cluster": "c", "shard": 0, "shards": 1})

    def reopened(self, store: SqliteStore) -> SqliteStore:
        store.close()
        return self.a_store()

    def teardown(self) -> None:
        self.pair.rig.store.close()
        self.folder.cleanup()


TestModelMachine = ModelMachine.TestCase
TestModelMachine.settings = settings(stateful_step_count=40)
TestModelMachineOnDisk = ModelMachineOnDisk.TestCase
TestModelMachineOnDisk.settings = settings(stateful_step_count=40, max_examples=15)
