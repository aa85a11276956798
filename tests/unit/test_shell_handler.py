"""What a worker makes of a shell job, without any process."""

import json
from types import SimpleNamespace

import pytest

from cluster.shell.client import Outcome, kept_environment
from cluster.shell.handler import ShellJob, shell_handler, why_failed
from pyq.limits import COMMAND_BYTES_MAX
from pyq.outcomes import Discard, Failed, Release


class RecordingRunner:
    """Answers with a given outcome and remembers what it was asked."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[tuple] = []

    def run(
        self, command, timeout_ms=0, on_started=None, *, argv=(), env=None, cwd=None, unwanted=None
    ):
        self.unwanted = unwanted
        self.asked.append((command, timeout_ms, argv, env, cwd))
        if on_started is not None:
            on_started(4711)
        return self.outcome


def a_job(data, timeout_ms=0):
    fate = {"lost": False, "released": False, "cancel_requested": False}
    return SimpleNamespace(id="1", data=data, timeout_ms=timeout_ms, **fate)


def handled(outcome, data=None, timeout_ms=0):
    return shell_handler(RecordingRunner(outcome))(a_job(data or {"command": "true"}, timeout_ms))


def test_exit_code_0_is_a_result():
    result = handled(Outcome(0, output="hi\n", duration_ms=12))

    assert result == {
        "exit_code": 0,
        "signal": None,
        "output": "hi\n",
        "error": "",
        "duration_ms": 12,
    }


def test_what_is_unusual_is_named_in_the_result_and_fits_into_json():
    outcome = Outcome(
        0, escaped=("output",), output_cut_bytes=9, error_cut_bytes=8, left_count=2, output="\\xff"
    )

    result = json.loads(json.dumps(handled(outcome)))

    assert result["escaped"] == ["output"]
    assert result["output_cut_bytes"] == 9
    assert result["error_cut_bytes"] == 8
    assert result["left_count"] == 2


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (Outcome(3), "exit code 3"),
        (Outcome(137), "exit code 137"),
        (Outcome(3, error="first\nno such file\n\n"), "exit code 3: no such file"),
        (Outcome(signal=9), "signal:9"),
        (Outcome(signal=15, timed_out=True), "timeout after 5 s"),
        (Outcome(0, timed_out=True), "timeout after 5 s"),
        (Outcome(failure="the runner died (signal:9)"), "the runner died (signal:9)"),
        (Outcome(1, error="a\x1b[31mred\0"), "exit code 1: a [31mred"),
        (Outcome(1, error="y" * 10_000), "exit code 1: " + "y" * 200),
    ],
)
def test_other_ends_fail_with_a_sentence_and_keep_the_result(outcome, sentence):
    with pytest.raises(Failed) as failure:
        handled(outcome, timeout_ms=5_000)

    assert str(failure.value) == sentence
    assert failure.value.result["exit_code"] == outcome.exit_code
    assert failure.value.result["signal"] == outcome.signal


def test_a_timeout_below_a_second_is_named_exactly():
    assert why_failed(Outcome(signal=15, timed_out=True), 250) == "timeout after 0.25 s"


def test_a_command_killed_because_its_worker_stops_is_given_back():
    with pytest.raises(Release):
        handled(Outcome(stopped=True, failure="stopped"))


@pytest.mark.parametrize(("flag", "verdict"), [("lost", Failed), ("released", Release)])
def test_a_command_whose_job_went_elsewhere_is_unwanted(flag, verdict):
    runner = RecordingRunner(Outcome(signal=9))
    job = a_job({"command": "sleep 300"})

    with pytest.raises(Failed, match=r"^signal:9$"):
        shell_handler(runner)(job)
    assert not runner.unwanted()
    setattr(job, flag, True)
    assert runner.unwanted()
    with pytest.raises(verdict):
        shell_handler(runner)(job)


def test_the_runner_gets_what_the_job_says():
    runner = RecordingRunner(Outcome(0))
    started = []
    job = a_job({"argv": ["ls", "-l", ""], "env": {"A": ""}, "cwd": "/tmp"}, timeout_ms=7)

    shell_handler(runner, lambda job, pid: started.append((job, pid)))(job)

    assert runner.asked == [("", 7, ("ls", "-l", ""), {"A": ""}, "/tmp")]
    assert started == [(job, 4711)]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "its data is nothing, not a map with a command"),
        ("echo", "its data is of type str, not a map with a command"),
        ({}, "it has neither a command nor argv"),
        ({"command": ""}, "command is empty"),
        ({"command": "  \n"}, "command is empty"),
        ({"command": 3}, "command is of type int, not a text"),
        ({"command": "a\0b"}, "command contains a NUL, which no command can be given"),
        ({"command": "\ud800"}, "command cannot be written as UTF-8"),
        (
            {"command": "ls", "shell": "zsh"},
            "'shell' is not known; known are command, argv, env, cwd",
        ),
        ({"argv": []}, "argv is not a list of at least one text"),
        ({"argv": "ls"}, "argv is not a list of at least one text"),
        ({"argv": ["ls", 1]}, "an argument in argv is of type int, not a text"),
        ({"argv": ["", "x"]}, "the program in argv is empty"),
        ({"command": "ls", "env": {"A": 1}}, "env is not a map of texts"),
        ({"command": "ls", "env": {"A=B": ""}}, "env has a variable named 'A=B'"),
        ({"command": "ls", "env": ["A"]}, "env is of type list, not a map of texts"),
        ({"command": "ls", "cwd": 1}, "cwd is of type int, not a text"),
    ],
)
def test_a_job_that_is_no_shell_job_is_dead_at_once_with_one_sentence(data, sentence):
    runner = RecordingRunner(Outcome(0))

    with pytest.raises(Discard) as verdict:
        shell_handler(runner)(a_job(data))

    assert str(verdict.value) == f"not a shell job: {sentence}"
    assert runner.asked == []


def test_the_longest_command_is_accepted_and_one_byte_more_is_not():
    longest = "x" * COMMAND_BYTES_MAX

    assert ShellJob.from_data({"command": longest}).command == longest
    with pytest.raises(ValueError, match=r"65537 bytes, the limit is 65536"):
        ShellJob.from_data({"command": longest + "x"})


def test_commands_see_only_the_usual_names_of_the_environment(monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("PYQ_TOKEN", "secret")
    monkeypatch.setenv("WANTED", "yes")

    assert kept_environment()["PATH"] == "/bin"
    assert "PYQ_TOKEN" not in kept_environment()
    assert kept_environment(["WANTED"])["WANTED"] == "yes"
