"""The handle of a job that was added: who it is, and the questions one may ask about it.

Light on purpose, since a bulk of a million jobs makes a million of them: nothing is
asked, and not even the id turned into text, before somebody looks.
"""

import time
from typing import TYPE_CHECKING, Any

from pyq.codec import unpack
from pyq.durations import Duration, duration_ms
from pyq.errors import JobEnded, JobFailed, JobGone, NotFound, ResultExpired
from pyq.ids import id_to_text
from pyq.limits import DAY_MS, WAIT_MS_MAX

if TYPE_CHECKING:
    from pyq.queue import Queue

_FOREVER_MS = 3_650 * DAY_MS
_GONE_WORDS = {"removed", "expired", "cancelled", "gone"}
_ENDED_WORDS = _GONE_WORDS | {"completed", "dead", "result_expired"}


class Job:
    """A job in a queue. Made by `Queue.add`, `add_bulk` and `get`, never by hand.

    `name` is its name, `job_id` the custom id or None. `deduplicated` is True when the
    custom id was taken: nothing was added, and this is the job that has it. `forgotten` is
    True when that job has ended and its record is gone, so that only its name is left.
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
    def queue(self) -> str:
        """The name of the job's queue."""
        return self._queue.name

    @property
    def state(self) -> str:
        """Ask for the state now: waiting, delayed, blocked, active, completed or dead.

        Raises NotFound when the job is gone.
        """
        return str(self._queue.client.view_of(self._id, payload=False, result=False)["state"])

    def view(self) -> dict[str, Any]:
        """Ask for everything known about the job, as a dict. Raises NotFound when it is gone."""
        return self._queue.client.view_of(self._id)

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return what its handler returned.

        `timeout` is a duration; None waits for ever. Raises JobFailed when the job is dead,
        JobGone when it was removed, ResultExpired when the result is no longer kept,
        TimeoutError when it has not ended in time. An error of the cluster (Unavailable,
        OutcomeUnknown, Unreachable) means that nobody could say; asking again is safe.
        """
        state, result, error = self._ended(timeout)
        if state == "completed":
            return None if result is None else unpack(result, "result")
        raise _ending(state, error, self.id)

    def wait(self, timeout: Duration | None = None) -> str:
        """Wait until the job has ended and return the word for how: completed, dead, removed,
        gone ... Raises TimeoutError when it has not ended within `timeout` (None: for ever).
        """
        state = self._ended(timeout)[0]
        return "completed" if state == "result_expired" else state

    def retry(self) -> bool:
        """Let the dead job start afresh: runs, failures and stalls are counted from zero.

        Returns True, or False if it was alive already. Raises NotFound when it is gone and
        Conflict when it completed.
        """
        return self._queue.client.retry_ids([self._id]) == 1

    def cancel(self) -> bool:
        """Take the job back before it runs.

        Returns True, or False if it was gone already. Raises Conflict when it runs or has
        ended, and NotFound when it is not known.
        """
        return self._queue.client.cancel_ids([self._id]) == 1

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
            if state in _ENDED_WORDS:
                return state, result, error
            if time.monotonic() >= end:
                raise TimeoutError(f"job {self.id} has not ended; it is {state}")

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r} in {self.queue!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)


def _ending(state: str, error: str, job_id: str) -> JobEnded:
    if state == "dead":
        return JobFailed(error or "the job is dead and left no error")
    if state == "result_expired":
        return ResultExpired(f"job {job_id} completed, but its result is no longer kept")
    return JobGone(f"job {job_id} is {state}" if not error else f"job {job_id} is {state}: {error}")
