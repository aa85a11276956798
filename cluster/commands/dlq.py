"""`pyq-cluster dlq`: dead letters, and their second chance."""

import click

from cluster.commands.options import ignored_data_option, json_option, url_option
from cluster.refusals import CommandFailed
from pyq.errors import NotFound


@click.group()
def dlq() -> None:
    """Look at dead jobs, and let them start afresh."""


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
    from pyq.ids import id_from_text

    wanted = name or job_id
    if (wanted is None) != everything or (name is not None and job_id is not None):
        raise click.UsageError("name one job: `dlq retry ID` or `dlq retry --id ID`; or --all")
    with pyq.connect(url) as client:
        if everything:
            views = list(client.jobs(queue, "dead", payload=False, result=False))
        else:
            views = client.find(str(wanted), queue, payload=False, result=False)
            if not views:
                raise NotFound(f"no job is called {wanted}; `pyq-cluster dlq list` shows the dead")
            if len(views) > 1:
                queues = ", ".join(sorted(str(view["queue"]) for view in views))
                raise CommandFailed(
                    5, f"{wanted} is in the queues {queues}; say which with --queue"
                )
        ids = [id_bytes for view in views if (id_bytes := id_from_text(view["id"])) is not None]
        count = client.retry_ids(ids)
    click.echo(f"{count} job{'' if count == 1 else 's'} waiting again")
