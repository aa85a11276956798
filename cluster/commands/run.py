"""`pyq-cluster run`: one process of a cluster, for a Procfile, systemd or a container.

Prepares the data directory like `up` and becomes the process; who starts it restarts it.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from cluster.commands.options import bind_option, data_option, shards_option
from cluster.commands.up import cpu_shards, shards_asked
from cluster.datadir import DataDir, open_for_one_process
from cluster.ports import check_bind
from cluster.processes import coordinator_argv, environment, router_argv, shard_argv
from cluster.refusals import CannotStart
from pyq.process import ExitCode


@click.group()
def run() -> None:
    """Run one process of a cluster: a router, a shard or the coordinator."""


@run.command()
@shards_option
@data_option
@bind_option
def router(shards: str | None, data: Path, bind: str) -> None:
    """Run the router."""
    check_bind(bind)
    _become(router_argv(_open(data, shards), bind, parent=0))


@run.command()
@click.argument("number", type=click.IntRange(min=0), metavar="N")
@shards_option
@data_option
def shard(number: int, shards: str | None, data: Path) -> None:
    """Run shard N (0, 1, ...)."""
    held = _open(data, shards)
    if number >= held.identity.shards:
        raise CannotStart(
            ExitCode.USAGE,
            f"there is no shard {number}: {data} has {held.identity.shards} shards, from 0 on",
        )
    _become(shard_argv(held, number, parent=0))


@run.command()
@shards_option
@data_option
def coordinator(shards: str | None, data: Path) -> None:
    """Run the coordinator."""
    _become(coordinator_argv(_open(data, shards), parent=0))


def _open(data: Path, shards: str | None) -> DataDir:
    return open_for_one_process(data, shards_asked(shards), cpu_shards())


def _become(argv: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(argv[0], argv, environment())
