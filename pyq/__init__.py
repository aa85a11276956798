"""pyq: what applications import to talk to a pyq-cluster.

with pyq.connect() as client:
    job = client.queue("emails").add("welcome", {"to": "a@example.org"})
    print(job.result(timeout=10))

pyq.Worker("emails", handler=lambda job: f"sent to {job.data}").run()
"""

from typing import TYPE_CHECKING, Any

from pyq.client import Client, connect
from pyq.errors import (
    BadOption,
    BulkError,
    Busy,
    Conflict,
    DiskFull,
    JobEnded,
    JobFailed,
    JobGone,
    NotFound,
    OutcomeUnknown,
    PayloadError,
    PyqError,
    Refused,
    ResultExpired,
    StaleToken,
    TooLarge,
    Unavailable,
    Unreachable,
    Unsupported,
    UsageError,
)
from pyq.handle import Job
from pyq.options import Backoff
from pyq.outcomes import Discard, Failed, Outcome, Release, Retry, Snooze
from pyq.queue import Queue, exponential

if TYPE_CHECKING:
    from pyq.context import JobContext
    from pyq.worker import Worker

__all__ = [
    # adding jobs and asking about them
    "connect", "Client", "Queue", "Job", "Backoff", "exponential",
    # running jobs
    "Worker", "JobContext",
    # how a handler may end, other than by returning or failing
    "Outcome", "Discard", "Retry", "Release", "Snooze", "Failed",
    # errors: the caller's mistakes, refusals, unknown outcomes, ends of jobs
    "PyqError",
    "UsageError", "BadOption", "PayloadError", "TooLarge",
    "Refused", "NotFound", "StaleToken", "Busy", "DiskFull", "Unavailable", "Unsupported",
    "Conflict",
    "BulkError", "OutcomeUnknown", "Unreachable",
    "JobEnded", "JobFailed", "JobGone", "ResultExpired",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the worker runtime only in processes that use it."""
    if name == "Worker":
        from pyq.worker import Worker

        return Worker
    if name == "JobContext":
        from pyq.context import JobContext

        return JobContext
    raise AttributeError(f"module 'pyq' has no attribute {name!r}")
