"""Rows for other shards: posted in the commit that decides them, kept until they are confirmed.

Numbered without gaps per target, so that a target applies each exactly once whatever is
repeated. Who carries them is of no concern here (the coordinator does).
"""

from pyq.limits import OUTBOX_ROWS_MAX
from pyq.messages import Row
from shardnode.core.effects import Effects
from shardnode.core.state import Mailbag, ShardState


def post(state: ShardState, target: int, row: Row, effects: Effects) -> None:
    """Tell another shard something."""
    bag = state.mail.get(target)
    if bag is None:
        bag = state.mail[target] = Mailbag()
    bag.sent += 1
    bag.rows.append((bag.sent, row))
    effects.rare.mail.append((target, bag.sent, row))
    note_link(state, target, effects)
    state.has_mail = True


def confirm(state: ShardState, target: int, number: int, effects: Effects) -> None:
    """The target has applied all rows up to this number."""
    bag = state.mail.get(target)
    if bag is None or not bag.rows or not bag.rows[0][0] <= number <= bag.sent:
        return  # known before; or never sent: then data was lost here, and the relay says so
    while bag.rows and bag.rows[0][0] <= number:
        bag.rows.popleft()
    effects.rare.confirmed[target] = number


def is_full(state: ShardState, target: int) -> bool:
    """True if so many rows wait for this shard that no more work for it is taken."""
    bag = state.mail.get(target)
    return bag is not None and len(bag.rows) >= OUTBOX_ROWS_MAX


def note_link(state: ShardState, other: int, effects: Effects) -> None:
    """Record how far the exchange with another shard has come."""
    bag = state.mail.get(other)
    sent = bag.sent if bag is not None else 0
    effects.rare.links[other] = (sent, state.received.get(other, 0))
