"""`pyq-cluster up`: the whole cluster in the foreground."""

from contextlib import suppress
from pathlib import Path

import click

from cluster.commands.options import bind_option, data_option, shards_option
from cluster.datadir import open_for_supervisor
from cluster.ports import check_bind, wait_until_free
from cluster.refusals import CannotStart
from cluster.topology import BadShards, parse_shards, shards_for
from pyq.process import ExitCode


@click.command()
@shards_option
@data_option
@bind_option
def up(shards: str | None, data: Path, bind: str) -> int:
    """Start a cluster and keep it running until Ctrl-C or `down`."""
    from cluster.supervisor import Supervisor

    check_bind(bind)
    held = open_for_supervisor(data, shards_asked(shards), cpu_shards(), bind)
    try:
        wait_until_free(bind)
        return Supervisor(held, bind, _say).run()
    finally:
        held.release()


def shards_asked(text: str | None) -> int | None:
    """Return the number behind --shards, None if the cluster shall decide."""
    try:
        return None if text is None else parse_shards(text)
    except BadShards as error:
        raise CannotStart(ExitCode.USAGE, str(error)) from None


def cpu_shards() -> int:
    """Return the shard count for the logical CPUs that this process may use."""
    import psutil

    return shards_for(len(psutil.Process().cpu_affinity() or [0]))


def _say(line: str) -> None:
    with suppress(OSError):  # nobody reads it any more; the cluster goes on
        click.echo(line)
