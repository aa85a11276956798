"""`pyq-cluster health`: does every process answer? For people, containers and watchdogs."""

from typing import TYPE_CHECKING

import click

from cluster.commands.options import ignored_data_option, json_option, reach, url_option
from cluster.refusals import CommandFailed

if TYPE_CHECKING:
    from cluster.probes import Answer, Asker
    from cluster.views import Health

_ANSWER_MS = 2_000


@click.command()
@click.option("--shard", type=click.IntRange(min=0), metavar="K", help="Ask only this shard.")
@json_option
@url_option
@ignored_data_option
def health(shard: int | None, as_json: bool, url: str) -> int:
    """Ask router, coordinator and every shard; exit 0 only if all answer."""
    from cluster.views import health_json, health_lines

    with reach(url) as asker:
        found = _ask_all(asker) if shard is None else _ask_one(asker, shard)
    click.echo(health_json(found) if as_json else "\n".join(health_lines(found)))
    return 0 if all(process.ok for process in found) else 1


def _ask_all(asker: "Asker") -> list["Health"]:
    """Ask each process for itself: one that hangs hides no other."""
    from cluster.probes import Question
    from pyq.wire import COORDINATOR, ROUTER, Verb

    router, shards_count = _router(asker)
    questions = [Question(Verb.PING, COORDINATOR)]
    questions += [Question(Verb.PING, slot=shard) for shard in range(shards_count)]
    again, *answers = asker.gather([Question(Verb.PING, ROUTER), *questions], _ANSWER_MS)
    names = ["coordinator", *(f"shard-{shard}" for shard in range(shards_count))]
    return [
        _health("router", again or router),
        *(_health(name, answer) for name, answer in zip(names, answers, strict=True)),
    ]


def _ask_one(asker: "Asker", shard: int) -> list["Health"]:
    from cluster.probes import Question
    from pyq.wire import Verb

    _, shards_count = _router(asker)
    if shard >= shards_count:
        raise CommandFailed(2, f"there is no shard {shard}: the cluster has {shards_count}")
    (answer,) = asker.gather([Question(Verb.PING, slot=shard)], _ANSWER_MS)
    return [_health(f"shard-{shard}", answer)]


def _router(asker: "Asker") -> tuple["Answer", int]:
    from cluster.probes import Question
    from pyq.wire import ROUTER, Verb

    answer = asker.ask(Question(Verb.PING, ROUTER), _ANSWER_MS)
    return answer, int(answer.value()[3]["shards"])


def _health(name: str, answer: "Answer | None") -> "Health":
    from cluster.views import health_of

    return health_of(name, answer)
