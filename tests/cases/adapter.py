"""The words of the cases, and what they are in the product: the one file that knows both.

A case speaks of push, pull, KILL shard ...; here these become messages. `Core` hands them, as
bytes, to the parser and the pure core of one shard, under a clock that only the case moves;
`Live` sends them to a real cluster. What only the core can do (time, restarts) is in `Core`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from io import StringIO
from itertools import count
from typing import Any, NamedTuple

import pytest

import pyq
from cluster.cli import main
from cluster.local import LocalCluster
from pyq.backoff import backoff_ms
from pyq.codec import pack, unpack
from pyq.connection import Connection
from pyq.connection import Pending as Sent
from pyq.errors import BadOption, PyqError, Status
from pyq.ids import slot_of_id
from pyq.limits import (
    BATCH_BYTES_MAX,
    BATCH_JOBS_MAX,
    LEASE_MS_DEFAULT,
    LOG_LINES_MAX,
    REMOVED_MAX,
    SWEEP_MS_MAX,
    SWEEP_MS_MIN,
)
from pyq.messages import Sweep
from pyq.options import Backoff, check_options, check_queue
from pyq.parsing import parse
from pyq.routes import slot_of
from pyq.wire import (
    ALL_SHARDS,
    BY_QUEUE,
    Flag,
    Verb,
    WireError,
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)
from shardnode.storage.sqlite import SqliteStore
from tests.support.shards import MONO_0, WALL_0, Call, Rig, repeat

JITTER = 0.2
NAME = "job"

# What a case calls an option, where the wire has another word for it.
_OPTION_WORDS = {"unique_key": "unique", "unique_ms": "unique_ttl_ms"}


class Refused(Exception):
    """A definite no: nothing was changed. `status` is the code's name."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(f"{Status(status).name}: {sentence}")
        self.status = Status(status).name
        self.sentence = sentence


class Pushed(NamedTuple):
    """What the answer to a push says of one job."""

    id: bytes
    deduplicated: bool = False  # there was one already, which `id` names
    state: str = ""  # ... and its state, or how it ended


class Lease(NamedTuple):
    """A job in the hands of a worker."""

    id: bytes
    token: bytes
    attempt: int
    data: Any
    failures: int
    queue: str
    worker: str


class End(NamedTuple):
    """What `wait` says."""

    state: str
    result: Any
    error: str


class Event(NamedTuple):
    n: int
    kind: str
    at: int
    queue: str
    id: bytes | None
    name: str | None
    detail: Any


class Reading(NamedTuple):
    """A page of events: where to go on, how many were lost before it, and the events."""

    epoch: int
    after: int
    missed: int
    events: list[Event]


def backoff_preview(spec: tuple[Any, ...], n: int) -> int:
    """The delay in ms after the n-th failure, without jitter."""
    return backoff_ms(_backoff(spec), n, 0.5)


def library_preview(spec: tuple[Any, ...], n: int) -> list[float]:
    """The first `n` delays in seconds, as the client library shows them."""
    return pyq.backoff_preview(_backoff(spec), n)


def cron_preview(
    pattern: str | None, zone: str = "UTC", after: str = "", n: int = 1, every: str | None = None
) -> list[str]:
    """The next ticks after a moment, as clocks in the zone show them, to the minute."""
    moment = datetime.fromisoformat(after)
    ticks = pyq.cron_preview(pattern, n, every=every, zone=zone, after=moment)
    return [tick.isoformat(timespec="minutes") for tick in ticks]


def cron_hints(pattern: str) -> list[str]:
    """What the command line says beside the next ticks of a pattern."""
    output = StringIO()
    with redirect_stderr(output), redirect_stdout(StringIO()):
        assert main(["cron", "next", pattern]) == 0
    return output.getvalue().splitlines()


def _backoff(spec: tuple[Any, ...]) -> Backoff:
    return check_options({"backoff": _backoff_on_the_wire(spec)}).backoff


def _backoff_on_the_wire(spec: tuple[Any, ...]) -> list[Any]:
    kind, base_ms, factor, max_ms = spec
    assert kind in ("fixed", "exponential")
    return [base_ms, 1 if kind == "fixed" else factor, max_ms, JITTER, []]


