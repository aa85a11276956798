"""PULL: leases for those who ask, now or when a job becomes ready. UNPULL and RETURN undo it.

A pull is repeated safely: it gets the same leases again, or takes over its parked entry.
"""

from pyq.errors import Status
from pyq.job import ACTIVE, LEGAL, WAITING
from pyq.limits import (
    BATCH_BYTES_MAX,
    PARKED_MAX,
    PULLERS_MAX,
    QUEUES_MAX,
    TIMEOUT_GRACE_MS,
)
from pyq.messages import Pull, Reply, Return, Unpull, error_body
from pyq.options import Options
from pyq.routes import shard_of, slot_of
from shardnode.core.dice import tokens
from shardnode.core.effects import Effects, Now
from shardnode.core.lifecycle import give_back, open_queue
from shardnode.core.queues import leases_left, note_leased
from shardnode.core.state import (
    Grant,
    Job,
    ParkedPull,
    Puller,
    ShardState,
    new_lease,
    sweep_period,
)


def pull(state: ShardState, command: Pull, now: Now) -> Effects:
    """Lease up to `jobs_max` jobs, or park until one is ready or `wait_ms` is over."""
    effects = Effects()
    origin = command.origin
    known = state.pullers.get((origin.client, command.queues[0]))
    if known is not None and origin.sequence < known.newest:
        sentence = "a newer pull of this client is known; this one is void"
        effects.replies.append(Reply(origin, Status.SUPERSEDED, error_body(sentence)))
        return effects
    if _repeat(state, command, now, effects):
        return effects
    refusal = _refuse(state, command)
    if refusal is not None:
        effects.replies.append(refusal)
        return effects
    puller = _puller(state, command)
    _withdraw_older(state, command, puller, now, effects)
    puller.newest = origin.sequence
    if _lease(state, command, puller, now, effects):
        return effects
    if command.wait_ms == 0:
        effects.replies.append(Reply(origin, Status.OK, [command.lease_ms, []]))
        return effects
    _park(state, command, now, effects)
    return effects


def serve_parked(state: ShardState, now: Now, effects: Effects) -> None:
    """Give jobs that have become ready to the pulls that wait for them, oldest pull first."""
    for queue in state.awake:
        while queue.parked and queue.line.count and not state.disk_low:
            if queue.limited and not leases_left(state, queue, now):
                break
            parked = next(iter(queue.parked.values()))
            unpark(state, parked)
            puller = _puller(state, parked.command)
            _lease(state, parked.command, puller, now, effects)
    state.awake.clear()


def wake_parked(state: ShardState) -> None:
    """Look again at every queue that somebody waits for: leases may be given once more."""
    for parked in state.parked.values():
        state.awake.update(dict.fromkeys(parked.queues))


def expire_pull(state: ShardState, parked: ParkedPull, effects: Effects) -> None:
    """A parked pull has waited long enough: the answer is empty."""
    unpark(state, parked)
    effects.replies.append(Reply(parked.command.origin, Status.OK, [parked.command.lease_ms, []]))


def unpull(state: ShardState, command: Unpull, now: Now) -> Effects:
    """Withdraw a parked pull; it is answered empty. What it was given already stays given."""
    effects = Effects()
    parked = state.parked.get(command.request_id)
    if parked is not None:
        expire_pull(state, parked, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [int(parked is not None)]))
    return effects


def give_back_undelivered(state: ShardState, command: Return, now: Now) -> Effects:
    """RETURN: a pull reply did not reach its client, so its leases are freed, uncharged."""
    effects = Effects()
    jobs = [job for job in state.grants.get(command.origin.request_id, ()) if _holds(job, command)]
    _give_back_all(state, jobs, now, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [len(jobs)]))
    return effects


def unpark(state: ShardState, parked: ParkedPull) -> None:
    """Take a parked pull out of the mailboxes of its queues."""
    parked.done = True
    state.parked_count -= 1
    del state.parked[parked.command.origin.request_id]
    for queue in parked.queues:
        queue.parked.pop(parked.command.origin.request_id, None)


