"""The store that forgets: for tests and benchmarks.

Keeps rows, not objects, so that a restart from it proves something.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyq.job import COMPLETED
from pyq.limits import AGED_MAX, MATCHES_MAX
from pyq.messages import Filters, Row
from shardnode.core.effects import Effects, Found, Key, Page, Rare, Stored, Tombstone
from shardnode.core.recovery import Loaded
from shardnode.core.state import Job, QueueState, TimedKey
from shardnode.storage.records import (
    DeadRow,
    JobRow,
    RowReader,
    ScheduleRow,
    StateRow,
    TickRow,
    TombstoneRow,
    dead_row,
    job_row,
    matches,
    pack_settings,
    read_schedule,
    read_settings,
    read_tombstone,
    schedule_row,
    state_row,
    tick_row,
    tombstone_rows,
)


class MemoryStore:
    """Implements Store in dictionaries. `open` may be called again: that is a restart."""

    def __init__(self) -> None:
        self._epoch = 0
        self._seq = 0
        self._lsn = 0
        self._horizon_ms = 0
        self._queues: dict[int, str] = {}
        self._settings: dict[int, bytes] = {}
        self._windows: dict[int, tuple[int, int]] = {}
        self._mail: dict[tuple[int, int], Row] = {}
        self._links: dict[int, tuple[int, int]] = {}
        self._watchers: set[tuple[bytes, int]] = set()
        self._timed_keys: dict[tuple[int, str], TimedKey] = {}
        self._schedules: dict[str, ScheduleRow] = {}
        self._ticks: dict[str, TickRow] = {}
        self._jobs: dict[int, JobRow] = {}
        self._payloads: dict[int, bytes] = {}
        self._states: dict[int, StateRow] = {}
        self._results: dict[int, bytes] = {}
        self._dead: dict[int, DeadRow] = {}
        self._lines: dict[int, dict[int, tuple[int, int, int, str]]] = {}
        self._tombstones: dict[bytes, TombstoneRow] = {}
        self._custom: dict[tuple[str, int], tuple[bytes, int]] = {}
        self._custom_queues: dict[str, list[int]] = {}

    def open(self) -> Loaded:
        """Take the next epoch and return what was known."""
        self._epoch += 1
        plain_count = sum(row[6] is None for row in self._tombstones.values())
        return Loaded(
            epoch=self._epoch,
            seq=self._seq,
            tombstones_count=plain_count,
            queues=[
                (number, name, read_settings(self._settings.get(number)))
                for number, name in sorted(self._queues.items())
            ],
            windows=[(queue, *window) for queue, window in sorted(self._windows.items())],
            timed_keys=[(*key, held) for key, held in sorted(self._timed_keys.items())],
            mail=[(*key, row) for key, row in sorted(self._mail.items())],
            links=[(shard, *link) for shard, link in sorted(self._links.items())],
            schedules=[
                read_schedule(row, self._ticks[name])
                for name, row in sorted(self._schedules.items())
            ],
            watchers=sorted(self._watchers),
        )

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
        rare = effects.maybe_rare
        if rare is not None:
            self._put_rare(rare, set(effects.forgotten))
        self._tombstones.update(zip(ended, tombstone_rows(effects), strict=True))
        for number in effects.forgotten:
            for table in (jobs, payloads, states, self._results, self._lines):
                table.pop(number, None)
        if rare is not None:
            self._remove_rare(rare)

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

    def _put_rare(self, rare: Rare, gone: set[int]) -> None:
        for number, settings in rare.settings.items():
            packed = pack_settings(settings)
            if packed is None:
                self._settings.pop(number, None)
            else:
                self._settings[number] = packed
        self._windows.update(rare.windows)
        self._put_mail(rare)
        self._put_schedules(rare)
        for key, held in rare.timed_keys.items():
            if held is None:
                self._timed_keys.pop(key, None)
            else:
                self._timed_keys[key] = held
        for seq, job in rare.rewritten.items():
            if seq in self._jobs:
                self._jobs[seq] = job_row(job)
        for seq, number, at, attempt, text in rare.lines:
            self._lines.setdefault(seq, {})[number] = (number, at, attempt, text)
        for seq, first in rare.lines_cut.items():
            lines = self._lines.get(seq, {})
            for number in [number for number in lines if number < first]:
                del lines[number]
        for job_id in rare.revived:
            self._tombstones.pop(job_id, None)
        for seq in rare.unburied:
            self._dead.pop(seq, None)
        for seq, job in rare.buried.items():
            if seq not in gone:
                self._dead[seq] = dead_row(job)

    def _put_mail(self, rare: Rare) -> None:
        self._mail.update({(target, number): row for target, number, row in rare.mail})
        for target, number in rare.confirmed.items():
            for key in [key for key in self._mail if key[0] == target and key[1] <= number]:
                del self._mail[key]
        self._links.update(rare.links)
        for watcher, watches in rare.watchers.items():
            (self._watchers.add if watches else self._watchers.discard)(watcher)

    def _put_schedules(self, rare: Rare) -> None:
        self._ticks.update((name, tick_row(schedule)) for name, schedule in rare.ticks.items())
        for name, schedule in rare.schedules.items():
            if schedule is None:
                self._schedules.pop(name, None)
                self._ticks.pop(name, None)
            else:
                self._schedules[name] = schedule_row(schedule)

    def _remove_rare(self, rare: Rare) -> None:
        for number in rare.obliterated:
            self._obliterate(number)
        if rare.trimmed_count:
            self._trim(rare.trimmed_count)
        if rare.ended_before:
            self._age(rare.ended_before)

    def _obliterate(self, queue: int) -> None:
        """Nothing of the queue stays but the ids of its jobs."""
        for table in (self._queues, self._settings, self._windows):
            table.pop(queue, None)
        for key in [key for key in self._timed_keys if key[0] == queue]:
            del self._timed_keys[key]
        for custom, number in [key for key in self._custom if key[1] == queue]:
            self._drop_custom_id(custom, number)
        for job_id, row in self._tombstones.items():
            if row[5] == queue:
                self._tombstones[job_id] = (*row[:6], None)

    def _drop_custom_id(self, custom: str, queue: int) -> None:
        del self._custom[custom, queue]
        self._custom_queues[custom].remove(queue)
        if not self._custom_queues[custom]:
            del self._custom_queues[custom]

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
                self._drop_custom_id(custom, queue)

    def _find_one(self, key: Key, reader: RowReader) -> object:
        parts: Any = key
        match parts:
            case ("job", job_id):
                return self._find_job(job_id, reader)
            case ("custom", queue, job_id):
                return self._find_custom(job_id, queue, reader)
            case ("custom_any", job_id):
                numbers = self._custom_queues.get(job_id, [])[:MATCHES_MAX]
                return [self._find_custom(job_id, number, reader) for number in numbers]
            case ("page", queue, state, after, limit, filters):
                return self._find_page(queue, state, after, limit, filters, reader)
            case ("dead_oldest", queue, died_before, limit):
                return self._find_dead_oldest(queue, died_before, limit, reader)
            case ("dead_stats", queue):
                return self._find_dead_stats(queue)
            case ("logs", seq, after, limit):
                lines = self._lines.get(seq, {})
                return [lines[number] for number in sorted(lines) if number > after][:limit]
            case ("named_count", queue):
                stones = self._tombstones.values()
                return sum(row[5] == queue and row[6] is not None for row in stones)
            case ("horizon",):
                return self._horizon_ms
        raise AssertionError(f"unknown key {key!r}")

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

    def _find_page(
        self, queue: int, state: int, after: int, limit: int, filters: Filters, reader: RowReader
    ) -> Page:
        seqs = sorted(self._jobs)
        page: list[Stored] = []
        for seq in seqs[bisect_right(seqs, after) :]:
            if queue and self._jobs[seq][2] != queue:
                continue
            stored = self._stored(seq, reader)
            assert stored is not None
            if (state and stored.job.state != state) or not matches(stored.job, filters):
                continue
            page.append(stored)
            if len(page) == limit:
                return Page(page, seq)
        return Page(page, None)

    def _find_dead_oldest(
        self, queue: int, died_before: int, limit: int, reader: RowReader
    ) -> list[Stored]:
        dead = sorted(
            (died_at, seq)
            for seq, number, died_at, _ in self._dead.values()
            if number == queue and (died_before <= 0 or died_at < died_before)
        )
        stored = [self._stored(seq, reader) for _, seq in dead[:limit]]
        return [one for one in stored if one is not None]

    def _find_dead_stats(self, queue: int) -> list[tuple[str, int, int, int]]:
        deaths: dict[str, list[int]] = {}
        for _, number, died_at, reason in self._dead.values():
            if number == queue:
                deaths.setdefault(reason, []).append(died_at)
        return [
            (reason, len(times), min(times), max(times)) for reason, times in sorted(deaths.items())
        ]
