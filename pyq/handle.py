"""The handle of a job that was added: who it is, and what one may ask and want of it.

Light on purpose, since a bulk of a million jobs makes a million of them: nothing is
asked, and not even the id turned into text, before somebody looks.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyq.codec import pack, unpack
from pyq.durations import Duration, duration_ms, moment_ms
from pyq.errors import (
    BadOption,
    JobCancelled,
    JobEnded,
    JobExpired,
    JobFailed,
    JobGone,
    NotFound,
    ResultExpired,
    Status,
    item_error,
)
from pyq.ids import id_to_text, slot_of_id
from pyq.job import JobState
from pyq.limits import DAY_MS, DELAY_MS_MAX, LOG_LINES_MAX, PRIORITY_MAX, WAIT_MS_MAX
from pyq.options import shown
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.queue import Queue

_FOREVER_MS = 3_650 * DAY_MS
_AGAIN_S = 0.01  # between polls: a shard where too many wait answers at once
# What RESULT says of a job that has not ended. Any other word is an end, also one that a newer
# cluster brings along: nobody waits for ever.
_ALIVE_WORDS = {state.word for state in JobState if state < JobState.COMPLETED}
_STATE_WORDS = {state.word for state in JobState if state is not JobState.GONE}
_UNCHANGED: Any = object()
_CANCEL_REQUESTED = "cancel_requested"  # as in messages.py, whose import is not needed here


class LogLine(NamedTuple):
    """One line that a handler wrote with `job.log`."""

    number: int  # from 1, over all attempts
    at: int  # ms since 1970
    attempt: int  # which attempt wrote it
    text: str


class Job:
    """A job in a queue. Made by `Queue.add`, `add_bulk` and `get`, never by hand.

    `name` is its name, `job_id` the custom id or None. `deduplicated` is True when the
    custom id was taken or the unique key was held: nothing was added, and this is the job that
    has it (`name` and `job_id` are then what was given to `add`; `view()` tells its own).
    `forgotten` is True when that job has ended and its record is gone.
    """

    __slots__ = ("_id", "_queue", "deduplicated", "forgotten", "job_id", "name")

    def __init__(
        self,
        queue: "Queue",
        id_bytes: bytes,
        name: str,
        job_id: str | None = None,
        deduplicated: bool = False,
    ) -> None:
        self._queue = queue
        self._id = id_bytes
        self.name = name
        self.job_id = job_id
        self.deduplicated = deduplicated
        self.forgotten = False

    @property
    def id(self) -> str:
        """The id as text, a UUID; unique over all queues."""
        return id_to_text(self._id)

    @property
    def id_bytes(self) -> bytes:
        """The id as the protocol carries it: 16 bytes."""
        return self._id

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self._queue.name

    # --- looking ------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Ask for the state now: waiting, delayed, blocked, active, completed or dead.

        Raises NotFound when the job is gone.
        """
        return str(self._queue.client.view_of(self._id, payload=False, result=False)["state"])

    def view(self) -> dict[str, Any]:
        """Ask for everything known about the job, as a dict. Raises NotFound when it is gone."""
        return self._queue.client.view_of(self._id)

    def logs(self) -> Iterator[LogLine]:
        """Return an iterator over what handlers wrote with `job.log`, oldest first: the newest
        1,000 lines. They are kept as long as the job. Raises NotFound when it is gone.
        """
        after: int | None = 0
        while after is not None:
            lines, after = self._ask(Verb.LOGS, [self._id, after, LOG_LINES_MAX])
            yield from (LogLine(*line) for line in lines)

    # --- waiting ------------------------------------------------------------------------------

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return what its handler returned.

        `timeout` is a duration; None waits for ever. Raises JobFailed when the job is dead,
        JobCancelled, JobExpired or (removed in another way) their root JobGone when it is gone,
        ResultExpired when the result is no longer kept, TimeoutError when it has not ended in
        time. An error of the cluster (Unavailable, OutcomeUnknown, Unreachable) means that
        nobody could say; asking again is safe.
        """
        state, result, error = self._ended(timeout)
        if state == "completed":
            return None if result is None else unpack(result, "result")
        raise _ending(state, error, self.id)

    def wait(self, timeout: Duration | None = None) -> str:
        """Wait until the job has ended and return the word for how: completed, dead, cancelled,
        expired, replaced, moved, removed (drained, cleaned ...), gone (not known).

        Raises TimeoutError when it has not ended within `timeout` (None: for ever).
        """
        state = self._ended(timeout)[0]
        return "completed" if state == "result_expired" else state

    # --- changing -----------------------------------------------------------------------------

    def promote(self) -> bool:
        """Let the delayed job wait no longer.

        Returns True, or False if it was waiting or running already. Raises Conflict when it has
        ended, NotFound when it is gone.
        """
        return self._change(Verb.PROMOTE, [self._id])

    def change(
        self,
        *,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        data: Any = _UNCHANGED,
    ) -> None:
        """Change what is given about a job that waits or is delayed, all of it or nothing.

        - `priority`: -1,000,000 to 1,000,000, higher first
        - `delay` / `run_at`: not before this duration from now / this aware datetime, at most
          ten years; a delay of 0 or a moment that has passed is as `promote`
        - `data`: replaces it; at most 10 MiB packed

        Raises BadOption, PayloadError or TooLarge before anything is sent; Conflict when the job
        runs or has ended, NotFound when it is gone.
        """
        changes = _changes(priority, delay, run_at)
        payload = None if data is _UNCHANGED else pack(data)
        if not changes and payload is None:
            raise BadOption("nothing to change; give priority, delay, run_at or data")
        self._change(Verb.UPDATE, [self._id, changes or None, payload])

    def cancel(self) -> bool:
        """Take the job back.

        One that waits or is delayed is gone at once. One that runs is gone when its worker
        confirms, or its lease ends: the handler sees `job.cancel_requested`, and whatever it
        returns does not count; `wait` tells when. Returns True, or False if it was gone already.
        Raises Conflict when the job has completed or is dead, NotFound when it is not known.
        """
        return self._change(Verb.CANCEL, [self._id])

    def retry(self) -> bool:
        """Let the dead or completed job start afresh: runs, failures and stalls are counted from
        zero, its result is forgotten.

        Returns True, or False if it was alive already. Raises NotFound when it is gone, Conflict
        when another job holds its unique key.
        """
        return self._change(Verb.RETRY, [self._id])

    def _change(self, verb: int, item: list[Any]) -> bool:
        """Ask for one change; True if it was made, False if there was nothing to do."""
        exceptions = self._ask(verb, [[item]])[1]
        if not exceptions:
            return True
        _, status, detail = exceptions[0]
        if status != Status.OK:
            raise item_error(status, detail)
        return bool(detail == _CANCEL_REQUESTED)

    def _ask(self, verb: int, body: list[Any]) -> Any:
        return self._queue.client.connection().request(verb, body, slot=slot_of_id(self._id)).body

    def _ended(self, timeout: Duration | None) -> tuple[str, bytes | None, str]:
        left_ms = _FOREVER_MS
        if timeout is not None:
            left_ms = duration_ms(timeout, "timeout", 0, _FOREVER_MS)
        end = time.monotonic() + left_ms / 1_000
        while True:
            wait_ms = min(WAIT_MS_MAX, max(0, round((end - time.monotonic()) * 1_000)))
            try:
                state, result, error = self._queue.client.ended_within(self._id, wait_ms)
            except NotFound:
                state, result, error = "gone", None, ""
            if state not in _ALIVE_WORDS:
                return state, result, error
            if time.monotonic() >= end:
                raise TimeoutError(f"job {self.id} has not ended; it is {state}")
            time.sleep(_AGAIN_S)

    def _take_over(self, status: int, detail: Any) -> None:
        """Note what the answer to the push says of this job, if it is not plainly OK: another
        one has its id or its key, or (raised) it was refused.
        """
        if status != Status.OK:
            raise item_error(status, detail)
        if isinstance(detail, tuple) and len(detail) >= 2 and detail[0] == "exists":
            # Its own id: a repeat of this very add, which had arrived the first time.
            self.deduplicated = detail[1] != self._id
            self.forgotten = len(detail) >= 3 and detail[2] not in _STATE_WORDS
            self._id = detail[1]

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r} in {self.queue!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)


def _changes(priority: Any, delay: Any, run_at: Any) -> dict[str, int]:
    if delay is not None and run_at is not None:
        raise BadOption("delay and run_at exclude each other; give one of them")
    changes: dict[str, int] = {}
    if priority is not None:
        if type(priority) is not int or abs(priority) > PRIORITY_MAX:
            raise BadOption(
                f"priority {shown(priority)} is not a whole number from {-PRIORITY_MAX} "
                f"to {PRIORITY_MAX}"
            )
        changes["priority"] = priority
    if delay is not None:
        changes["delay_ms"] = duration_ms(delay, "delay", 0, DELAY_MS_MAX)
    if run_at is not None:
        changes["run_at"] = moment_ms(run_at, "run_at")
    return changes


_ENDINGS: dict[str, type[JobEnded]] = {"cancelled": JobCancelled, "expired": JobExpired}


def _ending(state: str, error: str, job_id: str) -> JobEnded:
    if state == "dead":
        return JobFailed(error or "the job is dead and left no error")
    if state == "result_expired":
        return ResultExpired(f"job {job_id} completed, but its result is no longer kept")
    kind = _ENDINGS.get(state, JobGone)
    return kind(f"job {job_id} is {state}" if not error else f"job {job_id} is {state}: {error}")
