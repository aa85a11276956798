"""`pyq-cluster down`: asks the supervisor to stop, and waits until it is gone.

Over its socket: a number in a file is never signalled.
"""

import time
from pathlib import Path

import click

from cluster.commands.options import data_option
from cluster.datadir import Holder, find_holder
from cluster.refusals import CommandFailed
from pyq.errors import Unreachable
from pyq.process import endpoint

_ANSWER_MS = 3_000
_GONE_S = 15.0  # the supervisor kills what is left after 10 s
_POLL_S = 0.02
_DOT_S = 1.0


@click.command()
@data_option
@click.option("--url", default=None, help="Refuse if it serves another address.")
def down(data: Path, url: str | None) -> None:
    """Stop the cluster of a data directory cleanly."""
    from cluster.probes import Question, ask
    from pyq.wire import BY_QUEUE, Verb

    holder = find_holder(data)
    if holder is None:
        raise Unreachable(
            f"no cluster started with `pyq-cluster up` runs on {data}; is it another --data?"
        )
    if url is not None and url != holder.url:
        raise CommandFailed(
            5, f"the cluster on {data} serves {holder.url}, not {url}; say which with --data"
        )
    try:
        question = Question(Verb.SHUTDOWN, BY_QUEUE)
        ask(endpoint(holder.runtime, "supervisor"), question, _ANSWER_MS).value()
    except Unreachable:
        if find_holder(data) is not None:
            raise CommandFailed(1, _silent(data, holder)) from None
    _wait_until_gone(data, holder)
    click.echo(f"stopped the cluster on {data}")


def _wait_until_gone(data: Path, holder: Holder) -> None:
    began = time.monotonic()
    next_dot = began + _DOT_S
    dots = 0
    while find_holder(data) is not None:
        now = time.monotonic()
        if now - began > _GONE_S:
            raise CommandFailed(1, _silent(data, holder))
        if now >= next_dot:
            click.echo("." if dots else "stopping ", nl=False, err=True)
            dots, next_dot = dots + 1, next_dot + _DOT_S
        time.sleep(_POLL_S)
    if dots:
        click.echo("", err=True)


def _silent(data: Path, holder: Holder) -> str:
    return (
        f"the supervisor on {data} (pid {holder.pid}) does not stop or does not answer; "
        "look at its log, try again, or end it yourself: its data survives that"
    )
