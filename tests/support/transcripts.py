"""Transcripts: what is asked of a shard, what it answers and what it writes, as text.

A transcript is a file of paragraphs. One that starts with `#` is said to the reader, each of the
others is one turn of the shard:

    @ 1000                           the clock stands at 1,000 ms from here on
    > push emails a b priority=5     a command; several of them share the turn
    < push: OK 2                     a reply, in order of the questions
    ! accepted a seq=1 priority=5    an effect: what the store is to write

Jobs are called by their names. A command that carries a token takes that of the last lease of its
job, or of an earlier one: `ack a lease=1`. Everything after `>` and `@` is given; `replay` writes
the rest, so a transcript is right if it is what it replays to.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pyq.errors import Status
from pyq.job import JobState
from pyq.messages import (
    Ack,
    Cancel,
    Change,
    Clean,
    Command,
    Configure,
    Counts,
    DeadStats,
    Drain,
    Events,
    Extend,
    Fail,
    Filters,
    Get,
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
    StopWorkers,
    Sweep,
    Unpull,
    Update,
    Worker,
    Workers,
)
from pyq.options import check_options
from shardnode.core.effects import Effects
from shardnode.core.state import Job
from tests.support.shards import REPEAT, WALL_0, Call, a_shard

Words = list[str]
Fields = dict[str, Any]

_BATCHES = (Push, Ack, Fail, Release, Heartbeat, Extend, Progress, Log, Retry, Cancel, Purge,
            Promote, Update)  # fmt: skip
SHOWN_OF_A_VIEW = ("name", "state", "attempt", "failures", "stalls", "reason", "error", "result")


def replay(text: str) -> str:
    """Return a transcript as it should be: its questions, with what a shard makes of them."""
    stage = Stage()
    paragraphs = [paragraph.strip("\n") for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(
        paragraph if paragraph.startswith("#") else stage.turn(paragraph)
        for paragraph in paragraphs
    ) + "\n"  # fmt: skip


class Stage:
    """A shard, and the names under which a transcript knows jobs, leases and calls."""

    def __init__(self) -> None:
        self.rig = a_shard()
        self.ids: dict[str, bytes] = {}
        self.names: dict[bytes | int, str] = {}  # by id and by acceptance number
        self.tokens: dict[str, list[bytes]] = {}
        self.asked: list[tuple[str, Call]] = []  # whose answer has not been shown
        self.calls: dict[str, Call] = {}  # the last one of each verb, by its first words

    def turn(self, paragraph: str) -> str:
        """Play one paragraph; returns it with the replies and effects there are."""
        given = [line for line in paragraph.splitlines() if line[:1] in "@>"]
        commands: list[Command] = []
        heads: list[str] = []
        for line in given:
            word, *words = line[1:].split()
            if line[0] == "@" and word == "restart":
                self.rig.restart()
                self.asked.clear()
                return line
            if line[0] == "@":
                self.rig.move_to(int(word))
                continue
            bare = [word for word in words if "=" not in word]
            fields = dict(word.split("=", 1) for word in words if "=" in word)
            heads.append(" ".join([word, *bare[:1]]) if word == "pull" else word)
            commands.append(self.command(word, bare, {k: _value(v) for k, v in fields.items()}))
        calls = self.rig.send(*commands)
        self.asked += zip(heads, calls, strict=True)
        self.calls.update(zip(heads, calls, strict=True))
        return "\n".join([*given, *self._effects(), *self._replies(calls)])

    def command(self, verb: str, words: Words, fields: Fields) -> Command:
        """Return what a line asks for."""
        flags = REPEAT if fields.pop("repeat", False) else 0
        client = words[0] if verb == "pull" else "client"
        origin = self.rig.origin(client, flags=flags)
        return _COMMANDS[verb](self, origin, words, fields)

    def holding(self, name: str, fields: Fields) -> tuple[bytes, bytes]:
        """Return id and token of the last lease of a job, or of one that is named."""
        return self.ids[name], self.tokens[name][fields.get("lease", 0) - 1]

    def shown(self, value: Any) -> str:
        """Return a value of a reply: ids as names, bytes and texts as they are."""
        if isinstance(value, bytes) and value in self.names:
            return self.names[value]
        if isinstance(value, bytes):
            return value.decode(errors="backslashreplace")
        if isinstance(value, tuple | list):
            return "[" + " ".join(self.shown(item) for item in value) + "]"
        if isinstance(value, dict):
            return "{" + " ".join(f"{k}={self.shown(v)}" for k, v in value.items()) + "}"
        if type(value) is int and value >= WALL_0:
            return f"@{value - WALL_0}"
        return "nil" if value is None else str(value)

    def _replies(self, new: list[Call]) -> Iterator[str]:
        """Yield the answers that came in this turn, and who waits for his from now on."""
        waiting = []
        for head, call in self.asked:
            if not call.waits:
                status, body = call.answer
                said = self._said(call) if status is Status.OK else body[0]
                yield f"< {head}: {status.name} {said}".rstrip()
                continue
            waiting.append((head, call))
            if call in new:
                yield f"< {head}: waits"
        self.asked = waiting

    def _said(self, call: Call) -> str:
        if isinstance(call.command, Pull):
            return self._leased(call)
        if isinstance(call.command, Configure):
            names = call.command.changes or ()
            return " ".join(f"{name}={self.shown(call.body[0][name])}" for name in names)
        if isinstance(call.command, _BATCHES):
            count, exceptions, *more = call.body
            said = [
                f"{at}: {Status(code).name} {self.shown(what)}" for at, code, what in exceptions
            ]
            return " ".join([f"{count}", *said, *(self.shown(part) for part in more if part)])
        if isinstance(call.command, Get | List):
            views, *more = call.body
            lines = [
                " ".join(f"{name}={self.shown(view[name])}" for name in SHOWN_OF_A_VIEW
                         if view.get(name)) for view in views
            ]  # fmt: skip
            return " | ".join(lines) + "".join(f" next={self.shown(after)}" for after in more)
        return " ".join(self.shown(part) for part in call.body)

    def _leased(self, call: Call) -> str:
        lease_ms, groups = call.body
        if not groups:
            return "nothing"
        for job in call.jobs:
            held = self.tokens.setdefault(job.name, [])
            if job.token not in held:
                held.append(job.token)
        jobs = [f"{job.name} attempt={job.attempt}" for job in call.jobs]
        return ", ".join(jobs) + f" lease_ms={lease_ms}"

    def _effects(self) -> Iterator[str]:
        for effects in self.rig.effects:
            yield from (f"! {line}" for line in self._written(effects))

    def _written(self, effects: Effects) -> Iterator[str]:
        rare = effects.rare
        for number in rare.obliterated:
            yield f"obliterated queue {number}"
        for number, queue in effects.queues.items():
            yield f"queue {queue} number={number}"
        for number, settings in rare.settings.items():
            yield f"settings queue={number} {self.shown(settings.to_wire())}"
        for seq, job in effects.accepted.items():
            self.names[seq] = job.name
            yield f"accepted {job.name} seq={seq}{_options(job)}"
        for seq in rare.rewritten:
            changed = effects.payloads.get(seq)
            payload = "" if changed is None else f" payload={self.shown(changed)}"
            yield f"rewritten {self.names[seq]}{_options(rare.rewritten[seq])}{payload}"
        forgotten = set(effects.forgotten)
        for seq, job in effects.changed.items():
            if seq not in forgotten:
                yield f"state {self.names[seq]} {_state(job)}"
        for seq, result in effects.results.items():
            yield f"result {self.names[seq]} {self.shown(result)}"
        for seq, number, _, attempt, text in rare.lines:
            yield f"line {self.names[seq]} number={number} attempt={attempt} {text}"
        for job_id in rare.revived:
            yield f"no tombstone {self.names[job_id]}"
        for job_id, job in effects.ended.items():
            verdict = rare.verdicts.get(job_id, job.state)
            yield f"tombstone {self.names[job_id]} {verdict.name.lower()}"
        for seq in rare.unburied:
            yield f"unburied {self.names[seq]}"
        for seq, job in rare.buried.items():
            yield f"buried {self.names[seq]} {job.detail.reason if job.detail else ''}"
        for seq in effects.forgotten:
            yield f"forgotten {self.names[seq]}"
        for (_, key), held in rare.timed_keys.items():
            owner = f"{self.names[held.id]} until=@{held.until - WALL_0}" if held else "free"
            yield f"key {key} {owner}"
        for number, count in rare.windows.items():
            yield f"window queue={number} {count}"


def _value(text: str) -> Any:
    """Return what the text of a field stands for: a number, a flag, JSON, or itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _options(job: Job) -> str:
    wire = {name: value for name, value in (job.options.to_wire() or {}).items() if name != "meta"}
    return "".join(f" {name}={value}" for name, value in wire.items())


