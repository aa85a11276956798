"""The command line: usage errors, one sentence each, exit codes, nothing imported too early."""

import json
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from cluster.cli import commands, main
from cluster.refusals import CommandFailed
from pyq.errors import Busy, JobFailed, NotFound, OutcomeUnknown, PyqError, Unreachable, UsageError


@pytest.fixture
def free_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def said(capsys, arguments: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code and the sentence on stderr."""
    code = main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return code, captured.err.strip()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nonsense"], 2, "no such command 'nonsense'"),
        (["list", "--colour"], 2, "no such option '--colour'"),
        (["list", "--state", "asleep"], 2, "'asleep' is none of active,"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["enqueue", "--id", "job1"], 2, "missing option '--command'"),
        (["enqueue", "--id", "job1", "--command", "  "], 2, "the command is empty"),
        (["show"], 2, "name one job"),
        (["show", "job1", "--id", "job1"], 2, "name one job"),
        (["worker", "start", "--count", "0"], 2, "--count"),
        (["health", "--shard", "-1"], 2, "--shard"),
        (["up", "--fast"], 64, "no such option '--fast'"),
        (["up", "--shards", "3"], 64, "power of two from 1 to 64"),
        (["up", "--bind", "localhost"], 64, "write tcp://HOST:PORT"),
        (["up", "--bind", "tcp://localhost:0"], 64, "write tcp://HOST:PORT"),
        (["run", "shard", "x"], 64, "'x' is not a valid integer"),
    ],
)
def test_usage_errors_are_one_sentence_with_the_right_code(capsys, arguments, code, words):
    found, sentence = said(capsys, arguments)
    assert found == code
    assert words in sentence
    assert len(sentence.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["health"],
        ["status"],
        ["list"],
        ["show", "job1"],
        ["enqueue", "--id", "job1", "--command", "true"],
        ["worker", "stop"],
    ],
)
def test_not_running_is_said_within_a_second_or_so(
    capsys, free_url, tmp_path, monkeypatch, arguments
):
    monkeypatch.setenv("PYQ_DATA", str(tmp_path))
    began = time.monotonic()
    code, sentence = said(capsys, [*arguments, "--url", free_url])
    assert code == 4
    assert free_url in sentence
    assert "pyq-cluster up" in sentence
    assert time.monotonic() - began < 3


def test_another_server_at_the_port_is_told_apart(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        code, sentence = said(capsys, ["health", "--url", url])
    assert code == 4
    assert "something listens at" in sentence


@pytest.mark.parametrize("url", ["nonsense", "tcp://", "tcp://127.0.0.1:99999", "udp://1.2.3.4:5"])
def test_an_address_that_is_none_is_unreachable(capsys, url):
    assert said(capsys, ["health", "--url", url])[0] == 4


def test_down_without_a_cluster(capsys, tmp_path):
    code, sentence = said(capsys, ["down", "--data", str(tmp_path / "none")])
    assert code == 4
    assert "no cluster started with" in sentence


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (NotFound("x"), 3),
        (Unreachable("x"), 4),
        (OutcomeUnknown("x"), 4),
        (Busy("x"), 5),
        (JobFailed("x"), 1),
        (PyqError("x"), 5),
        (CommandFailed(5, "x"), 5),
        (KeyboardInterrupt(), 130),
        (OSError(5, "x"), 1),
    ],
)
def test_every_error_has_its_exit_code(capsys, monkeypatch, error, code):
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("cluster.commands.down.find_holder", fail)
    assert said(capsys, ["down"])[0] == code


def test_help_names_every_command():
    text = CliRunner().invoke(commands, ["--help"]).output
    for name in ("up", "down", "health", "status", "enqueue", "list", "show", "worker", "run"):
        assert f"  {name} " in text


@pytest.mark.parametrize("name", ["up", "down", "health", "status", "enqueue", "list", "show"])
def test_every_command_takes_url_and_data(name):
    names = {option for param in commands.get_command(None, name).params for option in param.opts}
    assert {"--url", "--data"} <= names


def test_the_command_line_imports_nothing_heavy():
    """A script that enqueues shall not wait for a table drawer: start-up is under 120 ms."""
    code = (
        "import sys, json; from cluster.cli import commands;"
        "[commands.get_command(None, name) for name in commands.list_commands(None)];"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    output = subprocess.check_output([sys.executable, "-P", "-c", code])
    loaded = set(json.loads(output))
    assert not loaded & {"psutil", "rich", "structlog", "apsw", "asyncio", "logging", "markdown_it"}
