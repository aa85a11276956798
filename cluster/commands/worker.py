"""`pyq-cluster worker`: processes that run shell jobs."""

import click

from cluster.commands.options import ignored_data_option, reach, url_option
from pyq.limits import CONCURRENCY_MAX

_WORKERS_MAX = 256  # threads of one process; more is a case for a second `worker start`


@click.group()
def worker() -> None:
    """Run shell jobs."""


@worker.command()
@click.option("--count", type=click.IntRange(1, _WORKERS_MAX), default=1, show_default=True)
@click.option(
    "--concurrency",
    type=click.IntRange(1, CONCURRENCY_MAX),
    default=1,
    show_default=True,
    help="Jobs that each worker runs at once.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    default=("default",),
    show_default=True,
    help="Queue to work on; may be given several times.",
)
@url_option
@ignored_data_option
def start(count: int, concurrency: int, queues: tuple[str, ...], url: str) -> int:
    """Start workers in the foreground; Ctrl-C lets them finish what they run."""
    from cluster.shell import run_workers

    reach(url).close()  # say at once, in one sentence, that nothing runs there
    return run_workers(url, list(queues), count, concurrency)


@worker.command()
@url_option
@ignored_data_option
def stop(url: str) -> None:
    """Tell all workers of the cluster to finish what they run and to end."""
    import pyq

    with pyq.connect(url) as client:
        told = client.stop_workers()
    click.echo(f"told {told} worker{'' if told == 1 else 's'} to stop" if told else "no workers")
