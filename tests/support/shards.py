"""A shard to test: its core, a store, a clock that only tests move, and a turn like the server's.

Scenarios speak in calls (`push`, `pull`, `ack` ...). Each call is one turn: tick, apply,
read what was needed, stage, commit, encode the replies. After each turn everything that
must always hold is checked (support/invariants.py).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple

from pyq.cron import check_cron
from pyq.errors import Status
from pyq.job import JobState
from pyq.limits import FRAME_BYTES_MAX, LEASE_MS_DEFAULT
from pyq.messages import (
    Ack,
    AddSchedule,
    Block,
    Cancel,
    Change,
    Clean,
    Command,
    Configure,
    Counts,
    DeadStats,
    Deliver,
    Drain,
    Events,
    Extend,
    Fail,
    Fired,
    Get,
    Goodbye,
    Heartbeat,
    List,
    Log,
    Logs,
    NewJob,
    Obliterate,
    Open,
    Origin,
    Outbox,
    Pause,
    Ping,
    Progress,
    Promote,
    Pull,
    Purge,
    Push,
    Release,
    Reply,
    Result,
    Retry,
    Return,
    Row,
    Schedules,
    States,
    Stats,
    StopWorkers,
    Suspend,
    Sweep,
    Unpull,
    Unschedule,
    Update,
    Worker,
    Workers,
)
from pyq.options import check_options
from pyq.routes import slot_of
from pyq.schedule import Schedule, check_template, schedule_from_wire
from pyq.wire import Flag, Verb, unpack_body, unpack_header
from shardnode.core.effects import Effects, Found, Need, Now
from shardnode.core.recovery import restore_jobs, restore_queues
from shardnode.core.shard import Shard
from shardnode.core.state import LeaseEnd, ShardState
from shardnode.frames import ReplyEncoder
from shardnode.storage.memory import MemoryStore
from shardnode.storage.store import Store
from tests.support.invariants import check_invariants, what_records_keep

WALL_0 = 1_750_000_000_000
MONO_0 = 5_000_000
NEVER = 1 << 62

REPEAT = int(Flag.REPEAT)
DURABLE = int(Flag.DURABLE)

VERBS: dict[type, Verb] = {
    kind: Verb[kind.__name__.upper()]
    for kind in (
        Push, Pull, Unpull, Return, Ack, Fail, Release, Heartbeat, Extend, Progress,
        Get, List, Counts, Result, Sweep, Workers, Goodbye, Retry, Cancel, Purge,
        Ping, Stats, Promote, Update, Configure, Pause, Drain, Clean, Obliterate,
        Log, Logs, Events, Block, States, Outbox, Deliver, Open,
        Unschedule, Suspend, Fired, Schedules,
    )
} | {
    StopWorkers: Verb.STOP_WORKERS, DeadStats: Verb.DEAD_STATS, AddSchedule: Verb.SCHEDULE,
}  # fmt: skip


class Clock:
    """Time since the start of the test, and dice that always fall alike."""

    def __init__(self) -> None:
        self.at = 0
        self.wall_shift = 0  # somebody set the clock of the machine
        self.turns = 0

    def now(self) -> Now:
        self.turns += 1
        seed = blake2b(self.turns.to_bytes(8, "big"), digest_size=16).digest()
        return Now(WALL_0 + self.at + self.wall_shift, MONO_0 + self.at, seed)


class Leased(NamedTuple):
    """A job as a worker receives it."""

    id: bytes
    token: bytes
    attempt: int
    name: str
    payload: bytes
    failures: int
    attempts: int
    timeout_ms: int
    created_at: int
    job_id: str | None
    fence: int
    queue: str


class Answer(NamedTuple):
    """A reply as its frames say it."""

    status: Status
    body: Any

    @property
    def exceptions(self) -> list[tuple[Any, ...]]:
        assert self.status is Status.OK, f"refused: {self}"
        return list(self.body[1])

    @property
    def jobs(self) -> list[Leased]:
        assert self.status is Status.OK, f"refused: {self}"
        return [Leased(*row, queue) for queue, rows in self.body[1] for row in rows]


class Call:
    """A command that was sent, and what came back for it so far."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.origin = command.origin  # of this sending; the core may give the command another
        self.answers: list[Answer] = []

    @property
    def request_id(self) -> bytes:
        return self.origin.request_id

    @property
    def waits(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> Answer:
        assert len(self.answers) == 1, f"{len(self.answers)} answers, not one: {self.answers}"
        return self.answers[0]

    @property
    def status(self) -> Status:
        return self.answer.status

    @property
    def body(self) -> Any:
        return self.answer.body

    @property
    def exceptions(self) -> list[tuple[Any, ...]]:
        return self.answer.exceptions

    @property
    def accepted(self) -> bool:
        """Every item of the batch is plainly OK."""
        return self.status is Status.OK and not self.exceptions

    @property
    def stale(self) -> bool:
        """Every item of the batch was refused with STALE_TOKEN."""
        codes = {exception[1] for exception in self.exceptions}
        return len(self.exceptions) == self.body[0] and codes == {Status.STALE_TOKEN}

    @property
    def replayed(self) -> bool:
        """Every item of the batch had been accepted before."""
        said = {exception[1:] for exception in self.exceptions}
        return len(self.exceptions) == self.body[0] and said == {(Status.OK, "replayed")}

    @property
    def jobs(self) -> list[Leased]:
        return self.answer.jobs

    @property
    def job(self) -> Leased:
        (job,) = self.jobs
        return job

    @property
    def names(self) -> str:
        """The names of leased jobs in a row, since tests give them one letter each."""
        return "".join(job.name for job in self.jobs)

    @property
    def ids(self) -> list[bytes]:
        assert isinstance(self.command, Push)
        return [job[0] for job in self.command.jobs]

    @property
    def id(self) -> bytes:
        (job_id,) = self.ids
        return job_id


class Rig:
    """A shard under test. `restart` is what a kill and a new start leave."""

    def __init__(
        self,
        store: Store,
        shard: int = 0,
        shards_count: int = 1,
        reopen: Callable[[Store], Store] | None = None,
        checked: bool = True,
    ) -> None:
        self.store = store
        self.clock = Clock()
        self.checked = checked
        self.disk_low = False
        self.disk_room = 0
        self._place = (shard, shards_count)
        self._reopen = reopen or (lambda store: store)
        self._sequences: defaultdict[bytes, count[int]] = defaultdict(lambda: count(1))
        self._ids = count(1)
        self.calls: dict[bytes, list[Call]] = defaultdict(list)
        self.effects: list[Effects] = []  # of the last turn
        self.start()

    @property
    def state(self) -> ShardState:
        return self.shard.state

    @property
    def now_ms(self) -> int:
        """Monotonic milliseconds, as deadlines count them."""
        return MONO_0 + self.clock.at

    def start(self) -> None:
        """Build the state from the records, step by step as shardnode/server.py does."""
        loaded = self.store.open()
        state = ShardState(*self._place, loaded.epoch)
        restore_queues(state, loaded, self.clock.now())
        restore_jobs(state, self.store.jobs(state.queues_by_number), self.clock.now())
        self.shard = Shard(state)
        self.encoder = ReplyEncoder(self.store, loaded.epoch)

    def restart(self, at: int | None = None) -> None:
        """Forget everything that is only in memory: who waits is never answered."""
        self.move_to(at)
        before = what_records_keep(self.state)
        self.store = self._reopen(self.store)
        self.calls.clear()
        self.start()
        if self.checked:
            assert what_records_keep(self.state) == before, "a restart changed what is known (I1)"
            check_invariants(self.shard, self.store, self.clock.now())

    def move_to(self, at: int | None) -> None:
        if at is not None:
            assert at >= self.clock.at, "time runs forward"
            self.clock.at = at

    def origin(self, client: str, sequence: int | None = None, **fields: Any) -> Origin:
        incarnation = client.encode().ljust(8, b"_")
        assert len(incarnation) == 8
        number = next(self._sequences[incarnation]) if sequence is None else sequence
        return Origin(incarnation + number.to_bytes(8, "big"), sender=(incarnation,), **fields)

    def an_id(self, queue: str) -> bytes:
        """A UUIDv7 of the present time, carrying its queue's slot."""
        time_ms = WALL_0 + self.clock.at
        value = (time_ms << 80) | (0x7 << 76) | (0b10 << 62) | (next(self._ids) << 12)
        return (value | slot_of(queue)).to_bytes(16, "big")

    def send(self, *commands: Command, at: int | None = None, late: bool = False) -> list[Call]:
        """One turn with these commands; returns their calls, in order."""
        self.move_to(at)
        calls = []
        for command in commands:
            command.origin.verb = VERBS[type(command)]
            call = Call(command)
            self.calls[command.origin.request_id].append(call)
            calls.append(call)
        self.turn(commands, late)
        return calls

    def turn(self, commands: Sequence[Command], late: bool = False) -> None:
        """What the server's turn does, with the same steps in the same order."""
        now = self.clock.now()
        store = self.store
        staged: list[Effects] = []
        durable = any(command.origin.flags & Flag.DURABLE for command in commands)
        effects = self.shard.tick(now, late, self.disk_low, self.disk_room)
        replies: list[Reply] = []

        def stage() -> None:
            if not staged:
                store.begin(durable)
            staged.append(effects)
            store.stage(effects, self.state.counter)

        for command in (*self.shard.chores(now), *commands):
            found: Found = {}
            outcome = self.shard.apply(command, now)
            while isinstance(outcome, Need):
                stage()
                replies += effects.replies
                effects = Effects()
                asked = store.find(outcome.keys, self.state.queues_by_number)
                assert asked.keys() - found.keys(), "a command asks for the same records again"
                found.update(asked)
                outcome = self.shard.apply(command, now, found)
            effects.merge(outcome)
        replies += effects.replies
        if effects.writes or staged:
            stage()
            store.commit()
        self.effects = staged or [effects]
        for reply in replies:
            self._deliver(reply)
        wakeup_at = self.shard.next_wakeup(now)
        assert wakeup_at is None or wakeup_at >= now.mono_ms or commands, (
            "what was due was not done"
        )
        if self.checked:
            check_invariants(self.shard, store, now)

    def _deliver(self, reply: Reply) -> None:
        *sender, head, body = self.encoder.frames(reply)
        assert tuple(sender) == reply.origin.sender
        assert len(body) <= FRAME_BYTES_MAX, f"a reply of {len(body)} bytes breaks the connection"
        header = unpack_header(head)
        answer = Answer(Status(header.status), unpack_body(body))
        calls = self.calls[header.request_id]
        same = [call for call in calls if call.origin is reply.origin]
        assert same, f"an answer to nobody: {answer}"
        same[0].answers.append(answer)


def a_shard(store: Store | None = None, **fields: Any) -> Rig:
    """An empty shard over a memory store, or over `store`."""
    return Rig(MemoryStore() if store is None else store, **fields)


# --- one function per verb: a call is a turn --------------------------------------------


def new_job(
    rig: Rig, name: str, queue: str, payload: bytes | None = None, **options: Any
) -> NewJob:
    body = name.encode() if payload is None else payload
    return rig.an_id(queue), name, body, check_options(options)


def push(
    rig: Rig,
    *names: str,
    queue: str = "emails",
    payload: bytes | None = None,
    ids: Sequence[bytes] = (),
    flags: int = 0,
    at: int | None = None,
    client: str = "producer",
    **options: Any,
) -> Call:
    """Push one job per name (a letter), all with the same options."""
    rig.move_to(at)
    jobs = [new_job(rig, name, queue, payload, **options) for name in names]
    if ids:
        jobs = [(job_id, *job[1:]) for job_id, job in zip(ids, jobs, strict=True)]
    return rig.send(Push(rig.origin(client, flags=flags), queue, jobs))[0]


def pull(
    rig: Rig,
    *queues: str,
    client: str = "worker",
    worker: str = "",
    jobs_max: int = 1,
    wait_ms: int = 0,
    lease_ms: int = LEASE_MS_DEFAULT,
    last_received: int | None = None,
    sequence: int | None = None,
    at: int | None = None,
    **origin: Any,
) -> Call:
    """Pull; by default the client says that it received the answers to all its earlier pulls."""
    command = Pull(
        rig.origin(client, sequence, **origin),
        worker or client,
        queues or ("emails",),
        jobs_max,
        wait_ms,
        lease_ms,
    )
    received = command.origin.sequence - 1 if last_received is None else last_received
    command.last_received = received
    return rig.send(command, at=at)[0]


def repeat(rig: Rig, call: Call, at: int | None = None, **origin: Any) -> Call:
    """Send the same command again under its request id, flagged REPEAT."""
    command = call.command
    again = type(command)(
        *[
            getattr(command, name)
            for name in type(command).__dataclass_fields__  # type: ignore[attr-defined]
        ]
    )
    old = command.origin
    fields = {"flags": old.flags | REPEAT, "sender": old.sender, **origin}
    again.origin = Origin(old.request_id, **fields)
    return rig.send(again, at=at)[0]


def ack(
    rig: Rig,
    *jobs: Leased,
    result: bytes | None = None,
    flags: int = 0,
    at: int | None = None,
) -> Call:
    items = [(job.id, job.token, result) for job in jobs]
    return rig.send(Ack(rig.origin("worker-a", flags=flags), items), at=at)[0]


def fail(
    rig: Rig,
    *jobs: Leased,
    error: str = "boom",
    traceback: str = "",
    result: bytes | None = None,
    unrecoverable: bool = False,
    retry_in_ms: int = -1,
    flags: int = 0,
    at: int | None = None,
) -> Call:
    items = [
        (job.id, job.token, error, traceback, result, unrecoverable, retry_in_ms) for job in jobs
    ]
    return rig.send(Fail(rig.origin("worker-f", flags=flags), items), at=at)[0]


def release(rig: Rig, *jobs: Leased, delay_ms: int = 0, at: int | None = None) -> Call:
    items = [(job.id, job.token, delay_ms) for job in jobs]
    return rig.send(Release(rig.origin("worker-r"), items), at=at)[0]


def heartbeat(
    rig: Rig,
    *jobs: Leased,
    worker: str = "",
    wait_ms: int = 0,
    started_at: int = WALL_0,
    at: int | None = None,
    **origin: Any,
) -> Call:
    who = Worker(worker, "host", 1, 1, started_at, ("emails",)) if worker else None
    items = [(job.id, job.token) for job in jobs]
    return rig.send(Heartbeat(rig.origin("worker-h", **origin), items, who, wait_ms), at=at)[0]


def extend(rig: Rig, *jobs: Leased, lease_ms: int, at: int | None = None) -> Call:
    items = [(job.id, job.token, lease_ms) for job in jobs]
    return rig.send(Extend(rig.origin("worker-e"), items), at=at)[0]


def progress(rig: Rig, *jobs: Leased, value: bytes, at: int | None = None) -> Call:
    items = [(job.id, job.token, value) for job in jobs]
    return rig.send(Progress(rig.origin("worker-p"), items), at=at)[0]


def sweep(rig: Rig, at: int | None = None, late: bool = False, router: bool = False) -> list[int]:
    """Ask for a sweep; returns [next due ms, suspects, stalled]."""
    command = Sweep(rig.origin("coord", through_router=router))
    return list(rig.send(command, at=at, late=late)[0].body)


def sweeps(rig: Rig, until: int) -> list[int]:
    """Sweep each time it is due; returns how often there were [suspects, stalled]."""
    suspects = stalled = 0
    while True:
        due_ms, new_suspects, new_stalled = sweep(rig)
        suspects += new_suspects
        stalled += new_stalled
        if rig.clock.at + due_ms > until:
            return [suspects, stalled]
        rig.clock.at += due_ms


def tick(rig: Rig, at: int | None = None, late: bool = False) -> None:
    """A turn without commands."""
    rig.send(at=at, late=late)


def get(rig: Rig, job_id: bytes | str, queue: str = "", want: int = 0) -> list[dict[str, Any]]:
    """The views of a job by its id (bytes) or custom id (text)."""
    origin = rig.origin("admin")
    if isinstance(job_id, bytes):
        command = Get(origin, job_id, want=want)
    else:
        command = Get(origin, None, job_id, queue, want)
    return list(rig.send(command)[0].body[0])


def view(rig: Rig, job_id: bytes, want: int = 3) -> dict[str, Any]:
    (found,) = get(rig, job_id, want=want)
    return found


def state_of(rig: Rig, job_id: bytes) -> str:
    return str(view(rig, job_id, 0)["state"])


def page(rig: Rig, **fields: Any) -> tuple[list[dict[str, Any]], int | None]:
    views, next_after = rig.send(List(rig.origin("admin"), **fields))[0].body
    return list(views), next_after


def counts(rig: Rig, queue: str = "") -> dict[str, dict[str, int]]:
    """Jobs per state of one queue or of all, from as many pages as it takes."""
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        entries, after = rig.send(Counts(rig.origin("admin"), queue, after))[0].body
        found += entries
    assert len(dict(found)) == len(found), "a queue on two pages"
    return dict(found)


def result(rig: Rig, job_id: bytes, wait_ms: int = 0, at: int | None = None, **origin: Any) -> Call:
    command = Result(rig.origin("asker", **origin), job_id, wait_ms)
    return rig.send(command, at=at)[0]


def cancel(rig: Rig, *job_ids: bytes, at: int | None = None, **origin: Any) -> Call:
    items = [(job_id,) for job_id in job_ids]
    return rig.send(Cancel(rig.origin("admin", **origin), items), at=at)[0]


def promote(rig: Rig, *job_ids: bytes, at: int | None = None) -> Call:
    return rig.send(Promote(rig.origin("admin"), [(job_id,) for job_id in job_ids]), at=at)[0]


def update(rig: Rig, job_id: bytes, at: int | None = None, **changes: Any) -> Call:
    return rig.send(Update(rig.origin("admin"), [Change(job_id, **changes)]), at=at)[0]


def retry(rig: Rig, *job_ids: bytes, at: int | None = None, **origin: Any) -> Call:
    items = [(job_id,) for job_id in job_ids]
    return rig.send(Retry(rig.origin("admin", **origin), items), at=at)[0]


def configure(
    rig: Rig, queue: str = "emails", at: int | None = None, **changes: Any
) -> dict[str, Any]:
    """Change settings (none: only read); returns all of them."""
    call = rig.send(Configure(rig.origin("admin"), queue, changes or None), at=at)[0]
    assert call.status is Status.OK, call.answer
    return dict(call.body[0])


def pause(rig: Rig, queue: str = "emails", group: str = "", at: int | None = None) -> Call:
    return rig.send(Pause(rig.origin("admin"), queue, True, group), at=at)[0]


def resume(rig: Rig, queue: str = "emails", group: str = "", at: int | None = None) -> Call:
    return rig.send(Pause(rig.origin("admin"), queue, False, group), at=at)[0]


def drain(rig: Rig, queue: str = "emails", delayed: bool = False, limit: int = 1_000) -> int:
    """Remove all that waits, page by page; returns how many."""
    return _all_pages(rig, lambda origin, after: Drain(origin, queue, delayed, after, limit))


def clean(
    rig: Rig, state: JobState, queue: str = "emails", older_ms: int = 0, limit: int = 1_000
) -> int:
    return _all_pages(
        rig, lambda origin, after: Clean(origin, queue, state, older_ms, after, limit)
    )


def obliterate(rig: Rig, queue: str = "emails", force: bool = False, limit: int = 1_000) -> int:
    return _all_pages(rig, lambda origin, after: Obliterate(origin, queue, force, after, limit))


def _all_pages(rig: Rig, make: Callable[[Origin, int], Command]) -> int:
    removed, after = 0, 0
    while after is not None:
        call = rig.send(make(rig.origin("admin"), after))[0]
        assert call.status is Status.OK, call.answer
        count, after = call.body
        removed += count
    return removed


def dead_stats(rig: Rig, queue: str = "emails") -> tuple[int, dict[str, Any]]:
    count, by_reason = rig.send(DeadStats(rig.origin("admin"), queue))[0].body
    return count, dict(by_reason)


def log(rig: Rig, job: Leased, *lines: str, first: int = 1, at: int | None = None) -> Call:
    return rig.send(Log(rig.origin("worker-l"), [(job.id, job.token, first, lines)]), at=at)[0]


def logs(rig: Rig, job_id: bytes, after: int = 0, limit: int = 1_000) -> list[Any]:
    """The lines of a job's log as [number, at, attempt, text]."""
    lines, _ = rig.send(Logs(rig.origin("admin"), job_id, after, limit))[0].body
    return list(lines)


def events(
    rig: Rig,
    queue: str = "",
    epoch: int = 0,
    after: int = -1,
    limit: int = 1_000,
    wait_ms: int = 0,
    at: int | None = None,
) -> Call:
    command = Events(rig.origin("reader"), queue, epoch, after, limit, wait_ms)
    return rig.send(command, at=at)[0]


def block(rig: Rig, job: Leased, *dep_ids: bytes, at: int | None = None) -> Call:
    return rig.send(Block(rig.origin("worker-b"), [(job.id, job.token, dep_ids)]), at=at)[0]


def states(rig: Rig, *job_ids: bytes) -> Call:
    return rig.send(States(rig.origin("admin"), [(job_id,) for job_id in job_ids]))[0]


def outbox(
    rig: Rig,
    *confirmed: tuple[int, int],
    skipped: Sequence[int] = (),
    limit: int = 1_000,
    wait_ms: int = 0,
    at: int | None = None,
) -> Call:
    command = Outbox(rig.origin("relay"), confirmed, skipped, limit, wait_ms)
    return rig.send(command, at=at)[0]


def deliver(rig: Rig, source: int, first: int, *rows: Row, at: int | None = None) -> Call:
    return rig.send(Deliver(rig.origin("relay"), source, first, rows), at=at)[0]


def schedule(
    rig: Rig,
    name: str = "nightly",
    pattern: str = "* * * * *",
    queue: str = "emails",
    job: str = "report",
    payload: bytes = b"p",
    options: dict[str, Any] | None = None,
    at: int | None = None,
    **times: Any,
) -> Call:
    """Add or change a schedule; the answer's body is (word, view)."""
    given = {"pattern": pattern, **times} if pattern else times
    command = AddSchedule(
        rig.origin("admin"),
        name,
        check_cron(given),
        queue,
        job,
        payload,
        check_template(options),
    )
    return rig.send(command, at=at)[0]


def unschedule(rig: Rig, name: str = "nightly", at: int | None = None) -> Call:
    return rig.send(Unschedule(rig.origin("admin"), name), at=at)[0]


def suspend(rig: Rig, name: str = "nightly", paused: bool = True, at: int | None = None) -> Call:
    return rig.send(Suspend(rig.origin("admin"), name, paused), at=at)[0]


def fired(
    rig: Rig,
    tick: int,
    name: str = "nightly",
    job_id: bytes = b"",
    skipped: int = 0,
    at: int | None = None,
) -> Call:
    return rig.send(Fired(rig.origin("cron"), name, tick, job_id, skipped), at=at)[0]


def ask_schedules(rig: Rig, at: int | None = None, **fields: Any) -> Call:
    return rig.send(Schedules(rig.origin("reader"), **fields), at=at)[0]


def schedules(rig: Rig, name: str = "") -> dict[str, Schedule]:
    """The schedules of a shard by name, those removed of late left out."""
    call = ask_schedules(rig, name=name)
    assert call.status is Status.OK, call.answer
    epoch, _, more, views = call.body
    assert epoch == rig.state.epoch
    assert not more
    found = [schedule_from_wire(view) for view in views]
    return {schedule.name: schedule for schedule in found if not schedule.removed_at}


def unpull(rig: Rig, parked: Call, at: int | None = None) -> Call:
    return rig.send(Unpull(rig.origin("worker"), parked.request_id), at=at)[0]


def undelivered(rig: Rig, pulled: Call, at: int | None = None) -> Call:
    """RETURN: the router could not hand the reply of a pull to its client."""
    return rig.send(Return(Origin(pulled.request_id)), at=at)[0]


def goodbye(rig: Rig, worker: str, client: str = "", at: int | None = None) -> Call:
    """Sent by the client that pulled, which bears the worker's name unless `client` says so."""
    return rig.send(Goodbye(rig.origin(client or worker), worker), at=at)[0]


def stop_workers(rig: Rig, worker: str = "", at: int | None = None) -> Call:
    return rig.send(StopWorkers(rig.origin("admin"), worker), at=at)[0]


def workers(rig: Rig, at: int | None = None) -> dict[str, int]:
    """The registered workers and the number of their leases, from all pages."""
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        entries, after = rig.send(Workers(rig.origin("admin"), after), at=at)[0].body
        found += [(worker[0], held) for worker, held in entries]
    assert len(dict(found)) == len(found), "a worker on two pages"
    return dict(found)


def stall(rig: Rig, job: Leased) -> None:
    """Be silent for so long that the lease of `job` ends, by two sweeps on time."""
    live = rig.state.jobs[job.id]
    for _ in range(2_000):
        rig.clock.at += max(1, sweep(rig)[0])
        sweep(rig)
        if live.lease is None or live.lease.end is not LeaseEnd.HELD:
            return
    raise AssertionError("it never stalled")