def _state(job: Job) -> str:
    """Return the part of a state that differs from that of a job just accepted."""
    parts = [job.state.word]
    numbers = {"attempt": job.attempt, "failures": job.failures, "stalls": job.stalls}
    parts += [f"{name}={number}" for name, number in numbers.items() if number]
    if job.run_at:
        parts.append(f"run_at=@{job.run_at - WALL_0}")
    if abs(job.ready) != job.seq:
        parts.append(f"ready={job.ready}")
    if job.lease is not None and job.lease.end:
        parts.append(job.lease.end.name.lower())
    if job.cancel_requested:
        parts.append("cancel_requested")
    return " ".join(parts)


def _push(stage: Stage, origin: Origin, words: Words, fields: Fields) -> Push:
    queue, *names = words
    payload = str(fields.pop("payload", "")).encode()
    jobs = []
    for name in names:
        if name not in stage.ids:
            stage.ids[name] = stage.rig.an_id(queue)
            stage.names[stage.ids[name]] = name
        jobs.append((stage.ids[name], name, payload, check_options(fields)))
    return Push(origin, queue, jobs)


def _pull(stage: Stage, origin: Origin, words: Words, fields: Fields) -> Pull:
    worker, *queues = words
    if origin.flags & REPEAT:
        first = stage.calls[f"pull {worker}"].command.origin
        origin = Origin(first.request_id, flags=REPEAT, sender=first.sender)
    received = fields.pop("received", origin.sequence - 1)
    return Pull(origin, worker, queues, last_received=received, **fields)


