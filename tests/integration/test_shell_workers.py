"""`run_workers` against a real router and shard: lines, signals, deaths, and what a job keeps."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import pyq
from cluster.shell.processes import look_at

SOON_S = 10.0
START = "import sys; from cluster.shell.workers import run_workers; "


@pytest.fixture(scope="module")
def url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="pyq-") as folder:
        python = [sys.executable, "-P", "-m"]
        shape = ["--runtime", folder, "--shards", "1"]
        (Path(folder) / "data").mkdir()
        shard = [*python, "shardnode", "--shard", "0", "--data", f"{folder}/data", *shape]
        router = [*python, "router", "--bind", address, *shape]
        log = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes = [subprocess.Popen(argv, **log) for argv in (shard, router)]
        try:
            until(lambda: answers(address))
            yield address
        finally:
            for process in processes:
                process.kill()
                process.wait()


@pytest.fixture
def queue(url, request):
    """A queue of this test's own."""
    with pyq.connect(url) as client:
        yield client.queue(request.node.name)


@pytest.fixture
def start(url, queue, tmp_path):
    """Start workers in a process of their own, and end it when the test is over."""
    started = []

    def start_workers(count=1, concurrency=1, grace_s=30.0):
        call = f"run_workers({url!r}, ({queue.name!r},), {count}, {concurrency}, grace_s={grace_s})"
        with open(tmp_path / "lines", "w") as lines:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{START}sys.exit({call})"], stdout=lines
            )
        started.append(process)
        return process

    yield start_workers
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def lines(tmp_path):
    return lambda: (tmp_path / "lines").read_text()


def until(condition, within_s=SOON_S):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
    return value


def answers(address: str) -> bool:
    try:
        with pyq.connect(address) as client:
            client.queue("any").get("nothing")
    except pyq.PyqError:
        return False
    return True


def lives(pid: int) -> bool:
    process = look_at(pid)
    return process is not None and process.alive


def shell(queue, command, **options):
    return queue.add("shell", {"command": command}, **options)


def tell_to_stop(queue, worker_id):
    # A worker is known from its first heartbeat on, which its first job may outrun.
    until(lambda: queue.client.stop_workers(worker_id))


def pid_from(file: Path) -> int:
    return int(until(lambda: file.exists() and file.read_text().strip()))


def test_three_workers_share_jobs_and_each_is_recorded(queue, start, lines):
    jobs = [shell(queue, f"sleep 0.2; echo {n}", job_id=f"job{n}") for n in range(6)]

    process = start(count=3)

    assert [job.result(SOON_S)["output"] for job in jobs] == [f"{n}\n" for n in range(6)]
    host = os.uname().nodename
    workers = {job.view()["worker"] for job in jobs}
    assert workers == {f"{host}-{process.pid}-{index}" for index in (1, 2, 3)}
    first_line = lines().splitlines()[0]
    assert first_line.startswith(f"3 workers on queue {queue.name} at tcp://127.0.0.1:")
    assert f"[{host}-" in lines()
    assert "] job0 started\n" in lines()
    assert "] job0 completed (exit 0, " in lines()


def test_a_failing_command_is_dead_with_its_result(queue, start, lines):
    job = shell(queue, "echo some; echo why >&2; exit 3", job_id="bad", attempts=1)

    start()

    assert job.wait(SOON_S) == "dead"
    view = job.view()
    assert view["error"] == "exit code 3: why"
    assert (view["result"]["exit_code"], view["result"]["output"]) == (3, "some\n")
    assert until(lambda: "] bad failed (exit code 3: why, " in lines())


def test_a_job_that_is_no_shell_job_is_dead_at_once(queue, start):
    job = queue.add("mail", {"to": "a@example.org"}, attempts=5)

    start()

    assert job.wait(SOON_S) == "dead"
    view = job.view()
    assert view["failures"] == 1
    assert view["error"] == (
        "not a shell job: 'to' is not known; known are command, argv, env, cwd"
    )


def test_two_megabytes_of_bytes_that_are_not_utf8_fit_into_a_result(queue, start):
    everything = r"head -c 1048576 /dev/zero | tr '\000' '\377'"
    job = shell(queue, f"{everything}; {everything} >&2")

    start()

    result = job.result(SOON_S)
    assert result["escaped"] == ["output", "error"]
    assert result["output"] == result["error"] == r"\xff" * 1048576


