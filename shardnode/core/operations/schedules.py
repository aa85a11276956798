"""SCHEDULE, UNSCHEDULE, SUSPEND, FIRED, SCHEDULES: the records of what fires by the clock.

The shard keeps them and never fires: the coordinator pushes a tick's job into its queue and
then says so here, where `last_tick` only ever grows.
"""

from dataclasses import replace

from pyq.errors import Status
from pyq.limits import (
    BATCH_BYTES_MAX,
    PARKED_MAX,
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    TICK_AHEAD_MS,
    TOMBSTONE_MS_MAX,
)
from pyq.messages import (
    AddSchedule,
    Fired,
    Reply,
    Schedules,
    Suspend,
    Unschedule,
    error_body,
)
from pyq.routes import shard_of, slot_of
from pyq.schedule import Schedule, removed
from shardnode.core.effects import Effects, Now
from shardnode.core.state import ParkedSchedules, ShardState


def add_schedule(state: ShardState, command: AddSchedule, now: Now) -> Effects:
    """A schedule is there from now on, with the ticks to come."""
    refusal = _refuse(state, command)
    if refusal is not None:
        return Effects(replies=[refusal])
    effects = Effects()
    known = state.schedules.get(command.name)
    schedule, word = _registered(known, command, now)
    if word != "unchanged":
        _put(state, schedule, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [word, schedule.to_wire()]))
    return effects


def unschedule(state: ShardState, command: Unschedule, now: Now) -> Effects:
    """A schedule is gone; its last tick is remembered, lest it fires again when it comes back."""
    refusal = _refuse_elsewhere(state, command)
    if refusal is not None:
        return Effects(replies=[refusal])
    effects = Effects()
    known = _live(state, command.name)
    if known is not None:
        _put(state, removed(known, now.wall_ms), effects)
        _forget_surplus(state, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [int(known is not None)]))
    return effects


def suspend(state: ShardState, command: Suspend, now: Now) -> Effects:
    """A schedule fires no more, or goes on; what it slept through does not count as missed."""
    refusal = _refuse_elsewhere(state, command)
    if refusal is not None:
        return Effects(replies=[refusal])
    known = _live(state, command.name)
    if known is None:
        return _not_found(command)
    effects = Effects()
    changed = known.paused != command.paused
    if changed:
        since = known.since if command.paused else now.wall_ms
        schedule = replace(known, paused=command.paused, since=since, changed_at=now.wall_ms)
        _put(state, schedule, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [int(changed)]))
    return effects


def fired(state: ShardState, command: Fired, now: Now) -> Effects:
    """A schedule has come past a tick. One that is not new changes nothing."""
    refusal = _refuse_elsewhere(state, command)
    if refusal is not None:
        return Effects(replies=[refusal])
    known = state.schedules.get(command.name)
    if known is None:
        return _not_found(command)
    if command.tick > _furthest(known, now):
        sentence = f"the tick {command.tick} is ahead of the clock of shard {state.shard}"
        return Effects(replies=[Reply(command.origin, Status.CONFLICT, error_body(sentence))])
    effects = Effects()
    if command.tick > known.last_tick:
        known = replace(
            known,
            last_tick=command.tick,
            fired_count=known.fired_count + bool(command.job_id),
            skipped_count=known.skipped_count + command.skipped,
            last_job=command.job_id or known.last_job,
        )
        state.schedules.advance(known)
        effects.rare.ticks[known.name] = known
    body = [known.last_tick, known.fired_count, known.skipped_count, known.last_job]
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def schedules(state: ShardState, command: Schedules, now: Now) -> Effects:
    """One schedule, or those that changed after a cursor: now, or when one does."""
    effects = Effects()
    if command.name:
        refusal = _refuse_elsewhere(state, command)
        known = _live(state, command.name)
        views = [] if known is None else [known.to_wire()]
        body = [state.epoch, state.schedules.changed, False, views]
        effects.replies.append(refusal or Reply(command.origin, Status.OK, body))
        return effects
    news = command.epoch != state.epoch or state.schedules.changed > command.after
    if news or not command.wait_ms or state.parked_count >= PARKED_MAX:
        effects.replies.append(Reply(command.origin, Status.OK, _page(state, command)))
        return effects
    parked = ParkedSchedules(command)
    state.schedules.readers.append(parked)
    state.parked_count += 1
    until = min(now.mono_ms + command.wait_ms, command.origin.deadline_ms)
    state.timers.park(until, parked)
    return effects


def expire_schedules(state: ShardState, parked: ParkedSchedules, effects: Effects) -> None:
    """Nothing changed for as long as the reader wanted to wait."""
    state.schedules.readers.remove(parked)
    _answer(state, parked, effects)


