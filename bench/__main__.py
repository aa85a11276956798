"""`python -m bench SCENARIO ...`: measures the product on this machine, in one run.

`core` is the pure core with a memory store; `line` its line of waiting jobs against two
heaps; `load` a real cluster under producers and workers; `restart` how long a shard takes
to come back; `dependencies` jobs that wait for jobs of other shards. With --json one object
on stdout.
"""

import json
import sys
from typing import Any

import click

from bench.machine import machine_facts


@click.group()
def main() -> None:
    """Measure pyq-cluster. Compare figures of one run with each other, not across machines."""


@main.command()
@click.option("--batches", default=300, help="batches of 100 jobs per run", show_default=True)
@click.option("--runs", default=5, help="runs; the best and the median are shown")
@click.option("--store", type=click.Choice(["memory", "sqlite"]), default="memory")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on standard output")
def core(batches: int, runs: int, store: str, as_json: bool) -> None:
    """Complete life cycles per second of the core alone: push, pull, ack, batches of 100."""
    from bench.core import measure_core

    _show("core", measure_core(batches, runs, store), as_json)


@main.command()
@click.option("--shards", default="1,2", help="numbers of shards, one run each", show_default=True)
@click.option("--jobs", default=100_000, help="jobs per run", show_default=True)
@click.option("--concurrency", default=100, help="of the worker", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON object on standard output")
def load(shards: str, jobs: int, concurrency: int, as_json: bool) -> None:
    """A cluster on SQLite: add_bulk of 1,000 jobs of 100 bytes, then one worker drains it."""
    from bench.load import measure_load

    runs = [measure_load(int(count), jobs, concurrency) for count in shards.split(",")]
    _show(
        "load", {"runs": runs} if as_json else {f"{r['shards']} shards": r for r in runs}, as_json
    )


@main.command()
@click.option("--jobs", default=100_000, help="waiting jobs", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON object on standard output")
def restart(jobs: int, as_json: bool) -> None:
    """Kill a shard with waiting jobs: how long until it serves, and what it weighs."""
    from bench.restart import measure_restart

    _show("restart", measure_restart(jobs), as_json)


@main.command()
@click.option("--jobs", default=1_000_000, help="waiting jobs", show_default=True)
@click.option("--payload", default=1_024, help="bytes of each payload", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON object on standard output")
def backlog(jobs: int, payload: int, as_json: bool) -> None:
    """Many waiting jobs in one shard: memory per job, speed of draining against a short queue."""
    from bench.backlog import measure_backlog

    _show("backlog", measure_backlog(jobs, payload), as_json)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object on standard output")
def line(as_json: bool) -> None:
    """The line of waiting jobs against two heaps: nanoseconds for one take and one add."""
    from bench.line import measure_line

    _show("line", measure_line(), as_json)


@main.command()
@click.option("--shards", default=4, help="of the cluster", show_default=True)
@click.option("--pairs", default=5_000, help="of jobs, per shard", show_default=True)
@click.option("--rounds", default=300, help="for the latency", show_default=True)
@click.option("--links", default=1_000, help="of the chain", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON object on standard output")
def dependencies(shards: int, pairs: int, rounds: int, links: int, as_json: bool) -> None:
    """Jobs that depend on jobs of other shards: how soon, how many, how far."""
    from bench.dependencies import measure_dependencies

    _show("dependencies", measure_dependencies(shards, pairs, rounds, links), as_json)


def _show(scenario: str, result: dict[str, Any], as_json: bool) -> None:
    facts = machine_facts()
    if as_json:
        json.dump({"scenario": scenario, "machine": facts, **result}, sys.stdout)
        print()
        return
    print(f"{scenario} on {facts['cpu']}, {facts['cores']} cores, Python {facts['python']}")
    print(f"(calibration: {facts['fnv_ns']} ns for one FNV-1a of six bytes in Python)")
    _print_table(result, "")


def _print_table(result: dict[str, Any], indent: str) -> None:
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}:")
            _print_table(value, indent + "  ")
        elif isinstance(value, float | int):
            print(f"{indent}{name:<34}{value:>14,.6g}")
        else:
            print(f"{indent}{name:<34}{value}")


if __name__ == "__main__":
    main()
