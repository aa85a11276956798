"""`pyq-cluster list` and `show`: jobs as the shards know them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cluster.commands.options import ignored_data_option, json_option, url_option
from cluster.refusals import CommandFailed
from pyq.errors import NotFound

if TYPE_CHECKING:
    import pyq


@click.command("list")
@click.option("--state", default=None, help="Only jobs in this state.")
@click.option("--queue", default=None, help="Only jobs of this queue.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@json_option
@url_option
@ignored_data_option
def list_jobs(state: str | None, queue: str | None, limit: int, as_json: bool, url: str) -> None:
    """List jobs."""
    import pyq
    from cluster.views import job_json, jobs_table
    from pyq.job import STATE_WORDS

    if state is not None and state not in STATE_WORDS:
        words = ", ".join(sorted(STATE_WORDS))
        raise click.BadParameter(f"{state!r} is none of {words}", param_hint="'--state'")
    with pyq.connect(url) as client:
        views = list(client.jobs(queue, state, limit, result=as_json))
    click.echo(job_json(views) if as_json else jobs_table(views))
    if len(views) == limit:
        click.echo(f"the first {limit} jobs; more with --limit", err=True)


@click.command()
@click.argument("name", required=False, metavar="[ID]")
@click.option("--id", "job_id", default=None, help="Name or uuid of the job.")
@click.option("--queue", default=None, help="Queue of the job, if several have one of that name.")
@json_option
@url_option
@ignored_data_option
def show(name: str | None, job_id: str | None, queue: str | None, as_json: bool, url: str) -> None:
    """Show one job: state, times, and what its command printed."""
    import pyq
    from cluster.views import job_text, one_job_json

    if (name is None) == (job_id is None):
        raise click.UsageError("name one job: `show ID` or `show --id ID`")
    with pyq.connect(url) as client:
        view = the_job(client, name or job_id or "", queue)
    # color: what a command printed goes into a pipe byte for byte
    click.echo(one_job_json(view) if as_json else job_text(view), color=True)


@click.command()
@click.argument("name", required=False, metavar="[ID]")
@click.option("--id", "job_id", default=None, help="Name or uuid of the job.")
@click.option("--queue", default=None, help="Queue of the job, if several have one of that name.")
@url_option
@ignored_data_option
def cancel(name: str | None, job_id: str | None, queue: str | None, url: str) -> None:
    """Take back a job that waits or is delayed."""
    import pyq

    if (name is None) == (job_id is None):
        raise click.UsageError("name one job: `cancel ID` or `cancel --id ID`")
    with pyq.connect(url) as client:
        view = the_job(client, name or job_id or "", queue, details=False)
        client.cancel_ids([id_of(view)])
    click.echo(f"cancelled {name or job_id}")


def the_job(
    client: "pyq.Client", wanted: str, queue: str | None, details: bool = True
) -> dict[str, Any]:
    """Return the one job that is called so, or fail with what to do."""
    views = client.find(wanted, queue, payload=details, result=details)
    if not views:
        where = f" in queue {queue}" if queue else ""
        raise NotFound(f"no job is called {wanted}{where}; `pyq-cluster list` shows what is there")
    if len(views) > 1:
        queues = ", ".join(sorted(str(view["queue"]) for view in views))
        raise CommandFailed(5, f"{wanted} is in the queues {queues}; say which with --queue")
    return views[0]


def id_of(view: Mapping[str, Any]) -> bytes:
    """Return the bytes of the id of a view."""
    from pyq.ids import id_from_text

    id_bytes = id_from_text(view["id"])
    assert id_bytes is not None, "the id of a view is a UUIDv7"
    return id_bytes
