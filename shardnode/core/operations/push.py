"""PUSH: jobs are accepted, in order, each exactly once however often it is sent."""

from pyq.errors import Status
from pyq.ids import time_of_id
from pyq.job import DELAYED, GONE, WAITING, JobState
from pyq.limits import QUEUES_MAX
from pyq.messages import NewJob, Push, Reply, batch_answer, error_body
from pyq.options import Options
from pyq.routes import shard_of, slot_of
from pyq.wire import Flag
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored, Tombstone
from shardnode.core.lifecycle import open_queue
from shardnode.core.state import Job, QueueState, ShardState, new_job


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
    jobs = state.jobs
    accepted: list[Job] = []
    payloads: list[bytes] = []
    wall_ms = now.wall_ms
    seq = state.counter
    common: Options | None = None  # jobs of one message mostly share their options
    special, run_at, job_state = False, 0, WAITING
    for index, new in enumerate(command.jobs):
        job_id, name, payload, options = new
        if options is not common:
            common = options
            special = repeated or bool(options.job_id)
            run_at, job_state = _due(options, wall_ms)
        if special or job_id in jobs:
            exception = _known(state, queue, index, new, repeated, found)
            if exception is not None:
                exceptions.append(exception)
                continue
        if state.disk_low:  # a repeat: what it had been accepted for is answered all the same
            exceptions.append([index, Status.DISK_FULL, state.disk_sentence])
            continue
        seq += 1
        job = new_job(seq, job_id, queue, name, options, len(payload), wall_ms, run_at, job_state)
        jobs[job_id] = job
        accepted.append(job)
        payloads.append(payload)
        if options.job_id:
            queue.custom[options.job_id] = job
            effects.custom_ids.append(job)
    seqs = range(state.counter + 1, seq + 1)
    state.counter = seq
    effects.accepted.update(zip(seqs, accepted, strict=True))
    effects.payloads.update(zip(seqs, payloads, strict=True))
    _line_up(state, queue, accepted)
    body = batch_answer(len(command.jobs), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def _due(options: Options, wall_ms: int) -> tuple[int, JobState]:
    """Return when a job accepted now may run (0: at once), and so its first state."""
    run_at = options.run_at or (options.delay_ms and wall_ms + options.delay_ms)
    return (run_at, DELAYED) if run_at > wall_ms else (0, WAITING)


def _line_up(state: ShardState, queue: QueueState, accepted: list[Job]) -> None:
    """Accepted jobs join the line, or wait for their time."""
    ready = [job for job in accepted if job.state is WAITING]
    queue.counts[WAITING] += len(ready)
    queue.line.add(ready)
    if len(ready) < len(accepted):
        for job in accepted:
            if job.state is DELAYED:
                queue.counts[DELAYED] += 1
                state.timers.delay(job)
    if ready and queue.parked:
        state.awake[queue] = None


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
    if repeated and keys:
        keys.append(("horizon",))
    return keys


def _known(
    state: ShardState, queue: QueueState, index: int, new: NewJob, repeated: bool, found: Found
) -> list[object] | None:
    """Return the answer for a job that exists already, or None for a new one."""
    job_id, name, payload, options = new
    live = state.jobs.get(job_id) or (options.job_id and queue.custom.get(options.job_id)) or None
    if live is not None:
        mismatch = live.name != name or live.size != len(payload)
        return [index, Status.OK, ["exists", live.id, live.state.word, mismatch]]
    for key in (("job", job_id), ("custom", queue.number, options.job_id)):
        known = found.get(key)
        if isinstance(known, Stored):
            stored = known.job
            mismatch = stored.name != name or stored.size != len(payload)
            return [index, Status.OK, ["exists", stored.id, stored.state.word, mismatch]]
        if isinstance(known, Tombstone):
            verdict = "removed" if known.verdict is GONE else "forgotten"
            return [index, Status.OK, ["exists", known.id, verdict, False]]
    horizon = found.get(("horizon",))
    if repeated and isinstance(horizon, int) and time_of_id(job_id) < horizon:
        return [index, Status.UNKNOWN, "older than the oldest tombstone: it may have run already"]
    return None
