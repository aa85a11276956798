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
    Origin,
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
from tests.model.reference import ENDED, LIVE
from tests.support.shards import REPEAT, WALL_0, Call, Leased, Rig, a_shard

QUEUES = ("emails", "sms")
CLIENTS = ("w-1", "w-2", "w-3")

# Backoffs without jitter, so that due times can be foretold.
BACKOFFS = ([0, 1, 0, 0, []], [100, 2, 5_000, 0, []], [9, 1, 9, 0, [1_000, 0, 70]])

OPTIONS: list[dict[str, Any]] = [
    *({"delay_ms": ms} for ms in (1, 500, 20_000)),
    *({"run_at": WALL_0 + ms} for ms in (-9, 3_000, 30_000)),
    *({"priority": priority} for priority in (-1, 1)),
    *({"attempts": attempts} for attempts in (1, 1, 2)),
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

FREE = {"paused": None, "paused_groups": None, "concurrency": None}
FREE |= {"rate_max": None, "rate_per_ms": None}

SETTINGS: list[dict[str, Any]] = [
    *[FREE] * 6,
    *({"concurrency": leases} for leases in (1, 2)),
    {"rate_max": 2, "rate_per_ms": 1_000},
    {"rate_max": 1, "rate_per_ms": 20_000},
    {"rate_max": 3},
    *({"group_concurrency": members} for members in (2, None)),
    {"paused_groups": ["g", "h"]},
    *({"lease_ms": ms} for ms in (500, 20_000, None)),
    *({"max_stalls": stalls} for stalls in (0, 1)),
    *({"keep_count": count} for count in (0, 1, 2, 1)),
    {"keep_ms": 60_000},
    *({"drop_oldest": True, "dead_max": count} for count in (1, 2)),
    {"dead_ms": 60_000},
    {"auto_retry_ms": 1_000, "auto_retry_max": 2},
    {"auto_retry_ms": 3_000, "auto_retry_max": 1},
    {"auto_retry_ms": None, "auto_retry_max": None},
    {"defaults": {"delay_ms": 400, "attempts": 2}},
    {"defaults": {"lifo": True, "backoff": BACKOFFS[0]}},
    {"defaults": {"ttl_ms": 600, "priority": 1}},
    {"defaults": None},
    {"nonsense": 1},
]

QUEUE = st.sampled_from([*QUEUES, QUEUES[0]])
CLIENT = st.sampled_from(CLIENTS)
NUMBER = st.integers(0, 30)  # which of the jobs, leases or commands there were, the newest first
NUMBERS = st.lists(NUMBER, min_size=1, max_size=3)
PAGE = st.sampled_from([1, 1_000])


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
    @initialize(settings=st.lists(st.tuples(QUEUE, st.sampled_from(SETTINGS)), max_size=4))
    def start(self, settings):
        self.pair = Pair(self.a_rig())
        self.sent: list[Any] = []  # commands that can be repeated
        self.pulls: list[Pull] = []
        for queue, changes in settings:
            self.pair.send(Configure(self.origin("admin"), queue, changes))

    def a_rig(self) -> Rig:
        return a_shard(checked=False)

    def send(self, command: Any) -> Call:
        self.sent.append(command)
        return self.pair.send(command)

    def origin(self, client: str, again: bool = False) -> Any:
        return self.pair.rig.origin(client, flags=REPEAT if again else 0)

    def job(self, number: int, *states: str) -> bytes:
        """The id of a job in one of these states, if there is any; of any job for large numbers."""
        jobs = [job.id for job in self.pair.model.all(*states)] if number < 25 else []
        ids = jobs or self.pair.ids
        return ids[-1 - number % len(ids)]

    def lease(self, number: int) -> Leased:
        """A lease that is held, if there is any; an ended one for large numbers."""
        leases = self.pair.leases
        held = [lease for lease in leases if self.pair.model.held(lease.id, lease.token)]
        choice = held if held and number < 20 else leases
        return choice[-1 - number % len(choice)]

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
                job = self.pair.model.jobs.get(self.job(known, *LIVE))
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
        self.pair.send(Result(self.origin("asker"), self.job(number, *LIVE), wait_ms))

    # --- workers --------------------------------------------------------------------------------

    @rule(
        client=CLIENT,
        queues=st.sampled_from([QUEUES[:1], QUEUES[1:], QUEUES, QUEUES[::-1]]),
        jobs_max=st.integers(1, 4),
        wait_ms=st.sampled_from([0, 1_000, 30_000]),
        lease_ms=st.sampled_from([100, 2_000, 15_000]),
        lost=st.sampled_from([False, False, True]),
    )
    def pull(self, client, queues, jobs_max, wait_ms, lease_ms, lost):
        origin = self.origin(client)
        received = 0 if lost else origin.sequence - 1
        command = Pull(origin, client, queues, jobs_max, wait_ms, lease_ms, received)
        self.pulls.append(command)
        self.send(command)

    @rule(jobs_max=st.integers(1, 4), well=st.booleans(), last=st.booleans())
    @precondition(lambda self: self.pair.model.all("waiting"))
    def work(self, jobs_max, well, last):
        """What workers do most: pull some jobs and finish them."""
        pulled = self.pair.send(
            Pull(self.origin("w-0"), "w-0", QUEUES, jobs_max, 0, 15_000, 1 << 60)
        )
        items = [(lease.id, lease.token) for lease in pulled.jobs]
        if well:
            self.send(Ack(self.origin("acker"), [(*item, b"r") for item in items]))
        else:
            rest = ("boom", "", None, last, -1)
            self.send(Fail(self.origin("failer"), [(*item, *rest) for item in items]))

    @rule(numbers=NUMBERS, result=st.sampled_from([None, b"r"]), again=st.booleans())
    @precondition(lambda self: self.pair.leases)
    def ack(self, numbers, result, again):
        items = [(lease.id, lease.token, result) for lease in map(self.lease, numbers)]
        self.send(Ack(self.origin("acker", again), items))

    @rule(
        numbers=NUMBERS,
        unrecoverable=st.sampled_from([False, False, True]),
        retry_in_ms=st.sampled_from([-1, -1, 0, 700]),
        result=st.sampled_from([None, b"f"]),
        again=st.booleans(),
    )
    @precondition(lambda self: self.pair.leases)
    def fail(self, numbers, unrecoverable, retry_in_ms, result, again):
        rest = ("boom", "", result, unrecoverable, retry_in_ms)
        items = [(lease.id, lease.token, *rest) for lease in map(self.lease, numbers)]
        self.send(Fail(self.origin("failer", again), items))

    @rule(numbers=NUMBERS, delay_ms=st.sampled_from([0, 0, 900]))
    @precondition(lambda self: self.pair.leases)
    def release(self, numbers, delay_ms):
        items = [(lease.id, lease.token, delay_ms) for lease in map(self.lease, numbers)]
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
        number=NUMBER,
        lease_ms=st.none() | st.sampled_from([100, 60_000]),
        first=st.integers(1, 4),
        lines=st.lists(st.sampled_from("abc"), max_size=3),
        after=st.integers(0, 3),
    )
    @precondition(lambda self: self.pair.leases)
    def tell(self, number, lease_ms, first, lines, after):
        """Extend a lease, or tell progress and lines of the log."""
        lease = self.lease(number)
        if lease_ms:
            self.pair.send(Extend(self.origin("worker"), [(lease.id, lease.token, lease_ms)]))
        else:
            value = b"%d" % first
            self.pair.send(Progress(self.origin("worker"), [(lease.id, lease.token, value)]))
            self.send(Log(self.origin("worker"), [(lease.id, lease.token, first, lines)]))
            self.pair.send(Logs(self.origin("admin"), lease.id, after, 2))

    # --- operators ------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from([Cancel, Promote, Retry, Purge]), numbers=NUMBERS, again=st.booleans()
    )
    @precondition(lambda self: self.pair.ids)
    def manage(self, what, numbers, again):
        states = {Cancel: LIVE, Promote: ("delayed",), Retry: ENDED, Purge: ("dead",)}[what]
        items = [(self.job(number, *states),) for number in numbers]
        self.send(what(self.origin("admin", again), items))

    @rule(number=NUMBER, again=st.booleans())
    @precondition(lambda self: self.pair.model.all("active"))
    def cancel_a_running_one(self, number, again):
        self.send(Cancel(self.origin("admin", again), [(self.job(number, "active"),)]))

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
        change = Change(self.job(number, "waiting", "delayed"), priority, payload=payload, **due)
        self.pair.send(Update(self.origin("admin"), [change]))

    @rule(queue=QUEUE, changes=st.none() | st.sampled_from(SETTINGS), group=st.sampled_from("g "))
    def configure(self, queue, changes, group):
        """Change a setting; or pause a queue or a group, or resume all that is paused."""
        if changes:
            self.pair.send(Configure(self.origin("admin"), queue, changes))
            return
        settings = self.pair.model.queues[queue].settings
        for paused in settings.paused_groups:
            self.pair.send(Pause(self.origin("admin"), queue, False, paused))
        go_on = settings.paused or bool(settings.paused_groups)
        self.pair.send(
            Pause(self.origin("admin"), queue, not go_on, "" if go_on else group.strip())
        )

    @rule(
        queue=QUEUE,
        what=st.sampled_from(["drain", WAITING, DELAYED, COMPLETED, DEAD, "obliterate"]),
        yes=st.booleans(),
        limit=PAGE,
        older_ms=st.sampled_from([0, 1_000]),
    )
    @precondition(lambda self: len(self.pair.model.jobs) > 4)
    def remove(self, queue, what, yes, limit, older_ms):
        """Drain (delayed ones, too?), clean a state, or obliterate (active ones, too?)."""

        def page(after: int) -> Any:
            origin = self.origin("admin")
            if what == "drain":
                return Drain(origin, queue, yes, after, limit)
            if what == "obliterate":
                return Obliterate(origin, queue, yes, after, 1_000)
            return Clean(origin, queue, what, older_ms, after, limit)

        self.pair.send(DeadStats(self.origin("admin"), queue))
        self.pair.pages(page)

    # --- the world ------------------------------------------------------------------------------

    @rule(number=NUMBER)
    @precondition(lambda self: self.sent)
    def send_again(self, number):
        self.pair.repeat(self.sent[-1 - number % len(self.sent)])

    @rule(number=NUMBER, what=st.sampled_from([Unpull, Return, Goodbye]))
    @precondition(lambda self: self.pulls)
    def take_back(self, number, what):
        """A pull is withdrawn, could not be delivered, or its worker leaves."""
        pull = self.pulls[-1 - number % len(self.pulls)]
        if what is Return:
            self.pair.send(Return(Origin(pull.origin.request_id)))
        elif what is Unpull:
            self.pair.send(Unpull(self.origin("router"), pull.origin.request_id))
        else:
            for parked in list(self.pair.model.pulls):  # as a worker does before it leaves
                if parked.worker == pull.worker:
                    self.pair.send(Unpull(self.origin("router"), parked.origin.request_id))
            self.pair.send(Goodbye(self.origin(pull.worker), pull.worker))

    @rule(ms=st.sampled_from([1, 90, 500, 1_000, 4_000, 20_000, 70_000]), late=st.booleans())
    def time_passes(self, ms, late):
        self.pair.time_passes(ms, late)

    @rule(times=st.integers(2, 6))
    @precondition(lambda self: self.pair.model.all("active"))
    def sweeps(self, times):
        for _ in range(times):
            due_ms = self.pair.send(Sweep(self.origin("coord"))).body[0]
            self.pair.time_passes(max(1, due_ms))

    @rule(ms=st.none() | st.integers(-100_000, 100_000))
    def the_clock_is_set_or_the_shard_restarts(self, ms):
        if ms is None:
            self.pair.restart()
        else:
            self.pair.time_passes(shift=ms)

    # What happens most in real life is more likely here, too.
    push_more, push_even_more, pull_more, work_more, work_even_more = push, push, pull, work, work
    more_time_passes, more_sweeps = time_passes, sweeps

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
