"""pyq: what applications import to talk to a pyq-cluster.

with pyq.connect() as client:
    job = client.queue("emails").add("welcome", {"to": "a@example.org"})
    print(job.result(timeout=10))

pyq.Worker("emails", handler=lambda job: f"sent to {job.data}").run()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyq.errors import (
    BadOption,
    BulkError,
    Busy,
    Conflict,
    DepUnknown,
    DiskFull,
    JobCancelled,
    JobEnded,
    JobExpired,
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
from pyq.options import Backoff
from pyq.outcomes import Discard, Failed, Outcome, Release, Retry, Snooze, WaitFor

if TYPE_CHECKING:
    from pyq.client import Client, connect
    from pyq.context import JobContext
    from pyq.deadletters import DeadLetters
    from pyq.events import Event, QueueEvents
    from pyq.flows import FlowNode, Step, chain
    from pyq.given_options import backoff_preview, exponential
    from pyq.handle import Job, LogLine
    from pyq.queue import Queue
    from pyq.schedules import Schedules, cron_preview
    from pyq.worker import Worker

# Imported on first use: a shard needs no client, and a producer no worker.
_LATE = {
    "connect": "pyq.client",
    "Client": "pyq.client",
    "Queue": "pyq.queue",
    "Step": "pyq.flows",
    "chain": "pyq.flows",
    "FlowNode": "pyq.flows",
    "exponential": "pyq.given_options",
    "backoff_preview": "pyq.given_options",
    "Job": "pyq.handle",
    "LogLine": "pyq.handle",
    "DeadLetters": "pyq.deadletters",
    "Schedules": "pyq.schedules",
    "cron_preview": "pyq.schedules",
    "QueueEvents": "pyq.events",
    "Event": "pyq.events",
    "Worker": "pyq.worker",
    "JobContext": "pyq.context",
}

__all__ = [
    # adding jobs and asking about them
    "connect", "Client", "Queue", "Job", "LogLine", "DeadLetters",
    "Backoff", "exponential", "backoff_preview",
    # jobs that wait for each other
    "Step", "chain", "FlowNode",
    # jobs by the clock
    "Schedules", "cron_preview",
    # what happens
    "QueueEvents", "Event",
    # running jobs
    "Worker", "JobContext",
    # how a handler may end, other than by returning or failing
    "Outcome", "Discard", "Retry", "Release", "Snooze", "WaitFor", "Failed",
    # errors: the caller's mistakes, refusals, unknown outcomes, ends of jobs
    "PyqError",
    "UsageError", "BadOption", "PayloadError", "TooLarge",
    "Refused", "NotFound", "StaleToken", "Busy", "DiskFull", "Unavailable", "Unsupported",
    "Conflict", "DepUnknown",
    "BulkError", "OutcomeUnknown", "Unreachable",
    "JobEnded", "JobFailed", "JobGone", "JobCancelled", "JobExpired", "ResultExpired",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'pyq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value
