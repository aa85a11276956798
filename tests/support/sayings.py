"""What scenarios say often: a push of unlike jobs, and short forms of answers."""

from typing import Any

from pyq.messages import Purge, Push
from pyq.options import check_options
from tests.support.shards import Call, Rig, ack, pull


def a_push(rig: Rig, queue: str = "emails", flags: int = 0, **jobs: dict[str, Any]) -> Push:
    """A command that pushes jobs by their names, each with options of its own."""
    rows = [
        (rig.an_id(queue), name, name.encode(), check_options(options))
        for name, options in jobs.items()
    ]
    return Push(rig.origin("producer", flags=flags), queue, rows)


def bulk(rig: Rig, queue: str = "emails", flags: int = 0, **jobs: dict[str, Any]) -> Call:
    """Push jobs by their names, each with options of its own, in one message."""
    return rig.send(a_push(rig, queue, flags, **jobs))[0]


def exists(call: Call) -> tuple[bytes, str]:
    """Id and state of the one known job that a push was answered with."""
    ((_, _, (word, job_id, state, _)),) = call.exceptions
    assert word == "exists"
    return job_id, state


def statuses(call: Call) -> list[tuple[int, int]]:
    """Index and status of each exception of a batch answer."""
    return [(index, status) for index, status, _ in call.exceptions]


def settle_all(rig: Rig) -> str:
    """Lease whatever may run, job by job, and ack it at once; returns the names in order."""
    names = ""
    while leased := pull(rig).jobs:
        names += "".join(job.name for job in leased)
        ack(rig, *leased)
    return names


def purge(rig: Rig, *job_ids: bytes, **origin: Any) -> Call:
    items = [(job_id,) for job_id in job_ids]
    return rig.send(Purge(rig.origin("admin", **origin), items))[0]
