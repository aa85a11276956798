"""PUSH: jobs are accepted, in order, each exactly once however often it is sent."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pyq.errors import BadOption, Status
from pyq.ids import time_of_id
from pyq.job import BLOCKED, DELAYED, WAITING, JobState, Verdict
from pyq.limits import QUEUES_MAX
from pyq.messages import NewJob, Push, Reply, batch_answer, error_body
from pyq.options import DEFAULT_OPTIONS, Options, check_options
from pyq.routes import shard_of, slot_of
from pyq.wire import Flag
from shardnode.core.dependencies import await_jobs, pin_completed, settle
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored, Tombstone
from shardnode.core.keys import extend_key, holder_id, take_key
from shardnode.core.lifecycle import open_queue, remove
from shardnode.core.operations.blocking import look_up
from shardnode.core.operations.changes import postpone
from shardnode.core.queues import enter_new, wake
from shardnode.core.state import Job, QueueState, ShardState, new_job

# A job whose options may be refused together with the defaults of its queue.
_Given: TypeAlias = tuple[bytes, str, bytes, Options | BadOption]
_TTL_TOO_SHORT = "ttl ends before run_at; give a longer ttl"


def push(state: ShardState, command: Push, now: Now, found: Found | None) -> Effects | Need:
    """Accept the jobs of one message; an answer per job, in order."""
    effects = Effects()
    refusal = _refuse(state, command)
    if refusal is not None:
        effects.replies.append(refusal)
        return effects
    queue = state.queues.get(command.queue)
    repeated = bool(command.origin.flags & Flag.REPEAT)
    if found is None:
        keys = _unknown_keys(state, queue, command, repeated)
        if keys:
            return Need(keys)
        found = {}
    queue = open_queue(state, command.queue, effects)
    exceptions: list[list[object]] = []
    new_jobs: Sequence[_Given] = command.jobs
    if queue.settings.defaults != DEFAULT_OPTIONS:
        new_jobs = _with_defaults(queue.settings.defaults, command)
    jobs = state.jobs
    accepted: list[Job] = []
    payloads: list[bytes] = []
    wall_ms = now.wall_ms
    seq = state.counter
    lined_up = 0  # how many of the accepted have their place in line already
    common: Options | None = None  # jobs of one message mostly share their options
    special, grouped, run_at, job_state = False, False, 0, WAITING
    for index, new in enumerate(new_jobs):
        job_id, name, payload, options = new
        if options is not common:
            if not isinstance(options, Options):
                known = _known(state, queue, index, command.jobs[index], repeated, found, effects)
                exceptions.append(known or [index, Status.BAD_OPTION, str(options)])
                continue
            common = options
            special = repeated or bool(
                options.job_id or options.unique or options.ttl_ms or options.edges
            )
            grouped = grouped or bool(options.group)
            run_at, job_state = _due(options, wall_ms)
        if special or job_id in jobs:
            checked = (job_id, name, payload, options)
            exception = _known(state, queue, index, checked, repeated, found, effects)
            if exception is None and state.disk_low:  # before anything is replaced
                exception = [index, Status.DISK_FULL, state.disk_sentence]
            if exception is None and options.ttl_ms and run_at >= wall_ms + options.ttl_ms:
                exception = [index, Status.BAD_OPTION, _TTL_TOO_SHORT]
            settled = b""
            if exception is None and options.edges:
                settled, exception = look_up(state, index, job_id, options.edges, found)
            if exception is None and options.unique:
                # The holder of its key may be among those accepted just now.
                _line_up(state, queue, accepted[lined_up:], grouped, now)
                lined_up = len(accepted)
                exception = _key_held(state, queue, index, options, run_at, found, now, effects)
            if exception is not None:
                exceptions.append(exception)
                continue
        if state.disk_low:  # a repeat: what it had been accepted for is answered all the same
            exceptions.append([index, Status.DISK_FULL, state.disk_sentence])
            continue
        seq += 1
        job = new_job(seq, job_id, queue, name, options, len(payload), wall_ms, run_at, job_state)
        if options.edges:
            _block(state, job, settled, found, effects)
        jobs[job_id] = job
        accepted.append(job)
        payloads.append(payload)
        if special:
            _note_names(state, job, now, effects)
    seqs = range(state.counter + 1, seq + 1)
    state.counter = seq
    effects.accepted.update(zip(seqs, accepted, strict=True))
    effects.payloads.update(zip(seqs, payloads, strict=True))
    _line_up(state, queue, accepted[lined_up:] if lined_up else accepted, grouped, now)
    body = batch_answer(len(command.jobs), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def _due(options: Options, wall_ms: int) -> tuple[int, JobState]:
    """Return when a job accepted now may run (0: at once), and so its first state."""
    run_at = options.run_at or (options.delay_ms and wall_ms + options.delay_ms)
    return (run_at, DELAYED) if run_at > wall_ms else (0, WAITING)


def _note_names(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    """An accepted job is known by its custom id, holds its key, and may expire."""
    options = job.options
    if options.job_id:
        job.queue.custom[options.job_id] = job
        effects.custom_ids.append(job)
    if options.unique:
        take_key(state, job, now, effects)
    if options.ttl_ms:
        state.timers.expire(job)


def _line_up(
    state: ShardState, queue: QueueState, accepted: list[Job], grouped: bool, now: Now
) -> None:
    """Accepted jobs join the line, or wait for their time."""
    ready = [job for job in accepted if job.state is WAITING]
    queue.counts[WAITING] += len(ready)
    if grouped:
        enter_new(queue, ready)
    else:
        queue.line.add(ready)
    if len(ready) < len(accepted):
        for job in accepted:
            if job.state is DELAYED:
                queue.counts[DELAYED] += 1
                state.timers.delay(job)
            elif job.state is BLOCKED:
                queue.counts[BLOCKED] += 1
    if ready:
        wake(state, queue)
    if state.events.on:
        _record_added(state, now, accepted)


def _with_defaults(defaults: Options, command: Push) -> list[_Given]:
    """Return the jobs with the default options of their queue laid under their own.

    Where both together are refused, the refusal stands in place of the options.
    """
    given = command.given or [
        (job_id, name, payload, options.to_wire())
        for job_id, name, payload, options in command.jobs
    ]
    common = _laid_over(defaults, command.common)
    jobs: list[_Given] = []
    for job_id, name, payload, own in given:
        options = _laid_over(defaults, {**(command.common or {}), **own}) if own else common
        jobs.append((job_id, name, payload, options))
    return jobs


def _laid_over(defaults: Options, given: Mapping[str, Any] | None) -> Options | BadOption:
    try:
        return check_options(given, defaults)
    except BadOption as error:
        return error


def _record_added(state: ShardState, now: Now, accepted: list[Job]) -> None:
    details = [[job.run_at] if job.run_at else None for job in accepted]
    state.events.record("added", now.wall_ms, accepted, details)


def _refuse(state: ShardState, command: Push) -> Reply | None:
    """Return the refusal of the whole message, or None."""
    origin = command.origin
    if state.disk_low and not origin.flags & Flag.REPEAT:
        return Reply(origin, Status.DISK_FULL, error_body(state.disk_sentence, 1_000))
    if command.queue not in state.queues:
        if shard_of(slot_of(command.queue), state.shards_count) != state.shard:
            sentence = f"queue {command.queue!r} does not live on shard {state.shard}"
            return Reply(origin, Status.WRONG_SHARD, error_body(sentence))
        if len(state.queues) >= QUEUES_MAX:
            sentence = f"shard {state.shard} has {QUEUES_MAX} queues; no more are made"
            return Reply(origin, Status.BUSY, error_body(sentence, 60_000))
    return None


def _unknown_keys(
    state: ShardState, queue: QueueState | None, command: Push, repeated: bool
) -> list[Key]:
    """Return what must be looked up on disk: custom ids, and the ids of a repeat."""
    keys: list[Key] = []
    for job_id, _, _, options in command.jobs:
        if job_id in state.jobs:
            continue
        if repeated:
            keys.append(("job", job_id))
        if options.job_id and queue is not None and options.job_id not in queue.custom:
            keys.append(("custom", queue.number, options.job_id))
        for dep_id in options.edges:
            if state.owns(dep_id) and dep_id not in state.jobs:
                keys.append(("job", dep_id))
        if options.unique and queue is not None:
            holder = holder_id(queue, options.unique)
            if holder is not None and holder not in state.jobs:
                keys.append(("job", holder))
    if repeated and keys:
        keys.append(("horizon",))
    return keys


def _known(
    state: ShardState,
    queue: QueueState,
    index: int,
    new: NewJob,
    repeated: bool,
    found: Found,
    effects: Effects,
) -> list[object] | None:
    """Return the answer for a job that exists already, or None for a new one."""
    job_id, name, payload, options = new
    live = state.jobs.get(job_id) or (options.job_id and queue.custom.get(options.job_id)) or None
    if live is not None:
        mismatch = live.name != name or live.size != len(payload)
        return [index, Status.OK, ["exists", live.id, live.state.word, mismatch]]
    for gone in effects.ended.values():  # replaced by an earlier job of this message
        if job_id == gone.id or (options.job_id and options.job_id == gone.options.job_id):
            return [index, Status.OK, ["exists", gone.id, Verdict.REPLACED.word, False]]
    for key in (("job", job_id), ("custom", queue.number, options.job_id)):
        known = found.get(key)
        if isinstance(known, Stored):
            stored = known.job
            mismatch = stored.name != name or stored.size != len(payload)
            return [index, Status.OK, ["exists", stored.id, stored.state.word, mismatch]]
        if isinstance(known, Tombstone):
            return [index, Status.OK, ["exists", known.id, _word(known), False]]
    horizon = found.get(("horizon",))
    if repeated and isinstance(horizon, int) and time_of_id(job_id) < horizon:
        return [index, Status.UNKNOWN, "older than the oldest tombstone: it may have run already"]
    return None


def _block(state: ShardState, job: Job, settled: bytes, found: Found, effects: Effects) -> None:
    """An accepted job waits for others; it is looked at once more before the turn ends."""
    job.state = BLOCKED
    job.need_detail().settled = settled
    for place, dep_id in enumerate(job.options.edges):
        if not settled[place] and dep_id not in state.jobs and state.owns(dep_id):
            settle(job, place, Verdict.REPLACED)  # by this very job, whose unique key it held
    effects.changed[job.seq] = job
    await_jobs(state, job, job.options.edges, effects)
    pin_completed(state, job.options.edges, found)
    state.unsettled.append(job)
    if job.options.dep_timeout_ms:
        state.timers.block(job)


def _word(known: Tombstone) -> str:
    """Return what is said of a job of which only the tombstone is left."""
    return known.verdict.word if known.verdict >= Verdict.REMOVED else "forgotten"


def _key_held(
    state: ShardState,
    queue: QueueState,
    index: int,
    options: Options,
    run_at: int,
    found: Found,
    now: Now,
    effects: Effects,
) -> list[object] | None:
    """Return the answer for a job whose unique key is held, or None if it is (now) free."""
    job_id = holder_id(queue, options.unique)
    if job_id is None:
        return None
    if options.on_conflict == "extend" and options.unique_ttl_ms:
        until = now.wall_ms + options.unique_ttl_ms
        extend_key(state, queue, options.unique, until, effects)
    holder = state.jobs.get(job_id)
    if holder is None:
        known = found.get(("job", job_id))
        word = "forgotten"
        if isinstance(known, Stored):
            word = known.job.state.word
        elif isinstance(known, Tombstone):
            word = _word(known)
        return [index, Status.OK, ["exists", job_id, word, False]]
    if options.on_conflict == "replace" and holder.state in (WAITING, DELAYED, BLOCKED):
        remove(state, holder, Verdict.REPLACED, now, effects)
        return None
    if options.on_conflict == "extend" and holder.state is DELAYED and run_at > holder.run_at:
        postpone(state, holder, run_at, now, effects)
    return [index, Status.OK, ["exists", holder.id, holder.state.word, False]]
