"""Checked bodies to commands: the last step of what arrives, before anybody decides.

One parser per verb. A refusal names what is wrong; docs/protocol.md has the shapes.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from pyq.cron import check_cron
from pyq.errors import BadOption, Status
from pyq.ids import slot_of_id
from pyq.job import ACTIVE, STATE_WORDS, JobState
from pyq.limits import (
    BATCH_JOBS_MAX,
    DELAY_MS_MAX,
    ERROR_BYTES_MAX,
    GROUP_MAX,
    JOB_ID_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LIST_JOBS_MAX,
    LOG_LINE_BYTES_MAX,
    LOG_LINES_MAX,
    NAME_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PROGRESS_BYTES_MAX,
    PULL_QUEUES_MAX,
    REGISTRATION_CHARACTERS_MAX,
    REMOVED_MAX,
    SCHEDULE_BYTES_MAX,
    SCHEDULES_PAGE_MAX,
    SHARDS_MAX,
    TAG_MAX,
    WAIT_MS_MAX,
    WORKER_NAME_MAX,
)
from pyq.messages import (
    ID_BYTES,
    NO_FILTERS,
    RESOLVE,
    TOKEN_BYTES,
    UNWATCH,
    WATCH,
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
    Filters,
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
from pyq.options import check_name, check_options, check_queue, shown
from pyq.routes import slot_of
from pyq.schedule import check_schedule_name, check_template
from pyq.wire import Header, Verb, WireError

_FILTER_LENGTHS = {"name": NAME_MAX, "tag": TAG_MAX, "group": GROUP_MAX, "reason": 32}
_MOMENT_MAX = 1 << 53


def parse(header: Header, origin: Origin, body: Any) -> Command:
    """Return the command that a header and an unpacked body stand for.

    Raises WireError with a status and a sentence for whatever does not fit.
    """
    parser = _PARSERS.get(header.verb)
    if parser is None:
        raise WireError(Status.UNSUPPORTED, f"verb {header.verb} is not known here")
    if type(body) is not tuple:
        raise WireError(Status.BAD_REQUEST, "a body is an array")
    try:
        return parser(header, origin, body)
    except BadOption as error:
        raise WireError(Status.BAD_OPTION, str(error)) from None
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        verb = Verb(header.verb).name
        raise WireError(
            Status.BAD_REQUEST, f"the body of {verb} has the wrong shape: {error}"
        ) from None


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _int(value: Any, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is not a whole number from {low} to {high}")
    return value


def _text(value: Any, longest: int, what: str) -> str:
    if type(value) is not str or len(value) > longest:
        raise ValueError(f"{what} is not a text of at most {longest} characters")
    return value


def _blob(value: Any, longest: int, what: str) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{what} is not bytes")
    if len(value) > longest:
        raise WireError(Status.TOO_LARGE, f"{what} has {len(value)} bytes, the limit is {longest}")
    return value


def _items(body: tuple[Any, ...]) -> tuple[Any, ...]:
    items = body[0]
    if type(items) is not tuple:
        raise ValueError("items are not an array")
    if len(items) > BATCH_JOBS_MAX:
        raise WireError(Status.TOO_LARGE, f"a batch has at most {BATCH_JOBS_MAX} items")
    return items


def _job_id(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != ID_BYTES:
        raise ValueError("an id is not 16 bytes")
    return value


def _holding(item: Any, length: int) -> None:
    """Check the id and token in front of an item about a lease."""
    if type(item) is not tuple or len(item) != length:
        raise ValueError(f"an item is not an array of {length}")
    job_id, token = item[0], item[1]
    if type(job_id) is not bytes or len(job_id) != ID_BYTES:
        raise ValueError("an id is not 16 bytes")
    if type(token) is not bytes or len(token) != TOKEN_BYTES:
        raise ValueError(f"a token is not {TOKEN_BYTES} bytes")


def _push(header: Header, origin: Origin, body: tuple[Any, ...]) -> Push:
    items = _items((body[1],))
    check_queue(header.queue)
    slot = slot_of(header.queue)
    common = check_options(_options_map(body[0]))
    jobs: list[NewJob] = []
    names: set[str] = set()  # checked once per message, not once per job
    for item in items:
        if type(item) is not tuple or len(item) != 4:
            raise ValueError("a job is not an array of 4")
        job_id, name, payload, own = item
        if type(job_id) is not bytes or len(job_id) != ID_BYTES:
            raise ValueError("an id is not 16 bytes")
        if slot_of_id(job_id) != slot:
            raise ValueError("an id does not carry its queue's slot")
        if name not in names:
            names.add(check_name(name))
        if type(payload) is not bytes or len(payload) > PAYLOAD_BYTES_MAX:
            _blob(payload, PAYLOAD_BYTES_MAX, "a payload")
        options = common if own is None else check_options(_options_map(own), common)
        jobs.append((job_id, name, payload, options))
    return Push(origin, header.queue, jobs, body[0], items)


def _options_map(value: Any) -> dict[str, Any] | None:
    _need(value is None or type(value) is dict, "options are neither nil nor a map")
    options: dict[str, Any] | None = value
    return options


def _pull(header: Header, origin: Origin, body: tuple[Any, ...]) -> Pull:
    worker, queues, jobs_max, wait_ms, lease_ms, last_received = body
    _need(
        type(queues) is tuple and 1 <= len(queues) <= PULL_QUEUES_MAX,
        "queues are not an array of names",
    )
    return Pull(
        origin,
        _text(worker, WORKER_NAME_MAX, "worker"),
        tuple(check_queue(queue) for queue in queues),
        _int(jobs_max, 1, BATCH_JOBS_MAX, "jobs_max"),
        _int(wait_ms, 0, WAIT_MS_MAX, "wait_ms"),
        _int(lease_ms, LEASE_MS_MIN, LEASE_MS_MAX, "lease_ms"),
        _int(last_received, 0, (1 << 64) - 1, "last_received"),
    )


def _unpull(header: Header, origin: Origin, body: tuple[Any, ...]) -> Unpull:
    return Unpull(origin, _job_id(body[0]))


def _return(header: Header, origin: Origin, body: tuple[Any, ...]) -> Return:
    return Return(origin)


def _ack(header: Header, origin: Origin, body: tuple[Any, ...]) -> Ack:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        if item[2] is not None:
            _blob(item[2], PAYLOAD_BYTES_MAX, "a result")
    return Ack(origin, items)


def _fail(header: Header, origin: Origin, body: tuple[Any, ...]) -> Fail:
    items = _items(body)
    for item in items:
        _holding(item, 7)
        _, _, error, traceback, result, unrecoverable, retry_in_ms = item
        _text(error, ERROR_BYTES_MAX, "error")
        _text(traceback, ERROR_BYTES_MAX, "traceback")
        if result is not None:
            _blob(result, PAYLOAD_BYTES_MAX, "a result")
        _need(type(unrecoverable) is bool, "unrecoverable is neither true nor false")
        _int(retry_in_ms, -1, DELAY_MS_MAX, "retry_in_ms")
    return Fail(origin, items)


def _release(header: Header, origin: Origin, body: tuple[Any, ...]) -> Release:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        _int(item[2], 0, DELAY_MS_MAX, "delay_ms")
    return Release(origin, items)


def _heartbeat(header: Header, origin: Origin, body: tuple[Any, ...]) -> Heartbeat:
    items = _items(body)
    for item in items:
        _holding(item, 2)
    return Heartbeat(origin, items, _worker(body[1]), _int(body[2], 0, WAIT_MS_MAX, "wait_ms"))


def _worker(value: Any) -> Worker | None:
    if value is None:
        return None
    worker_id, host, pid, concurrency, started_at, queues = value
    _need(
        type(queues) is tuple and len(queues) <= PULL_QUEUES_MAX, "queues are not an array of names"
    )
    return Worker(
        check_name(worker_id, "worker", WORKER_NAME_MAX),
        _text(host, WORKER_NAME_MAX, "host"),
        _int(pid, 0, 1 << 31, "pid"),
        _int(concurrency, 1, 1 << 20, "concurrency"),
        _int(started_at, 0, 1 << 53, "started_at"),
        _first_names(queues),
    )


def _first_names(queues: tuple[Any, ...]) -> tuple[str, ...]:
    """Return as many of a worker's queues as a shard keeps: a registration is only to look at."""
    names = [check_queue(queue) for queue in queues]
    lengths = accumulate(map(len, names))
    kept = [
        n for n, total in zip(names, lengths, strict=True) if total <= REGISTRATION_CHARACTERS_MAX
    ]
    return tuple(kept)


