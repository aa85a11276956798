"""`pyq-cluster enqueue`: a shell command as a job."""

import click

from cluster.commands.options import ignored_data_option, json_option, url_option
from pyq.limits import COMMAND_BYTES_MAX

_BACKOFF_BASE_S = 5  # delay = base x 2^(failures-1), as queue-ctl does it


@click.command()
@click.option("--id", "job_id", required=True, help="Name of the job, unique in its queue.")
@click.option("--command", required=True, help="What to run, as `sh -c` takes it.")
@click.option("--queue", default="default", show_default=True, help="Queue of the job.")
@click.option("--delay", type=click.FloatRange(min=0), default=0.0, help="Start in S seconds.")
@click.option("--priority", type=int, default=0, help="Higher first.")
@click.option(
    "--attempts",
    type=int,
    default=3,
    show_default=True,
    help="Failed runs until it is dead; a lost worker costs none.",
)
@click.option("--timeout", type=click.FloatRange(min=0), default=None, help="End it after S s.")
@json_option
@url_option
@ignored_data_option
def enqueue(
    job_id: str,
    command: str,
    queue: str,
    delay: float,
    priority: int,
    attempts: int,
    timeout: float | None,
    as_json: bool,
    url: str,
) -> None:
    """Add a shell command to a queue."""
    import json

    import pyq

    if not command.strip():
        raise click.BadParameter("the command is empty", param_hint="'--command'")
    if len(command.encode()) > COMMAND_BYTES_MAX:
        sentence = f"{len(command.encode())} bytes are more than {COMMAND_BYTES_MAX}; run a script"
        raise click.BadParameter(sentence, param_hint="'--command'")
    with pyq.connect(url) as client:
        job = client.queue(queue).add(
            "shell",
            {"command": command},
            job_id=job_id,
            delay=delay,
            priority=priority,
            attempts=attempts,
            backoff=pyq.exponential(_BACKOFF_BASE_S, jitter=0.0),
            timeout=timeout,
        )
    if as_json:
        found = {"id": job_id, "uuid": job.id, "queue": queue, "new": not job.deduplicated}
        click.echo(json.dumps(found))
    elif job.forgotten:
        click.echo(
            f"a job {job_id} was in queue {queue} before and is gone, but its name stays taken for"
            " seven days; nothing was added: choose another --id"
        )
    elif job.deduplicated:
        click.echo(f"{job_id} is in queue {queue} already; nothing was added")
    else:
        click.echo(f"added {job_id} to queue {queue}")
