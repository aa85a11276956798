"""Options that many commands share, and how a command reaches the cluster.

The environment is read here, by click, and nowhere below.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyq.errors import Unreachable
from pyq.limits import CONNECT_MS_DEFAULT

if TYPE_CHECKING:
    from cluster.probes import Asker

URL_DEFAULT = "tcp://127.0.0.1:6789"
DATA_DEFAULT = "./pyq-data"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _not_empty(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if str(value) in ("", "."):
        raise click.BadParameter("it is empty; name one, or leave the option out")
    return value


def url_option(command: _Command) -> _Command:
    """Add --url."""
    return click.option(
        "--url",
        envvar="PYQ_URL",
        default=URL_DEFAULT,
        show_default=True,
        show_envvar=True,
        callback=_not_empty,
        help="Address of the cluster.",
    )(command)


def data_option(command: _Command) -> _Command:
    """Add --data."""
    return click.option(
        "--data",
        envvar="PYQ_DATA",
        default=DATA_DEFAULT,
        show_default=True,
        show_envvar=True,
        type=click.Path(path_type=Path),
        callback=_not_empty,
        help="Data directory of the cluster.",
    )(command)


def ignored_data_option(command: _Command) -> _Command:
    """Accept --data where it changes nothing, so that one set of options fits every command."""
    return click.option("--data", envvar="PYQ_DATA", hidden=True, expose_value=False)(command)


def json_option(command: _Command) -> _Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def shards_option(command: _Command) -> _Command:
    """Add --shards."""
    return click.option(
        "--shards",
        envvar="PYQ_SHARDS",
        default=None,
        metavar="N|auto",
        show_envvar=True,
        help="Number of shards: a power of two, fixed at the first start. "
        "Without it what is stored, else one per core.",
    )(command)


def bind_option(command: _Command) -> _Command:
    """Add --bind."""
    return click.option(
        "--bind",
        "--url",
        envvar=["PYQ_BIND", "PYQ_URL"],
        default=URL_DEFAULT,
        show_default=True,
        help="Address to listen at.",
    )(command)


def unreachable(url: str) -> Unreachable:
    """Return the error that says that no cluster runs there, and what to do."""
    return Unreachable(f"nothing answers at {url}; start a cluster with `pyq-cluster up`")


def reach(url: str) -> "Asker":
    """Return a connected Asker whose router has answered; raise Unreachable with what to do."""
    from cluster.probes import Asker, Question
    from pyq.wire import ROUTER, Verb

    if not _somebody_listens(url):
        raise unreachable(url)
    asker = Asker(url)
    (answer,) = asker.gather([Question(Verb.PING, ROUTER)], CONNECT_MS_DEFAULT)
    if answer is not None and answer.ok:
        return asker
    asker.close()
    if url.startswith("ipc://"):
        raise unreachable(url)
    raise Unreachable(
        f"something listens at {url} but does not answer as the router of a cluster; "
        "is it the right port? Give --url, or look at `pyq-cluster status --data DIR`"
    )


def _somebody_listens(url: str) -> bool:
    """Whether a connection is accepted there: a refusal is known in a millisecond."""
    import socket

    host, _, port = url.removeprefix("tcp://").rpartition(":")
    if not url.startswith("tcp://") or not port.isascii() or not port.isdigit():
        return True  # some other address: the ping will tell
    try:
        address = (host.strip("[]"), int(port))
        with socket.create_connection(address, CONNECT_MS_DEFAULT / 1_000):
            return True
    except (OSError, OverflowError):
        return False