def _extend(header: Header, origin: Origin, body: tuple[Any, ...]) -> Extend:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        _int(item[2], LEASE_MS_MIN, LEASE_MS_MAX, "lease_ms")
    return Extend(origin, items)


def _progress(header: Header, origin: Origin, body: tuple[Any, ...]) -> Progress:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        _blob(item[2], PROGRESS_BYTES_MAX, "progress")
    return Progress(origin, items)


def _ids(body: tuple[Any, ...]) -> tuple[Any, ...]:
    items = _items(body)
    for item in items:
        _need(type(item) is tuple and len(item) == 1, "an item is not an array of 1")
        _job_id(item[0])
    return items


def _retry(header: Header, origin: Origin, body: tuple[Any, ...]) -> Retry:
    return Retry(origin, _ids(body))


def _cancel(header: Header, origin: Origin, body: tuple[Any, ...]) -> Cancel:
    return Cancel(origin, _ids(body))


def _purge(header: Header, origin: Origin, body: tuple[Any, ...]) -> Purge:
    return Purge(origin, _ids(body))


def _get(header: Header, origin: Origin, body: tuple[Any, ...]) -> Get:
    job_id, custom, want = body
    _need((job_id is None) != (custom is None), "one of id and job_id is nil")
    return Get(
        origin,
        None if job_id is None else _job_id(job_id),
        "" if custom is None else check_name(custom, "job_id", JOB_ID_MAX),
        header.queue,
        _int(want, 0, 3, "want"),
    )