def test_a_command_that_times_out_keeps_its_output_and_its_worker(queue, start):
    slow = shell(queue, "echo begun; sleep 300", timeout=0.3, attempts=1)
    next_one = shell(queue, "echo next")

    start()

    assert slow.wait(SOON_S) == "dead"
    assert slow.view()["error"] == "timeout after 0.3 s"
    assert slow.view()["result"]["output"] == "begun\n"
    assert next_one.result(SOON_S)["output"] == "next\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_running_commands_finish(queue, start, tmp_path, number):
    job = shell(
        queue, f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    )
    waiting = shell(queue, "echo not yet")
    process = start()
    pid_from(tmp_path / "pid")

    process.send_signal(number)
    until(lambda: "stopping" in (tmp_path / "lines").read_text())
    (tmp_path / "go").touch()

    assert process.wait(SOON_S) == 0
    assert job.state == "completed"
    assert waiting.state == "waiting"


def test_when_the_grace_is_over_commands_are_killed_and_given_back(queue, start, tmp_path):
    job = shell(queue, f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 300; true")
    process = start(grace_s=0.2)
    pid = pid_from(tmp_path / "pid")

    process.terminate()

    assert process.wait(SOON_S) == 0
    assert not lives(pid)
    assert (job.state, job.view()["failures"]) == ("waiting", 0)


def test_the_second_signal_kills_commands_and_gives_them_back_now(queue, start, lines, tmp_path):
    job = shell(queue, f"echo $$ > {tmp_path}/pid; sleep 300; true", job_id="long")
    process = start()
    pid = pid_from(tmp_path / "pid")

    process.terminate()
    until(lambda: "stopping" in lines())
    process.terminate()

    assert process.wait(SOON_S) == 0
    assert not lives(pid)
    assert (job.state, job.view()["failures"]) == ("waiting", 0)
    assert "] long given back\n" in lines()


def test_worker_stop_from_elsewhere_ends_the_run(queue, start):
    job = shell(queue, "echo hi")
    process = start(count=2)
    job.result(SOON_S)

    for index in (1, 2):
        tell_to_stop(queue, f"{os.uname().nodename}-{process.pid}-{index}")

    assert process.wait(SOON_S) == 0


def test_worker_stop_gives_back_what_does_not_end_within_the_grace(queue, start, tmp_path):
    job = shell(queue, f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 300; true")
    process = start(grace_s=0.2)
    pid = pid_from(tmp_path / "pid")

    tell_to_stop(queue, job.view()["worker"])

    assert process.wait(SOON_S) == 0
    assert not lives(pid)
    assert (job.state, job.view()["failures"]) == ("waiting", 0)


def test_workers_wait_for_a_cluster_that_is_not_there_and_can_be_stopped(lines, tmp_path):
    call = "run_workers('tcp://127.0.0.1:9', ['q'], 1)"
    with open(tmp_path / "lines", "w") as file:
        process = subprocess.Popen([sys.executable, "-c", f"{START}sys.exit({call})"], stdout=file)
    until(lambda: "1 worker on queue q" in lines())

    process.terminate()

    assert process.wait(SOON_S) == 0


def test_after_kill_9_of_the_workers_their_commands_are_dead(queue, start, tmp_path):
    shell(queue, f"trap '' TERM; sleep 300 & echo $! > {tmp_path}/pid; wait")
    process = start()
    pid = pid_from(tmp_path / "pid")

    process.kill()

    until(lambda: not lives(pid), within_s=2)


def test_after_kill_9_of_the_runner_the_attempt_failed_and_the_next_one_runs(
    queue, start, tmp_path
):
    backoff = pyq.Backoff(base_ms=0, jitter=0.0)
    file = tmp_path / "pid"
    command = f"[ -e {file} ] || {{ echo $$ > {file}; sleep 300; }}; echo 2nd"
    job = shell(queue, command, backoff=backoff)
    process = start()
    pid = pid_from(tmp_path / "pid")
    (runner,) = psutil.Process(process.pid).children()

    runner.kill()

    assert job.result(SOON_S)["output"] == "2nd\n"
    assert not lives(pid)
    view = job.view()
    assert view["failures"] == 1
    assert view["history"][0][2] == "the runner died (signal:9); the command was killed"


def test_a_reader_that_went_away_stops_no_job(url, queue):
    call = f"run_workers({url!r}, ({queue.name!r},), 1)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{START}sys.exit({call})"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()

    jobs = [shell(queue, f"echo {n}") for n in range(3)]

    try:
        assert [job.result(SOON_S)["output"] for job in jobs] == ["0\n", "1\n", "2\n"]
    finally:
        process.kill()
        process.wait()
