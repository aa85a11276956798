"""`pyq-cluster dlq`: dead letters, and their second chance."""

import sys
from typing import TYPE_CHECKING

import click

from cluster.commands.jobs import id_of, the_job
from cluster.commands.options import ignored_data_option, json_option, url_option
from cluster.refusals import CommandFailed

if TYPE_CHECKING:
    import pyq


@click.group()
def dlq() -> None:
    """Look at dead jobs, let them start afresh, or forget them."""


@dlq.command("list")
@click.option("--queue", default=None, help="Only jobs of this queue.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@json_option
@url_option
@ignored_data_option
def list_dead(queue: str | None, limit: int, as_json: bool, url: str) -> None:
    """List dead jobs: why they died, and their last error."""
    import pyq
    from cluster.views import dead_table, job_json

    with pyq.connect(url) as client:
        views = list(client.jobs(queue, "dead", limit, result=as_json))
    click.echo(job_json(views) if as_json else dead_table(views))
    if len(views) == limit:
        click.echo(f"the first {limit} jobs; more with --limit", err=True)


@dlq.command()
@click.argument("name", required=False, metavar="[ID]")
@click.option("--id", "job_id", default=None, help="Name or uuid of the job.")
@click.option("--queue", default=None, help="Queue of the job; with --all: only this queue.")
@click.option("--all", "everything", is_flag=True, help="All dead jobs.")
@url_option
@ignored_data_option
def retry(
    name: str | None, job_id: str | None, queue: str | None, everything: bool, url: str
) -> None:
    """Let a dead job start afresh, or all of them."""
    import pyq

    with pyq.connect(url) as client:
        count = client.retry_ids(_chosen(client, "retry", name, job_id, queue, everything))
    click.echo(f"{count} job{'' if count == 1 else 's'} waiting again")


@dlq.command()
@click.argument("name", required=False, metavar="[ID]")
@click.option("--id", "job_id", default=None, help="Name or uuid of the job.")
@click.option("--queue", default=None, help="Queue of the job; with --all: only this queue.")
@click.option("--all", "everything", is_flag=True, help="All dead jobs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@ignored_data_option
def purge(
    name: str | None,
    job_id: str | None,
    queue: str | None,
    everything: bool,
    yes: bool,
    url: str,
) -> None:
    """Forget a dead job for good, or all of them."""
    import pyq

    with pyq.connect(url) as client:
        ids = _chosen(client, "purge", name, job_id, queue, everything)
        jobs = f"{len(ids)} dead job{'' if len(ids) == 1 else 's'}"
        if ids and not yes:
            if not sys.stdin.isatty():
                raise CommandFailed(5, f"this forgets {jobs} for good; say --yes if you mean it")
            click.confirm(f"Forget {jobs} for good?", abort=True)
        count = client.purge_ids(ids)
    click.echo(f"{count} job{'' if count == 1 else 's'} forgotten")


def _chosen(
    client: "pyq.Client",
    verb: str,
    name: str | None,
    job_id: str | None,
    queue: str | None,
    everything: bool,
) -> list[bytes]:
    """Return the ids that the options name: of one job, or of all dead ones."""
    wanted = name or job_id
    if (wanted is None) != everything or (name is not None and job_id is not None):
        raise click.UsageError(f"name one job: `dlq {verb} ID` or `dlq {verb} --id ID`; or --all")
    if wanted is not None:
        return [id_of(the_job(client, wanted, queue, details=False))]
    return [id_of(view) for view in client.jobs(queue, "dead", payload=False, result=False)]