def _list(header: Header, origin: Origin, body: tuple[Any, ...]) -> List:
    state, after, limit, want, *more = body
    return List(
        origin,
        header.queue,
        None if state is None else _state(state),
        _int(after, 0, 1 << 62, "after"),
        _int(limit, 1, LIST_JOBS_MAX, "limit"),
        _int(want, 0, 3, "want"),
        _filters(more[0]) if more and more[0] is not None else NO_FILTERS,
    )


def _state(word: Any) -> JobState:
    if word not in STATE_WORDS:
        raise BadOption(f"state {shown(word)} is not one of {', '.join(sorted(STATE_WORDS))}")
    return STATE_WORDS[word]


def _filters(value: Any) -> Filters:
    _need(type(value) is dict, "filters are neither nil nor a map")
    checked: dict[str, Any] = {}
    for name, wanted in value.items():
        if name in _FILTER_LENGTHS:
            checked[name] = check_name(wanted, name, _FILTER_LENGTHS[name])
        elif name in ("since", "until"):
            checked[name] = _int(wanted, 0, _MOMENT_MAX, name)
        else:
            known = ", ".join(Filters._fields)
            raise BadOption(f"unknown filter {shown(name)}; known are {known}")
    return Filters(**checked)


def _counts(header: Header, origin: Origin, body: tuple[Any, ...]) -> Counts:
    after = body[0] if body else 0
    priorities = body[1] if len(body) > 1 else False
    _need(type(priorities) is bool, "priorities is neither true nor false")
    return Counts(origin, header.queue, _int(after, 0, 1 << 62, "after"), priorities)


def _log(header: Header, origin: Origin, body: tuple[Any, ...]) -> Log:
    items = _items(body)
    for item in items:
        _holding(item, 4)
        _int(item[2], 1, 1 << 40, "the number of the first line")
        _need(type(item[3]) is tuple and len(item[3]) <= LOG_LINES_MAX, "lines are not an array")
        for line in item[3]:
            _text(line, LOG_LINE_BYTES_MAX, "a line")
    return Log(origin, items)


def _logs(header: Header, origin: Origin, body: tuple[Any, ...]) -> Logs:
    job_id, after, limit = body
    return Logs(
        origin,
        _job_id(job_id),
        _int(after, 0, 1 << 62, "after"),
        _int(limit, 1, LOG_LINES_MAX, "limit"),
    )


def _promote(header: Header, origin: Origin, body: tuple[Any, ...]) -> Promote:
    return Promote(origin, _ids(body))


def _update(header: Header, origin: Origin, body: tuple[Any, ...]) -> Update:
    return Update(origin, [_change(item) for item in _items(body)])


def _change(item: Any) -> Change:
    _need(type(item) is tuple and len(item) == 3, "an item is not an array of 3")
    job_id, changes, payload = item
    _need(changes is None or type(changes) is dict, "changes are neither nil nor a map")
    checked: dict[str, int] = {}
    for name, value in (changes or {}).items():
        if name not in _CHANGES:
            raise BadOption(f"{shown(name)} cannot be changed; {', '.join(_CHANGES)} can")
        low, high = _CHANGES[name]
        if type(value) is not int or not low <= value <= high:
            raise BadOption(f"{name} {shown(value)} is not a whole number from {low} to {high}")
        checked[name] = value
    if "delay_ms" in checked and "run_at" in checked:
        raise BadOption("delay and run_at exclude each other; give one of them")
    if payload is not None:
        _blob(payload, PAYLOAD_BYTES_MAX, "a payload")
    return Change(_job_id(job_id), payload=payload, **checked)


