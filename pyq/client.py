"""The door for applications: `connect`, and the Client it returns.

Owns one connection per thread, questions to all shards at once, and how a job's view
looks to users. Adding jobs is in `queue.py`, waiting for one in `handle.py`.
"""

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyq.codec import unpack
from pyq.connection import Connection, Reply, cluster_url
from pyq.durations import Duration, duration_ms
from pyq.errors import (
    DepUnknown,
    NotFound,
    PayloadError,
    PyqError,
    Status,
    Unavailable,
    UsageError,
    item_error,
)
from pyq.handle import Job
from pyq.ids import id_from_text, id_to_text, slot_of_id
from pyq.job import JobState
from pyq.limits import (
    BATCH_JOBS_MAX,
    CONNECT_MS_DEFAULT,
    HOUR_MS,
    JOB_ID_MAX,
    REQUEST_MS_DEFAULT,
    WORKER_NAME_MAX,
)
from pyq.listing import Jobs, check_limit, check_state, filters_to_wire
from pyq.options import check_name, check_queue
from pyq.queue import Queue
from pyq.routes import shard_of
from pyq.wire import ALL_SHARDS, BY_QUEUE, ROUTER, Verb, WireError, unpack_body

if TYPE_CHECKING:
    from pyq.flows import FlowNode, Step
    from pyq.schedules import Schedules

# As in messages.py, whose import applications need not pay for.
_WANT_PAYLOAD, _WANT_RESULT = 1, 2
_CANCEL_REQUESTED = "cancel_requested"
_AGAIN_S, _AGAIN_S_MAX = 0.05, 1.0


_IN_FLIGHT_MAX = 64  # questions of one call under way together


def connect(url: str | None = None, *, timeout: Duration = CONNECT_MS_DEFAULT / 1_000) -> "Client":
    """Connect to a cluster and return a Client, a context manager.

    `url` is the router's address; None takes the environment's PYQ_URL, else
    tcp://127.0.0.1:6789. Raises Unreachable when nothing answers within `timeout`
    (a duration, 1 s), UsageError when `url` is no address.
    """
    client = Client(url)
    try:
        client.ping(timeout=timeout)
    except BaseException:
        client.close()
        raise
    return client


class Rows(list[dict[str, Any]]):
    """A list of dicts. `missing` names the shards that did not answer; () if all did."""

    missing: tuple[int, ...] = ()


class CountsByQueue(dict[str, dict[str, int]]):
    """Counts of jobs by queue and state. `missing` as in Rows."""

    missing: tuple[int, ...] = ()


class Changed(int):
    """How many jobs were changed. `refused` is a list of (id, error) of those that could not be."""

    refused: list[tuple[str, PyqError]]

    def __new__(cls, count: int, refused: list[tuple[str, PyqError]]) -> "Changed":
        changed = super().__new__(cls, count)
        changed.refused = refused
        return changed


