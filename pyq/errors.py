"""Everything that can go wrong, as one tree, and the codes that stand for it on the wire.

Our own mistakes are assertions. What is here is either the caller's mistake, a refusal
of the cluster, or an unknown outcome; every class says which and what to do.
"""

from enum import IntEnum
from typing import Any


class Status(IntEnum):
    """The status byte of a reply, and of each item in a batch answer."""

    REQUEST = 0  # not a reply
    OK = 1
    # Definite: the operation did not and will not take effect.
    BAD_REQUEST = 16
    BAD_OPTION = 17
    TOO_LARGE = 18
    NOT_FOUND = 19
    STALE_TOKEN = 20
    WRONG_SHARD = 21
    SUPERSEDED = 22
    BUSY = 23
    DISK_FULL = 24
    UNAVAILABLE = 25
    UNSUPPORTED = 26
    CONFLICT = 27
    DEP_UNKNOWN = 28
    # Not definite: asking again with the same request id is always safe.
    RETRY = 32
    UNKNOWN = 33


class PyqError(Exception):
    """Root of all errors raised by pyq. `status` is the wire code, if one stands behind it."""

    status: Status | None = None


class UsageError(PyqError, ValueError):
    """The caller's mistake: a wrong option, name or type. Nothing was sent or stored."""

    status = Status.BAD_REQUEST


class BadOption(UsageError):
    """An option has a value outside its bounds, or is not known. The message names all three."""

    status = Status.BAD_OPTION


class PayloadError(UsageError):
    """The data cannot be packed. The message names the path of the field."""


class TooLarge(UsageError):
    """A payload, result or batch is over its bound. Nothing was stored."""

    status = Status.TOO_LARGE


class Refused(PyqError):
    """The cluster said no. Nothing was changed; the message says when to try again."""


class NotFound(Refused):
    """No job has this id, or it was forgotten."""

    status = Status.NOT_FOUND


class StaleToken(Refused):
    """The lease of this attempt has ended; somebody else may hold the job now."""

    status = Status.STALE_TOKEN


class Busy(Refused):
    """A buffer is full. Try again after `retry_after` seconds."""

    status = Status.BUSY

    def __init__(self, message: str, retry_after: float = 0.05) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DiskFull(Refused):
    """The shard's disk is nearly full: acks pass, new work does not. Free some space."""

    status = Status.DISK_FULL


class Unavailable(Refused):
    """The shard (or the coordinator) is down for the moment; the supervisor restarts it."""

    status = Status.UNAVAILABLE


class Unsupported(Refused):
    """Client and cluster speak different versions, or the verb is not known here."""

    status = Status.UNSUPPORTED


class DepUnknown(Refused):
    """A job depends on one that is not known, or was forgotten. Nothing was stored."""

    status = Status.DEP_UNKNOWN


class Conflict(Refused):
    """The job's state does not allow this."""

    status = Status.CONFLICT


class BulkError(PyqError):
    """Some jobs of an `add_bulk` were not added; each item succeeded or failed on its own.

    `jobs` has one entry per item, in order: the Job, or None where it was refused.
    `failures` is a list of (index, error).
    """

    def __init__(self, jobs: list[Any], failures: list[tuple[int, PyqError]]) -> None:
        index, error = failures[0]
        super().__init__(
            f"{len(failures)} of {len(jobs)} jobs were not added; first: item {index}: {error}"
        )
        self.jobs = jobs
        self.failures = failures


class OutcomeUnknown(PyqError):
    """The request may or may not have taken effect. Repeating the same job id is safe."""

    status = Status.UNKNOWN


class Unreachable(PyqError):
    """Nothing answers at the cluster's address. Is `pyq-cluster up` running there?"""


class JobEnded(PyqError):
    """Root of the ways in which a job ends without a result."""


class JobFailed(JobEnded):
    """The job is dead. The message is the error of its last attempt."""


class JobGone(JobEnded):
    """The job was removed (drained, replaced, moved ...) before it completed, or never there."""


class JobCancelled(JobGone):
    """The job was taken back."""


class JobExpired(JobGone):
    """The job's `ttl` passed before its first attempt."""


class ResultExpired(JobEnded):
    """The job completed, but its result is no longer kept."""


# Codes that reach the caller as an exception. RETRY, WRONG_SHARD and SUPERSEDED are
# handled inside the client; OK needs none.
ERRORS_BY_STATUS: dict[Status, type[PyqError]] = {
    Status.BAD_REQUEST: UsageError,
    Status.BAD_OPTION: BadOption,
    Status.TOO_LARGE: TooLarge,
    Status.NOT_FOUND: NotFound,
    Status.STALE_TOKEN: StaleToken,
    Status.WRONG_SHARD: Unavailable,
    Status.SUPERSEDED: Conflict,
    Status.BUSY: Busy,
    Status.DISK_FULL: DiskFull,
    Status.UNAVAILABLE: Unavailable,
    Status.UNSUPPORTED: Unsupported,
    Status.CONFLICT: Conflict,
    Status.DEP_UNKNOWN: DepUnknown,
    Status.RETRY: OutcomeUnknown,
    Status.UNKNOWN: OutcomeUnknown,
}


def item_error(status: int, detail: Any) -> PyqError:
    """Return the exception for an item of a batch answer whose status is not OK."""
    sentence = detail[0] if isinstance(detail, tuple) and detail else detail
    kind = ERRORS_BY_STATUS.get(status, Refused)  # type: ignore[call-overload]
    error: PyqError = kind(str(sentence) if sentence else f"refused with code {status}")
    return error