_CHANGES = {
    "priority": (-PRIORITY_MAX, PRIORITY_MAX),
    "delay_ms": (0, DELAY_MS_MAX),
    "run_at": (1, _MOMENT_MAX),
}


def _named(header: Header) -> str:
    """Return the queue that a request about one queue must name."""
    return check_queue(header.queue)


def _dead_stats(header: Header, origin: Origin, body: tuple[Any, ...]) -> DeadStats:
    return DeadStats(origin, _named(header))


def _configure(header: Header, origin: Origin, body: tuple[Any, ...]) -> Configure:
    changes = body[0]
    _need(changes is None or type(changes) is dict, "settings are neither nil nor a map")
    return Configure(origin, _named(header), changes)


def _pause(header: Header, origin: Origin, body: tuple[Any, ...]) -> Pause:
    paused, group = body
    _need(type(paused) is bool, "paused is neither true nor false")
    checked = "" if group is None else check_name(group, "group", GROUP_MAX)
    return Pause(origin, _named(header), paused, checked)


def _page(after: Any, limit: Any) -> tuple[int, int]:
    return _int(after, 0, 1 << 62, "after"), _int(limit, 1, REMOVED_MAX, "limit")


def _drain(header: Header, origin: Origin, body: tuple[Any, ...]) -> Drain:
    delayed, after, limit = body
    _need(type(delayed) is bool, "delayed is neither true nor false")
    return Drain(origin, _named(header), delayed, *_page(after, limit))


def _clean(header: Header, origin: Origin, body: tuple[Any, ...]) -> Clean:
    word, older_ms, after, limit = body
    state = _state(word)
    if state is ACTIVE:
        raise BadOption("active jobs are not cleaned; cancel them")
    older_ms = _int(older_ms, 0, DELAY_MS_MAX, "older_ms")
    return Clean(origin, _named(header), state, older_ms, *_page(after, limit))


def _obliterate(header: Header, origin: Origin, body: tuple[Any, ...]) -> Obliterate:
    force, after, limit = body
    _need(type(force) is bool, "force is neither true nor false")
    return Obliterate(origin, _named(header), force, *_page(after, limit))


def _events(header: Header, origin: Origin, body: tuple[Any, ...]) -> Events:
    epoch, after, limit, wait_ms = body
    return Events(
        origin,
        header.queue,
        _int(epoch, 0, (1 << 32) - 1, "epoch"),
        _int(after, -1, 1 << 62, "after"),
        _int(limit, 1, LIST_JOBS_MAX, "limit"),
        _int(wait_ms, 0, WAIT_MS_MAX, "wait_ms"),
    )


def _result(header: Header, origin: Origin, body: tuple[Any, ...]) -> Result:
    return Result(origin, _job_id(body[0]), _int(body[1], 0, WAIT_MS_MAX, "wait_ms"))


def _workers(header: Header, origin: Origin, body: tuple[Any, ...]) -> Workers:
    return Workers(origin, _text(body[0] if body else "", WORKER_NAME_MAX, "after"))


def _stop_workers(header: Header, origin: Origin, body: tuple[Any, ...]) -> StopWorkers:
    return StopWorkers(origin, _text(body[0], WORKER_NAME_MAX, "worker"))


def _goodbye(header: Header, origin: Origin, body: tuple[Any, ...]) -> Goodbye:
    return Goodbye(origin, check_name(body[0], "worker", WORKER_NAME_MAX))


def _states(header: Header, origin: Origin, body: tuple[Any, ...]) -> States:
    return States(origin, _ids(body))


def _block(header: Header, origin: Origin, body: tuple[Any, ...]) -> Block:
    items = _items(body)
    for item in items:
        _holding(item, 3)
        check_options({"depends_on": item[2]})
    return Block(origin, items)


def _outbox(header: Header, origin: Origin, body: tuple[Any, ...]) -> Outbox:
    confirmed, skipped, limit, wait_ms = body
    _need(type(confirmed) is tuple and type(skipped) is tuple, "targets are not arrays")
    pairs = [
        (_int(target, 0, SHARDS_MAX - 1, "target"), _int(number, 0, 1 << 62, "number"))
        for target, number in confirmed
    ]
    return Outbox(
        origin,
        pairs,
        [_int(target, 0, SHARDS_MAX - 1, "target") for target in skipped],
        _int(limit, 1, BATCH_JOBS_MAX, "limit"),
        _int(wait_ms, 0, WAIT_MS_MAX, "wait_ms"),
    )


