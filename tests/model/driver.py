"""Drives the core and its reference side by side, and compares whatever can be seen of them.

One command is one turn of the core. The reference is asked the same, at the same time; then
every answer, every job, every count and the end of every job that left must be equal. What the
reference cannot know comes from the core: tokens, and when upkeep runs. Whether it may is checked.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from pyq.errors import BadOption, Status
from pyq.limits import TEND_MS
from pyq.messages import (
    Ack,
    Cancel,
    Clean,
    Command,
    Configure,
    Counts,
    DeadStats,
    Drain,
    Extend,
    Fail,
    Goodbye,
    Heartbeat,
    List,
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
)
from pyq.options import check_options
from pyq.settings import SETTING_NAMES
from pyq.wire import Flag
from tests.model.reference import ENDED, LIVE, OK, Model
from tests.support.shards import REPEAT, WALL_0, Call, Leased, Rig


class Pair:
    """A shard under test, and beside it what it should do."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.model = Model()
        self.waiting: list[Call] = []
        self.leases: list[Leased] = []  # all there ever were
        self.ids: list[bytes] = []  # of all jobs that were ever sent
        self.since: dict[tuple[bytes, str], int] = {}  # when upkeep might have been done first
        self.in_time()

    # --- time -----------------------------------------------------------------------------------

    def time_passes(self, ms: int = 0, late: bool = False, shift: int = 0) -> None:
        """Time passes, or the clock of the machine is set; then a turn without commands."""
        self.rig.clock.at += ms
        self.rig.clock.wall_shift += shift
        self.rig.turn((), late)
        self.follow(late)
        self.compare_upkeep()

    def follow(self, late: bool = False) -> None:
        """The reference does what the core did in a turn without commands."""
        self.in_time(late, {view["id"]: view["state"] for view in self.views()})
        self.compare_answers()

    def in_time(self, late: bool = False, core: dict[bytes, str] | None = None) -> None:
        clock = self.rig.clock
        wall = WALL_0 + clock.at + clock.wall_shift
        self.model.tick(wall, self.rig.now_ms, late, core)

    def restart(self) -> None:
        self.rig.restart()
        self.waiting.clear()
        self.model.restart()
        self.time_passes()

    def compare_upkeep(self) -> None:
        """What may be done with an ended job is done before long."""
        may = {job.id: self.model.may(job, surely=True) for job in self.model.jobs.values()}
        now = self.model.mono
        self.since = {
            (job_id, what): self.since.get((job_id, what), now)
            for job_id, right in may.items()
            for what in right
        }
        for (job_id, what), since in self.since.items():
            late_ms = now - since
            assert late_ms < 2 * TEND_MS, f"{job_id.hex()} should be {what} since {late_ms} ms"

    # --- commands -------------------------------------------------------------------------------

    def send(self, command: Command) -> Call:
        """Both do it; returns the core's call, compared."""
        self.in_time()
        (call,) = self.rig.send(command)
        self.compare_answers(call, self.foretold(command, call))
        return call

    def pages(self, command: Callable[[int], Command]) -> None:
        """Send a command that works page by page, until the core says that it was the last."""
        after: int | None = 0
        while after is not None:
            call = self.send(command(after))
            after = call.body[1] if call.status is OK else None

    def repeat(self, command: Any) -> Call:
        """Send it again under its request id, flagged as a repeat."""
        fields = {name: getattr(command, name) for name in command.__dataclass_fields__}
        old = command.origin
        fields["origin"] = Origin(old.request_id, flags=old.flags | REPEAT, sender=old.sender)
        return self.send(type(command)(**fields))

    def foretold(self, command: Any, call: Call) -> Any:
        """The body of the answer, or a status; None: it waits."""
        model, again = self.model, bool(command.origin.flags & Flag.REPEAT)

        def each(answer: Any) -> Any:
            return self.batch(command.items, answer)

        def settle(how: str, item: Any, **fields: Any) -> Any:
            return model.settle(how, item[0], item[1], again, **fields)

        match command:
            case Push(queue=queue, common=common, given=given):
                self.ids += [item[0] for item in given if item[0] not in self.ids]
                return self.batch(
                    given,
                    lambda i: model.push(queue, *i[:3], {**(common or {}), **(i[3] or {})}),
                )
            case Pull():
                fields = [getattr(command, name) for name in Pull.__dataclass_fields__]
                return self.leased(command, model.pull(*fields))
            case Unpull(request_id=request_id):
                found = [p for p in model.pulls if p.origin.request_id == request_id]
                for pull in found:
                    model.answer(model.pulls, pull, [])
                return (len(found),)
            case Return(origin=origin):
                return (model.give_back(origin.client, origin.sequence),)
            case Goodbye(origin=origin, worker=worker):
                model.give_back(origin.client)
                for beat in [beat for beat in model.beats if beat.worker == worker]:
                    model.in_vain(beat)
                return ()
            case Ack():
                return each(lambda i: settle("acked", i, result=i[2]))
            case Fail():
                return each(
                    lambda i: settle("failed", i, error=i[2], result=i[4], last=i[5], delay_ms=i[6])
                )
            case Release():
                return each(lambda i: settle("released", i, delay_ms=i[2]))
            case Heartbeat(origin=origin, items=items, worker=worker, wait_ms=wait_ms):
                return model.beat(origin, items, worker and worker.id, wait_ms)
            case Extend():
                return each(lambda item: model.extend(*item))
            case Progress():
                return each(lambda item: model.progress(*item))
            case Log():
                return each(lambda item: model.log(*item))
            case Logs(id=job_id, after=after, limit=limit):
                return model.logs(job_id, after, limit)
            case Sweep():
                return model.sweep()
            case Cancel() | Promote() | Retry() | Purge():
                verb = type(command).__name__.lower()
                return each(
                    lambda item: model.manage(verb, item[0], again, command.origin.request_id)
                )
            case Update():
                return each(lambda change: model.update(*change))
            case Configure(queue=queue, changes=changes):
                try:
                    settings = model.configure(queue, changes)
                except BadOption:
                    return Status.BAD_OPTION
                return ({name: getattr(settings, name) for name in SETTING_NAMES},)
            case Pause(queue=queue, paused=paused, group=group):
                return (model.pause(queue, paused, group),)
            case Drain() | Clean() | Obliterate():
                return self.removed(command, call)
            case Result(origin=origin, id=job_id, wait_ms=wait_ms):
                return model.ask(origin, job_id, wait_ms)
            case DeadStats(queue=queue):
                return model.dead_stats(queue)
        raise AssertionError(f"the reference does not know {command}")

    def removed(self, command: Any, call: Call) -> Any:
        """A page removes the first that match, as many as the core likes; the last page all."""
        model, queue = self.model, command.queue
        spared = isinstance(command, Obliterate) and not command.force
        if spared and model.all("active", queue=queue):
            return Status.CONFLICT
        removed, after = call.body
        assert removed <= command.limit
        match command:
            case Drain(delayed=delayed):
                states, older_ms = ("waiting", "delayed") if delayed else ("waiting",), None
            case Clean(state=state, older_ms=older_ms):
                states = (state.word,)
            case Obliterate():
                states, older_ms = (*LIVE, *ENDED), None
        found = model.remove(queue, states, removed, older_ms)
        if after is None:
            left = model.remove(queue, states, None, older_ms)
            assert left == 0, f"{left} jobs are left after {command}"
            if isinstance(command, Obliterate):
                model.queues.pop(queue, None)
        return found, after

    @staticmethod
    def batch(items: Any, answer: Any) -> Any:
        said = [(index, answer(item)) for index, item in enumerate(items)]
        exceptions = [(i, *one) if isinstance(one, tuple) else (i, one) for i, one in said if one]
        return len(items), tuple(exceptions)

    # --- answers --------------------------------------------------------------------------------

    def compare_answers(self, call: Call | None = None, foretold: Any = None) -> None:
        """Who was answered in this turn, and what; who is not answered waits."""
        self.model.serve()
        told = {id(origin): what for origin, what in self.model.answers}
        self.model.answers.clear()
        for waiting in self.waiting:
            what: Any = told.pop(id(waiting.origin), None)
            if isinstance(waiting.command, Pull):
                what = self.leased(waiting.command, what)
            self.compare_answer(waiting, what)
        if call is not None:
            if foretold is None:
                foretold = told.pop(id(call.origin), None)
                if isinstance(call.command, Pull):
                    foretold = self.leased(call.command, foretold)
            self.compare_answer(call, foretold)
            self.waiting.append(call)
        assert not told, f"nobody waited for {told}"
        self.waiting = [one for one in self.waiting if one.waits and not self.taken_over(one, call)]

    @staticmethod
    def taken_over(waiting: Call, call: Call | None) -> bool:
        """A repeat took the place of what waited; nobody listens there any more."""
        repeats = call is not None and call is not waiting and isinstance(call.command, Pull)
        return repeats and call.request_id == waiting.request_id

    def compare_answer(self, call: Call, foretold: Any) -> None:
        if foretold is None:
            assert call.waits, f"{call.command}\n should wait\n and got {call.answers}"
            return
        assert not call.waits, f"{call.command}\n waits\n and should get {foretold}"
        answer = call.answer
        if isinstance(foretold, Status) or answer.status is not OK:
            got: Any = answer.status
        else:
            got = self.plain(call.command, answer.body)
        assert got == foretold, f"{call.command}\n should get {foretold}\n and got    {got}"
        if isinstance(call.command, Pull) and answer.status is OK:
            self.learn(call.jobs)

    def plain(self, command: Any, body: Any) -> Any:
        """The body of an answer without what is random, and without sentences."""

        def exceptions(said: Any) -> Any:
            return tuple(one if one[1] == OK else one[:2] for one in said)

        match command:
            case Pull():
                lease_ms, groups = body
                return lease_ms, tuple(
                    (queue, tuple((row[0], *row[2:10]) for row in rows)) for queue, rows in groups
                )
            case Sweep():
                return body[1:]
            case Logs():
                return body[:1]
            case Configure():
                told = dict(body[0])
                return ({**told, "defaults": check_options(told["defaults"])},)
            case Heartbeat():
                return body[0], exceptions(body[1]), body[2]
            case (
                Result()
                | Unpull()
                | Drain()
                | Clean()
                | Obliterate()
                | Return()
                | Goodbye()
                | Pause()
                | DeadStats()
            ):
                return body
        return body[0], exceptions(body[1])

    @staticmethod
    def leased(command: Pull, jobs: Any) -> Any:
        if not isinstance(jobs, list):
            return jobs
        rows = [
            (
                job.id, job.attempt, job.name, job.payload, job.failures, job.o.attempts,
                job.o.timeout_ms, job.created_at, job.o.job_id or None,
            )
            for job in jobs
        ]  # fmt: skip
        queues = [job.queue for job in jobs]
        by_queue = groupby(zip(queues, rows, strict=True), key=lambda pair: pair[0])
        lease_ms = jobs[0].lease.ms if jobs else command.lease_ms
        return lease_ms, tuple((queue, tuple(row for _, row in pairs)) for queue, pairs in by_queue)

    def learn(self, leased: list[Leased]) -> None:
        """Tokens are random: they are new, and told to the reference."""
        for job in leased:
            lease = self.model.jobs[job.id].lease
            if lease.token is None:
                lease.token = job.token
                assert job.token not in {old.token for old in self.leases}, "a token again (I8)"
                fences = [old.fence for old in self.leases if old.id == job.id]
                assert job.fence > max(fences, default=0), "the fence does not grow (I9)"
                self.leases.append(job)
            assert lease.token == job.token, "another token for the same lease"

    # --- jobs -----------------------------------------------------------------------------------

    def views(self, queue: str = "") -> list[dict[str, Any]]:
        (call,) = self.rig.send(List(self.rig.origin("reader"), queue, limit=1_000, want=3))
        views, after = call.body
        assert after is None, "more jobs than one page holds"
        return list(views)

    def compare(self) -> None:
        """Every job in its order, every count, and how those ended that are not kept."""
        model = self.model
        self.rig.turn(())
        self.follow()
        foretold = [self.view(job) for job in model.jobs.values()]
        views = self.views()
        got = [{name: view[name] for name in foretold[0]} for view in views] if foretold else views
        for one, other in zip(got, foretold, strict=False):
            assert one == other, f"is {differing(one, other)}, should be {differing(other, one)}"
        assert [view["name"] for view in got] == [view["name"] for view in foretold]
        assert self.counts() == model.counts()
        for job_id in self.ids:
            if job_id not in model.jobs and job_id in model.tombs:
                (call,) = self.rig.send(Result(self.rig.origin("reader"), job_id))
                assert call.body == model.outcome(job_id)

    def counts(self) -> dict[str, Any]:
        (call,) = self.rig.send(Counts(self.rig.origin("reader"), priorities=True))
        return {queue: (states, dict(waiting)) for queue, states, waiting in call.body[0] if states}

    @staticmethod
    def view(job: Any) -> dict[str, Any]:
        """A job as a listing shows it."""
        o, ended = job.o, job.state in ("completed", "dead")
        return {
            "name": job.name,
            "id": job.id,
            "queue": job.queue,
            "state": job.state,
            "attempt": job.attempt,
            "failures": job.failures,
            "stalls": job.stalls,
            "priority": job.priority,
            "reason": job.reason,
            "error": job.error,
            "run_at": job.run_at if job.state == "delayed" else None,
            "cancel_requested": job.cancel,
            "created_at": job.created_at,
            "updated_at": job.updated_at,
            "finished_at": job.updated_at if ended else None,
            "expires_at": job.created_at + o.ttl_ms if o.ttl_ms and not job.lease else None,
            "worker": job.lease.worker if job.lease else None,
            "attempts": o.attempts,
            "timeout_ms": o.timeout_ms,
            "lifo": o.lifo,
            "job_id": o.job_id or None,
            "unique": o.unique or None,
            "group": o.group or None,
            "tags": o.tags,
            "meta": o.meta or None,
            "progress": job.progress,
            "payload": job.payload,
            "result": job.result,
        }


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in one.items() if v != other[k] or k == "name"}
