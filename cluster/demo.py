"""`make demo`: a real cluster runs a few hundred shell jobs while you watch.

Starts everything a user would start, in a temporary folder, and checks at the end that the
outcome is what it should be: all done, but for the one job that was made to die.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyq
from cluster.local import LocalCluster

SHARDS = 2
WORKERS = 6
DEADLINE_S = 90.0
LOOK_EVERY_S = 0.5
QUEUES = ("mail", "invoices", "images", "default")  # two on each shard
QUICK_RETRY = [0.5, 1.0]  # seconds before the second and the third run
FINAL = ("completed", "dead")

# One queue's jobs: custom id, shell command, options.
DemoJob = tuple[str, str, dict[str, Any]]


def main() -> int:
    """Run the demo; return 0 if every job ended as it should."""
    started = time.monotonic()
    _say(f"starting a cluster of {SHARDS} shards in a temporary folder ...")
    with LocalCluster(SHARDS) as cluster, pyq.connect(cluster.url) as client:
        _say(f"up at {cluster.url} after {time.monotonic() - started:.1f} s")
        count = sum(_enqueue(client, queue, cluster.folder) for queue in QUEUES)
        _say(f"{count} shell jobs accepted on {len(QUEUES)} queues; starting {WORKERS} workers")
        queues = [word for queue in QUEUES for word in ("--queue", queue)]
        worker = cluster.spawn("worker", "start", "--count", str(WORKERS), *queues)
        try:
            ended = _watch(client, count)
            _say("")
            subprocess.run(cluster.command_line("status"), env=cluster.environment, check=True)
            complaints = list(_check(client, count, ended))
        finally:
            _stop_workers(client, worker)
    for complaint in complaints:
        _say(f"WRONG: {complaint}")
    _say(f"all stopped after {time.monotonic() - started:.1f} s")
    return 1 if complaints else 0


def _jobs(queue: str, folder: Path) -> Iterator[DemoJob]:
    """Yield what a queue has to do: real commands, some of which fail at first."""
    if queue == "mail":
        for n in range(100):
            yield f"mail-{n}", f"echo 'Dear reader {n}, all is well.' | tr a-z A-Z", {}
    elif queue == "invoices":
        for n in range(100):
            yield (
                f"invoice-{n}",
                f"seq 1 {n * 100 + 10} | sort -rn | head -n 3",
                {"priority": n % 3},
            )
    elif queue == "images":
        for n in range(100):
            mark = folder / f"tried-{n}"
            once = f"test -e '{mark}' || {{ touch '{mark}'; echo 'no luck yet' >&2; exit 1; }}; "
            command = f"head -c {n * 1000 + 1} /dev/zero | cksum"
            yield f"image-{n}", (once if n % 10 == 0 else "") + command, {}
    else:
        yield "hello", "echo Hello World", {}
        yield "later", "echo this one waited three seconds", {"delay": 3}
        yield "doomed", "echo 'this can never work' >&2; exit 3", {}


def _enqueue(client: pyq.Client, queue: str, folder: Path) -> int:
    jobs = [
        ("shell", {"command": command}, {"job_id": job_id, "backoff": QUICK_RETRY, **options})
        for job_id, command, options in _jobs(queue, folder)
    ]
    return len(client.queue(queue).add_bulk(jobs))


def _watch(client: pyq.Client, count: int) -> int:
    """Show progress until every job has ended; return how many did."""
    deadline = time.monotonic() + DEADLINE_S
    shown = ""
    while True:
        totals = _totals(client)
        ended = sum(totals.get(state, 0) for state in FINAL)
        line = _progress_line(totals, ended, count)
        if line != shown:
            _say(line, end="\r" if sys.stdout.isatty() else "\n")
            shown = line
        if ended == count or time.monotonic() > deadline:
            return ended
        time.sleep(LOOK_EVERY_S)


def _progress_line(totals: dict[str, int], ended: int, count: int) -> str:
    width = 30
    bar = ("#" * (width * ended // count)).ljust(width, ".")
    states = ("waiting", "delayed", "active", "completed", "dead")
    numbers = "  ".join(f"{state} {totals.get(state, 0):>3}" for state in states)
    return f"[{bar}] {ended:>3}/{count}  {numbers}"


def _totals(client: pyq.Client) -> dict[str, int]:
    totals: dict[str, int] = {}
    for counts in client.counts().values():
        for state, number in counts.items():
            totals[state] = totals.get(state, 0) + number
    return totals


def _check(client: pyq.Client, count: int, ended: int) -> Iterator[str]:
    """Yield what is not as it should be."""
    totals = _totals(client)
    if ended != count:
        yield f"{count - ended} jobs did not end within {DEADLINE_S:g} s"
    if totals.get("dead", 0) != 1:
        yield f"{totals.get('dead', 0)} jobs are dead, one should be"
    expected = {"hello": 1, "later": 1, "doomed": 3, "image-10": 2}
    for job_id, attempts in expected.items():
        (view,) = client.find(job_id)
        if view["attempt"] != attempts:
            yield f"{job_id} took {view['attempt']} attempts, not {attempts}"
    (later,) = client.find("later")
    if later["started_at"] is not None and later["started_at"] < later["created_at"] + 3_000:
        yield "the delayed job ran early"


def _stop_workers(client: pyq.Client, worker: "subprocess.Popen[bytes]") -> None:
    try:
        client.stop_workers()
        worker.wait(20)
    finally:
        worker.kill()
        worker.wait()


def _say(line: str, end: str = "\n") -> None:
    sys.stdout.write(line + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