def _refuse(state: ShardState, command: Pull) -> Reply | None:
    """Return the refusal of a pull that is nobody's fault or the caller's, or None."""
    if state.disk_low:
        return Reply(command.origin, Status.DISK_FULL, error_body(state.disk_sentence, 1_000))
    new = [name for name in dict.fromkeys(command.queues) if name not in state.queues]
    for name in new:
        if shard_of(slot_of(name), state.shards_count) != state.shard:
            sentence = f"queue {name!r} does not live on shard {state.shard}"
            return Reply(command.origin, Status.WRONG_SHARD, error_body(sentence))
    if len(state.queues) + len(new) > QUEUES_MAX:
        sentence = f"shard {state.shard} has {len(state.queues)} queues; no more are made"
        return Reply(command.origin, Status.BUSY, error_body(sentence, 60_000))
    if command.wait_ms and state.parked_count >= PARKED_MAX:
        sentence = f"{PARKED_MAX} requests wait on shard {state.shard} already"
        return Reply(command.origin, Status.BUSY, error_body(sentence, 1_000))
    return None


def _puller(state: ShardState, command: Pull) -> Puller:
    key = (command.origin.client, command.queues[0])
    puller = state.pullers.pop(key, None)
    if puller is None:
        puller = Puller()
        while len(state.pullers) >= PULLERS_MAX:
            del state.pullers[next(iter(state.pullers))]
    state.pullers[key] = puller  # the least recently used stands first
    return puller


def _repeat(state: ShardState, command: Pull, now: Now, effects: Effects) -> bool:
    """Answer a pull that was seen before; False if it is new, or nothing is left of it."""
    request_id = command.origin.request_id
    held = [job for job in state.grants.get(request_id, ()) if _holds(job, command)]
    if held:
        place = {name: at for at, name in enumerate(command.queues)}
        held.sort(key=lambda job: (place.get(job.queue.name, 0), -job.options.priority, job.ready))
        effects.replies.append(_lease_reply(command, held))
        return True
    parked = state.parked.get(request_id)
    if parked is None:
        return False
    parked.command.origin = command.origin  # the newest return address and deadline count
    state.timers.park(_wait_until(command, now), parked)
    return True


def _withdraw_older(
    state: ShardState, command: Pull, puller: Puller, now: Now, effects: Effects
) -> None:
    """Free what earlier pulls of this client hold without its knowledge, and their places."""
    for grant in puller.grants:
        sequence = int.from_bytes(grant.request_id[8:], "big")
        if sequence > command.last_received and grant.jobs_count:
            jobs = [job for job in state.grants.get(grant.request_id, ()) if _is_of(job, grant)]
            _give_back_all(state, jobs, now, effects)
    puller.grants = [grant for grant in puller.grants if grant.jobs_count]
    if puller.newest:
        older = command.origin.client + puller.newest.to_bytes(8, "big")
        parked = state.parked.get(older)
        if parked is not None:
            unpark(state, parked)
            sentence = "a newer pull of this client took its place"
            effects.replies.append(
                Reply(parked.command.origin, Status.SUPERSEDED, error_body(sentence))
            )


def _lease(state: ShardState, command: Pull, puller: Puller, now: Now, effects: Effects) -> bool:
    """Lease what is ready and answer; False if there is nothing."""
    taken: list[Job] = []
    size = 0
    lease_ms = 0
    for name in command.queues:
        queue = state.queues.get(name)
        if queue is None or not queue.line.count:
            continue
        wanted = command.jobs_max - len(taken)
        if queue.limited:
            wanted = min(wanted, leases_left(state, queue, now))
            if not wanted:
                continue
        jobs = queue.line.take(wanted, BATCH_BYTES_MAX - size)
        taken += jobs
        if queue.limited:
            note_leased(queue, len(jobs), now, effects)
        own_ms = queue.settings.lease_ms or command.lease_ms
        lease_ms = min(lease_ms, own_ms) if lease_ms else own_ms
        size += sum([job.size for job in jobs])
        queue.counts[WAITING] -= len(jobs)
        queue.counts[ACTIVE] += len(jobs)
        if len(taken) >= command.jobs_max or size >= BATCH_BYTES_MAX:
            break
    if not taken:
        return False
    _grant(state, command, puller, taken, lease_ms, now, effects)
    effects.replies.append(_lease_reply(command, taken))
    return True


