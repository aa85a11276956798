"""What a shard's shell asks of a store: keep records, give them back, say what is sure.

A store never orders, claims or reads a clock. Two implementations, `memory` and `sqlite`,
and one conformance suite for both (tests/conformance).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from shardnode.core.effects import Effects, Found, Key
from shardnode.core.recovery import Loaded
from shardnode.core.state import Job, QueueState


class StoreError(Exception):
    """The store cannot be opened or has failed: says what, where, and what to do."""


class StoreFull(StoreError):
    """Nothing of the turn was written: the disk is full. It may be tried again."""


class OutcomeUnknown(StoreError):
    """The turn may or may not have been written: stop, and let the next start read the truth."""


class Store(Protocol):
    """The contract. All calls come from one thread."""

    def open(self) -> Loaded:
        """Take the next epoch, durably, and return what was known. Raises StoreError."""

    def jobs(self, queues: Mapping[int, QueueState]) -> Iterable[Job]:
        """Yield all stored jobs in order of acceptance, each exactly as it was put."""

    def begin(self, sync: bool) -> None:
        """Start the turn's transaction; `sync`: its commit reaches the disk itself."""

    def stage(self, effects: Effects, seq: int) -> None:
        """Write effects into the open transaction. Raises StoreFull or OutcomeUnknown."""

    def commit(self) -> None:
        """Make the transaction last. Raises StoreFull (nothing is written) or OutcomeUnknown."""

    def rollback(self) -> None:
        """Drop the open transaction."""

    def sync(self) -> None:
        """Bring all earlier commits to the disk."""

    def find(self, keys: Sequence[Key], queues: Mapping[int, QueueState]) -> Found:
        """Return what is known under keys (core/effects.py lists them), staged effects included."""

    def payloads(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """Return payloads by acceptance number."""

    def result(self, seq: int) -> bytes | None:
        """Return a job's result, or None."""

    def health(self) -> dict[str, Any]:
        """Return numbers about the file: bytes, log sequence number."""

    def close(self) -> None:
        """Bring everything to the disk and let go."""