def _deliver(header: Header, origin: Origin, body: tuple[Any, ...]) -> Deliver:
    source, first, rows = body
    _need(type(rows) is tuple and len(rows) <= BATCH_JOBS_MAX, "rows are not an array")
    return Deliver(
        origin,
        _int(source, 0, SHARDS_MAX - 1, "source"),
        _int(first, 1, 1 << 62, "first"),
        [_row(*row) for row in rows],
    )


def _row(kind: Any, job_id: Any, verdict: Any, error: Any) -> Row:
    _need(kind in (WATCH, UNWATCH, RESOLVE), "a row is none of watch, unwatch, resolve")
    return Row(
        kind,
        _job_id(job_id),
        _int(verdict, 0, 255, "verdict"),
        _text(error, ERROR_BYTES_MAX, "error"),
    )


def _schedule(header: Header, origin: Origin, body: tuple[Any, ...]) -> AddSchedule:
    cron, queue, job, payload, options = body
    _need(type(cron) is dict, "the times are not a map")
    return AddSchedule(
        origin,
        check_schedule_name(header.queue),
        check_cron(cron),
        check_queue(queue),
        check_name(job),
        _blob(payload, SCHEDULE_BYTES_MAX, "the payload of a schedule"),
        check_template(_options_map(options)),
    )


def _unschedule(header: Header, origin: Origin, body: tuple[Any, ...]) -> Unschedule:
    return Unschedule(origin, check_schedule_name(header.queue))


def _suspend(header: Header, origin: Origin, body: tuple[Any, ...]) -> Suspend:
    _need(type(body[0]) is bool, "paused is neither true nor false")
    return Suspend(origin, check_schedule_name(header.queue), body[0])


def _fired(header: Header, origin: Origin, body: tuple[Any, ...]) -> Fired:
    tick, job_id, skipped = body
    return Fired(
        origin,
        check_schedule_name(header.queue),
        _int(tick, 1, _MOMENT_MAX, "tick"),
        b"" if job_id is None else _job_id(job_id),
        _int(skipped, 0, 1 << 31, "skipped"),
    )


def _schedules(header: Header, origin: Origin, body: tuple[Any, ...]) -> Schedules:
    epoch, after, limit, wait_ms = body
    return Schedules(
        origin,
        header.queue,
        _int(epoch, 0, (1 << 32) - 1, "epoch"),
        _int(after, 0, 1 << 62, "after"),
        _int(limit, 1, SCHEDULES_PAGE_MAX, "limit"),
        _int(wait_ms, 0, WAIT_MS_MAX, "wait_ms"),
    )


_PARSERS: dict[int, Callable[[Header, Origin, tuple[Any, ...]], Command]] = {
    Verb.PUSH: _push,
    Verb.PULL: _pull,
    Verb.UNPULL: _unpull,
    Verb.RETURN: _return,
    Verb.ACK: _ack,
    Verb.FAIL: _fail,
    Verb.RELEASE: _release,
    Verb.HEARTBEAT: _heartbeat,
    Verb.EXTEND: _extend,
    Verb.PROGRESS: _progress,
    Verb.GET: _get,
    Verb.LIST: _list,
    Verb.COUNTS: _counts,
    Verb.RESULT: _result,
    Verb.SWEEP: lambda header, origin, body: Sweep(origin),
    Verb.STATS: lambda header, origin, body: Stats(origin),
    Verb.PING: lambda header, origin, body: Ping(origin),
    Verb.WORKERS: _workers,
    Verb.STOP_WORKERS: _stop_workers,
    Verb.GOODBYE: _goodbye,
    Verb.RETRY: _retry,
    Verb.CANCEL: _cancel,
    Verb.PURGE: _purge,
    Verb.PROMOTE: _promote,
    Verb.UPDATE: _update,
    Verb.CONFIGURE: _configure,
    Verb.PAUSE: _pause,
    Verb.DRAIN: _drain,
    Verb.CLEAN: _clean,
    Verb.OBLITERATE: _obliterate,
    Verb.DEAD_STATS: _dead_stats,
    Verb.LOG: _log,
    Verb.LOGS: _logs,
    Verb.EVENTS: _events,
    Verb.STATES: _states,
    Verb.OPEN: lambda header, origin, body: Open(origin, _ids(body)),
    Verb.BLOCK: _block,
    Verb.OUTBOX: _outbox,
    Verb.DELIVER: _deliver,
    Verb.SCHEDULE: _schedule,
    Verb.UNSCHEDULE: _unschedule,
    Verb.SUSPEND: _suspend,
    Verb.FIRED: _fired,
    Verb.SCHEDULES: _schedules,
}
