"""Shell commands with real processes: what they write, how they end, what they leave behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cluster.shell.client import Outcome, Runner
from cluster.shell.processes import look_at, members
from pyq.limits import COMMAND_BYTES_MAX, OUTPUT_BYTES_MAX

SOON_S = 5.0  # a deadline for conditions, not a delay: this machine may be busy
TEN_MB = 10 * 1024 * 1024


@pytest.fixture(scope="module")
def shared_runner():
    runner = Runner(environment={"PATH": os.environ["PATH"], "LANG": "C"})
    yield runner
    runner.stop()


@pytest.fixture
def own_runner():
    runner = Runner()
    yield runner
    runner.stop()


@pytest.fixture
def run(shared_runner):
    return shared_runner.run


def until(condition, within_s=SOON_S):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)
    return value


def lives(pid: int) -> bool:
    process = look_at(pid)
    return process is not None and process.alive


def started_in_background(runner, command, **options):
    """Run a command in a thread; return its future and its pid."""
    started: list[int] = []
    pool = ThreadPoolExecutor(1)
    future = pool.submit(runner.run, command, on_started=started.append, **options)
    pool.shutdown(wait=False)
    until(lambda: started or future.done())
    return future, started[0]


def pid_in(file: Path) -> int:
    return int(until(lambda: file.exists() and file.read_text().strip()))


def numbers_in(outcome: Outcome) -> list[int]:
    return [int(word) for word in outcome.output.split()]


# --- the plain ends ------------------------------------------------------------------------


def test_output_error_and_exit_code_are_kept_apart(run):
    outcome = run("echo out; echo err >&2; exit 3")

    assert (outcome.output, outcome.error) == ("out\n", "err\n")
    assert (outcome.exit_code, outcome.signal) == (3, None)


@pytest.mark.parametrize(
    ("command", "exit_code", "signal_number"),
    [
        ("exit 0", 0, None),
        ("exit 137", 137, None),
        ("exit 255", 255, None),
        ("kill -9 $$", None, 9),
        ("kill -SEGV $$", None, 11),
        ("kill -TERM $$", None, 15),
    ],
)
def test_exit_codes_and_signals_are_never_confused(run, command, exit_code, signal_number):
    outcome = run(command)

    assert (outcome.exit_code, outcome.signal) == (exit_code, signal_number)
    assert not outcome.timed_out


def test_a_command_that_does_not_exist_ends_with_127_and_the_shells_own_words(run):
    outcome = run("nosuchcommand --flag")

    assert outcome.exit_code == 127
    assert "nosuchcommand: not found" in outcome.error


def test_a_file_without_the_x_bit_ends_with_126(run, tmp_path):
    (tmp_path / "script").write_text("echo no")

    assert run(str(tmp_path / "script")).exit_code == 126
    assert run("", argv=[str(tmp_path / "script")]).exit_code == 126


def test_a_program_that_does_not_exist_ends_like_a_command_that_does_not(run):
    outcome = run("", argv=["nosuchprogram"])

    assert outcome.exit_code == 127
    assert outcome.error == "nosuchprogram: No such file or directory"


def test_a_folder_that_does_not_exist_is_named(run):
    outcome = run("echo hi", cwd="/no/such/folder")

    assert (outcome.exit_code, outcome.signal) == (None, None)
    assert (
        outcome.failure
        == "the folder '/no/such/folder' cannot be entered: No such file or directory"
    )


def test_argv_runs_without_a_shell(run):
    assert run("", argv=["echo", "$HOME; *", "", "b"]).output == "$HOME; *  b\n"


def test_folder_and_environment_are_the_jobs(run, tmp_path):
    outcome = run("pwd; echo $A; echo ${B-unset}", cwd=str(tmp_path), env={"A": "grün"})

    assert outcome.output == f"{tmp_path}\ngrün\nunset\n"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("""echo "a  b" 'c"d' \\$HOME""", 'a  b c"d $HOME\n'),
        ("cat <<END\nline one\nline 'two'\nEND\n", "line one\nline 'two'\n"),
        ("echo ünï😀", "ünï😀\n"),
        ("-n 2>/dev/null || echo not an option", "not an option\n"),
        ("# " + "x" * (COMMAND_BYTES_MAX - 10) + "\necho", "\n"),
    ],
)
def test_a_command_arrives_as_it_was_written(run, command, output):
    assert run(command).output == output


# --- output --------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["", ">&2"])
def test_ten_megabytes_are_cut_in_the_middle_with_a_mark(run, to):
    outcome = run(f"(echo first; yes 0123456789 | head -c {TEN_MB}; echo; echo last) {to}")

    text = outcome.error if to else outcome.output
    cut = outcome.error_cut_bytes if to else outcome.output_cut_bytes
    assert outcome.exit_code == 0
    assert text.startswith("first\n0123456789\n")
    assert text.endswith("\nlast\n")
    assert cut == TEN_MB + len("first\n\nlast\n") - OUTPUT_BYTES_MAX
    mark = f"\n[... {cut} bytes cut ...]\n"
    assert mark in text
    assert len(text) == OUTPUT_BYTES_MAX + len(mark)


def test_ten_megabytes_without_a_newline_to_both_streams_at_once(run):
    outcome = run(f"head -c {TEN_MB} /dev/zero & head -c {TEN_MB} /dev/zero >&2; wait")

    assert outcome.exit_code == 0
    assert outcome.output_cut_bytes == outcome.error_cut_bytes == TEN_MB - OUTPUT_BYTES_MAX
    assert outcome.output.startswith("\0" * 1000)


def test_output_of_exactly_the_bound_is_whole(run):
    outcome = run(f"head -c {OUTPUT_BYTES_MAX} /dev/zero")

    assert (len(outcome.output), outcome.output_cut_bytes) == (OUTPUT_BYTES_MAX, 0)


def test_the_runner_does_not_hold_what_it_cuts(own_runner):
    own_runner.run("true")
    runner = psutil.Process(own_runner.pid)
    before = runner.memory_info().rss

    own_runner.run("head -c 100000000 /dev/zero")

    assert runner.memory_info().rss - before < 16 * 1024 * 1024


def test_bytes_that_are_not_utf8_survive_escaped(run):
    outcome = run(r"printf '\377\376\300abc'; printf 'g\303\274' >&2")

    assert outcome.output == r"\xff\xfe\xc0abc"
    assert outcome.error == "gü"
    assert outcome.escaped == ("output",)
    assert outcome.exit_code == 0


def test_nul_bytes_survive(run):
    assert run(r"printf 'a\000b'").output == "a\0b"


def test_a_command_that_closes_its_output_is_waited_for(run):
    outcome = run("exec >&- 2>&-; sleep 0.1; exit 4")

    assert outcome.exit_code == 4
    assert outcome.duration_ms >= 100


# --- input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output"),
    [("cat", ""), ("read x; echo got:$x", "got:\n"), ("head -c1", "")],
)
def test_a_command_that_reads_gets_the_end_of_file_at_once(run, command, output):
    outcome = run(command, 5_000)

    assert (outcome.output, outcome.exit_code) == (output, 0)


def test_there_is_no_terminal_to_ask_on(run):
    assert run("exec 3</dev/tty").exit_code != 0


def test_a_worker_without_standard_descriptors_runs_commands():
    code = "from cluster.shell.client import Runner; import os\n"
    code += "runner = Runner(); outcome = runner.run('cat; echo hi; echo err >&2', 5_000)\n"
    code += "runner.stop(); os._exit(outcome.output == 'hi\\n' and outcome.error == 'err\\n')"

    done = subprocess.run(["/bin/sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code])

    assert done.returncode == 1


# --- what a command leaves running ---------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("sleep 300 & echo $!", 0),
        ("(sleep 300 & echo $!); exit 3", 3),
        ("sleep 300 >/dev/null 2>&1 & echo $!", 0),
        ("trap '' TERM HUP; sleep 300 & echo $!", 0),
        ("timeout 300 sleep 300 & echo $!", 0),  # makes a process group of its own
    ],
)
def test_a_grandchild_never_holds_up_the_job_and_dies_with_it(run, command, exit_code):
    began = time.monotonic()

    outcome = run(command)

    assert outcome.exit_code == exit_code
    assert outcome.left_count >= 1
    assert time.monotonic() - began < 1.5
    (pid,) = numbers_in(outcome)
    assert not lives(pid)


def test_a_grandchild_that_writes_for_ever_is_cut_off(run):
    outcome = run("yes & exit 0")

    assert outcome.exit_code == 0
    assert outcome.left_count == 1


def test_a_late_line_of_a_grandchild_is_still_heard(run):
    outcome = run("(sleep 0.05; echo late) & echo early")

    assert outcome.output == "early\nlate\n"
    assert outcome.left_count == 0


def test_what_called_setsid_and_was_let_go_is_left_alone(run, tmp_path):
    # The shell's child of & is no group leader, so setsid keeps its pid.
    outcome = run(
        f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' >/dev/null 2>&1 &"
        f"until [ -s {tmp_path}/pid ]; do :; done"
    )

    assert outcome.left_count == 0
    pid = pid_in(tmp_path / "pid")
    try:
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


# --- timeouts ------------------------------------------------------------------------------


def test_a_timeout_ends_the_whole_tree(run, tmp_path):
    file = tmp_path / "pid"
    outcome = run(f"sh -c 'sh -c \"sleep 300 & echo \\$! > {file}; wait; true\" & wait'", 200)

    assert outcome.timed_out
    assert (outcome.exit_code, outcome.signal) == (None, 15)
    assert 200 <= outcome.duration_ms < 1_200
    assert not lives(pid_in(file))


def test_a_timeout_reaches_what_left_the_process_group(run, tmp_path):
    file = tmp_path / "pid"
    outcome = run(f"setsid -w sh -c 'echo $$ > {file}; exec sleep 300'; true", 200)

    assert outcome.timed_out
    assert not lives(pid_in(file))


def test_a_timeout_reaches_what_left_the_group_and_ignores_sigterm(run, tmp_path):
    file = tmp_path / "pid"
    stubborn = f'trap "" TERM; echo $$ > {file}; while :; do sleep 1; done'
    outcome = run(f"setsid -w sh -c '{stubborn}'; true", 200)

    assert outcome.timed_out
    assert outcome.left_count >= 1
    assert not lives(pid_in(file))


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(run):
    outcome = run("trap '' TERM INT; while :; do sleep 1; done", 100)

    assert outcome.timed_out
    assert outcome.signal == 9
    assert 1_100 <= outcome.duration_ms < 2_000


def test_a_command_may_tidy_up_on_sigterm_and_still_counts_as_timed_out(run):
    outcome = run("trap 'echo tidy; exit 0' TERM; while :; do sleep 0.01; done", 100)

    assert (outcome.exit_code, outcome.output) == (0, "tidy\n")
    assert outcome.timed_out
    assert not outcome.ok


def test_a_command_that_ends_in_time_is_not_timed_out(run):
    assert run("sleep 0.05", 5_000).ok


def test_commands_start_with_signals_as_they_should_be(run):
    ignored = run("grep SigIgn /proc/self/status").output.split()[1]
    blocked = run("grep SigBlk /proc/self/status").output.split()[1]

    assert int(ignored, 16) & 0b1000_0000_0000_0111 == 0  # HUP, INT, QUIT, TERM
    assert int(blocked, 16) == 0


# --- many ----------------------------------------------------------------------------------


def test_a_runner_is_small(own_runner):
    own_runner.run("true")

    loaded = Path(f"/proc/{own_runner.pid}/maps").read_text()
    assert "zmq" not in loaded


def test_many_commands_run_at_once_and_each_gets_its_own_outcome(run):
    began = time.monotonic()

    with ThreadPoolExecutor(40) as pool:
        futures = [pool.submit(run, f"sleep 0.3; echo {n}; exit {n}") for n in range(40)]

    outcomes = [future.result() for future in futures]
    assert [outcome.exit_code for outcome in outcomes] == list(range(40))
    assert [outcome.output for outcome in outcomes] == [f"{n}\n" for n in range(40)]
    assert time.monotonic() - began < 40 * 0.3 / 2


def test_neither_zombies_nor_descriptors_pile_up(own_runner):
    own_runner.run("true")
    runner = psutil.Process(own_runner.pid)
    descriptors = runner.num_fds()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: own_runner.run("(sleep 100 &) ; sleep 100", 50), range(60)))

    assert runner.num_fds() == descriptors
    until(lambda: not runner.children())


def test_orphans_that_end_while_a_command_runs_are_reaped(own_runner):
    future, pid = started_in_background(own_runner, "(true &); (true &); exec sleep 100")

    until(lambda: [child.pid for child in psutil.Process(own_runner.pid).children()] == [pid])
    own_runner.kill(pid)
    assert future.result(SOON_S).signal == 9


# --- deaths --------------------------------------------------------------------------------


def test_kill_ends_one_command_and_no_other(own_runner):
    first, first_pid = started_in_background(own_runner, "sleep 300")
    second, second_pid = started_in_background(own_runner, "sleep 300; true")

    own_runner.kill(first_pid)

    assert first.result(SOON_S).signal == 9
    assert lives(second_pid)
    assert not second.done()


def test_a_command_that_is_not_wanted_any_more_is_killed(own_runner):
    gone = threading.Event()
    future, pid = started_in_background(
        own_runner, "trap '' TERM; sleep 300; true", unwanted=gone.is_set
    )
    assert lives(pid)

    gone.set()

    assert future.result(SOON_S).signal == 9
    assert not lives(pid)


def test_after_kill_9_of_the_runner_its_commands_are_dead_and_the_next_one_runs(
    own_runner, tmp_path
):
    file = tmp_path / "pid"
    command = f"trap '' TERM; timeout 300 sleep 300 & echo $! > {file}; sleep 300"
    future, pid = started_in_background(own_runner, command)
    grandchild = pid_in(file)
    runner_pid = own_runner.pid

    os.kill(runner_pid, signal.SIGKILL)

    outcome = future.result(SOON_S)
    assert not lives(pid)
    assert not lives(grandchild)
    assert outcome.failure == "the runner died (signal:9); the command was killed"
    assert not outcome.ok
    assert own_runner.run("echo again").output == "again\n"
    assert own_runner.pid != runner_pid


def test_a_runner_that_is_stuck_is_killed_some_time_after_the_timeout(own_runner, monkeypatch):
    monkeypatch.setattr("cluster.shell.client.STUCK_AFTER_S", 0.3)
    future, pid = started_in_background(own_runner, "sleep 300", timeout_ms=300)

    os.kill(own_runner.pid, signal.SIGSTOP)

    assert "the runner died" in future.result(SOON_S).failure
    assert not lives(pid)


def test_signals_meant_for_the_worker_do_not_end_the_runner(own_runner):
    future, _ = started_in_background(own_runner, "sleep 0.2; echo done")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(own_runner.pid, number)

    assert future.result(SOON_S).output == "done\n"


def test_stop_kills_what_runs_and_says_it_was_not_the_commands_fault(own_runner):
    future, pid = started_in_background(own_runner, "trap '' TERM; sleep 300")
    runner_pid = own_runner.pid

    own_runner.stop()

    assert future.result(SOON_S).stopped
    assert not lives(pid)
    assert not lives(runner_pid)
    assert own_runner.run("true").stopped


def test_a_failing_on_started_ends_the_command(own_runner):
    pids = []

    def fail(pid):
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_runner.run("sleep 300", on_started=fail)
    until(lambda: not lives(pids[0]))


PARENT = """
import os, sys, threading
from cluster.shell.client import Runner
runner = Runner()
runner.start()
if sys.argv[2] == "child-holds-the-socket" and os.fork() == 0:
    import time; time.sleep(60); os._exit(0)
