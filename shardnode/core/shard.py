"""The only door to a shard: `apply(command, now) -> effects` and `next_wakeup`.

Pure: no I/O, no clock, no dice, no logging. The same commands give the same effects.
"""

from collections.abc import Callable
from typing import Any

from pyq.limits import (
    RETENTION_MS,
    REWATCH_MS,
    SETTLED_MAX,
    TEND_MS,
    TOMBSTONES_MAX,
)
from pyq.messages import (
    Ack,
    AddSchedule,
    Block,
    Cancel,
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
    Rewatch,
    Schedules,
    States,
    Stats,
    StopWorkers,
    Suspend,
    Sweep,
    Tend,
    Unpull,
    Unschedule,
    Update,
    Workers,
)
from shardnode.core.dependencies import ask_again
from shardnode.core.effects import Effects, Found, Need, Now
from shardnode.core.keys import free_keys
from shardnode.core.lifecycle import end_blocked, expire, settle_fallout, wake_delayed
from shardnode.core.operations.blocking import block, open_gates
from shardnode.core.operations.changes import promote, update
from shardnode.core.operations.deadletters import dead_stats, retry, tend
from shardnode.core.operations.events import (
    answer_readers,
    events,
    expire_reader,
    stop_if_idle,
)
from shardnode.core.operations.pull import (
    expire_pull,
    give_back_undelivered,
    pull,
    serve_parked,
    unpull,
    wake_parked,
)
from shardnode.core.operations.push import push
from shardnode.core.operations.query import (
    counts,
    expire_result,
    get,
    list_jobs,
    ping,
    result,
    states,
    stats,
)
from shardnode.core.operations.relay import (
    answer_relays,
    deliver,
    expire_relay,
    outbox,
    rewatch,
)
from shardnode.core.operations.removal import cancel, clean, drain, obliterate, purge
from shardnode.core.operations.reports import extend, log, logs, progress
from shardnode.core.operations.schedules import (
    add_schedule,
    expire_schedules,
    fired,
    forget_schedules,
    schedules,
    suspend,
    unschedule,
)
from shardnode.core.operations.settings import configure, pause
from shardnode.core.operations.settle import ack, fail, release
from shardnode.core.operations.sweep import end_timed_out, router_seen, sweep, sweep_if_overdue
from shardnode.core.operations.workers import (
    answer_beat,
    goodbye,
    heartbeat,
    list_workers,
    stop_workers,
)
from shardnode.core.queues import open_windows
from shardnode.core.retention import forget_old
from shardnode.core.state import (
    ParkedBeat,
    ParkedEvents,
    ParkedOutbox,
    ParkedPull,
    ParkedResult,
    ParkedSchedules,
    ShardState,
)

# Operations that may ask for records first, and those that never do.
_READING: dict[type, Callable[[ShardState, Any, Now, Found | None], Effects | Need]] = {
    Push: push,
    Ack: ack,
    Fail: fail,
    Release: release,
    Get: get,
    List: list_jobs,
    Result: result,
    Retry: retry,
    Cancel: cancel,
    Purge: purge,
    Promote: promote,
    Update: update,
    Drain: drain,
    Clean: clean,
    Obliterate: obliterate,
    DeadStats: dead_stats,
    Tend: tend,
    Block: block,
    Open: open_gates,
    States: states,
    Deliver: deliver,
    Rewatch: rewatch,
    Logs: logs,
}
_PLAIN: dict[type, Callable[[ShardState, Any, Now], Effects]] = {
    Pull: pull,
    Unpull: unpull,
    Return: give_back_undelivered,
    Heartbeat: heartbeat,
    Extend: extend,
    Progress: progress,
    Log: log,
    Configure: configure,
    Pause: pause,
    Events: events,
    Outbox: outbox,
    Counts: counts,
    Sweep: sweep,
    Stats: stats,
    Ping: ping,
    Workers: list_workers,
    StopWorkers: stop_workers,
    Goodbye: goodbye,
    AddSchedule: add_schedule,
    Unschedule: unschedule,
    Suspend: suspend,
    Fired: fired,
    Schedules: schedules,
}


