"""The store on disk: one SQLite file, one connection, the shard's own.

Write-ahead log, exclusive lock, one transaction per turn. Statements are constants below;
the tables are in schema.sql. Payloads of young jobs are also kept in a bounded cache, so
that a short queue never reads the disk.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any

import apsw

from pyq.ids import time_of_id
from pyq.job import DEAD
from pyq.limits import AGED_MAX, MATCHES_MAX, PAYLOAD_CACHE_BYTES_MAX
from pyq.messages import NO_FILTERS, Filters, Row
from shardnode.core.effects import Effects, Found, Key, Page, Rare, Stored, Tombstone
from shardnode.core.recovery import Loaded
from shardnode.core.state import Job, QueueState, TimedKey
from shardnode.storage.records import (
    RowReader,
    dead_row,
    group_mark,
    job_row,
    matches,
    pack_settings,
    read_schedule,
    read_settings,
    read_tombstone,
    schedule_row,
    state_row,
    tag_mark,
    tick_row,
    tombstone_rows,
)
from shardnode.storage.store import OutcomeUnknown, StoreError, StoreFull

FORMAT_VERSION = 3
ROWS_PER_STATEMENT = 50  # more gains little and makes preparing a statement slow
SCAN_ROWS_MAX = 20_000  # rows one page looks at: bounds the turn when few of them match
_NO_LIMIT = 1 << 62  # above every number and every time

_PRAGMAS = (
    ("locking_mode", "EXCLUSIVE", "exclusive"),  # before WAL: then there is no -shm file
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "NORMAL", 1),
    ("trusted_schema", "OFF", 0),
    ("cell_size_check", "ON", 1),
    ("wal_autocheckpoint", "1000", 1000),
    ("cache_size", "-65536", -65536),
    ("temp_store", "MEMORY", 2),
)

_JOB_COLUMNS = "seq, id, queue, name, created_at, run_at, size, options, payload"
_STATE_COLUMNS = (
    "seq, state, ready, run_at, attempt, failures, stalls, updated_at,"
    " token, lease_end, lease, detail"
)
_SCHEDULE_COLUMNS = (
    "name, queue, job, paused, changed_at, anchor_at, since, removed_at, times, options, payload"
)
_TICK_COLUMNS = "name, last_tick, fired_count, skipped_count, last_job"
_LOAD_SCHEDULES = (
    f"SELECT {_SCHEDULE_COLUMNS}, {_TICK_COLUMNS} FROM schedules JOIN ticks USING (name)"
    " ORDER BY name"
)
_TOMBSTONE_COLUMNS = "id, verdict, ended_at, digest, seq, queue, job_id"
_READ = (
    "SELECT j.seq, j.id, j.queue, j.name, j.created_at, j.run_at, j.size, j.options,"
    " s.seq, s.state, s.ready, s.run_at, s.attempt, s.failures, s.stalls, s.updated_at,"
    " s.token, s.lease_end, s.lease, s.detail, t.ended_at"
)
_JOINED = (
    " LEFT JOIN states s ON s.seq = j.seq"
    " LEFT JOIN tombstones t ON t.id = j.id AND t.verdict = 5"  # completed: see records.py
)
_RESULT_BYTES = ", (SELECT length(r.result) FROM results r WHERE r.seq = j.seq)"
_LOAD = f"{_READ} FROM jobs j{_JOINED} ORDER BY j.seq"
_READ_JOB = f"{_READ}{_RESULT_BYTES} FROM jobs j{_JOINED}"
_READ_ONE = f"{_READ_JOB} WHERE j.seq = ?"
# A mark is looked for among the bytes of the options: it may be in others, too.
_FILTERED = (
    " AND (:name = '' OR j.name = :name)"
    " AND (:tag_mark = x'' OR instr(j.options, :tag_mark))"
    " AND (:group_mark = x'' OR instr(j.options, :group_mark))"
    " AND (:since = 0 OR j.created_at >= :since)"
    " AND (:until = 0 OR j.created_at < :until)"
)
_PAGE = (
    f"{_READ_JOB} WHERE j.seq > :after AND j.seq <= :last"
    " AND (:queue = 0 OR j.queue = :queue)"
    " AND (:state = 0 OR coalesce(t.verdict, s.state, iif(j.run_at, 2, 1)) = :state)"
    f"{_FILTERED} ORDER BY j.seq LIMIT :limit"
)
_PAGE_END = "SELECT seq FROM jobs WHERE seq > :after ORDER BY seq LIMIT 1 OFFSET :skipped"
# CROSS JOIN: the dead first, never the living. Without a queue they are in order of seq, too.
_READ_DEAD = f"{_READ}{_RESULT_BYTES} FROM dead d CROSS JOIN jobs j ON j.seq = d.seq{_JOINED}"
_DEAD_PAGE = (
    f"{_READ_DEAD} WHERE d.seq > :after AND d.seq <= :last"
    f" AND (:reason = '' OR d.reason = :reason){_FILTERED}"
)
_DEAD_PAGE_ALL = f"{_DEAD_PAGE} ORDER BY d.seq LIMIT :limit"
_DEAD_PAGE_QUEUE = f"{_DEAD_PAGE} AND d.queue = :queue ORDER BY d.seq LIMIT :limit"
_DEAD_END_ALL = "SELECT seq FROM dead WHERE seq > :after ORDER BY seq LIMIT 1 OFFSET :skipped"
_DEAD_END_QUEUE = (
    "SELECT seq FROM dead WHERE queue = :queue AND seq > :after"
    " ORDER BY seq LIMIT 1 OFFSET :skipped"
)
_DEAD_OLDEST = f"{_READ_DEAD} WHERE d.queue = ? AND d.died_at < ? ORDER BY d.died_at, d.seq LIMIT ?"
_DEAD_STATS = (
    "SELECT reason, count(*), min(died_at), max(died_at) FROM dead WHERE queue = ?"
    " GROUP BY reason ORDER BY reason"
)
_LOGS = (
    "SELECT number, at, attempt, text FROM lines WHERE seq = ? AND number > ?"
    " ORDER BY number LIMIT ?"
)
_NAMED_COUNT = "SELECT count(*) FROM tombstones WHERE queue = ? AND job_id IS NOT NULL"
_TOMBSTONE = f"SELECT {_TOMBSTONE_COLUMNS} FROM tombstones WHERE id = ?"
_REWRITE = (
    "UPDATE jobs SET name = ?, run_at = ?, size = ?, options = ?,"
    " payload = coalesce(?, payload) WHERE seq = ?"
)
# What is known of a queue beyond its jobs; a custom id is as old as the tombstone with its name.
_OBLITERATE = (
    "DELETE FROM queues WHERE number = ?",
    "DELETE FROM settings WHERE queue = ?",
    "DELETE FROM windows WHERE queue = ?",
    "DELETE FROM timed_keys WHERE queue = ?",
    "DELETE FROM custom_ids WHERE (job_id, queue) IN"
    " (SELECT job_id, queue FROM tombstones WHERE queue = ? AND job_id IS NOT NULL)",
    "UPDATE tombstones SET job_id = NULL WHERE queue = ? AND job_id IS NOT NULL",
)
_CLOCK = "UPDATE clock SET lsn = lsn + 1, seq = ?"


class SqliteStore:
    """Implements Store in a file. `folder` must exist; the caller holds its lock."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self._path = folder / "shard.db"
        self._identity = dict(identity)  # cluster, shard, shards: must match the file
        self._payload_cache: dict[int, bytes] = {}
        self._cached_bytes = 0
        self._staged_payloads: dict[int, bytes] = {}
        self._synchronous = "NORMAL"
        self._seq = 0
        self._has_lines = False
        self._ballast = folder / "ballast"

    def open(self) -> Loaded:
        """Open or make the file, check that it is ours, and take the next epoch, durably."""
        try:
            self._db = apsw.Connection(str(self._path))
            self._run = self._db.cursor().execute
            for name, value, expected in _PRAGMAS:
                self._set_pragma(name, value, expected)
            self._prepare()
            return self._take_epoch()
        except apsw.FullError as error:
            raise StoreFull(f"cannot open {self._path}: the disk is full; free some") from error
        except apsw.BusyError as error:
            raise StoreError(f"cannot open {self._path}: another process has it open") from error
        except apsw.Error as error:
            raise StoreError(f"cannot open {self._path}: {error}") from error

    def jobs(self, queues: Mapping[int, QueueState]) -> Iterator[Job]:
        """Yield all stored jobs in order of acceptance."""
        reader = RowReader(queues)
        try:
            for row in self._run(_LOAD):
                yield reader.job(row[:8], None if row[8] is None else row[8:20], row[20])
        except apsw.Error as error:
            raise StoreError(f"cannot read {self._path}: {error}") from error

    def begin(self, sync: bool) -> None:
        """Start the turn's transaction. `synchronous` cannot change inside one: set it first."""
        level = "FULL" if sync else "NORMAL"
        with self._surely():
            if level != self._synchronous:
                self._run(f"PRAGMA synchronous={level}")
                self._synchronous = level
            self._run("BEGIN IMMEDIATE")

    def stage(self, effects: Effects, seq: int) -> None:
        """Write effects into the open transaction."""
        self._seq = seq
        with self._surely():
            self._write(effects)

    def commit(self) -> None:
        """Count the turn in the clock's row and commit."""
        with self._surely():
            self._run(_CLOCK, (self._seq,))
            self._run("COMMIT")
        self._cache_staged()

    def rollback(self) -> None:
        """Drop the open transaction."""
        self._staged_payloads.clear()
        if self._db.in_transaction:
            self._run("ROLLBACK")

    def sync(self) -> None:
        """Commit a changed row with FULL: one fdatasync of the log covers all commits before."""
        self.begin(sync=True)
        self.commit()

    def find(self, keys: Sequence[Key], queues: Mapping[int, QueueState]) -> Found:
        """Return what is known under the keys, staged effects included."""
        reader = RowReader(queues)
        with self._surely():
            return {key: self._find_one(key, reader) for key in keys}

    def payloads(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """Return payloads by acceptance number, from the cache or in one read."""
        cache = self._payload_cache
        found = {seq: cache[seq] for seq in seqs if seq in cache}
        if len(found) < len(seqs):
            missing = iter([seq for seq in seqs if seq not in found])
            with self._surely():
                while part := list(islice(missing, ROWS_PER_STATEMENT)):
                    marks = ",".join("?" * len(part))
                    rows = self._run(f"SELECT seq, payload FROM jobs WHERE seq IN ({marks})", part)
                    found.update(rows)
        return found

    def result(self, seq: int) -> bytes | None:
        """Return a job's result, or None."""
        with self._surely():
            result: Any = self._run("SELECT result FROM results WHERE seq = ?", (seq,)).get
        return None if result is None else bytes(result)

    def health(self) -> dict[str, Any]:
        """Return the file's bytes, the log's bytes and the number of the last commit."""
        log = Path(f"{self._path}-wal")
        return {
            "bytes": self._path.stat().st_size,
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "lsn": self._number("SELECT lsn FROM clock"),
            "sqlite": apsw.sqlite_lib_version(),
        }

    def close(self) -> None:
        """Write the log back into the file and let go."""
        self.sync()
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def log_fd(self) -> int:
        """Return a descriptor of the write-ahead log, for syncing it from another thread.

        SQLite holds no lock on this file, so that opening it once more is harmless; it lives
        as long as the connection.
        """
        return os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        return shutil.disk_usage(self._path.parent).free

    def fill_ballast(self, size: int) -> None:
        """Set space aside that can be given back when the disk is full."""
        if self._ballast.exists() or self.free_bytes() <= 16 * size:
            return
        try:
            with self._ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError:  # a quota, or a file system that cannot: then there is none
            self._ballast.unlink(missing_ok=True)

    def free_ballast(self) -> bool:
        """Give the ballast back; False if there is none."""
        if not self._ballast.exists():
            return False
        self._ballast.unlink()
        return True

    @contextmanager
    def _surely(self) -> Iterator[None]:
        """Say of every failure whether nothing was written, or nobody knows."""
        try:
            yield
        except apsw.FullError as error:
            raise StoreFull(f"{self._path}: the disk is full") from error
        except apsw.Error as error:
            raise OutcomeUnknown(f"{self._path}: {error}") from error

    def _set_pragma(self, name: str, value: str, expected: object) -> None:
        self._run(f"PRAGMA {name}={value}").fetchall()
        row = self._run(f"PRAGMA {name}").fetchone()
        if row is not None and row[0] != expected:
            raise StoreError(f"{self._path}: PRAGMA {name}={value} was not taken, it is {row[0]}")

    def _prepare(self) -> None:
        """Make the tables of a new file, or check that an old one is ours."""
        known = self._run("SELECT count(*) FROM sqlite_schema WHERE name = 'meta'").fetchone()
        if known is not None and known[0]:
            self._check_identity()
            return
        schema = resources.files("shardnode.storage").joinpath("schema.sql").read_text()
        self._run("BEGIN IMMEDIATE")
        self._db.execute(schema)
        meta = {"format": FORMAT_VERSION, "epoch": 0, "horizon_ms": 0, **self._identity}
        self._insert("meta", "key, value", list(meta.items()))
        self._run("INSERT INTO clock (one, lsn, seq) VALUES (1, 0, 0)")
        self._run("COMMIT")

    def _check_identity(self) -> None:
        rows: list[Any] = self._run("SELECT key, value FROM meta").fetchall()
        meta: dict[str, Any] = dict(rows)
        if meta.get("format", 0) < FORMAT_VERSION:
            raise StoreError(
                f"{self._path} was written by an older, unreleased version;"
                " start with a new data folder"
            )
        if meta["format"] > FORMAT_VERSION:
            raise StoreError(
                f"{self._path} was written by a newer version (format {meta['format']});"
                f" this one reads up to {FORMAT_VERSION}: upgrade pyq-cluster"
            )
        for key, value in self._identity.items():
            if meta.get(key) != value:
                raise StoreError(
                    f"{self._path} belongs to {key} {meta.get(key)!r}, not {value!r}:"
                    " it was copied from elsewhere; put the right file back"
                )

    def _take_epoch(self) -> Loaded:
        self.begin(sync=True)
        self._run("UPDATE meta SET value = value + 1 WHERE key = 'epoch'")
        self._run("COMMIT")
        epoch = self._number("SELECT value FROM meta WHERE key = 'epoch'")
        self._seq = self._number("SELECT seq FROM clock")
        self._has_lines = bool(self._number("SELECT EXISTS (SELECT 1 FROM lines)"))
        stones = self._number("SELECT count(*) FROM tombstones WHERE job_id IS NULL")
        queues: list[Any] = self._run(
            "SELECT number, name, settings FROM queues LEFT JOIN settings ON queue = number"
            " ORDER BY number"
        ).fetchall()
        windows: list[Any] = self._run(
            "SELECT queue, leases, granted_at FROM windows ORDER BY queue"
        ).fetchall()
        mail: list[Any] = self._run("SELECT * FROM mail ORDER BY target, number").fetchall()
        links: list[Any] = self._run("SELECT * FROM links ORDER BY shard").fetchall()
        watchers: list[Any] = self._run("SELECT * FROM watchers ORDER BY id, shard").fetchall()
        schedules: list[Any] = self._run(_LOAD_SCHEDULES).fetchall()
        keys: list[Any] = self._run(
            "SELECT queue, key, id, seq, until FROM timed_keys ORDER BY queue, key"
        ).fetchall()
        return Loaded(
            epoch=epoch,
            seq=self._seq,
            tombstones_count=stones,
            queues=[(number, name, read_settings(packed)) for number, name, packed in queues],
            windows=windows,
            timed_keys=[(queue, key, TimedKey(*held)) for queue, key, *held in keys],
            mail=[(target, number, Row(*row)) for target, number, *row in mail],
            links=links,
            watchers=watchers,
            schedules=[read_schedule(row[:11], row[11:]) for row in schedules],
        )

    def _number(self, sql: str) -> int:
        """Return the single number that a query yields."""
        value: Any = self._run(sql).get
        assert isinstance(value, int), f"no number from {sql}"
        return value

    def _write(self, effects: Effects) -> None:
        gone = set(effects.forgotten)
        rare = effects.maybe_rare
        if effects.queues:
            self._insert("queues", "number, name", list(effects.queues.items()))
        if effects.accepted:
            self._write_accepted(effects, gone)
        if rare is not None:
            self._write_rare(effects, rare, gone)
        if effects.changed:
            changed = effects.changed.items()
            states = [state_row(job) for seq, job in changed if seq not in gone]
            self._insert("states", _STATE_COLUMNS, states)
        if effects.results:
            kept = [(seq, result) for seq, result in effects.results.items() if result is not None]
            self._insert("results", "seq, result", kept)
            if len(kept) < len(effects.results):
                removed = [seq for seq, result in effects.results.items() if result is None]
                self._delete("results", removed)
        if effects.ended:
            self._insert("tombstones", _TOMBSTONE_COLUMNS, tombstone_rows(effects))
            self._uncache([job.seq for job in effects.ended.values()])
        if gone:
            self._forget(effects.forgotten)
        if rare is not None:
            self._remove_rare(rare)

    def _write_accepted(self, effects: Effects, gone: set[int]) -> None:
        payloads = effects.payloads
        rows = [
            (*job_row(job), payloads[seq])
            for seq, job in effects.accepted.items()
            if seq not in gone
        ]
        self._insert("jobs", _JOB_COLUMNS, rows)
        self._staged_payloads.update(payloads)
        if effects.custom_ids:
            names = [
                (job.options.job_id, job.queue.number, job.id, job.seq)
                for job in effects.custom_ids
            ]
            self._insert("custom_ids", "job_id, queue, id, seq", names)

    def _write_rare(self, effects: Effects, rare: Rare, gone: set[int]) -> None:
        """Write what most turns do not have, and remove what may be added again after it."""
        self._write_settings(rare)
        windows = [(queue, *window) for queue, window in rare.windows.items()]
        self._insert("windows", "queue, leases, granted_at", windows)
        self._write_mail(rare)
        self._write_schedules(rare)
        self._write_timed_keys(rare)
        for seq, job in rare.rewritten.items():
            self._rewrite(job, effects.payloads.get(seq))
        self._write_lines(rare)
        self._run_for_each("DELETE FROM tombstones WHERE id = ?", rare.revived)
        self._delete("dead", rare.unburied)
        buried = [dead_row(job) for seq, job in rare.buried.items() if seq not in gone]
        self._insert("dead", "seq, queue, died_at, reason", buried)

    def _write_settings(self, rare: Rare) -> None:
        for number, settings in rare.settings.items():
            packed = pack_settings(settings)
            if packed is None:
                self._run("DELETE FROM settings WHERE queue = ?", (number,))
            else:
                self._insert("settings", "queue, settings", [(number, packed)])

    def _write_schedules(self, rare: Rare) -> None:
        ticks = [tick_row(schedule) for schedule in rare.ticks.values()]
        self._insert("ticks", _TICK_COLUMNS, ticks)
        for name, schedule in rare.schedules.items():
            if schedule is None:
                self._run("DELETE FROM schedules WHERE name = ?", (name,))
                self._run("DELETE FROM ticks WHERE name = ?", (name,))
            else:
                self._insert("schedules", _SCHEDULE_COLUMNS, [schedule_row(schedule)])

    def _write_timed_keys(self, rare: Rare) -> None:
        for (number, key), held in rare.timed_keys.items():
            if held is None:
                self._run("DELETE FROM timed_keys WHERE queue = ? AND key = ?", (number, key))
            else:
                self._insert("timed_keys", "queue, key, id, seq, until", [(number, key, *held)])

    def _write_mail(self, rare: Rare) -> None:
        rows = [(target, number, *row) for target, number, row in rare.mail]
        self._insert("mail", "target, number, kind, id, verdict, error", rows)
        for target, number in rare.confirmed.items():
            self._run("DELETE FROM mail WHERE target = ? AND number <= ?", (target, number))
        links = [(shard, *link) for shard, link in rare.links.items()]
        self._insert("links", "shard, sent, received", links)
        for (job_id, shard), watches in rare.watchers.items():
            if watches:
                self._insert("watchers", "id, shard", [(job_id, shard)])
            else:
                self._run("DELETE FROM watchers WHERE id = ? AND shard = ?", (job_id, shard))

    def _rewrite(self, job: Job, payload: bytes | None) -> None:
        """Write a job's immutable part again; its payload only if there is a new one."""
        seq, _, _, name, _, run_at, size, options = job_row(job)
        self._run(_REWRITE, (name, run_at, size, options, payload, seq))
        if payload is not None:
            self._uncache([seq])
            self._staged_payloads[seq] = payload

    def _write_lines(self, rare: Rare) -> None:
        if rare.lines:
            self._has_lines = True
            self._insert("lines", "seq, number, at, attempt, text", rare.lines)
        for seq, first in rare.lines_cut.items():
            self._run("DELETE FROM lines WHERE seq = ? AND number < ?", (seq, first))

    def _forget(self, seqs: Sequence[int]) -> None:
        for table in ("jobs", "states", "results"):
            self._delete(table, seqs)
        if self._has_lines:
            self._delete("lines", seqs)
        self._uncache(seqs)

    def _remove_rare(self, rare: Rare) -> None:
        """Obliterate, when all else is written: whatever it was, nothing of the queue stays."""
        for number in rare.obliterated:
            for sql in _OBLITERATE:
                self._run(sql, (number,))
        if rare.trimmed_count:
            self._trim(rare.trimmed_count)
        if rare.ended_before:
            self._age(rare.ended_before)

    def _cache_staged(self) -> None:
        """Keep the payloads of the turn in memory, as long as there is room for all of them."""
        staged = self._staged_payloads
        if staged:
            size = sum(map(len, staged.values()))
            if self._cached_bytes + size <= PAYLOAD_CACHE_BYTES_MAX:
                self._payload_cache.update(staged)
                self._cached_bytes += size
            staged.clear()

    def _uncache(self, seqs: Collection[int]) -> None:
        pop = self._payload_cache.pop
        self._cached_bytes -= sum([len(pop(seq, b"")) for seq in seqs])
        if self._staged_payloads:
            for seq in seqs:
                self._staged_payloads.pop(seq, None)

    def _insert(self, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Put rows in statements of many: half the cost of one statement per row."""
        for at in range(0, len(rows), ROWS_PER_STATEMENT):
            part = rows[at : at + ROWS_PER_STATEMENT]
            sql = _insert_sql(table, columns, len(part))
            self._run(sql, tuple(chain.from_iterable(part)))

    def _run_for_each(self, sql: str, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._run(sql, (key,))

    def _delete(self, table: str, seqs: Iterable[int]) -> None:
        pending = iter(seqs)
        while part := tuple(islice(pending, ROWS_PER_STATEMENT)):
            marks = ",".join("?" * len(part))
            self._run(f"DELETE FROM {table} WHERE seq IN ({marks})", part)

    def _trim(self, count: int) -> None:
        """Drop the oldest tombstones; their time is the horizon from now on.

        Not those of custom ids, nor of jobs whose record is kept: it is found by them.
        """
        oldest = (
            "SELECT id FROM tombstones t WHERE job_id IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.seq = t.seq) ORDER BY id LIMIT ?"
        )
        last: Any = self._run(f"SELECT max(id) FROM ({oldest})", (count,)).get
        if last is None:
            return
        self._run(f"DELETE FROM tombstones WHERE id IN ({oldest})", (count,))
        self._raise_horizon(last)

    def _age(self, ended_before: int) -> None:
        """Drop tombstones of what ended before a wall time, and the custom ids they held.

        An id is older than the end of its job, so only ids older than that time are looked at.
        """
        rows: list[Any] = self._run(
            "SELECT id, job_id, queue FROM tombstones t WHERE id < ? AND ended_at < ?"
            " AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.seq = t.seq) ORDER BY id LIMIT ?",
            (ended_before.to_bytes(6, "big"), ended_before, AGED_MAX),
        ).fetchall()
        for job_id, custom, queue in rows:
            self._run("DELETE FROM tombstones WHERE id = ?", (job_id,))
            if custom is not None:
                sql = "DELETE FROM custom_ids WHERE job_id = ? AND queue = ?"
                self._run(sql, (custom, queue))
        if rows:
            self._raise_horizon(rows[-1][0])

    def _raise_horizon(self, job_id: bytes) -> None:
        """Repeats of ids up to this one are answered with "unknown" from now on."""
        self._run(
            "UPDATE meta SET value = max(value, ?) WHERE key = 'horizon_ms'",
            (time_of_id(job_id) + 1,),
        )

    def _find_one(self, key: Key, reader: RowReader) -> object:
        parts: Any = key
        match parts:
            case ("job", job_id):
                return self._find_job(job_id, reader)
            case ("custom", queue, job_id):
                return self._find_custom(job_id, queue, reader)
            case ("custom_any", job_id):
                rows = self._run(
                    "SELECT queue FROM custom_ids WHERE job_id = ? LIMIT ?", (job_id, MATCHES_MAX)
                ).fetchall()
                return [self._find_custom(job_id, queue, reader) for (queue,) in rows]
            case ("page", queue, state, after, limit, filters):
                return self._find_page(queue, state, after, limit, filters, reader)
            case ("dead_oldest", queue, died_before, limit):
                before = died_before if died_before > 0 else _NO_LIMIT
                rows = self._run(_DEAD_OLDEST, (queue, before, limit)).fetchall()
                return [_stored(row, reader) for row in rows]
            case ("dead_stats", queue):
                return self._run(_DEAD_STATS, (queue,)).fetchall()
            case ("logs", seq, after, limit):
                return self._run(_LOGS, (seq, after, limit)).fetchall()
            case ("named_count", queue):
                return self._run(_NAMED_COUNT, (queue,)).get
            case ("horizon",):
                return self._number("SELECT value FROM meta WHERE key = 'horizon_ms'")
        raise AssertionError(f"unknown key {key!r}")

    def _find_job(self, job_id: Any, reader: RowReader) -> Stored | Tombstone | None:
        row: Any = self._run(_TOMBSTONE, (job_id,)).fetchone()
        if row is None:
            return None
        return self._stored(row[4], reader) or read_tombstone(row)

    def _find_custom(self, job_id: Any, queue: Any, reader: RowReader) -> object:
        row = self._run(
            "SELECT id, seq FROM custom_ids WHERE job_id = ? AND queue = ?", (job_id, queue)
        ).fetchone()
        if row is None:
            return None
        return self._stored(row[1], reader) or self._find_job(row[0], reader)

    def _stored(self, seq: int, reader: RowReader) -> Stored | None:
        row = self._run(_READ_ONE, (seq,)).fetchone()
        return None if row is None else _stored(row, reader)

    def _find_page(
        self, queue: int, state: int, after: int, limit: int, filters: Filters, reader: RowReader
    ) -> Page:
        """Look at a bounded number of rows: a page may be short, or empty, and not the last."""
        if not filters.reason and state != DEAD:
            page, page_end = _PAGE, _PAGE_END
        elif state not in (0, DEAD):
            return Page([], None)  # only dead jobs have a reason
        elif queue:
            page, page_end = _DEAD_PAGE_QUEUE, _DEAD_END_QUEUE
        else:
            page, page_end = _DEAD_PAGE_ALL, _DEAD_END_ALL
        wanted = {
            **filters._asdict(),
            "tag_mark": tag_mark(filters.tag),
            "group_mark": group_mark(filters.group),
            "queue": queue,
            "state": state,
            "after": after,
            "limit": limit,
            "skipped": SCAN_ROWS_MAX - 1,
        }
        scan_end: Any = self._run(page_end, wanted).get
        wanted["last"] = _NO_LIMIT if scan_end is None else scan_end
        rows: list[Any] = self._run(page, wanted).fetchall()
        next_after = rows[-1][0] if len(rows) == limit else scan_end
        jobs = [_stored(row, reader) for row in rows]
        if filters != NO_FILTERS:
            jobs = [stored for stored in jobs if matches(stored.job, filters)]
        return Page(jobs, next_after)


@lru_cache(maxsize=1_000)
def _insert_sql(table: str, columns: str, rows_count: int) -> str:
    one = "(" + ",".join("?" * (columns.count(",") + 1)) + ")"
    values = ",".join([one] * rows_count)
    return f"INSERT OR REPLACE INTO {table} ({columns}) VALUES {values}"


def _stored(row: Any, reader: RowReader) -> Stored:
    job = reader.job(row[:8], None if row[8] is None else row[8:20], row[20])
    return Stored(job, row[21])
