"""EVENTS: what happened, numbered, read by long poll after a cursor.

A reader who falls behind, or who was there before the shard started, is told so.
"""

from typing import NamedTuple

from pyq.errors import Status
from pyq.limits import EVENTS_IDLE_MS, PARKED_MAX
from pyq.messages import Events, Reply
from shardnode.core.effects import Effects, Now
from shardnode.core.state import EventLog, Job, ParkedEvents, QueueState, ShardState

UNKNOWN_COUNT = -1  # of missed events


def events(state: ShardState, command: Events, now: Now) -> Effects:
    """Give what happened after the cursor, or wait for it."""
    log = state.events
    if not log.on:
        log.next += 1  # a number for what was not recorded: no cursor from before may fit
        log.first = log.began = log.next
        log.on = True
    log.idle_at = now.mono_ms + EVENTS_IDLE_MS
    effects = Effects()
    answer = _answer(state, command)
    must_wait = command.after >= 0 and not answer.missed and not answer.rows
    if not must_wait or not command.wait_ms or state.parked_count >= PARKED_MAX:
        effects.replies.append(Reply(command.origin, Status.OK, list(answer)))
        return effects
    parked = ParkedEvents(command)
    log.readers.append(parked)
    state.parked_count += 1
    until = min(now.mono_ms + command.wait_ms, command.origin.deadline_ms)
    state.timers.park(until, parked)
    return effects


def answer_readers(state: ShardState, effects: Effects) -> None:
    """Something happened: whoever waited for it is told."""
    log = state.events
    log.told = log.next
    readers, log.readers = log.readers, []
    for parked in readers:
        if parked.done:
            continue
        answer = _answer(state, parked.command)
        if answer.missed or answer.rows:
            _reply(state, parked, answer, effects)
        else:
            parked.command.after = answer.next  # what was of other queues is not looked at again
            log.readers.append(parked)


def expire_reader(state: ShardState, parked: ParkedEvents, effects: Effects) -> None:
    """Nothing happened for as long as the reader wanted to wait."""
    _reply(state, parked, _answer(state, parked.command), effects)


def stop_if_idle(state: ShardState, now: Now) -> None:
    """Nobody has read for long: nothing is recorded until somebody reads again."""
    log = state.events
    log.readers = [parked for parked in log.readers if not parked.done]
    if log.on and not log.readers and now.mono_ms >= log.idle_at:
        log.on = False
        log.entries.clear()


class _Answer(NamedTuple):
    """The body of the reply, with its names."""

    epoch: int
    next: int  # cursor of what follows
    missed: int  # events lost before the first row
    rows: list[object]


def _reply(state: ShardState, parked: ParkedEvents, answer: _Answer, effects: Effects) -> None:
    parked.done = True
    state.parked_count -= 1
    effects.replies.append(Reply(parked.command.origin, Status.OK, list(answer)))


def _answer(state: ShardState, command: Events) -> _Answer:
    log = state.events
    if command.after < 0:
        return _Answer(state.epoch, log.next - 1, 0, [])
    missed, after = 0, command.after
    if command.epoch != state.epoch or not log.began - 1 <= after < log.next:
        missed, after = UNKNOWN_COUNT, log.first - 1
    elif after < log.first - 1:
        missed, after = log.first - 1 - after, log.first - 1
    rows, next_after = _rows(log, command, after)
    return _Answer(state.epoch, next_after, missed, rows)


def _rows(log: EventLog, command: Events, after: int) -> tuple[list[object], int]:
    """Return at most `limit` events after a number, and the number they reach to."""
    rows: list[object] = []
    for first, kind, at, subjects, details in log.entries:
        if first + len(subjects) - 1 <= after:
            continue
        for offset in range(max(0, after + 1 - first), len(subjects)):
            subject = subjects[offset]
            queue = subject if isinstance(subject, QueueState) else subject.queue
            if not command.queue or queue.name == command.queue:
                if len(rows) == command.limit:
                    return rows, first + offset - 1
                detail = details[offset] if details is not None else None
                rows.append(_row(first + offset, kind, at, queue, subject, detail))
    return rows, log.next - 1


def _row(
    number: int, kind: str, at: int, queue: QueueState, subject: Job | QueueState, detail: object
) -> list[object]:
    if isinstance(subject, QueueState):
        return [number, kind, at, queue.name, None, None, detail]
    return [number, kind, at, queue.name, subject.id, subject.name, detail]
