"""`pyq-cluster`: the operator's command line.

Finds and runs one command, and turns whatever goes wrong into one sentence and an exit code.
Each command lives in a module of `cluster.commands` that is imported when it is used.
"""

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import click

from cluster.refusals import CannotStart, CommandFailed
from pyq.errors import JobEnded, NotFound, OutcomeUnknown, PyqError, Unreachable, UsageError
from pyq.process import ExitCode


class CommandExit(IntEnum):
    """Exit codes of commands. `up` and `run` are processes: theirs are `ExitCode`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    REFUSED = 5
    INTERRUPTED = 130


# Command -> module and object in it. The order is that of --help.
_COMMANDS = {
    "up": "up:up",
    "down": "down:down",
    "health": "health:health",
    "status": "status:status",
    "enqueue": "enqueue:enqueue",
    "list": "jobs:list_jobs",
    "show": "jobs:show",
    "cancel": "jobs:cancel",
    "dlq": "dlq:dlq",
    "cron": "cron:cron",
    "worker": "worker:worker",
    "run": "run:run",
}
_PROCESSES = ("up", "run")
_QUICK = ("health", "status", "enqueue", "list", "show", "cancel", "cron")


class _Commands(click.Group):
    """Imports a command when it is asked for: a script waits for no module it does not need."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name].partition(":")
        command: click.Command = getattr(
            importlib.import_module(f"cluster.commands.{module}"), attribute
        )
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyq-cluster", prog_name="pyq-cluster")
def commands() -> None:
    """A sharded job queue that needs no server but itself.

    Start one with `pyq-cluster up`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; one sentence on stderr says what went wrong."""
    names = sys.argv[1:] if arguments is None else arguments
    with _patience(names[0] if names else ""):
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = commands.main(arguments, prog_name="pyq-cluster", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        return _say(error.format_message(), CommandExit.USAGE)
    except click.UsageError as error:
        return _say(_with_help(error), _usage_code(error))
    except click.ClickException as error:
        return _say(error.format_message(), CommandExit.FAILED)
    except (CannotStart, CommandFailed) as error:
        return _say(str(error), error.exit_code)
    except PyqError as error:
        return _say(str(error), _code_of(error))
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", CommandExit.INTERRUPTED)
    except BrokenPipeError:  # `pyq-cluster list | head`: whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CommandExit.DONE
    except OSError as error:
        return _say(str(error), CommandExit.FAILED)
    except Exception as error:
        # Our own mistake. A process of the cluster leaves its traceback in the log.
        if "PYQ_DEBUG" in os.environ or _is_process(arguments):
            raise
        sentence = f"this is a bug ({type(error).__name__}: {error}); PYQ_DEBUG=1 shows where"
        return _say(sentence, CommandExit.FAILED)
    return code if isinstance(code, int) else CommandExit.DONE


def _is_process(arguments: Sequence[str] | None) -> bool:
    given = sys.argv[1:] if arguments is None else arguments
    return bool(given) and given[0] in _PROCESSES


@contextmanager
def _patience(command: str) -> Iterator[None]:
    """Give a sign of life on a terminal when a command waits for the cluster over a second."""
    if command not in _QUICK or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(1.0, _say_waiting)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say_waiting() -> None:
    click.echo("waiting for the cluster ... (Ctrl-C gives up)", err=True)


def _say(sentence: str, code: int) -> int:
    click.echo(sentence if sentence.startswith("Usage") else f"pyq-cluster: {sentence}", err=True)
    return code


def _with_help(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    where = error.ctx.command_path if error.ctx is not None else "pyq-cluster"
    return f"{message[:1].lower()}{message[1:]}; see `{where} --help`"


def _usage_code(error: click.UsageError) -> int:
    names = error.ctx.command_path.split() if error.ctx is not None else []
    return ExitCode.USAGE if len(names) > 1 and names[1] in _PROCESSES else CommandExit.USAGE


def _code_of(error: PyqError) -> int:
    match error:
        case UsageError():
            return CommandExit.USAGE
        case NotFound():
            return CommandExit.NOT_FOUND
        case Unreachable() | OutcomeUnknown():
            return CommandExit.UNREACHABLE
        case JobEnded():
            return CommandExit.FAILED
    return CommandExit.REFUSED


if __name__ == "__main__":
    sys.exit(main())
