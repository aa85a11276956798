"""`pyq-cluster cron`: jobs by the clock."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from cluster.commands.options import ignored_data_option, json_option, url_option
from cluster.refusals import CommandFailed
from pyq.cron import MISFIRE, OVERLAP
from pyq.limits import COMMAND_BYTES_MAX, TICKS_MAX

if TYPE_CHECKING:
    from pyq.durations import Duration

_BACKOFF_BASE_S = 5  # of shell jobs, as `enqueue` gives them
_NOT_FOUND = 3


@click.group()
def cron() -> None:
    """Add jobs by the clock: shell commands, or jobs of your own workers.

    A PATTERN has five fields (minute hour day-of-month month day-of-week), or six with seconds in
    front; @hourly, @daily, @weekly, @monthly and @yearly are known, too.
    """


@cron.command()
@click.argument("name")
@click.argument("pattern", required=False)
@click.option("--every", default=None, metavar="47m", help="An interval instead of a pattern.")
@click.option("--command", default=None, help="What to run, as `sh -c` takes it.")
@click.option("--job", default=None, help="Name of the jobs, for workers of your own.")
@click.option("--payload", default=None, metavar="JSON", help="Data of the jobs, with --job.")
@click.option("--queue", default="default", show_default=True, help="Queue of the jobs.")
@click.option("--zone", default="UTC", show_default=True, help="Time zone of the pattern.")
@click.option("--start", default=None, metavar="2027-01-31T08:00", help="No job before.")
@click.option("--end", default=None, metavar="2027-02-28T08:00", help="No job after.")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="So many jobs in all.")
@click.option(
    "--overlap",
    type=click.Choice(OVERLAP),
    default="skip",
    show_default=True,
    help="While the last job has not ended.",
)
@click.option(
    "--misfire",
    type=click.Choice(MISFIRE),
    default="once",
    show_default=True,
    help="Of what was missed: nothing, the newest, or all.",
)
@click.option("--priority", type=int, default=None, help="Higher first.")
@click.option("--attempts", type=int, default=None, help="Failed runs until a job is dead.")
@click.option("--timeout", type=click.FloatRange(min=0), default=None, help="End a job after S s.")
@json_option
@url_option
@ignored_data_option
def add(
    name: str,
    pattern: str | None,
    every: str | None,
    command: str | None,
    job: str | None,
    payload: str | None,
    queue: str,
    zone: str,
    start: str | None,
    end: str | None,
    limit: int | None,
    overlap: Any,
    misfire: Any,
    priority: int | None,
    attempts: int | None,
    timeout: float | None,
    as_json: bool,
    url: str,
) -> None:
    """Add a schedule, or change the one of this name; the same again changes nothing."""
    import pyq
    from cluster.cron_views import schedule_json, when

    data = _data(command, job, payload)
    not_before, not_after = _moment("--start", start, zone), _moment("--end", end, zone)
    options: Any = {"priority": priority, "attempts": attempts, "timeout": timeout}
    if command is not None:
        job = "shell"
        options["backoff"] = pyq.exponential(_BACKOFF_BASE_S, jitter=0.0)
    with pyq.connect(url) as client:
        outcome, schedule, hints = client.cron.add(
            name,
            pattern,
            queue,
            job,
            data,
            every=None if every is None else _duration(every),
            zone=zone,
            start=not_before,
            end=not_after,
            limit=limit,
            overlap=overlap,
            misfire=misfire,
            **options,
        )
    if as_json:
        click.echo(schedule_json(schedule, outcome=outcome, hints=hints))
        return
    for hint in hints:
        click.echo(f"mind: {hint}", err=True)
    following = when(schedule["next_tick"])
    paused = "; it is paused" if schedule["paused"] else f"; next: {following}"
    click.echo(f"{outcome} {name}{paused}")


@cron.command("list")
@json_option
@url_option
@ignored_data_option
def list_schedules(as_json: bool, url: str) -> None:
    """List all schedules: when they fire next, and what came of them so far."""
    import pyq
    from cluster.cron_views import schedules_json, schedules_table

    with pyq.connect(url) as client:
        schedules = client.cron.list()
    click.echo(schedules_json(schedules) if as_json else schedules_table(schedules))


@cron.command("next")
@click.argument("what", metavar="NAME|PATTERN")
@click.option("-n", "count", type=click.IntRange(1, TICKS_MAX), default=10, show_default=True)
@click.option("--zone", default="UTC", show_default=True, help="Time zone of a pattern.")
@json_option
@url_option
@ignored_data_option
def next_ticks(what: str, count: int, zone: str, as_json: bool, url: str) -> None:
    """Show when a schedule fires next, or would with a pattern (which asks no cluster)."""
    import json

    import pyq
    from pyq.cron import check_cron, step_hints

    if what.startswith("@") or len(what.split()) in (5, 6):
        ticks = pyq.cron_preview(what, count, zone=zone)
        hints = step_hints(check_cron({"pattern": what}).pattern)
    else:
        with pyq.connect(url) as client:
            ticks, hints = client.cron.next(what, count), []
    texts = [tick.isoformat(sep=" ") for tick in ticks]
    for hint in hints:
        click.echo(f"mind: {hint}", err=True)
    click.echo(json.dumps(texts) if as_json else "\n".join(texts) or "never")


@cron.command("run-now")
@click.argument("name")
@json_option
@url_option
@ignored_data_option
def run_now(name: str, as_json: bool, url: str) -> None:
    """Add a job as a tick would, now and beside all ticks."""
    import json

    import pyq

    with pyq.connect(url) as client:
        job = client.cron.run_now(name)
    if as_json:
        click.echo(json.dumps({"uuid": job.id, "queue": job.queue, "new": not job.deduplicated}))
    elif job.deduplicated:
        click.echo(f"job {job.id} is in queue {job.queue} already; nothing was added")
    else:
        click.echo(f"added job {job.id} to queue {job.queue}")


@cron.command()
@click.argument("name")
@url_option
@ignored_data_option
def pause(name: str, url: str) -> None:
    """Let a schedule fire no more until it is resumed."""
    import pyq

    with pyq.connect(url) as client:
        changed = client.cron.pause(name)
    click.echo(f"paused {name}" if changed else f"{name} is paused already")


@cron.command()
@click.argument("name")
@url_option
@ignored_data_option
def resume(name: str, url: str) -> None:
    """Let a schedule go on; what it slept through is not made up for."""
    import pyq
    from cluster.cron_views import when

    with pyq.connect(url) as client:
        changed = client.cron.resume(name)
        following = when(client.cron.get(name)["next_tick"])
    click.echo(f"resumed {name}; next: {following}" if changed else f"{name} is not paused")


@cron.command()
@click.argument("name")
@url_option
@ignored_data_option
def remove(name: str, url: str) -> None:
    """Remove a schedule; its jobs stay."""
    import pyq

    with pyq.connect(url) as client:
        if not client.cron.remove(name):
            raise CommandFailed(_NOT_FOUND, f"there is no schedule {name!r}")
    click.echo(f"removed {name}")


def _data(command: str | None, job: str | None, payload: str | None) -> Any:
    """Return the data of the jobs: of a shell command, or what JSON says."""
    import json

    if (command is None) == (job is None):
        raise click.UsageError("say what to run: --command for a shell command, or --job NAME")
    if command is not None:
        if payload is not None:
            raise click.UsageError("--payload goes with --job; a command is its own payload")
        if not command.strip():
            raise click.BadParameter("the command is empty", param_hint="'--command'")
        if len(command.encode()) > COMMAND_BYTES_MAX:
            sentence = (
                f"{len(command.encode())} bytes are more than {COMMAND_BYTES_MAX}; run a script"
            )
            raise click.BadParameter(sentence, param_hint="'--command'")
        return {"command": command}
    try:
        return None if payload is None else json.loads(payload)
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}", param_hint="'--payload'") from None


def _duration(text: str) -> "Duration":
    """Return a duration as the library takes it: plain numbers are seconds."""
    try:
        return float(text)
    except ValueError:
        return text


def _moment(option: str, text: str | None, zone: str) -> datetime | None:
    """Return a moment; one that names no offset is as clocks in the schedule's zone show it."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        sentence = f"{text!r} is not a moment such as 2027-01-31T08:00 or 2027-01-31T08:00+01:00"
        raise click.BadParameter(sentence, param_hint=f"'{option}'") from None
    if moment.tzinfo is not None:
        return moment
    from pyq.cron import check_cron, zone_of

    return moment.replace(tzinfo=zone_of(check_cron({"pattern": "@daily", "zone": zone}).zone))