def _fail(stage: Stage, origin: Origin, words: Words, fields: Fields) -> Fail:
    error, later = fields.get("error", "boom"), fields.get("retry_in_ms", -1)
    final = fields.get("unrecoverable", False)
    return Fail(
        origin, [(*stage.holding(name, fields), error, "", None, final, later) for name in words]
    )


def _heartbeat(stage: Stage, origin: Origin, words: Words, fields: Fields) -> Heartbeat:
    worker, *names = words
    who = Worker(worker, "host", 1, 1, WALL_0, ("emails",))
    items = [stage.holding(name, fields) for name in names]
    return Heartbeat(origin, items, who, fields.get("wait_ms", 0))


def _update(stage: Stage, origin: Origin, words: Words, fields: Fields) -> Update:
    if "payload" in fields:
        fields["payload"] = str(fields["payload"]).encode()
    if "run_at" in fields:
        fields["run_at"] += WALL_0
    return Update(origin, [Change(stage.ids[name], **fields) for name in words])


def _list(stage: Stage, origin: Origin, words: Words, fields: Fields) -> List:
    state = JobState[fields.pop("state").upper()] if "state" in fields else None
    after, limit = fields.pop("after", 0), fields.pop("limit", 100)
    return List(origin, words[0], state, after, limit, 3, Filters(**fields))


def _holders(make: Callable[..., Command], field: str, usual: Any) -> Callable[..., Command]:
    """Return what makes a command whose items are id, token and one field."""

    def made(stage: Stage, origin: Origin, words: Words, fields: Fields) -> Command:
        value = fields.get(field, usual)
        if isinstance(value, str):
            value = value.encode()
        return make(origin, [(*stage.holding(name, fields), value) for name in words])

    return made


def _ids(make: Callable[..., Command]) -> Callable[..., Command]:
    return lambda stage, origin, words, fields: make(
        origin, [(stage.ids.get(name, bytes(16)),) for name in words]
    )


_COMMANDS: dict[str, Callable[[Stage, Origin, Words, Fields], Command]] = {
    "push": _push,
    "pull": _pull,
    "unpull": lambda s, o, w, f: Unpull(o, s.calls[f"pull {w[0]}"].request_id),
    "return": lambda s, o, w, f: Return(Origin(s.calls[f"pull {w[0]}"].request_id)),
    "ack": _holders(Ack, "result", None),
    "fail": _fail,
    "release": _holders(Release, "delay_ms", 0),
    "heartbeat": _heartbeat,
    "extend": _holders(Extend, "lease_ms", 0),
    "progress": _holders(Progress, "value", ""),
    "log": lambda s, o, w, f: Log(o, [(*s.holding(w[0], f), f.get("first", 1), tuple(w[1:]))]),
    "logs": lambda s, o, w, f: Logs(o, s.ids[w[0]], **f),
    "cancel": _ids(Cancel),
    "purge": _ids(Purge),
    "promote": _ids(Promote),
    "retry": _ids(Retry),
    "update": _update,
    "get": lambda s, o, w, f: Get(o, s.ids[w[0]], want=3),
    "list": _list,
    "counts": lambda s, o, w, f: Counts(o, *w[:1], **f),
    "result": lambda s, o, w, f: Result(o, s.ids[w[0]], **f),
    "sweep": lambda s, o, w, f: Sweep(o),
    "workers": lambda s, o, w, f: Workers(o),
    "stop_workers": lambda s, o, w, f: StopWorkers(o, *w),
    "goodbye": lambda s, o, w, f: Goodbye(Origin(w[0].encode().ljust(8, b"_") + bytes(8)), w[0]),
    "configure": lambda s, o, w, f: Configure(o, w[0], f or None),
    "pause": lambda s, o, w, f: Pause(o, w[0], True, *w[1:]),
    "resume": lambda s, o, w, f: Pause(o, w[0], False, *w[1:]),
    "drain": lambda s, o, w, f: Drain(o, w[0], **f),
    "clean": lambda s, o, w, f: Clean(o, w[0], JobState[w[1].upper()], **f),
    "obliterate": lambda s, o, w, f: Obliterate(o, w[0], **f),
    "dead_stats": lambda s, o, w, f: DeadStats(o, w[0]),
    "events": lambda s, o, w, f: Events(o, *w[:1], **{"epoch": 1, **f}),
}