class Client:
    """A connection to a cluster. Any number of threads may use it; each gets its own socket.

    Questions to all shards raise Unavailable, which names the shards, when some do not answer
    within 10 s. With `partial=True` they return at once what the others said, and the
    answer's `missing` names the shards that are not in it.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = cluster_url(url)
        self._local = threading.local()
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._closed = False
        self._pid = os.getpid()

    def queue(self, name: str) -> Queue:
        """Return the queue of this name (1 to 256 characters). Asks nothing."""
        return Queue(self, name)

    @property
    def cron(self) -> "Schedules":
        """The schedules of the cluster: jobs by the clock. Asks nothing."""
        from pyq.schedules import Schedules

        return Schedules(self)

    def flow(self, root: "Step") -> "FlowNode":
        """Add a step with all its children, all or none; returns the tree of handles.

        A step runs when its children have completed; `docs/python.md` shows how. At most 10,000
        steps, 100 deep, 1,000 children each. Raises what `Queue.add` raises; then none was added.
        """
        from pyq.flows import add_flow

        return add_flow(self, root)

    def read_flow(self, job: Job) -> dict[str, Any]:
        """Return the view of a job, with the views of the jobs it depends on under `children`,
        theirs under those, and so on. Raises NotFound, and TooLarge beyond 10,000 jobs.
        """
        from pyq.flows import read_flow

        return read_flow(self, job)

    def find(
        self,
        id: str,
        queue: str | None = None,
        *,
        payload: bool = True,
        result: bool = True,
        partial: bool = False,
    ) -> Rows:
        """Return views of the jobs with this id: a UUID, or a custom id in `queue` or in all.

        Several queues may use the same custom id, so there may be several; none is an empty
        list. `payload` and `result` say whether `data` and `result` are fetched too.
        """
        want = _want(payload, result)
        rows = Rows()
        id_bytes = id_from_text(check_name(id, "id", JOB_ID_MAX))
        if id_bytes is not None:
            rows.extend(self._views_of_id(id_bytes, want))
        known = {row["id"] for row in rows}
        body = [None, id, want]
        if queue is not None:
            views = self._ask_queue(Verb.GET, body, check_queue(queue))
        else:
            scattered = self._scatter(Verb.GET, body, partial)
            rows.missing = scattered.missing
            views = [view for _, answer in scattered.answers for view in answer[0]]
        rows.extend(row for row in map(view_to_user, views) if row["id"] not in known)
        return rows

    def jobs(
        self,
        queue: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        *,
        name: str | None = None,
        tag: str | None = None,
        group: str | None = None,
        reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        payload: bool = True,
        result: bool = True,
        partial: bool = False,
    ) -> Jobs:
        """Return an iterator over views of jobs, oldest first, fetched page by page.

        Of one queue, or of all; in one state, or in any; at most `limit`. Narrowed to those of
        this `name`, with this `tag`, of this `group`, dead for this `reason`, added at or after
        the aware datetime `since` and before `until`. `payload` and `result` say whether `data`
        and `result` are fetched too. What changes while it runs may or may not be seen. Its
        `missing` grows as shards fail to answer.
        """
        if state is not None:
            check_state(state)
        check_limit(limit)
        if queue is not None:
            check_queue(queue)
        filters = filters_to_wire(name, tag, group, reason, since, until)
        return Jobs(self, queue, state, limit, _want(payload, result), partial, filters)

    def counts(self, queue: str | None = None, *, partial: bool = False) -> CountsByQueue:
        """Return {queue: {state: number of jobs}} of one queue or of all, every state named."""
        counts = CountsByQueue()
        if queue is not None:
            answer = self.connection().request(Verb.COUNTS, [0], queue=check_queue(queue)).body
            counts[queue] = _counts(dict(answer[0]).get(queue, {}))
            return counts
        entries, counts.missing = self._entries(Verb.COUNTS, 0, partial)
        counts.update({name: _counts(values) for name, values in entries})
        return counts

    def workers(self, *, partial: bool = False) -> Rows:
        """Return the workers that heartbeat: id, host, pid, concurrency, started_at (ms since
        1970), queues, leases (jobs held now).
        """
        entries, missing = self._entries(Verb.WORKERS, "", partial)
        workers: dict[str, dict[str, Any]] = {}
        for worker, leases in entries:
            row = _worker_to_user(worker)
            workers.setdefault(row["id"], row)["leases"] += leases
        rows = Rows(sorted(workers.values(), key=lambda row: (row["started_at"], row["id"])))
        rows.missing = missing
        return rows

    def stop_workers(self, worker: str = "", *, partial: bool = False) -> int:
        """Tell one worker (by its id) or all to finish what runs and stop.

        Returns how many were told.
        """
        if worker:
            check_name(worker, "worker", WORKER_NAME_MAX)
        scattered = self._scatter(Verb.STOP_WORKERS, [worker], partial)
        # A worker with queues on several shards is told by each of them.
        return len({told for _, answer in scattered.answers for told in answer[1]})

    def retry_ids(self, ids: Sequence[bytes]) -> int:
        """Let dead or completed jobs, named by the bytes of their ids, start afresh.

        Returns how many did; all are tried, then the first error is raised.
        """
        return _all_or_raise(self.change_ids(Verb.RETRY, ids))

    def cancel_ids(self, ids: Sequence[bytes]) -> int:
        """Take back jobs that have not ended, as `Job.cancel` does.

        Returns how many; all are tried, then the first error is raised.
        """
        return _all_or_raise(self.change_ids(Verb.CANCEL, ids))

    def purge_ids(self, ids: Sequence[bytes]) -> int:
        """Forget dead jobs; return how many. All are tried, then the first error is raised."""
        return _all_or_raise(self.change_ids(Verb.PURGE, ids))

    def change_ids(self, verb: int, ids: Sequence[bytes]) -> Changed:
        """Ask for one change of many jobs, a batch at a time, and count those that were made."""
        changed_count = 0
        refused: list[tuple[str, PyqError]] = []
        for first in range(0, len(ids), BATCH_JOBS_MAX):
            batch = ids[first : first + BATCH_JOBS_MAX]
            reply = self.connection().request(verb, [[[id] for id in batch]], slot=ALL_SHARDS)
            count, exceptions = reply.body
            changed_count += count - len(exceptions)
            for index, status, detail in exceptions:
                if status != Status.OK:
                    refused.append((id_to_text(batch[index]), item_error(status, detail)))
                elif detail == _CANCEL_REQUESTED:
                    changed_count += 1
        return Changed(changed_count, refused)

    def stats(self, *, partial: bool = False) -> Rows:
        """Return one dict of counters per shard, in order, with its number under `shard`."""
        scattered = self._scatter(Verb.STATS, [], partial)
        rows = Rows({"shard": shard, **answer[0]} for shard, answer in scattered.answers)
        rows.missing = scattered.missing
        return rows

    def ping(self, *, timeout: Duration = CONNECT_MS_DEFAULT / 1_000) -> dict[str, Any]:
        """Ask the router for a sign of life: a dict of `shards` (their number), `wall_ms`
        (its clock), `incarnation` and `round_trip` (seconds).

        Raises Unreachable when nothing answers within `timeout` (a duration, 1 s).
        """
        budget_ms = duration_ms(timeout, "timeout", 1, HOUR_MS)
        begin = time.monotonic()
        _, incarnation, wall_ms, info = self._router_answer(budget_ms).body
        round_trip = time.monotonic() - begin
        return {
            **info,
            "wall_ms": wall_ms,
            "incarnation": incarnation.hex(),
            "round_trip": round_trip,
        }

    def close(self) -> None:
        """Close all sockets; threads that wait for an answer get an error within a second."""
        self._closed = True
        for connection in list(self._connections):
            connection.closing = True
            if not connection.busy:
                connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for handles and queues ---------------------------------------------------------------

    def connection(self) -> Connection:
        """Return the calling thread's connection, made at its first use."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closing:
            if self._closed:
                raise UsageError("the client is closed")
            connection = self._local.connection = Connection(self.url)
            self._connections.add(connection)
        return connection

    def adopt(self, connection: Connection) -> None:
        """Close a connection that somebody made for himself when the client is closed."""
        if self._closed:
            raise UsageError("the client is closed")
        self._connections.add(connection)

    def must_know(self, ids: Sequence[bytes], slot: int) -> None:
        """Raise DepUnknown if a job with one of these ids is known to no shard.

        Those on the shard of `slot` are left to it: it refuses by itself what it does not know.
        """
        shards = self.shard_count()
        elsewhere = [
            job_id
            for job_id in ids
            if shard_of(slot_of_id(job_id), shards) != shard_of(slot, shards)
        ]
        for first in range(0, len(elsewhere), BATCH_JOBS_MAX):
            part = elsewhere[first : first + BATCH_JOBS_MAX]
            body = [[[job_id] for job_id in part]]
            reply = self.connection().request(Verb.STATES, body, slot=ALL_SHARDS)
            for index, status, detail in reply.body[1]:
                if status == Status.NOT_FOUND:
                    known = id_to_text(part[index])
                    raise DepUnknown(f"depends_on names {known}, which is not known")
                if status != Status.OK:
                    raise item_error(status, detail)

    def view_of(
        self, id_bytes: bytes, *, payload: bool = True, result: bool = True
    ) -> dict[str, Any]:
        """Return the view of one job by its id's bytes, or raise NotFound."""
        rows = self._views_of_id(id_bytes, _want(payload, result))
        if not rows:
            raise NotFound(f"no job has the id {id_to_text(id_bytes)}, or it was forgotten")
        return rows[0]

    def views_of(self, ids: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
        """Return the views of jobs with their results, None where a record is gone.

        The questions are under way together, some at a time.
        """
        rows: list[dict[str, Any] | None] = []
        want = _want(False, True)
        for first in range(0, len(ids), _IN_FLIGHT_MAX):
            connection = self.connection()
            pendings = [
                connection.send(
                    Verb.GET,
                    [job_id, None, want],
                    slot=slot_of_id(job_id),
                    budget_ms=REQUEST_MS_DEFAULT,
                )
                for job_id in ids[first : first + _IN_FLIGHT_MAX]
                if job_id is not None
            ]
            for pending in pendings:
                views = connection.wait(pending).body[0]
                rows.append(view_to_user(views[0]) if views else None)
        return rows

    def ended_within(self, id_bytes: bytes, wait_ms: int) -> tuple[str, bytes | None, str]:
        """Return (state, result, error) of a job once it ended, or as it is after `wait_ms`."""
        reply = self.connection().request(
            Verb.RESULT,
            [id_bytes, wait_ms],
            slot=slot_of_id(id_bytes),
            budget_ms=wait_ms + REQUEST_MS_DEFAULT,
        )
        state, result, error = reply.body
        return state, result, error or ""

    def shard_count(self) -> int:
        """Return the number of shards, asking the router if it is not known yet."""
        connection = self.connection()
        if not connection.shards:
            self._router_answer(REQUEST_MS_DEFAULT)
        return connection.shards

    def page_of(
        self, queue: str | None, shard: int, body: list[Any]
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return one page of a queue, or of all in one shard, and the cursor of the next."""
        route: dict[str, Any] = {"slot": shard} if queue is None else {"queue": queue}
        views, following = self.connection().request(Verb.LIST, body, **route).body
        return [view_to_user(view) for view in views], following

    # --- asking -------------------------------------------------------------------------------

    def _router_answer(self, budget_ms: float) -> Reply:
        return self.connection().request(Verb.PING, [], slot=ROUTER, budget_ms=budget_ms)

    def _views_of_id(self, id_bytes: bytes, want: int) -> list[dict[str, Any]]:
        try:
            reply = self.connection().request(
                Verb.GET, [id_bytes, None, want], slot=slot_of_id(id_bytes)
            )
        except NotFound:
            return []
        return [view_to_user(view) for view in reply.body[0]]

    def _ask_queue(self, verb: int, body: list[Any], queue: str) -> list[Any]:
        try:
            return list(self.connection().request(verb, body, queue=queue, slot=BY_QUEUE).body[0])
        except NotFound:
            return []

    def _entries(self, verb: int, first: Any, partial: bool) -> tuple[list[Any], tuple[int, ...]]:
        """Return what all shards list, page by page, and the shards that did not answer."""
        scattered = self._scatter(verb, [first], partial)
        listed: list[Any] = []
        for shard, (entries, after) in scattered.answers:
            listed += entries
            while after is not None:
                entries, after = self.connection().request(verb, [after], slot=shard).body
                listed += entries
        return listed, scattered.missing

    def _scatter(self, verb: int, body: list[Any], partial: bool) -> "_Scattered":
        """Ask all shards; repeat for 10 s while some do not answer, unless `partial`."""
        end = time.monotonic() + REQUEST_MS_DEFAULT / 1_000
        pause_s = _AGAIN_S
        while True:
            left_ms = max(1, round((end - time.monotonic()) * 1_000))
            reply = self.connection().request(verb, body, slot=ALL_SHARDS, budget_ms=left_ms)
            scattered = _gathered(reply.body)
            if partial or not scattered.missing:
                return scattered
            if time.monotonic() + pause_s >= end:
                raise Unavailable(_missing_sentence(scattered))
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_S_MAX)


def _all_or_raise(changed: Changed) -> int:
    if changed.refused:
        raise changed.refused[0][1]
    return changed


# --- answers of all shards --------------------------------------------------------------------


class _Scattered(NamedTuple):
    answers: list[tuple[int, Any]]  # shard, body
    missing: tuple[int, ...]
    reasons: tuple[str, ...]


def _gathered(entries: Any) -> _Scattered:
    """Take the merged reply of all shards apart. NOT_FOUND is an answer like any other."""
    answers: list[tuple[int, Any]] = []
    missing: list[int] = []
    reasons: list[str] = []
    for shard, status, _, packed in entries:
        if status == Status.OK:
            answers.append((shard, unpack_body(packed)))
        elif status != Status.NOT_FOUND:
            missing.append(shard)
            reasons.append(_reason(packed))
    return _Scattered(answers, tuple(missing), tuple(reasons))


def _reason(packed: Any) -> str:
    try:
        return str(unpack_body(packed)[0])
    except (WireError, TypeError, IndexError):
        return "no answer"


def _missing_sentence(scattered: _Scattered) -> str:
    shards = ", ".join(str(shard) for shard in scattered.missing)
    return (
        f"no answer from shard {shards} ({scattered.reasons[0]}); try again, and look at "
        "`pyq-cluster health` (in Python, partial=True returns what the others know)"
    )


# --- views ------------------------------------------------------------------------------------


def view_to_user(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return a shard's view of a job as users see it: id as text, what was packed unpacked.

    What cannot be unpacked (written by another client) stays bytes.
    """
    row = dict(view)
    row["id"] = id_to_text(view["id"])
    row["depends_on"] = [[id_to_text(dep), word] for dep, word in view.get("depends_on") or ()]
    row["history"] = [list(entry) for entry in view.get("history") or ()]
    row["progress"] = readable(view.get("progress"))
    if "tags" in row:
        row["tags"] = list(view["tags"] or ())
    if "meta" in row:
        row["meta"] = readable(view["meta"] or None) or {}
    payload = row.pop("payload", None)
    if payload is not None:
        row["data"] = readable(payload)
    if "result" in row:
        row["result"] = readable(view["result"])
    return row


def readable(packed: bytes | None) -> Any:
    """Return what was packed, or the bytes where they cannot be unpacked."""
    if packed is None:
        return None
    try:
        return unpack(packed)
    except PayloadError:
        return packed


_NO_JOBS = {state.word: 0 for state in JobState if state is not JobState.GONE}


def _counts(values: Mapping[str, int]) -> dict[str, int]:
    """Return counts with an entry for every state; a shard leaves out those without jobs."""
    return {**_NO_JOBS, **values}


_WORKER_KEYS = ("id", "host", "pid", "concurrency", "started_at", "queues")


def _worker_to_user(worker: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(_WORKER_KEYS, worker, strict=True))
    row["queues"] = list(row["queues"])
    row["leases"] = 0
    return row


def _want(payload: bool, result: bool) -> int:
    return (_WANT_PAYLOAD if payload else 0) | (_WANT_RESULT if result else 0)
