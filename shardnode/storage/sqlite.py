"""The store on disk: one SQLite file, one connection, the shard's own.

Write-ahead log, exclusive lock, one transaction per turn. Statements are constants below;
the tables are in schema.sql. Payloads of young jobs are also kept in a bounded cache, so
that a short queue never reads the disk.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any

import apsw

from pyq.ids import time_of_id
from pyq.limits import AGED_MAX, MATCHES_MAX, PAYLOAD_CACHE_BYTES_MAX
from shardnode.core.effects import Effects, Found, Key, Page, Stored, Tombstone
from shardnode.core.state import Job, QueueState
from shardnode.storage.records import RowReader, job_row, read_tombstone, state_row, tombstone_row
from shardnode.storage.store import Loaded, OutcomeUnknown, StoreError, StoreFull

FORMAT_VERSION = 1
ROWS_PER_STATEMENT = 50  # more gains little and makes preparing a statement slow
SCAN_ROWS_MAX = 20_000  # rows one page looks at: bounds the turn when few of them match

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
_TOMBSTONE_COLUMNS = "id, verdict, ended_at, digest, seq, queue, job_id"
_READ = (
    "SELECT j.seq, j.id, j.queue, j.name, j.created_at, j.run_at, j.size, j.options,"
    " s.seq, s.state, s.ready, s.run_at, s.attempt, s.failures, s.stalls, s.updated_at,"
    " s.token, s.lease_end, s.lease, s.detail, t.ended_at"
)
_FROM = (
    " FROM jobs j LEFT JOIN states s ON s.seq = j.seq"
    " LEFT JOIN tombstones t ON t.id = j.id AND t.verdict = 5"  # completed: see records.py
)
_RESULT_BYTES = ", (SELECT length(r.result) FROM results r WHERE r.seq = j.seq)"
_LOAD = _READ + _FROM + " ORDER BY j.seq"
_READ_ONE = _READ + _RESULT_BYTES + _FROM + " WHERE j.seq = ?"
_PAGE = (
    _READ + _RESULT_BYTES + _FROM + " WHERE j.seq > ?1 AND j.seq <= ?2"
    " AND (?3 = 0 OR j.queue = ?3)"
    " AND (?4 = 0 OR coalesce(t.verdict, s.state, iif(j.run_at, 2, 1)) = ?4)"
    " ORDER BY j.seq LIMIT ?5"
)
_PAGE_END = "SELECT seq FROM jobs WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?"
_TOMBSTONE = f"SELECT {_TOMBSTONE_COLUMNS} FROM tombstones WHERE id = ?"
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
        if meta.get("format", 0) > FORMAT_VERSION:
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
        stones = self._number("SELECT count(*) FROM tombstones WHERE job_id IS NULL")
        queues: list[Any] = self._run("SELECT number, name FROM queues ORDER BY number").fetchall()
        return Loaded(epoch, self._seq, queues, stones)

    def _number(self, sql: str) -> int:
        """Return the single number that a query yields."""
        value: Any = self._run(sql).get
        assert isinstance(value, int), f"no number from {sql}"
        return value

    def _write(self, effects: Effects) -> None:
        gone = set(effects.forgotten)
        if effects.queues:
            self._insert("queues", "number, name", list(effects.queues.items()))
        if effects.accepted:
            self._write_accepted(effects, gone)
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
            stones = [tombstone_row(job) for job in effects.ended.values()]
            self._insert("tombstones", _TOMBSTONE_COLUMNS, stones)
            self._uncache([job.seq for job in effects.ended.values()])
        if effects.revived:
            self._run_for_each("DELETE FROM tombstones WHERE id = ?", effects.revived)
        if gone:
            for table in ("jobs", "states", "results"):
                self._delete(table, effects.forgotten)
        if effects.trimmed_count:
            self._trim(effects.trimmed_count)
        if effects.ended_before:
            self._age(effects.ended_before)

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

    def _cache_staged(self) -> None:
        """Keep the payloads of the turn in memory, as long as there is room for all of them."""
        staged = self._staged_payloads
        if staged:
            size = sum(map(len, staged.values()))
            if self._cached_bytes + size <= PAYLOAD_CACHE_BYTES_MAX:
                self._payload_cache.update(staged)
                self._cached_bytes += size
            staged.clear()

    def _uncache(self, seqs: Sequence[int]) -> None:
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

    def _run_for_each(self, sql: str, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._run(sql, (key,))

    def _delete(self, table: str, seqs: Sequence[int]) -> None:
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
        kind = key[0]
        if kind == "job":
            return self._find_job(key[1], reader)
        if kind == "custom":
            return self._find_custom(key[2], key[1], reader)
        if kind == "custom_any":
            rows = self._run(
                "SELECT queue FROM custom_ids WHERE job_id = ? LIMIT ?", (key[1], MATCHES_MAX)
            ).fetchall()
            return [self._find_custom(key[1], queue, reader) for (queue,) in rows]
        if kind == "horizon":
            return self._number("SELECT value FROM meta WHERE key = 'horizon_ms'")
        assert kind == "page", f"unknown key {key!r}"
        _, queue, state, after, limit = key
        return self._find_page(queue, state, after, limit, reader)

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

    def _find_page(self, queue: Any, state: Any, after: Any, limit: Any, reader: RowReader) -> Page:
        scan_end: Any = self._run(_PAGE_END, (after, SCAN_ROWS_MAX - 1)).get
        last = (1 << 62) if scan_end is None else scan_end
        rows: list[Any] = self._run(_PAGE, (after, last, queue, state, limit)).fetchall()
        next_after = rows[-1][0] if len(rows) == limit else scan_end
        return Page([_stored(row, reader) for row in rows], next_after)


@lru_cache(maxsize=1_000)
def _insert_sql(table: str, columns: str, rows_count: int) -> str:
    one = "(" + ",".join("?" * (columns.count(",") + 1)) + ")"
    values = ",".join([one] * rows_count)
    return f"INSERT OR REPLACE INTO {table} ({columns}) VALUES {values}"


def _stored(row: Any, reader: RowReader) -> Stored:
    job = reader.job(row[:8], None if row[8] is None else row[8:20], row[20])
    return Stored(job, row[21])