class Shard:
    """A shard as a state machine over its commands."""

    def __init__(self, state: ShardState) -> None:
        self.state = state

    def apply(self, command: Command, now: Now, found: Found | None = None) -> Effects | Need:
        """Carry out one command.

        Returns its effects, or Need: then read those records and apply the command again
        with them in `found`, beside what it needed before. A command whose caller has
        stopped waiting does nothing.
        """
        state = self.state
        origin = command.origin
        if origin.deadline_ms <= now.mono_ms:
            return Effects()
        if origin.through_router:
            router_seen(state, now)
        kind = type(command)
        plain = _PLAIN.get(kind)
        if plain is not None:
            effects = plain(state, command, now)
        else:
            outcome = _READING[kind](state, command, now, found)
            if isinstance(outcome, Need):
                return outcome
            effects = outcome
        self._serve(now, effects)
        return effects

    def tick(
        self, now: Now, late: bool = False, disk_low: bool = False, disk_room: int = 0
    ) -> Effects:
        """Do everything that is due at `now`; the first thing in every turn.

        `late`: the loop did not turn for too long, or did not drain its socket, so nobody's
        silence is held against him. `disk_low`: refuse new work until there is space again, and
        results that do not fit into `disk_room` bytes.
        """
        state = self.state
        state.late = late
        effects = Effects()
        if state.disk_low and not disk_low:
            wake_parked(state)
        state.disk_low = disk_low
        state.disk_room = disk_room
        state.settle_left = SETTLED_MAX
        free_keys(state, now, effects)
        wake_delayed(state, now, effects)
        expire(state, now, effects)
        end_blocked(state, now, effects)
        open_windows(state, now)
        end_timed_out(state, now, effects)
        sweep_if_overdue(state, now, effects)
        self._expire_parked(now, effects)
        if now.mono_ms >= state.retention_at:
            state.retention_at = now.mono_ms + RETENTION_MS
            forget_old(state, now, effects)
            stop_if_idle(state, now)
            forget_schedules(state, now, effects)
        self._serve(now, effects)
        return effects

    def chores(self, now: Now) -> list[Command]:
        """Return what the shard orders itself to do in this turn: commands without a sender."""
        state = self.state
        nobody = Origin(bytes(16))
        chores: list[Command] = []
        if state.tended and now.mono_ms >= state.tend_at:
            state.tend_at = now.mono_ms + TEND_MS
            chores += [Tend(nobody, queue.name, after) for queue, after in state.tended.items()]
        if now.mono_ms >= state.rewatch_at:
            state.rewatch_at = now.mono_ms + REWATCH_MS
            ask_again(state)
        if state.unasked:
            chores.append(Rewatch(nobody))
        return chores

    def next_wakeup(self, now: Now) -> int | None:
        """Return the monotonic millisecond at which `tick` has something to do, or None."""
        state = self.state
        candidates = [state.timers.next_ms(now.wall_ms, now.mono_ms)]
        if state.processing:
            candidates.append(state.sweep_at + state.sweep_period_ms)
        if state.overfull or state.tombstones_count > TOMBSTONES_MAX:
            candidates.append(state.retention_at)
        forget_at = state.timers.kept.next_ms()
        if forget_at is not None:
            at = now.mono_ms + max(0, forget_at - now.wall_ms)
            candidates.append(max(at, state.retention_at))
        if state.tended:
            candidates.append(state.tend_at)
        if state.awaited:
            candidates.append(state.rewatch_at)
        if state.fallout or state.unasked:
            candidates.append(now.mono_ms)
        return min((at for at in candidates if at is not None), default=None)

    def _serve(self, now: Now, effects: Effects) -> None:
        """Who waits gets what has become possible, and hears what has happened."""
        state = self.state
        if state.fallout or state.unsettled:
            settle_fallout(state, now, effects)
        if state.awake:
            serve_parked(state, now, effects)
        log = state.events
        if log.readers and log.next != log.told:
            answer_readers(state, effects)
        if state.has_mail and state.relays:
            answer_relays(state, effects)

    def _expire_parked(self, now: Now, effects: Effects) -> None:
        state = self.state
        while (who := state.timers.parked.pop(now.mono_ms)) is not None:
            if isinstance(who, bytes):
                state.lingering_bytes -= len(state.lingering.pop(who) or b"")
            elif isinstance(who, ParkedPull):
                expire_pull(state, who, effects)
            elif isinstance(who, ParkedBeat):
                answer_beat(state, who, effects)
            elif isinstance(who, ParkedResult):
                expire_result(state, who, effects)
            elif isinstance(who, ParkedEvents):
                expire_reader(state, who, effects)
            elif isinstance(who, ParkedOutbox):
                expire_relay(state, who, effects)
            elif isinstance(who, ParkedSchedules):
                expire_schedules(state, who, effects)
