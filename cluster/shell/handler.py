"""What a worker does with a shell job: check its data, run it, say how it ended.

Owns the shape of a shell job's data and of its result. How commands are run is the
runner's business, what a failure costs the shard's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.shell.client import Outcome, Runner
from pyq.limits import COMMAND_BYTES_MAX
from pyq.outcomes import Discard, Failed, Release

LAST_LINE_MAX = 200  # characters of stderr in the one sentence that says why an attempt failed

_KNOWN = ("command", "argv", "env", "cwd")


@dataclass(frozen=True, slots=True)
class ShellJob:
    """What is to be run: `command` under /bin/sh, or `argv` without a shell if it is given."""

    command: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    @classmethod
    def from_data(cls, data: Any) -> "ShellJob":
        """Return the shell job that a job's data describes; raise ValueError with a sentence."""
        if not isinstance(data, Mapping):
            raise ValueError(f"its data is {_kind(data)}, not a map with a command")
        unknown = [name for name in data if name not in _KNOWN]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not known; known are {', '.join(_KNOWN)}")
        command, argv = data.get("command"), data.get("argv")
        if command is None and argv is None:
            raise ValueError("it has neither a command nor argv")
        job = cls(
            "" if command is None else _text(command, "command"),
            () if argv is None else _argv(argv),
            _env(data.get("env")),
            None if data.get("cwd") is None else _text(data["cwd"], "cwd"),
        )
        job._check_length()
        return job

    def _check_length(self) -> None:
        for name, texts in (("command", (self.command,)), ("argv", self.argv)):
            length = sum(len(text.encode()) for text in texts)
            if length > COMMAND_BYTES_MAX:
                raise ValueError(f"{name} has {length} bytes, the limit is {COMMAND_BYTES_MAX}")


def shell_handler(
    runner: Runner, on_started: Callable[[Any, int], None] | None = None
) -> Callable[[Any], dict[str, Any]]:
    """Return a handler for `pyq.Worker` that runs shell jobs with `runner`.

    It returns the result of a command that ended with exit code 0. Other ends raise Failed,
    which keeps the result, too; a job that is no shell job raises Discard. `on_started` is
    told the job and the pid of its command.
    """

    def handle(job: Any) -> dict[str, Any]:
        try:
            wanted = ShellJob.from_data(job.data)
        except ValueError as error:
            raise Discard(f"not a shell job: {error}") from None
        timeout_ms = job.timeout_ms or 0
        outcome = runner.run(
            wanted.command,
            timeout_ms,
            None if on_started is None else lambda pid: on_started(job, pid),
            argv=wanted.argv,
            env=wanted.env,
            cwd=wanted.cwd,
            # Somebody else may run the job by now: never beside us.
            unwanted=lambda: job.lost or job.released or job.cancel_requested,
        )
        if outcome.stopped or job.released:
            raise Release  # the command was killed for no fault of its own
        if job.lost:
            raise Failed("the lease was lost; the command was killed", result=result_of(outcome))
        if outcome.ok:
            return result_of(outcome)
        raise Failed(why_failed(outcome, timeout_ms), result=result_of(outcome))

    return handle


def result_of(outcome: Outcome) -> dict[str, Any]:
    """Return what is kept with the job: text and numbers only, so that it fits into JSON.

    The first five are always there, the others where they say something.
    """
    result: dict[str, Any] = {
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "output": outcome.output,
        "error": outcome.error,
        "duration_ms": outcome.duration_ms,
    }
    extras = {
        "timed_out": outcome.timed_out,
        "output_cut_bytes": outcome.output_cut_bytes,
        "error_cut_bytes": outcome.error_cut_bytes,
        "escaped": list(outcome.escaped),
        "left_count": outcome.left_count,
    }
    return result | {name: value for name, value in extras.items() if value}


def why_failed(outcome: Outcome, timeout_ms: int = 0) -> str:
    """Return the sentence kept as the error of an attempt."""
    if outcome.failure:
        return outcome.failure
    if outcome.timed_out:
        reason = f"timeout after {timeout_ms / 1_000:g} s"
    elif outcome.signal is not None:
        reason = f"signal:{outcome.signal}"
    else:
        reason = f"exit code {outcome.exit_code}"
    last_line = _last_line(outcome.error)
    return f"{reason}: {last_line}" if last_line else reason


def _last_line(text: str) -> str:
    lines = text.rstrip().rsplit("\n", 1)
    line = "".join(char if char.isprintable() else " " for char in lines[-1][-LAST_LINE_MAX:])
    return line.strip()


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_kind(value)}, not a text")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    _check_characters(value, what)
    return value


def _argv(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("argv is not a list of at least one text")
    _text(value[0], "the program in argv")
    for argument in value:
        if not isinstance(argument, str):
            raise ValueError(f"an argument in argv is {_kind(argument)}, not a text")
        _check_characters(argument, "an argument in argv")
    return tuple(value)


def _env(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"env is {_kind(value)}, not a map of texts")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError("env is not a map of texts")
        if not name or "=" in name:
            raise ValueError(f"env has a variable named {name!r}")
        _check_characters(name, "env")
        _check_characters(text, f"env {name}")
    return dict(value)


def _check_characters(text: str, what: str) -> None:
    if "\0" in text:
        raise ValueError(f"{what} contains a NUL, which no command can be given")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be written as UTF-8") from None


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"
