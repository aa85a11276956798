"""What of the cases needs processes, sockets or the command line."""

import threading
import time

import pytest

import pyq
from pyq.ids import id_to_text
from pyq.limits import ERROR_BYTES_MAX, MIB
from tests.cases.adapter import Live
from tests.cases.test_cases_of_payloads_and_names import HOSTILE_IDS, IDS
from tests.cases.test_cases_of_time_and_order import batch_of

pytestmark = pytest.mark.slow

SOON_S = 10


@pytest.fixture
def client(live: Live):
    with pyq.connect(live.cluster.url, timeout=SOON_S) as client:
        yield client


def test_c13_a_batch_is_known_after_a_kill_of_everything(live: Live) -> None:
    """Custom ids are on disk: after a kill -9 of the whole cluster nothing is added twice."""
    queue = live.queue()
    first = live.push_many(queue, batch_of("restore", 500))
    live.ack_many([(lease, None) for lease in live.pull(queue, 200)])
    counts = live.counts(queue)
    live.kill_all()
    again = live.push_many(queue, batch_of("restore", 500))

    assert [pushed.id for pushed in again] == [pushed.id for pushed in first]
    states = ["completed"] * 200 + ["waiting"] * 300
    assert [(pushed.deduplicated, pushed.state) for pushed in again] == [(True, s) for s in states]
    assert live.counts(queue) == counts == {"completed": 200, "waiting": 300}


def test_c31_a_handler_that_holds_the_interpreter_does_not_lose_its_lease(
    live: Live, client: pyq.Client
) -> None:
    """The library's heartbeats do not depend on handlers: jobs longer than the lease run once."""
    queue = client.queue(live.queue())
    lease_s = 0.6

    def handler(job: pyq.JobContext) -> int:
        end = time.monotonic() + 2 * lease_s
        spins = 0
        while time.monotonic() < end:
            spins += 1
        return job.data

    jobs = [queue.add("spin", n) for n in range(3)]
    worker = pyq.Worker(
        queue.name, handler=handler, url=live.cluster.url, concurrency=3, lease=lease_s
    )
    with worker:
        assert [job.result(timeout=SOON_S) for job in jobs] == [0, 1, 2]
    assert [(view["attempt"], view["stalls"]) for view in queue.jobs()] == [(1, 0)] * 3


@pytest.mark.parametrize("text", ["a\x00b", "\x00", "\x00" * MIB], ids=["one", "alone", "MiB"])
def test_c35_a_nul_in_an_error_does_not_stop_the_failure(
    live: Live, client: pyq.Client, text: str
) -> None:
    """The library cuts an error text to its bound, and the job fails like any other."""
    queue = client.queue(live.queue())

    def handler(job: pyq.JobContext) -> None:
        raise ValueError(text)

    job = queue.add("fails", attempts=1)
    with pyq.Worker(queue.name, handler=handler, url=live.cluster.url):
        assert job.wait(timeout=SOON_S) == "dead"
    error = job.view()["error"]
    assert len(error) <= ERROR_BYTES_MAX
    assert error.startswith(f"ValueError: {text}"[:1_000])
    code, shown = live.cli("show", "--id", job.id)
    assert code == 0
    assert "\x00" not in shown, "escaped for people"


def test_c35_a_nul_in_the_output_of_a_command_is_kept(live: Live, client: pyq.Client) -> None:
    """The output of a command is kept byte for byte and shown escaped."""
    queue = client.queue(live.queue())
    code, _ = live.cli(
        "enqueue", "--id", "nul", "--queue", queue.name, "--command", r"printf 'a\0b'"
    )
    assert code == 0
    job = queue.get("nul")
    with live.shell_worker(queue.name):
        assert job.result(timeout=SOON_S)["output"] == "a\x00b"
    code, shown = live.cli("show", "--queue", queue.name, "--id", "nul")
    assert code == 0
    assert r"a\x00b" in shown
    assert "\x00" not in shown


@pytest.mark.parametrize("job_id", IDS + HOSTILE_IDS)
def test_c38_the_command_line_addresses_exactly_that_job(live: Live, job_id: str) -> None:
    """Show, retry and cancel find a job by any id, `--` ends the options, no file is touched."""
    queue, other = live.queue(), live.queue()
    live.push(other, job_id=job_id, delay_ms=60_000)
    job = live.push(queue, job_id=job_id, attempts=1).id
    live.fail(live.pull_one(queue))
    here = ("--queue", queue)

    for name in ((f"--id={job_id}",), ("--id", job_id), ("--", job_id)):
        code, shown = live.cli("show", *here, *name)
        assert code == 0
        assert id_to_text(job) in shown
    code, shown = live.cli("dlq", "retry", *here, "--", job_id)
    assert (code, shown) == (0, "1 job waiting again\n")
    assert live.get(job)["state"] == "waiting"
    assert live.cli("cancel", *here, "--id", job_id)[0] == 0
    assert live.get(job) is None
    assert live.counts(other) == {"delayed": 1}, "its namesake is left alone"
    assert live.cli("cancel", "--queue", other, "--", job_id)[0] == 0
    assert live.counts(other) == {}


def test_c39_no_file_is_named_after_a_queue(live: Live) -> None:
    """Names of queues and ids of jobs stay in the records."""
    names = ["..", "../../queue-that-escapes", "q/1", "*", "\x1b[31m"]
    for name in names:
        live.push(name, job_id="../../id-that-escapes")
        assert live.counts(name) == {"waiting": 1}
        assert live.ack(live.pull_one(name)) == "ok"
        live.obliterate(name)
    folder = live.cluster.folder
    assert [*folder.rglob("*escapes*"), *folder.parent.glob("*escapes*")] == []


def test_c40_pullers_on_sockets_get_nothing_while_paused(live: Live) -> None:
    """Eight parked pulls: pause is a fence, whatever is on the wire when it is answered."""
    queue = live.queue()
    for _ in range(10):
        parked = [live.park(queue, wait_ms=5_000, worker=f"w-{n}") for n in range(8)]
        live.pause(queue)
        jobs = [live.push(queue, n, client=f"w-{n}").id for n in range(8)]
        assert live.counts(queue)["waiting"] == 8
        assert all(pull.waits for pull in parked)
        live.resume(queue)
        leases = [lease for pull in parked for lease in answered(pull)]
        assert sorted(lease.id for lease in leases) == sorted(jobs)
        live.ack_many([(lease, None) for lease in leases])


def answered(pull):
    pull.asked.answer()
    return pull.leases


def test_c47_no_wait_hangs(live: Live, client: pyq.Client) -> None:
    """From several threads: push, wait, and each gets its own result."""
    queue = client.queue(live.queue())
    results: dict[int, list[int]] = {}

    def ask(thread: int) -> None:
        results[thread] = [
            queue.add("echo", 100 * thread + n, keep_completed=n % 2 == 0).result(timeout=SOON_S)
            for n in range(25)
        ]

    with pyq.Worker(queue.name, handler=lambda job: job.data, url=live.cluster.url):
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {thread: [100 * thread + n for n in range(25)] for thread in range(4)}