def forget_schedules(state: ShardState, now: Now, effects: Effects) -> None:
    """Those removed for so long that no tombstone of their jobs is left are forgotten."""
    table = state.schedules
    if table.forget_at is None or now.wall_ms < table.forget_at:
        return
    gone = [schedule for schedule in table if schedule.removed_at]
    for schedule in gone:
        if schedule.removed_at + TOMBSTONE_MS_MAX <= now.wall_ms:
            _drop(state, schedule, effects)
    kept = [schedule.removed_at for schedule in table if schedule.removed_at]
    table.forget_at = min(kept) + TOMBSTONE_MS_MAX if kept else None


def _registered(known: Schedule | None, command: AddSchedule, now: Now) -> tuple[Schedule, str]:
    """Return the record of a schedule that is added or changed, and what that is called."""
    at = now.wall_ms
    schedule = Schedule(
        command.name,
        command.cron,
        command.queue,
        command.job,
        command.payload,
        command.options,
        changed_at=at,
        anchor_at=at,
        since=at,
    )
    if known is None:
        return schedule, "added"
    if known.removed_at:
        return replace(schedule, last_tick=known.last_tick, last_job=known.last_job), "added"
    if known.says_the_same(schedule):
        return known, "unchanged"
    kept = {
        name: getattr(known, name)
        for name in ("paused", "last_tick", "fired_count", "skipped_count", "last_job")
    }
    if not schedule.begins_anew(known):
        kept["anchor_at"] = known.anchor_at
        if not known.is_over(at):
            kept["since"] = known.since
    return replace(schedule, **kept), "changed"


def _furthest(known: Schedule, now: Now) -> int:
    """Return the last tick that may have come: an interval goes on when the clock is set back."""
    furthest = now.wall_ms + TICK_AHEAD_MS
    if known.cron.every_ms:
        came = max(known.last_tick, known.since, known.anchor_at)
        furthest = max(furthest, came + known.cron.every_ms)
    return furthest


def _put(state: ShardState, schedule: Schedule, effects: Effects) -> None:
    table = state.schedules
    table.put(schedule)
    effects.rare.schedules[schedule.name] = schedule
    effects.rare.ticks[schedule.name] = schedule
    readers, table.readers = table.readers, []
    for parked in readers:
        _answer(state, parked, effects)


def _forget_surplus(state: ShardState, effects: Effects) -> None:
    """Of those removed only so many are remembered; custom ids guard the ticks of the others."""
    gone = [schedule for schedule in state.schedules if schedule.removed_at]
    if len(gone) > SCHEDULES_MAX:
        _drop(state, min(gone, key=lambda schedule: schedule.removed_at), effects)


def _drop(state: ShardState, schedule: Schedule, effects: Effects) -> None:
    state.schedules.drop(schedule.name)
    effects.rare.schedules[schedule.name] = None
    effects.rare.ticks.pop(schedule.name, None)


def _answer(state: ShardState, parked: ParkedSchedules, effects: Effects) -> None:
    parked.done = True
    state.parked_count -= 1
    body = _page(state, parked.command)
    effects.replies.append(Reply(parked.command.origin, Status.OK, body))


def _page(state: ShardState, command: Schedules) -> list[object]:
    """Return epoch, cursor of what follows, whether there is more already, and the records."""
    table = state.schedules
    found = table.since(command.after if command.epoch == state.epoch else 0)
    views: list[object] = []
    room = BATCH_BYTES_MAX
    for number, schedule in found[: command.limit]:
        room -= len(schedule.payload)
        if room < 0 and views:
            break
        views.append(schedule.to_wire())
        last = number
    more = len(views) < len(found)
    return [state.epoch, last if more else table.changed, more, views]


def _live(state: ShardState, name: str) -> Schedule | None:
    known = state.schedules.get(name)
    return None if known is None or known.removed_at else known


def _refuse(state: ShardState, command: AddSchedule) -> Reply | None:
    elsewhere = _refuse_elsewhere(state, command)
    if elsewhere is not None:
        return elsewhere
    if state.disk_low:
        return Reply(command.origin, Status.DISK_FULL, error_body(state.disk_sentence, 1_000))
    known = _live(state, command.name)
    size = state.schedules.bytes_count + len(command.payload)
    if known is not None and size - len(known.payload) <= SCHEDULES_BYTES_MAX:
        return None
    count = sum(not schedule.removed_at for schedule in state.schedules)
    if count < SCHEDULES_MAX and size <= SCHEDULES_BYTES_MAX:
        return None
    sentence = f"shard {state.shard} has as many schedules as it may; remove some"
    return Reply(command.origin, Status.BUSY, error_body(sentence, 60_000))


def _refuse_elsewhere(
    state: ShardState, command: AddSchedule | Unschedule | Suspend | Fired | Schedules
) -> Reply | None:
    if shard_of(slot_of(command.name), state.shards_count) == state.shard:
        return None
    sentence = f"schedule {command.name!r} does not live on shard {state.shard}"
    return Reply(command.origin, Status.WRONG_SHARD, error_body(sentence))


def _not_found(command: Suspend | Fired) -> Effects:
    sentence = f"there is no schedule {command.name!r}"
    return Effects(replies=[Reply(command.origin, Status.NOT_FOUND, error_body(sentence))])
