"""Stalls, in two phases: a sweep marks leases that fell silent, the next one on time confirms.

Also what else ends an attempt from outside: timeouts. A sweep that comes late accuses
nobody, and no lease is suspect before the router was heard after it ran out: otherwise the
silence may be ours.
"""

from pyq.errors import Status
from pyq.job import Verdict
from pyq.limits import (
    ROUTER_GRACES_MAX,
    ROUTER_SILENT_MS,
    SWEEP_MS_MAX,
)
from pyq.messages import Reply, Sweep
from shardnode.core.effects import Effects, Now
from shardnode.core.lifecycle import end_lease, note_error, remove, retry_or_kill
from shardnode.core.operations.settle import fail_attempt
from shardnode.core.state import Job, LeaseEnd, ShardState, sweep_period


def sweep(state: ShardState, command: Sweep, now: Now) -> Effects:
    """Sweep when asked to; one that is asked for too early only says when it is due."""
    effects = Effects()
    suspects, stalled = 0, 0
    if now.mono_ms >= state.sweep_at:
        suspects, stalled = sweep_leases(state, now, effects)
    due_ms = max(0, state.sweep_at - now.mono_ms)
    effects.replies.append(Reply(command.origin, Status.OK, [due_ms, suspects, stalled]))
    return effects


def sweep_if_overdue(state: ShardState, now: Now, effects: Effects) -> None:
    """Nobody swept one period past due: the shard sweeps itself."""
    if state.processing and now.mono_ms >= state.sweep_at + state.sweep_period_ms:
        sweep_leases(state, now, effects)


def sweep_leases(state: ShardState, now: Now, effects: Effects) -> tuple[int, int]:
    """Mark the silent, confirm those marked before. Returns (suspects, stalled)."""
    stalled: list[Job] = []
    suspects = 0
    shortest_ms = SWEEP_MS_MAX * 4
    for job in state.processing.values():
        lease = job.lease
        assert lease is not None
        lease_ms = lease.grant.lease_ms
        if lease_ms < shortest_ms:
            shortest_ms = lease_ms
        ran_out_at = lease.beat_at + lease_ms
        if ran_out_at > now.mono_ms or state.late or not _router_heard_since(state, ran_out_at):
            lease.suspect = False
        elif lease.suspect:
            stalled.append(job)
        else:
            lease.suspect = True
            suspects += 1
    for job in stalled:
        _stall(state, job, now, effects)
    state.sweep_period_ms = sweep_period(shortest_ms)
    state.sweep_at = now.mono_ms + state.sweep_period_ms
    return suspects, len(stalled)


def router_seen(state: ShardState, now: Now) -> None:
    """The router is there. After a silence of its own, every lease gets one fresh lease time."""
    if _router_is_silent(state, now):
        for job in state.processing.values():
            lease = job.lease
            assert lease is not None
            if lease.graces_count < ROUTER_GRACES_MAX:
                lease.graces_count += 1
                lease.beat_at = max(lease.beat_at, now.mono_ms)
                lease.suspect = False
    state.router_seen_at = now.mono_ms


def end_timed_out(state: ShardState, now: Now, effects: Effects) -> None:
    """Attempts whose worker should have ended them count as failed."""
    while (limited := state.timers.timeouts.pop(now.mono_ms)) is not None:
        job, _ = limited
        error = f"timeout after {job.options.timeout_ms / 1000:g} s, ended by the server"
        fail_attempt(state, job, error, "", False, -1, now, effects, LeaseEnd.TIMED_OUT)


def _router_heard_since(state: ShardState, mono_ms: int) -> bool:
    """True if a heartbeat could have come: the router was there after this moment.

    A shard that never saw a router has direct clients only.
    """
    return state.router_seen_at is None or state.router_seen_at > mono_ms


def _router_is_silent(state: ShardState, now: Now) -> bool:
    seen_at = state.router_seen_at
    return seen_at is not None and now.mono_ms - seen_at > ROUTER_SILENT_MS


def _stall(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    assert job.lease is not None
    worker = job.lease.grant.worker
    end_lease(state, job, LeaseEnd.STALLED)
    if job.cancel_requested:
        remove(state, job, Verdict.CANCELLED, now, effects)
        return
    note_error(job, f"stalled: no heartbeat from worker {worker or 'unknown'}", "", now)
    job.stalls += 1
    if state.events.on:
        state.events.record("stalled", now.wall_ms, [job], [[job.stalls]])
    exhausted = job.stalls > job.queue.settings.max_stalls
    retry_or_kill(state, job, exhausted, "stalled", job.stalls, -1, now, effects)
