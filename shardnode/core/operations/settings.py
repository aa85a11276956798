"""CONFIGURE and PAUSE: settings of a queue, kept in its shard.

A setting takes effect at once, for what waits already as well.
"""

from pyq.errors import BadOption, Status
from pyq.limits import PAUSED_GROUPS_MAX, QUEUES_MAX
from pyq.messages import Configure, Pause, Reply, error_body
from pyq.routes import shard_of, slot_of
from pyq.settings import DEFAULT_SETTINGS, SETTING_NAMES, Settings, check_settings
from shardnode.core.effects import Effects, Now
from shardnode.core.lifecycle import open_queue
from shardnode.core.queues import pause_group, regroup, resume_group, wake
from shardnode.core.retention import note_finished
from shardnode.core.state import QueueState, ShardState


def configure(state: ShardState, command: Configure, now: Now) -> Effects:
    """Change settings, all or none, and say what holds now."""
    effects = Effects()
    refusal = _refuse(state, command)
    if refusal is not None:
        effects.replies.append(refusal)
        return effects
    queue = state.queues.get(command.queue)
    settings = queue.settings if queue is not None else DEFAULT_SETTINGS
    if command.changes:
        try:
            settings = check_settings(command.changes, settings)
        except BadOption as error:
            body = error_body(str(error))
            effects.replies.append(Reply(command.origin, Status.BAD_OPTION, body))
            return effects
        queue = open_queue(state, command.queue, effects)
        apply_settings(state, queue, settings, now, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [shown_settings(settings)]))
    return effects


def pause(state: ShardState, command: Pause, now: Now) -> Effects:
    """Hand out nothing of a queue or of one of its groups, or do so again."""
    effects = Effects()
    refusal = _refuse(state, command)
    if refusal is not None:
        effects.replies.append(refusal)
        return effects
    queue = open_queue(state, command.queue, effects)
    settings = queue.settings
    if not command.group:
        changes: dict[str, object] = {"paused": command.paused}
    else:
        groups = set(settings.paused_groups)
        groups = groups | {command.group} if command.paused else groups - {command.group}
        changes = {"paused_groups": sorted(groups)}
        if len(groups) > PAUSED_GROUPS_MAX:
            sentence = f"{PAUSED_GROUPS_MAX} groups of this queue are paused; no more can be"
            reply = Reply(command.origin, Status.BUSY, error_body(sentence, 60_000))
            effects.replies.append(reply)
            return effects
    changed = check_settings(changes, settings)
    if changed != settings:
        apply_settings(state, queue, changed, now, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [int(changed != settings)]))
    return effects


def apply_settings(
    state: ShardState, queue: QueueState, settings: Settings, now: Now, effects: Effects
) -> None:
    """From now on these settings hold."""
    before = queue.settings
    queue.settings = settings
    queue.limited = settings.limited
    effects.rare.settings[queue.number] = settings
    for name in sorted(set(before.paused_groups) ^ set(settings.paused_groups)):
        if name in settings.paused_groups:
            pause_group(state, queue, name, effects)
        else:
            resume_group(state, queue, name)
    if settings.group_concurrency != before.group_concurrency:
        regroup(state, queue, effects)
    queue.window_at = None  # a timer of the old limit is void
    wake(state, queue)
    note_finished(state, queue)
    if settings.auto_retry_ms or settings.dead_ms or settings.drop_oldest:
        state.tended.setdefault(queue, 0)
    else:
        state.tended.pop(queue, None)
    if state.events.on:
        _record_pauses(state, queue, before, settings, now)


def shown_settings(settings: Settings) -> dict[str, object]:
    """Return every setting with its value, as the wire has it."""
    shown: dict[str, object] = {name: getattr(settings, name) for name in SETTING_NAMES}
    shown["defaults"] = settings.defaults.to_wire() or {}
    return shown


def _record_pauses(
    state: ShardState, queue: QueueState, before: Settings, after: Settings, now: Now
) -> None:
    names = set(before.paused_groups) ^ set(after.paused_groups)
    changes = [(name, name in after.paused_groups) for name in sorted(names)]
    if before.paused != after.paused:
        changes.append(("", after.paused))
    for group, paused in changes:
        kind = "paused" if paused else "resumed"
        state.events.record_of_queue(kind, now.wall_ms, queue, [group])


def _refuse(state: ShardState, command: Configure | Pause) -> Reply | None:
    if command.queue in state.queues:
        return None
    if shard_of(slot_of(command.queue), state.shards_count) != state.shard:
        sentence = f"queue {command.queue!r} does not live on shard {state.shard}"
        return Reply(command.origin, Status.WRONG_SHARD, error_body(sentence))
    if len(state.queues) >= QUEUES_MAX:
        sentence = f"shard {state.shard} has {QUEUES_MAX} queues; no more are made"
        return Reply(command.origin, Status.BUSY, error_body(sentence, 60_000))
    return None
