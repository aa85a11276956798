"""The store that forgets: for tests and benchmarks.

Keeps rows, not objects, so that a restart from it proves something.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyq.job import COMPLETED
from pyq.limits import AGED_MAX, MATCHES_MAX
from shardnode.core.effects import Effects, Found, Key, Page, Stored, Tombstone
from shardnode.core.state import Job, QueueState
from shardnode.storage.records import (
    JobRow,
    RowReader,
    StateRow,
    TombstoneRow,
    job_row,
    read_tombstone,
    state_row,
    tombstone_row,
)
from shardnode.storage.store import Loaded


class MemoryStore:
    """Implements Store in dictionaries. `open` may be called again: that is a restart."""

    def __init__(self) -> None:
        self._epoch = 0
        self._seq = 0
        self._lsn = 0
        self._horizon_ms = 0
        self._queues: dict[int, str] = {}
        self._jobs: dict[int, JobRow] = {}
        self._payloads: dict[int, bytes] = {}
        self._states: dict[int, StateRow] = {}
        self._results: dict[int, bytes] = {}
        self._tombstones: dict[bytes, TombstoneRow] = {}
        self._custom: dict[tuple[str, int], tuple[bytes, int]] = {}
        self._custom_queues: dict[str, list[int]] = {}

    def open(self) -> Loaded:
        """Take the next epoch and return what was known."""
        self._epoch += 1
        plain_count = sum(row[6] is None for row in self._tombstones.values())
        return Loaded(self._epoch, self._seq, sorted(self._queues.items()), plain_count)

    def jobs(self, queues: Mapping[int, QueueState]) -> Iterator[Job]:
        """Yield all stored jobs in order of acceptance."""
        reader = RowReader(queues)
        for seq in sorted(self._jobs):
            yield self._job(seq, reader)

    def begin(self, sync: bool) -> None:
        """Nothing to do: what is staged is kept."""

    def stage(self, effects: Effects, seq: int) -> None:
        """Keep copies of all records of the effects."""
        self._seq = seq
        self._queues.update(effects.queues)
        jobs, payloads = self._jobs, self._payloads
        accepted, changed, ended = effects.accepted, effects.changed, effects.ended
        jobs.update(zip(accepted, map(job_row, accepted.values()), strict=True))
        payloads.update(effects.payloads)
        for job in effects.custom_ids:
            self._keep_custom_id(job)
        states = self._states
        states.update(zip(changed, map(state_row, changed.values()), strict=True))
        for number, result in effects.results.items():
            if result is None:
                self._results.pop(number, None)
            else:
                self._results[number] = result
        self._tombstones.update(zip(ended, map(tombstone_row, ended.values()), strict=True))
        for job_id in effects.revived:
            self._tombstones.pop(job_id, None)
        for number in effects.forgotten:
            for table in (jobs, payloads, states, self._results):
                table.pop(number, None)
        if effects.trimmed_count:
            self._trim(effects.trimmed_count)
        if effects.ended_before:
            self._age(effects.ended_before)

    def commit(self) -> None:
        """Count the turn."""
        self._lsn += 1

    def rollback(self) -> None:
        """Only the disk can refuse a turn; this store never does."""
        raise AssertionError("a memory store never refuses")

    def sync(self) -> None:
        """Nothing is ever on a disk."""

    def find(self, keys: Sequence[Key], queues: Mapping[int, QueueState]) -> Found:
        """Return what is known under the keys."""
        reader = RowReader(queues)
        return {key: self._find_one(key, reader) for key in keys}

    def payloads(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """Return payloads by acceptance number."""
        payloads = self._payloads
        return {seq: payloads[seq] for seq in seqs if seq in payloads}

    def result(self, seq: int) -> bytes | None:
        """Return a job's result, or None."""
        return self._results.get(seq)

    def health(self) -> dict[str, Any]:
        """Return numbers about the store."""
        return {"bytes": 0, "lsn": self._lsn}

    def close(self) -> None:
        """Nothing to let go."""

    def _keep_custom_id(self, job: Job) -> None:
        key = (job.options.job_id, job.queue.number)
        if key not in self._custom:
            insort(self._custom_queues.setdefault(job.options.job_id, []), job.queue.number)
        self._custom[key] = (job.id, job.seq)

    def _trim(self, count: int) -> None:
        plain = [
            job_id
            for job_id, row in self._tombstones.items()
            if row[6] is None and row[4] not in self._jobs
        ]
        for job_id in sorted(plain)[:count]:
            self._horizon_ms = max(self._horizon_ms, int.from_bytes(job_id[:6], "big") + 1)
            del self._tombstones[job_id]

    def _age(self, ended_before: int) -> None:
        old = [
            row
            for row in self._tombstones.values()
            if row[2] < ended_before and row[4] not in self._jobs
        ]
        for job_id, _, _, _, _, queue, custom in sorted(old, key=lambda row: row[0])[:AGED_MAX]:
            self._horizon_ms = max(self._horizon_ms, int.from_bytes(job_id[:6], "big") + 1)
            del self._tombstones[job_id]
            if custom is not None:
                del self._custom[custom, queue]
                self._custom_queues[custom].remove(queue)
                if not self._custom_queues[custom]:
                    del self._custom_queues[custom]

    def _find_one(self, key: Key, reader: RowReader) -> object:
        kind = key[0]
        if kind == "job":
            return self._find_job(key[1], reader)
        if kind == "custom":
            return self._find_custom(key[2], key[1], reader)
        if kind == "custom_any":
            numbers = self._custom_queues.get(str(key[1]), [])[:MATCHES_MAX]
            return [self._find_custom(key[1], number, reader) for number in numbers]
        if kind == "horizon":
            return self._horizon_ms
        assert kind == "page", f"unknown key {key!r}"
        _, queue, state, after, limit = key
        return self._find_page(queue, state, after, limit, reader)

    def _find_job(self, job_id: Any, reader: RowReader) -> Stored | Tombstone | None:
        row = self._tombstones.get(job_id)
        if row is None:
            return None
        return self._stored(row[4], reader) or read_tombstone(row)

    def _find_custom(self, job_id: Any, queue: Any, reader: RowReader) -> object:
        known = self._custom.get((job_id, queue))
        if known is None:
            return None
        return self._stored(known[1], reader) or self._find_job(known[0], reader)

    def _job(self, seq: int, reader: RowReader) -> Job:
        row = self._jobs[seq]
        stone = self._tombstones.get(row[1])
        completed_at = stone[2] if stone is not None and stone[1] == COMPLETED else None
        return reader.job(row, self._states.get(seq), completed_at)

    def _stored(self, seq: int, reader: RowReader) -> Stored | None:
        if seq not in self._jobs:
            return None
        result = self._results.get(seq)
        size = None if result is None else len(result)
        return Stored(self._job(seq, reader), size)

    def _find_page(self, queue: Any, state: Any, after: Any, limit: Any, reader: RowReader) -> Page:
        seqs = sorted(self._jobs)
        page: list[Stored] = []
        for seq in seqs[bisect_right(seqs, after) :]:
            if queue and self._jobs[seq][2] != queue:
                continue
            stored = self._stored(seq, reader)
            assert stored is not None
            if state and stored.job.state != state:
                continue
            page.append(stored)
            if len(page) == limit:
                return Page(page, seq)
        return Page(page, None)