def _grant(
    state: ShardState,
    command: Pull,
    puller: Puller,
    jobs: list[Job],
    lease_ms: int,
    now: Now,
    effects: Effects,
) -> None:
    """Every job gets a lease with a token of its own."""
    request_id = command.origin.request_id
    grant = Grant(
        request_id,
        command.worker,
        command.queues[0],
        lease_ms,
        now.wall_ms,
        state.next_number(),
    )
    grant.jobs_count = len(jobs)
    state.grants[request_id] = jobs
    puller.grants.append(grant)
    state.grants_made += 1
    wall_ms, mono_ms = now.wall_ms, now.mono_ms
    assert LEGAL[WAITING][ACTIVE]
    fresh_tokens = tokens(now.seed, state.epoch, state.grants_made, len(jobs))
    for job, token in zip(jobs, fresh_tokens, strict=True):
        assert job.state is WAITING, "only waiting jobs are leased"
        job.state = ACTIVE
        job.attempt += 1
        job.updated_at = wall_ms
        lease = job.lease = new_lease(token, grant, mono_ms)
        if job.options.timeout_ms:
            state.timers.limit(mono_ms + job.options.timeout_ms + TIMEOUT_GRACE_MS, job, lease)
    was_idle = not state.processing  # nobody swept, so when a sweep was due says nothing
    by_seq = dict(zip([job.seq for job in jobs], jobs, strict=True))
    state.processing.update(by_seq)
    effects.changed.update(by_seq)
    period_ms = sweep_period(lease_ms)
    state.sweep_period_ms = period_ms if was_idle else min(state.sweep_period_ms, period_ms)
    due_at = mono_ms + period_ms
    state.sweep_at = due_at if was_idle else min(state.sweep_at, due_at)
    if state.events.on:
        details = [[job.attempt, command.worker] for job in jobs]
        state.events.record("active", wall_ms, jobs, details)


def _lease_reply(command: Pull, jobs: list[Job]) -> Reply:
    leased = [_leased_row(job, job.options) for job in jobs]
    groups: list[list[object]] = []
    start = 0
    for at, job in enumerate(jobs):
        if job.queue is not jobs[start].queue:
            groups.append([jobs[start].queue.name, leased[start:at]])
            start = at
    groups.append([jobs[start].queue.name, leased[start:]])
    lease = jobs[0].lease
    assert lease is not None
    return Reply(command.origin, Status.OK, [lease.grant.lease_ms, groups], leased)


def _leased_row(job: Job, options: Options) -> list[object]:
    assert job.lease is not None
    return [
        job.id,
        job.lease.token,
        job.attempt,
        job.name,
        job.seq,  # PAYLOAD_AT: the shell puts the payload here
        job.failures,
        options.attempts,
        options.timeout_ms,
        job.created_at,
        options.job_id or None,
        job.lease.grant.fence,
    ]


def _park(state: ShardState, command: Pull, now: Now, effects: Effects) -> None:
    queues = [open_queue(state, name, effects) for name in command.queues]
    parked = ParkedPull(command, queues)
    state.parked[command.origin.request_id] = parked
    for queue in queues:
        queue.parked[command.origin.request_id] = parked
    state.parked_count += 1
    state.timers.park(_wait_until(command, now), parked)


def _wait_until(command: Pull, now: Now) -> int:
    return min(now.mono_ms + command.wait_ms, command.origin.deadline_ms)


def _holds(job: Job, command: Pull | Return) -> bool:
    """True if the job is active under a lease that this pull was granted."""
    return (
        job.state is ACTIVE
        and job.lease is not None
        and job.lease.grant.request_id == command.origin.request_id
    )


def _is_of(job: Job, grant: Grant) -> bool:
    return job.state is ACTIVE and job.lease is not None and job.lease.grant is grant


def _give_back_all(state: ShardState, jobs: list[Job], now: Now, effects: Effects) -> None:
    for job in jobs:
        give_back(state, job, 0, now, effects)