command = "trap '' TERM HUP; timeout 300 sleep 300 & echo $! $$ > " + sys.argv[1] + "; sleep 300"
runner.run(command)
"""


@pytest.mark.parametrize("how", ["plain", "child-holds-the-socket"])
def test_after_kill_9_of_the_worker_nothing_it_ran_lives_on(tmp_path, how):
    file = tmp_path / "pids"
    worker = subprocess.Popen([sys.executable, "-c", PARENT, str(file), how])
    strays: list[int] = []
    runner_pid = 0
    try:
        pids = [int(word) for word in until(lambda: file.exists() and file.read_text().split())]
        runner_pid = psutil.Process(pids[1]).ppid()
        strays = [child.pid for child in psutil.Process(worker.pid).children()]
        assert runner_pid in strays

        worker.kill()

        until(lambda: not any(lives(pid) for pid in [*pids, runner_pid]), within_s=2)
        assert members({pids[1]}) == []
    finally:
        worker.kill()
        worker.wait()
        for pid in set(strays) - {runner_pid}:
            os.kill(pid, signal.SIGKILL)


def test_a_worker_killed_right_after_the_start_of_its_runner_leaves_no_runner():
    code = "from cluster.shell.client import Runner; import os\n"
    code += (
        "runner = Runner(); runner.start(); print(runner.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    worker = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    until(lambda: not lives(int(worker.stdout)), within_s=2)


def test_starting_from_many_threads_makes_one_runner(own_runner):
    barrier = threading.Barrier(8)

    def runner_of(_):
        barrier.wait()
        return int(own_runner.run("echo $PPID").output)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(runner_of, range(8)))) == 1
