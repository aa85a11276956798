"""A shard whose disk may lose what was not synced, as in a power failure.

Keeps an image of the memory store after each commit since the last sync. A power failure
leaves any of them: commits reach the disk in order, but nobody knows how many did.
"""

from collections.abc import Sequence
from copy import copy, deepcopy
from random import Random
from typing import Any

from pyq.messages import Command
from pyq.wire import Flag
from shardnode.core.dependencies import DONE
from shardnode.storage.memory import MemoryStore
from shardnode.storage.records import TombstoneRow
from tests.support.invariants import check_invariants
from tests.support.shards import Rig

_NESTED = ("_lines", "_custom_queues")  # tables whose values change in place


class PowerRig(Rig):
    """A shard over a memory store, with a memory of what its disk may hold."""

    surely_completed: set[bytes]  # ids of jobs whose completion no power failure can undo

    def start(self) -> None:
        """A start takes the next epoch, which is synced, and so is all before it."""
        super().start()
        if not hasattr(self, "images"):
            self.images: list[dict[str, Any]] = []
            self.surely_completed = set()
        self.images.append(self._image())
        self.sync()

    def turn(self, commands: Sequence[Command], late: bool = False) -> None:
        super().turn(commands, late)
        durable = any(command.origin.flags & Flag.DURABLE for command in commands)
        synced = durable or any(effects.sync for effects in self.effects)
        if any(effects.writes for effects in self.effects):
            self.images.append(self._image())
        if synced:
            self.sync()

    def sync(self) -> None:
        """Everything committed so far is on the disk."""
        self._settle(len(self.images) - 1)

    def power_failure(self, dice: Random) -> None:
        """The machine stops; a legal part of what was not synced is there at the next start."""
        self._settle(dice.randrange(len(self.images)))
        del self.images[1:]
        vars(self.store).update(self._copy(self.images[0]))
        self.calls.clear()
        self.start()
        if self.checked:
            check_invariants(self.shard, self.store, self.clock.now())

    def _settle(self, number: int) -> None:
        """The image of this number, and so all before it, are on the disk."""
        for image in self.images[: number + 1]:
            ended: dict[bytes, TombstoneRow] = image["_tombstones"]
            self.surely_completed |= {i for i, row in ended.items() if row[1] == DONE}
        del self.images[:number]

    def _image(self) -> dict[str, Any]:
        assert isinstance(self.store, MemoryStore)
        return self._copy(vars(self.store))

    def _copy(self, tables: dict[str, Any]) -> dict[str, Any]:
        return {
            name: deepcopy(value) if name in _NESTED else copy(value)
            for name, value in tables.items()
        }
