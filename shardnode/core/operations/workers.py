"""HEARTBEAT, GOODBYE, WORKERS, STOP_WORKERS: the workers a shard knows, and what it tells them.

A registration lives in memory only and is renewed by each heartbeat. The heartbeat is a
long poll: that is how `worker stop` reaches a worker without knowing its pid.
"""

from pyq.errors import Status
from pyq.job import ACTIVE
from pyq.limits import PAGE_ENTRIES_MAX, PARKED_MAX, SECOND_MS, WORKERS_MAX
from pyq.messages import (
    CANCEL_REQUESTED,
    DIRECTIVE_BEAT,
    DIRECTIVE_STOP,
    Goodbye,
    Heartbeat,
    Reply,
    StopWorkers,
    Worker,
    Workers,
)
from shardnode.core.effects import Effects, Now
from shardnode.core.lifecycle import give_back
from shardnode.core.operations.pull import expire_pull
from shardnode.core.operations.settle import stale
from shardnode.core.state import Job, ParkedBeat, ShardState, WorkerEntry

FORGOTTEN_AFTER_MS = 60 * SECOND_MS  # without a heartbeat


def heartbeat(state: ShardState, command: Heartbeat, now: Now) -> Effects:
    """Renew leases; the answer waits until there is something to say, at most `wait_ms`."""
    exceptions: list[list[object]] = []
    urgent = False  # the holder does not know it yet
    for index, (job_id, token) in enumerate(command.items):
        job = state.jobs.get(job_id)
        if job is None or job.state is not ACTIVE or job.lease is None or job.lease.token != token:
            exceptions.append(stale(state, index, job_id))
            urgent = True
            continue
        lease = job.lease
        if job.detail is not None and job.detail.cancel_requested:
            exceptions.append([index, Status.OK, CANCEL_REQUESTED])
            urgent = urgent or not lease.told
            lease.told = True
        lease.beat_at = max(lease.beat_at, now.mono_ms)
        lease.suspect = False
        lease.graces_count = 0
    effects = Effects()
    body: list[object] = [len(command.items), exceptions, []]
    entry = _register(state, command.worker, now, effects) if command.worker else None
    if entry is not None and entry.stopping:
        body[2] = [DIRECTIVE_STOP]
        effects.replies.append(Reply(command.origin, Status.OK, body))
        return effects
    if entry is None or urgent or not command.wait_ms or state.parked_count >= PARKED_MAX:
        effects.replies.append(Reply(command.origin, Status.OK, body))
        return effects
    entry.beat = ParkedBeat(command, body)
    state.parked_count += 1
    until = min(now.mono_ms + command.wait_ms, command.origin.deadline_ms)
    state.timers.park(until, entry.beat)
    return effects


def tell_to_cancel(state: ShardState, job: Job, effects: Effects) -> None:
    """The worker that runs a job shall beat again at once, to hear that it is cancelled."""
    assert job.lease is not None
    entry = state.workers.get(job.lease.grant.worker)
    if entry is not None and entry.beat is not None and not entry.beat.done:
        entry.beat.body[2] = [DIRECTIVE_BEAT]
        answer_beat(state, entry.beat, effects)


def answer_beat(state: ShardState, beat: ParkedBeat, effects: Effects) -> None:
    """Answer a parked heartbeat, once."""
    if not beat.done:
        beat.done = True
        state.parked_count -= 1
        effects.replies.append(Reply(beat.command.origin, Status.OK, beat.body))


def stop_workers(state: ShardState, command: StopWorkers, now: Now) -> Effects:
    """Ask one worker, or all, to finish what runs and end."""
    effects = Effects()
    told: list[str] = []
    _forget_silent(state, now)
    for entry in state.workers.values():
        if command.worker and command.worker != entry.worker.id:
            continue
        entry.stopping = True
        told.append(entry.worker.id)
        if entry.beat is not None:
            entry.beat.body[2] = [DIRECTIVE_STOP]
            answer_beat(state, entry.beat, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [len(told), told]))
    return effects


def list_workers(state: ShardState, command: Workers, now: Now) -> Effects:
    """Say who is registered, and how many leases each holds on this shard, page by page."""
    _forget_silent(state, now)
    held: dict[str, int] = {}
    for job in state.processing.values():
        assert job.lease is not None
        name = job.lease.grant.worker
        held[name] = held.get(name, 0) + 1
    names = sorted(name for name in state.workers if name > command.after)
    page = names[:PAGE_ENTRIES_MAX]
    entries = [[state.workers[name].worker.to_wire(), held.get(name, 0)] for name in page]
    next_after = page[-1] if len(page) < len(names) else None
    return Effects(replies=[Reply(command.origin, Status.OK, [entries, next_after])])


def goodbye(state: ShardState, command: Goodbye, now: Now) -> Effects:
    """A worker ends: what this client still holds goes back, uncharged."""
    effects = Effects()
    entry = state.workers.pop(command.worker, None)
    if entry is not None and entry.beat is not None:
        answer_beat(state, entry.beat, effects)
    client = command.origin.client  # another worker may bear the same name
    for parked in [p for p in state.parked.values() if p.command.origin.client == client]:
        expire_pull(state, parked, effects)  # or what is given back would go to it
    held = [
        job
        for job in state.processing.values()
        if job.lease is not None and job.lease.grant.request_id[:8] == client
    ]
    for job in held:
        give_back(state, job, 0, now, effects)
    effects.replies.append(Reply(command.origin, Status.OK, []))
    return effects


def _register(state: ShardState, worker: Worker, now: Now, effects: Effects) -> WorkerEntry | None:
    entry = state.workers.get(worker.id)
    if entry is not None and entry.worker.started_at != worker.started_at:
        if entry.beat is not None:
            answer_beat(state, entry.beat, effects)
        entry = None  # another process under the same name: what the old one was told is void
    if entry is None:
        _forget_silent(state, now)
        if len(state.workers) >= WORKERS_MAX:
            return None
        entry = state.workers[worker.id] = WorkerEntry(worker, now.mono_ms)
    if entry.beat is not None:
        answer_beat(state, entry.beat, effects)
        entry.beat = None
    entry.worker = worker
    entry.seen_at = now.mono_ms
    return entry


def _forget_silent(state: ShardState, now: Now) -> None:
    silent = [
        name
        for name, entry in state.workers.items()
        if now.mono_ms - entry.seen_at > FORGOTTEN_AFTER_MS
    ]
    for name in silent:
        del state.workers[name]
