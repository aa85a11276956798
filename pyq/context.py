"""What a handler gets: one leased job, and what it may tell the cluster while it runs."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyq.codec import pack, unpack
from pyq.durations import Duration, duration_ms
from pyq.ids import id_from_text, id_to_text
from pyq.limits import LEASE_MS_MAX, LEASE_MS_MIN, LOG_LINE_BYTES_MAX, PROGRESS_BYTES_MAX
from pyq.texts import fitted
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.client import Client
    from pyq.handoff import Handoff

_NOT_YET = object()


class Dependency(NamedTuple):
    """What became of a job that another depends on."""

    id: str
    queue: str  # empty if its record is gone
    name: str
    state: str  # completed, dead, or why it is gone: cancelled, expired, removed ...
    result: Any  # what its handler returned, if it completed
    error: str | None


def _dependency(job_id: str, word: str, row: Mapping[str, Any] | None) -> Dependency:
    if row is None:
        return Dependency(job_id, "", "", word, None, None)
    result = row["result"] if row["state"] == "completed" else None
    return Dependency(job_id, row["queue"], row["name"], row["state"], result, row["error"])


class JobContext:
    """A job and its current attempt, handed to the handler.

    - `queue`, `name`, `job_id` (the custom id or None), `created_at` (ms since 1970)
    - `attempt`: number of this attempt, from 1; `attempts`: how many there may be;
      `failures`: how many have failed before
    - `fence`: a number that grows from lease to lease of a job; keep it with what you write
      elsewhere, and refuse a smaller one, so that a late attempt changes nothing
    - `lost`: the lease has ended, somebody else may run the job; `timed_out`: the attempt took
      longer than its timeout; `cancel_requested`: somebody took the job back, which is done once
      the handler has ended, however it does; `cancelled`: any of these, or the worker gave the
      job back because it had to stop. The handler should return soon: its result will not count
    """

    __slots__ = (
        "_data", "_handoff", "_payload", "attempt", "attempts", "cancel_requested", "created_at",
        "deadline", "failures", "fence", "id_bytes", "job_id", "lease_ms", "lines_count", "lost",
        "name", "queue", "released", "settled", "timed_out", "timeout_ms", "token",
    )  # fmt: skip

    def __init__(
        self, handoff: "Handoff", queue: str, lease: tuple[Any, ...], lease_ms: int
    ) -> None:
        (
            self.id_bytes,
            self.token,
            self.attempt,
            self.name,
            self._payload,
            self.failures,
            self.attempts,
            self.timeout_ms,
            self.created_at,
            self.job_id,
            *more,
        ) = lease
        self.fence: int = more[0] if more else 0
        self.queue = queue
        self.lease_ms = lease_ms  # as the shard granted it
        self.lines_count = 0  # of the log, counted where they leave
        self.lost = False
        self.cancel_requested = False
        self.timed_out = False
        self.released = False
        self.settled = False  # the worker has decided how this attempt ends
        self.deadline: float | None = None  # seconds since 1970, if the job has a timeout
        self._handoff = handoff
        self._data: Any = _NOT_YET

    @property
    def id(self) -> str:
        """The job's id as text, a UUID."""
        return id_to_text(self.id_bytes)

    @property
    def data(self) -> Any:
        """What the producer passed. Raises PayloadError if it cannot be unpacked here."""
        if self._data is _NOT_YET:
            self._data = unpack(self._payload)
        return self._data

    @property
    def cancelled(self) -> bool:
        """True when the result of this attempt will not count any more."""
        return self.lost or self.timed_out or self.released or self.cancel_requested

    @property
    def remaining(self) -> float | None:
        """Seconds until the timeout, or None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())

    def progress(self, value: Any) -> None:
        """Keep `value` (anything packable, at most 4 KiB) as the job's progress.

        Does not wait for the cluster. Raises PayloadError or TooLarge.
        """
        packed = pack(value, "progress", PROGRESS_BYTES_MAX)
        self._handoff.tell(self, Verb.PROGRESS, (self.id_bytes, self.token, packed))

    def log(self, message: Any) -> None:
        """Add a line to the job's log, read with `Job.logs`: `message` as text, at most 1 KiB of
        UTF-8, longer ones are cut with a mark. The newest 1,000 lines of a job are kept.

        Does not wait for the cluster, and reaches it before the end of the attempt does.
        """
        line = fitted(str(message), LOG_LINE_BYTES_MAX)
        self._handoff.tell(self, Verb.LOG, (self.id_bytes, self.token, 0, [line]), len(line))

    def extend(self, duration: Duration) -> None:
        """Let the lease last at least this long from now: 0.1 s to an hour.

        Rarely needed: the worker's heartbeats renew it all the time. Does not wait for the
        cluster; `lost` becomes True if the lease was over already.
        """
        lease_ms = duration_ms(duration, "duration", LEASE_MS_MIN, LEASE_MS_MAX)
        self._handoff.tell(self, Verb.EXTEND, (self.id_bytes, self.token, lease_ms))

    @property
    def client(self) -> "Client":
        """A client of the same cluster, for adding jobs or asking about them; do not close it."""
        return self._handoff.client

    def dependencies(self) -> list[Dependency]:
        """Return the jobs that this one depends on, in the order of its option, with what became
        of them. Asks the cluster; raises its errors (Unavailable, OutcomeUnknown ...).
        """
        view = self.client.view_of(self.id_bytes, payload=False, result=False)
        found = self.client.views_of([id_from_text(dep) for dep, _ in view["depends_on"]])
        told = zip(view["depends_on"], found, strict=True)
        return [_dependency(dep_id, word, row) for (dep_id, word), row in told]

    def __repr__(self) -> str:
        return f"<JobContext {self.id} {self.name!r} in {self.queue!r}, attempt {self.attempt}>"
