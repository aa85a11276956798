"""`pyq-cluster status`: processes, shards, queues and workers on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.commands.options import data_option, json_option, reach, unreachable, url_option
from pyq.errors import Unreachable

if TYPE_CHECKING:
    from cluster.probes import Answer
    from cluster.views import ClusterStatus

_ANSWER_MS = 3_000
_SUPERVISOR_MS = 1_000


@click.command()
@json_option
@url_option
@data_option
def status(as_json: bool, url: str, data: Path) -> int:
    """Show what the cluster is doing."""
    from cluster.views import status_json, status_text

    found = look(url, data)
    click.echo(status_json(found) if as_json else status_text(found))
    return 0 if found.complete else 1


def look(url: str, data: Path) -> "ClusterStatus":
    """Ask the supervisor (by data directory) and the shards (through the router)."""
    from cluster.probes import Question
    from cluster.views import cluster_status
    from pyq.wire import ALL_SHARDS, Verb

    processes = _processes(data, url)
    verbs = (Verb.STATS, Verb.COUNTS, Verb.WORKERS)
    try:
        with reach(url) as asker:
            answers = asker.gather([Question(verb, ALL_SHARDS) for verb in verbs], _ANSWER_MS)
    except Unreachable:
        if processes is None:
            raise
        answers = [None, None, None]
    stats, counts, workers = (_per_shard(answer) for answer in answers)
    if stats is None and processes is None:
        raise unreachable(url)
    return cluster_status(url, processes, stats, counts, workers)


def _processes(data: Path, url: str) -> list[dict[str, Any]] | None:
    """Return the supervisor's table, None if there is no supervisor to ask or it serves another."""
    from cluster.datadir import find_holder
    from cluster.probes import Question, ask
    from pyq.process import endpoint
    from pyq.wire import Verb

    holder = find_holder(data)
    if holder is None or holder.url != url:
        return None
    try:
        answer = ask(
            endpoint(holder.runtime, "supervisor"), Question(Verb.PROCESSES), _SUPERVISOR_MS
        )
        return [entry[0] for entry in answer.value()]
    except Unreachable:
        return None


def _per_shard(answer: "Answer | None") -> dict[int, Any] | None:
    """Return shard -> body (None: it did not answer) of a scattered request."""
    from pyq.errors import Status
    from pyq.wire import unpack_body

    if answer is None or not answer.ok:
        return None
    return {
        shard: unpack_body(body) if code == Status.OK else None
        for shard, code, _epoch, body in answer.body
    }