def _options_on_the_wire(options: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    for word, value in options.items():
        if word == "backoff":
            wire["backoff"] = _backoff_on_the_wire(value)
        elif word == "keep_completed" and type(value) is not bool:
            wire["keep_count"] = value
        else:
            wire[_OPTION_WORDS.get(word, word)] = value
    return wire


class Asked:
    """A request under way; `status` and `body` once it is answered."""

    @property
    def waits(self) -> bool:
        raise NotImplementedError

    def answer(self) -> tuple[int, Any]:
        """The status and the body; of a live one: wait for them."""
        raise NotImplementedError

    @property
    def body(self) -> Any:
        status, body = self.answer()
        if status != Status.OK:
            raise Refused(status, body[0])
        return body


class Parked:
    """A pull that waits for jobs."""

    def __init__(self, asked: Asked, worker: str) -> None:
        self.asked = asked
        self.worker = worker

    @property
    def waits(self) -> bool:
        return self.asked.waits

    @property
    def leases(self) -> list[Lease]:
        """What it was given; empty while it waits, and when it waited in vain."""
        return [] if self.waits else _leases(self.asked.body, self.worker)


class Waiting:
    """A caller that waits for the end of a job."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    @property
    def waits(self) -> bool:
        return self.asked.waits

    @property
    def end(self) -> End:
        state, result, error = self.asked.body
        return End(state, None if result is None else unpack(result), error)


def _leases(body: Any, worker: str) -> list[Lease]:
    return [
        Lease(row[0], row[1], row[2], unpack(row[4]), row[5], queue, worker)
        for queue, rows in body[1]
        for row in rows
    ]


class Surface:
    """Every verb of the cases. Where an item of a batch is not plainly OK, its word is returned:
    "replayed", "cancelled" ..., or the name of the code that refused it.
    """

    def __init__(self) -> None:
        self._names = count(1)

    def ask(
        self,
        verb: Verb,
        body: Any,
        queue: str = "",
        slot: int = BY_QUEUE,
        client: str = "app",
        flags: int = 0,
    ) -> Asked:
        raise NotImplementedError

    def new_id(self, queue: str) -> bytes:
        raise NotImplementedError

    def queue(self) -> str:
        """A queue of the case's own."""
        return f"queue-{next(self._names)}"

    # --- producers ----------------------------------------------------------------------------

    def push(
        self,
        queue: str,
        data: Any = None,
        client: str = "app",
        durable: bool = False,
        **options: Any,
    ) -> Pushed:
        (pushed,) = self.push_many(queue, [(data, options)], client, durable)
        return pushed

    def push_many(
        self,
        queue: str,
        jobs: Iterable[tuple[Any, Mapping[str, Any]]],
        client: str = "app",
        durable: bool = False,
    ) -> list[Pushed]:
        """One answer per job, in order. Raises Refused if the cluster refuses one."""
        pushed: list[Pushed] = []
        for batch in _batches(jobs):
            rows = [
                [self.new_id(queue), NAME, payload, _options_on_the_wire(options) or None]
                for payload, options in batch
            ]
            flags = int(Flag.DURABLE) if durable else 0
            body = self.ask(Verb.PUSH, [None, rows], queue, client=client, flags=flags).body
            answers = {index: (status, detail) for index, status, detail in body[1]}
            for index, row in enumerate(rows):
                status, detail = answers.get(index, (Status.OK, None))
                if status != Status.OK:
                    raise Refused(status, detail)
                pushed.append(_pushed(row[0], detail))
        return pushed

    # --- workers ------------------------------------------------------------------------------

    def pull(self, queue: str, n: int = 1, worker: str = "worker") -> list[Lease]:
        return _leases(self.ask_pull(queue, n, 0, worker).body, worker)

    def pull_one(self, queue: str, worker: str = "worker") -> Lease:
        (lease,) = self.pull(queue, 1, worker)
        return lease

    def park(self, queue: str, n: int = 1, wait_ms: int = 60_000, worker: str = "worker") -> Parked:
        """A pull that waits."""
        return Parked(self.ask_pull(queue, n, wait_ms, worker), worker)

    def ask_pull(self, queue: str, n: int, wait_ms: int, worker: str) -> Asked:
        """`last_received`: this worker always got the answers to its earlier pulls."""
        last = self.last_sequence(worker)
        body = [worker, [queue], n, wait_ms, LEASE_MS_DEFAULT, last]
        return self.ask(Verb.PULL, body, queue, client=worker)

    def last_sequence(self, client: str) -> int:
        raise NotImplementedError

    def ack(self, lease: Lease, result: Any = None) -> str:
        return self.ack_many([(lease, result)])[0]

    def ack_many(self, done: Sequence[tuple[Lease, Any]]) -> list[str]:
        items = [
            [lease.id, lease.token, None if result is None else pack(result, "result")]
            for lease, result in done
        ]
        return self._settle(Verb.ACK, items)

    def fail(self, lease: Lease, error: str = "boom") -> str:
        return self._settle(Verb.FAIL, [[lease.id, lease.token, error, "", None, False, -1]])[0]

    def release(self, lease: Lease, delay_ms: int = 0) -> str:
        return self._settle(Verb.RELEASE, [[lease.id, lease.token, delay_ms]])[0]

    def heartbeat(self, *leases: Lease) -> list[str]:
        items = [[lease.id, lease.token] for lease in leases]
        body = self.ask(Verb.HEARTBEAT, [items, None, 0], leases[0].queue).body
        return _words(len(items), body[1])

    def progress(self, lease: Lease, value: Any) -> str:
        return self._settle(Verb.PROGRESS, [[lease.id, lease.token, pack(value)]])[0]

    def log(self, lease: Lease, *lines: str, first: int = 1) -> str:
        return self._settle(Verb.LOG, [[lease.id, lease.token, first, lines]])[0]

    def _settle(self, verb: Verb, items: list[list[Any]]) -> list[str]:
        slot = slot_of_id(items[0][0])
        return _words(len(items), self.ask(verb, [items], slot=slot).body[1])

    # --- looking ------------------------------------------------------------------------------

    def get(self, job: bytes | str, queue: str = "") -> dict[str, Any] | None:
        """The view of a job by its id, or by the id its producer chose; None if there is none."""
        if isinstance(job, bytes):
            body = self.ask(Verb.GET, [job, None, 3], slot=slot_of_id(job)).body
        else:
            body = self.ask(Verb.GET, [None, job, 3], queue).body
        views = [_readable(view) for view in body[0]]
        assert len(views) <= 1, "one job per id"
        return views[0] if views else None

    def wait(self, job: bytes, timeout_ms: int = 0, client: str = "waiter") -> Waiting:
        body = [job, timeout_ms]
        return Waiting(self.ask(Verb.RESULT, body, slot=slot_of_id(job), client=client))

    def listing(
        self, queue: str, state: str | None = None, page: int = 1_000
    ) -> list[dict[str, Any]]:
        views: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            found, after = self.ask(Verb.LIST, [state, after, page, 3], queue).body
            views += [_readable(view) for view in found]
        return views

    def counts(self, queue: str) -> dict[str, int]:
        """Jobs per state, without zeros; empty for a queue that is not known."""
        entries, _ = self.ask(Verb.COUNTS, [0], queue).body
        return {name: dict(numbers) for name, numbers, *_ in entries}.get(queue, {})

    def logs(self, job: bytes) -> list[str]:
        body = self.ask(Verb.LOGS, [job, 0, LOG_LINES_MAX], slot=slot_of_id(job)).body
        return [text for _, _, _, text in body[0]]

    def dlq(self, queue: str) -> list[dict[str, Any]]:
        return self.listing(queue, "dead")

    def events(
        self, queue: str = "", since: Reading | None = None, wait_ms: int = 0
    ) -> "Callable[[], Reading]":
        """Ask for events after a reading (None: from now on); call the answer to have it."""
        cursor = (0, -1) if since is None else (since.epoch, since.after)
        slot = BY_QUEUE if queue else 0
        asked = self.ask(Verb.EVENTS, [*cursor, 1_000, wait_ms], queue, slot=slot, client="reader")

        def read() -> Reading:
            epoch, after, missed, rows = asked.body
            return Reading(epoch, after, missed, [Event(*row) for row in rows])

        return read

    # --- operators ----------------------------------------------------------------------------

    def cancel(self, job: bytes) -> str:
        return self._change(Verb.CANCEL, job)

    def retry(self, job: bytes) -> str:
        return self._change(Verb.RETRY, job)

    dlq_retry = retry

    def promote(self, job: bytes) -> str:
        return self._change(Verb.PROMOTE, job)

    def _change(self, verb: Verb, job: bytes) -> str:
        return _words(1, self.ask(verb, [[[job]]], slot=slot_of_id(job)).body[1])[0]

    def pause(self, queue: str) -> None:
        self.ask(Verb.PAUSE, [True, None], queue).body  # noqa: B018  # raises if refused

    def resume(self, queue: str) -> None:
        self.ask(Verb.PAUSE, [False, None], queue).body  # noqa: B018

    def settings(self, queue: str, **changes: Any) -> dict[str, Any]:
        """Change settings (stall_ms is the length of a lease) and return all of them."""
        if "stall_ms" in changes:
            changes["lease_ms"] = changes.pop("stall_ms")
        return dict(self.ask(Verb.CONFIGURE, [changes or None], queue).body[0])

    def limits(
        self,
        queue: str,
        max: int | None = None,
        per_ms: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        changes = {"rate_max": max, "rate_per_ms": per_ms, "concurrency": concurrency}
        self.settings(queue, **changes)

    def drain(self, queue: str, delayed: bool = False) -> int:
        return self._remove(Verb.DRAIN, [delayed], queue, None)

    def clean(self, queue: str, state: str, older_ms: int = 0, limit: int | None = None) -> int:
        return self._remove(Verb.CLEAN, [state, older_ms], queue, limit)

    def cron_put(self, name: str, pattern: str, queue: str = "cron", **times: Any) -> str:
        """Add a schedule: "added", "changed" or "unchanged". Raises Refused."""
        body = [{"pattern": pattern, **times}, queue, NAME, pack(None), None]
        return str(self.ask(Verb.SCHEDULE, body, name).body[0])

    def obliterate(self, queue: str, force: bool = False) -> int:
        return self._remove(Verb.OBLITERATE, [force], queue, None)

    def _remove(self, verb: Verb, body: list[Any], queue: str, limit: int | None) -> int:
        """Page by page, as the client library does it."""
        removed, after = 0, 0
        while after is not None and removed != limit:
            page = REMOVED_MAX if limit is None else min(limit - removed, REMOVED_MAX)
            number, after = self.ask(verb, [*body, after, page], queue).body
            removed += number
        return removed


def _batches(
    jobs: Iterable[tuple[Any, Mapping[str, Any]]],
) -> Iterator[list[tuple[bytes, Mapping[str, Any]]]]:
    """Jobs with packed data, as many at a time as one message takes."""
    batch: list[tuple[bytes, Mapping[str, Any]]] = []
    size = 0
    for data, options in jobs:
        payload = pack(data)
        if batch and (len(batch) == BATCH_JOBS_MAX or size + len(payload) > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append((payload, options))
        size += len(payload)
    if batch:
        yield batch


def _pushed(job_id: bytes, detail: Any) -> Pushed:
    if detail is None:
        return Pushed(job_id)
    word, known, state, _ = detail
    assert word == "exists"
    return Pushed(known, True, state)


def _words(items_count: int, exceptions: Sequence[Any]) -> list[str]:
    words = ["ok"] * items_count
    for index, status, detail in exceptions:
        word = Status(status).name
        if status == Status.OK:
            word = detail if isinstance(detail, str) else detail[0]
        words[index] = word
    return words


def _readable(view: Mapping[str, Any]) -> dict[str, Any]:
    """A view with what applications put in as they see it."""
    shown = dict(view)
    for name, into in (("payload", "data"), ("result", "result"), ("progress", "progress")):
        packed = shown.pop(name, None)
        shown[into] = None if packed is None else unpack(packed)
    return shown


# --- the pure core -------------------------------------------------------------------------------


class _CoreAsked(Asked):
    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def waits(self) -> bool:
        return self.call.waits

    def answer(self) -> tuple[int, Any]:
        answer = self.call.answer
        return answer.status, answer.body


class _CoreRefused(Asked):
    """Refused at the door."""

    def __init__(self, error: WireError) -> None:
        self.error = error

    @property
    def waits(self) -> bool:
        return False

    def answer(self) -> tuple[int, Any]:
        return self.error.status, [str(self.error), 0]


class Core(Surface):
    """One shard without processes. Messages go in and come out as bytes; time is `pass_time`.

    With `restarts`, each `here()` of a case is a kill of the shard and its next start.
    """

    def __init__(self, rig: Rig, restarts: bool = False) -> None:
        super().__init__()
        self.rig = rig
        self.restarts = restarts
        self.crews: list[Crew] = []
        self.wakeups_count = 0  # turns of the shard's own accord since it was set to 0
        self._waiting: list[_CoreAsked] = []
        self._sequences: dict[str, int] = {}
        self._swept_at = 0  # when the coordinator asks for the next sweep
        self._dead_workers: set[str] = set()

    def ask(
        self,
        verb: Verb,
        body: Any,
        queue: str = "",
        slot: int = BY_QUEUE,
        client: str = "app",
        flags: int = 0,
    ) -> Asked:
        assert client not in self._dead_workers, f"{client} was killed"
        origin = self.rig.origin(client, flags=flags)
        self._sequences[client] = origin.sequence
        header = pack_header(verb, origin.request_id, flags=flags, slot=slot, queue=queue)
        try:
            parsed = unpack_header(header)
            command = parse(parsed, origin, unpack_body(pack_body(body)))
        except WireError as error:
            return _CoreRefused(error)
        asked = _CoreAsked(self.rig.send(command)[0])
        if asked.waits:
            self._waiting = [other for other in self._waiting if other.waits]
            self._waiting.append(asked)
        return asked

    def last_sequence(self, client: str) -> int:
        return self._sequences.get(client, 0)

    def new_id(self, queue: str) -> bytes:
        return self.rig.an_id(queue)

    @property
    def now(self) -> int:
        """The wall clock, in ms since 1970."""
        return WALL_0 + self.rig.clock.at + self.rig.clock.wall_shift

    # --- time and accidents -------------------------------------------------------------------

    def pass_time(self, ms: int, coordinator: bool = True) -> None:
        """Let time pass. The shard turns exactly when it said it would have something to do, and
        the coordinator asks for sweeps when it was told to. Nothing else happens of itself.
        """
        clock = self.rig.clock
        end = clock.at + ms
        while True:
            wakeup = self.rig.shard.next_wakeup(clock.now())
            due = end if wakeup is None else min(end, wakeup - MONO_0)
            if coordinator and self._swept_at <= min(due, end):
                clock.at = max(clock.at, self._swept_at)
                self._sweep()
            elif wakeup is not None and wakeup - MONO_0 <= end:
                clock.at = max(clock.at, due)
                self.wakeups_count += 1
                self.rig.send()
            else:
                break
            self._work()
        clock.at = end
        self.rig.send()
        self._work()

    def skip_time(self, ms: int) -> None:
        """Let very much time pass in one step: nobody was there to do anything in between."""
        self.rig.clock.at += ms
        self._swept_at = self.rig.clock.at
        self.rig.send()

    def _sweep(self) -> None:
        call = self.rig.send(Sweep(self.rig.origin("coord")))[0]
        due_ms = call.body[0]
        self._swept_at = self.rig.clock.at + min(max(due_ms, SWEEP_MS_MIN), SWEEP_MS_MAX)

    def _work(self) -> None:
        busy = True
        while busy:
            busy = False
            for crew in self.crews:
                busy = crew.work() or busy

    def kill_shard(self) -> None:
        """KILL and start: memory is lost; whoever waits asks again, as the client library does."""
        with self.stopped():
            pass

    restart = kill_shard

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The shard is down; its file may be looked at."""
        waiting = [asked for asked in self._waiting if asked.waits]
        if isinstance(self.rig.store, SqliteStore):
            self.rig.store.close()
        yield
        self.rig.restart()
        for asked in waiting:
            asked.call = repeat(self.rig, asked.call)
        self._work()

    def here(self) -> None:
        """A place in a case where a restart must not matter."""
        if self.restarts:
            self.kill_shard()

    def kill_worker(self, worker: str) -> None:
        """It is never heard again."""
        self._dead_workers.add(worker)

    def set_clock(self, seconds: int) -> None:
        """Somebody sets the wall clock of the machine."""
        self.rig.clock.wall_shift += seconds * 1_000

    def crew(
        self,
        queue: str,
        workers: int = 1,
        n: int = 1,
        handler: "Callable[[Lease], Any]" = lambda lease: None,
        prefix: str = "w",
    ) -> "Crew":
        """Workers that pull with a long poll, and are done with each job in no time."""
        crew = Crew(self, queue, [f"{prefix}-{number}" for number in range(workers)], n, handler)
        self.crews.append(crew)
        crew.work()
        self._work()
        return crew


class Crew:
    """Workers who handle jobs at once. A handler returns a result, or raises to fail."""

    def __init__(
        self, core: Core, queue: str, workers: list[str], n: int, handler: Callable[[Lease], Any]
    ) -> None:
        self.core = core
        self.queue = queue
        self.n = n
        self.handler = handler
        self.parked: dict[str, Parked | None] = dict.fromkeys(workers)
        self.leases: list[tuple[int, Lease]] = []  # when (wall) and what

    @property
    def done(self) -> list[Any]:
        """The data of all jobs, in the order in which they were leased."""
        return [lease.data for _, lease in self.leases]

    def work(self) -> bool:
        """Do what can be done now; True if there was anything."""
        busy = False
        for worker, parked in list(self.parked.items()):
            if parked is not None and parked.waits:
                continue
            busy = busy or parked is not None
            for lease in parked.leases if parked is not None else ():
                self._handle(lease)
            if worker in self.parked:
                self.parked[worker] = self.core.park(self.queue, self.n, worker=worker)
        return busy

    def _handle(self, lease: Lease) -> None:
        self.leases.append((self.core.now, lease))
        try:
            result = self.handler(lease)
        except Failure as failure:
            self.core.fail(lease, str(failure))
            return
        except Killed:
            self.core.kill_worker(lease.worker)
            self.parked.pop(lease.worker)
            return
        self.core.ack(lease, result)


class Failure(Exception):
    """A handler's way to fail an attempt."""


class Killed(Exception):
    """A handler's way to be killed."""


# --- a real cluster -----------------------------------------------------------------------------


class _LiveAsked(Asked):
    def __init__(self, connection: Connection, sent: Sent) -> None:
        self.connection = connection
        self.sent = sent

    @property
    def waits(self) -> bool:
        if not self.sent.done:
            self.connection.poll(0)
        return not self.sent.done

    def answer(self) -> tuple[int, Any]:
        try:
            return Status.OK, self.connection.wait(self.sent).body
        except PyqError as error:
            return error.status or Status.UNKNOWN, [str(error), 0]


class Live(Surface):
    """A real cluster, by its real client's connections: one per name of a client."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self._connections: dict[str, Connection] = {}
        self._prefix = ""

    def ask(
        self,
        verb: Verb,
        body: Any,
        queue: str = "",
        slot: int = BY_QUEUE,
        client: str = "app",
        flags: int = 0,
    ) -> Asked:
        connection = self.connection(client)
        if verb is Verb.GET and not queue and slot == BY_QUEUE:
            slot = ALL_SHARDS
        try:
            sent = connection.send(verb, body, queue=queue, slot=slot, flags=flags)
        except UnicodeError as error:
            raise Refused(Status.BAD_REQUEST, str(error)) from None
        return _LiveAsked(connection, sent)

    def connection(self, client: str) -> Connection:
        if client not in self._connections:
            self._connections[client] = Connection(self.cluster.url)
        return self._connections[client]

    def last_sequence(self, client: str) -> int:
        return self.connection(client)._sequence

    def new_id(self, queue: str) -> bytes:
        return self.connection("app").ids.make(slot_of(queue))[0]

    def queue(self) -> str:
        return f"live-{next(_live_names)}"

    def here(self) -> None:
        """Real restarts have cases of their own."""

    def kill_all(self) -> None:
        """KILL every process of the cluster and start it again on the same data."""
        self.cluster.kill()
        self.cluster.start()

    def cli(self, *arguments: str) -> tuple[int, str]:
        """Run a command of the command line: exit code and what it printed on a terminal."""
        printed = _Terminal()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYQ_URL", self.cluster.url)
            patch.setattr(sys, "stdout", printed)
            patch.setattr(sys, "stderr", printed)
            code = main(arguments)
        return code, printed.getvalue()

    @contextmanager
    def shell_worker(self, queue: str) -> Iterator[None]:
        """`worker start`, a process of its own."""
        process = self.cluster.spawn("worker", "start", "--queue", queue)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


_live_names = count(1)


def packed_size(data: Any) -> int:
    """How many bytes of a payload an application's data takes."""
    return len(pack(data))


def library_refusal(queue: str) -> str:
    """What the client library says to a name that a queue may not have."""
    try:
        check_queue(queue)
    except BadOption as error:
        return str(error)
    return ""
