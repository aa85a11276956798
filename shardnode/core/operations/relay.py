"""OUTBOX, DELIVER, REWATCH: what shards tell each other about jobs that others depend on.

Whoever carries rows may do so twice, late, or die in between: a row is numbered, kept until
it is confirmed, and applied exactly once. Nothing is said to another shard before it is on
the disk here; otherwise a power failure would undo what the other one has acted upon.
"""

from itertools import islice

from pyq.errors import Status
from pyq.job import COMPLETED
from pyq.limits import PARKED_MAX, SETTLED_MAX
from pyq.messages import RESOLVE, UNWATCH, WATCH, Deliver, Outbox, Reply, Rewatch, Row, error_body
from shardnode.core.dependencies import (
    ask,
    end_of,
    note_end,
    pin,
    pin_completed,
    shard_of_job,
    unwatch,
    watch,
)
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored
from shardnode.core.mail import confirm, is_full, note_link, post
from shardnode.core.state import ParkedOutbox, ShardState


def outbox(state: ShardState, command: Outbox, now: Now) -> Effects:
    """Forget what was confirmed, and hand out what was not, or wait for it."""
    effects = Effects()
    for target, number in command.confirmed:
        confirm(state, target, number, effects)
    if _hand_out(state, command, effects):
        return effects
    if not command.wait_ms or state.parked_count >= PARKED_MAX:
        effects.replies.append(Reply(command.origin, Status.OK, [[]]))
        return effects
    parked = ParkedOutbox(command)
    state.relays.append(parked)
    state.parked_count += 1
    until = min(now.mono_ms + command.wait_ms, command.origin.deadline_ms)
    state.timers.park(until, parked)
    return effects


def answer_relays(state: ShardState, effects: Effects) -> None:
    """Rows were posted: whoever waited for them gets them."""
    state.has_mail = False
    relays, state.relays = state.relays, []
    for parked in relays:
        if parked.done:
            continue
        if _hand_out(state, parked.command, effects):
            parked.done = True
            state.parked_count -= 1
        else:
            state.relays.append(parked)


def expire_relay(state: ShardState, parked: ParkedOutbox, effects: Effects) -> None:
    """Nothing was posted for as long as the relay wanted to wait."""
    parked.done = True
    state.parked_count -= 1
    state.relays = [relay for relay in state.relays if not relay.done]
    effects.replies.append(Reply(parked.command.origin, Status.OK, [[]]))


def deliver(state: ShardState, command: Deliver, now: Now, found: Found | None) -> Effects | Need:
    """Apply rows of another shard that are new; the answer is the number of the last applied."""
    received = state.received.get(command.source, 0)
    if command.source == state.shard or command.source >= state.shards_count:
        sentence = f"shard {command.source} sends no rows to shard {state.shard}"
        reply = Reply(command.origin, Status.BAD_REQUEST, error_body(sentence))
        return Effects(replies=[reply])
    numbered = enumerate(command.rows, command.first)
    new = [(number, row) for number, row in numbered if number > received]
    if command.first > received + 1:
        new = []  # rows in between are missing: the answer says from where on
    if found is None and (keys := _ended_keys(state, [row for _, row in new])):
        return Need(keys)
    effects = Effects(sync=True)
    for number, row in new:
        received = number
        _apply(state, command.source, row, found or {}, effects)
    if new:
        state.received[command.source] = received
        note_link(state, command.source, effects)
    effects.replies.append(Reply(command.origin, Status.OK, [received]))
    return effects


def rewatch(state: ShardState, command: Rewatch, now: Now, found: Found | None) -> Effects | Need:
    """Ask again for what jobs wait for: what was missed is met all the same."""
    asked = list(islice(state.unasked, SETTLED_MAX))
    here = [job_id for job_id in asked if state.owns(job_id) and job_id not in state.jobs]
    if found is None and here:
        keys: list[Key] = [("job", job_id) for job_id in here]
        return Need(keys)
    effects = Effects()
    pin_completed(state, here, found or {})
    for job_id in here:
        verdict, error = end_of((found or {}).get(("job", job_id)))
        note_end(state, job_id, verdict, error)
    for job_id in asked:
        del state.unasked[job_id]
        target = shard_of_job(state, job_id)
        awaited = state.awaited.get(job_id)
        if awaited is not None and target != state.shard and not is_full(state, target):
            ask(state, job_id, awaited, effects)
    return effects


def _hand_out(state: ShardState, command: Outbox, effects: Effects) -> bool:
    """Answer with the first rows for each target; False if there are none."""
    bags = [
        (target, bag)
        for target, bag in sorted(state.mail.items())
        if bag.rows and target not in command.skipped
    ]
    if not bags:
        return False
    share = -(-command.limit // len(bags))  # nobody waits until all is told to another
    parts: list[list[object]] = []
    for target, bag in bags:
        rows = [list(row) for _, row in islice(bag.rows, share)]
        parts.append([target, bag.rows[0][0], rows])
    effects.sync = True
    effects.replies.append(Reply(command.origin, Status.OK, [parts]))
    return True


def _ended_keys(state: ShardState, rows: list[Row]) -> list[Key]:
    """Return what must be looked up: jobs to be watched that are not live."""
    return [("job", row.id) for row in rows if row.kind == WATCH and row.id not in state.jobs]


def _apply(state: ShardState, source: int, row: Row, found: Found, effects: Effects) -> None:
    if row.kind == RESOLVE:
        note_end(state, row.id, row.verdict, row.error)
    elif row.kind == UNWATCH:
        unwatch(state, row.id, source, effects)
    elif row.id in state.jobs:
        watch(state, row.id, source, effects)
    else:
        _watch_ended(state, source, row.id, found.get(("job", row.id)), effects)


def _watch_ended(
    state: ShardState, source: int, job_id: bytes, known: object, effects: Effects
) -> None:
    """The job has ended: the other shard hears how at once, and its record is kept for it."""
    if isinstance(known, Stored):
        watch(state, job_id, source, effects)
        if known.job.state is COMPLETED and known.job.seq not in state.pinned:
            pin(state, known.job, False)
    verdict, error = end_of(known)
    post(state, source, Row(RESOLVE, job_id, verdict, error), effects)
