"""A stand-in for router and shards: one ROUTER loop that speaks the protocol, in a thread.

Just enough of a job queue for the client's and the worker's tests. `script` lets a test
answer differently: it gets (header, body) and returns None (behave), DROP, or a
(status, body).
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from pyq.errors import Status
from pyq.ids import slot_of_id
from pyq.routes import shard_of, slot_of
from pyq.wire import ALL_SHARDS, Header, Verb, pack_body, pack_header, unpack_body, unpack_header

DROP = object()
Script = Callable[[Header, Any], Any]


class FakeJob:
    """One job, in the simplest form that tells the truth."""

    def __init__(self, queue: str, item: Any) -> None:
        self.id, self.name, self.payload, self.options = item
        self.queue = queue
        self.state = "waiting"
        self.token = b""
        self.attempt = 0
        self.failures = 0
        self.releases = 0
        self.leases = 0
        self.result: bytes | None = None
        self.error = ""
        self.fail: Any = None
        self.progress: bytes | None = None
        self.attempts = (self.options or {}).get("attempts", 3)
        self.timeout_ms = (self.options or {}).get("timeout_ms", 0)
        self.job_id = (self.options or {}).get("job_id", "")

    def lease(self) -> list[Any]:
        self.state = "active"
        self.attempt += 1
        self.leases += 1
        self.token = os.urandom(20)
        return [
            self.id, self.token, self.attempt, self.name, self.payload, self.failures,
            self.attempts, self.timeout_ms, 1_000, self.job_id or None, self.leases,
        ]  # fmt: skip

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id, "job_id": self.job_id or None, "queue": self.queue, "name": self.name,
            "state": self.state, "created_at": int.from_bytes(self.id[:6], "big"), "history": [],
            "progress": self.progress, "payload": self.payload, "result": self.result,
            "failures": self.failures, "error": self.error or None,
        }  # fmt: skip


class FakeCluster:
    """Answers at `url`. `requests` is the log of (verb name, header, body)."""

    def __init__(self, shards: int = 2, url: str = "", log: bool = True) -> None:
        self.shards = shards
        self.script: Script | None = None
        self.jobs: dict[bytes, FakeJob] = {}
        self.waiting: dict[str, deque[FakeJob]] = {}
        self.requests: list[tuple[str, Header, Any]] = []
        self.directives: list[str] = []
        self.incarnation = os.urandom(8)
        self._log = log
        self._parked: list[tuple[float, list[bytes], Header, Any]] = []
        self._waits: list[tuple[float, list[bytes], Header, Any]] = []
        self._context = zmq.Context()
        self._url = url
        self._stop = threading.Event()
        self._open()

    def _open(self) -> None:
        self._stop.clear()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        if self._url:
            self._bind_again()
            self.url = self._url
        else:
            port = self._socket.bind_to_random_port("tcp://127.0.0.1")
            self.url = self._url = f"tcp://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()

    def _bind_again(self) -> None:
        end = time.monotonic() + 5
        while True:
            try:
                self._socket.bind(self._url)
                return
            except zmq.ZMQError:  # the old socket's port is freed in the background
                assert time.monotonic() < end
                time.sleep(0.005)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)
        self._socket.close(0)

    def restart(self) -> None:
        """Come back as a new router that knows nothing of what was outstanding."""
        self.stop()
        self._parked.clear()
        self._waits.clear()
        self.incarnation = os.urandom(8)
        self._open()

    def close(self) -> None:
        self.stop()
        self._context.destroy(0)

    def seen(self, verb: Verb) -> list[tuple[Header, Any]]:
        return [(header, body) for name, header, body in self.requests if name == verb.name]

    # --- the loop -----------------------------------------------------------------------------

    def serve(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(5 if self._parked or self._waits else 50):
                while True:
                    try:
                        frames = self._socket.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    for index in range(1, len(frames) - 1, 2):
                        self._on_request(frames[0], frames[index], frames[index + 1])
            self._expire()

    def _on_request(self, sender: bytes, head: bytes, packed: bytes) -> None:
        header, body = unpack_header(head), unpack_body(packed)
        if self._log:
            self.requests.append((Verb(header.verb).name, header, body))
        if self.script is not None:
            answer = self.script(header, body)
            if answer is DROP:
                return
            if answer is not None:
                self.reply([sender], header, answer[1], status=answer[0])
                return
        if header.slot == ALL_SHARDS:
            self._on_scatter(sender, header, body)
            return
        handler = getattr(self, f"_on_{Verb(header.verb).name.lower()}")
        answer = handler([sender], header, body)
        if answer is not None:
            self.reply([sender], header, answer)

    def _on_scatter(self, sender: bytes, header: Header, body: Any) -> None:
        entries = []
        for shard in range(self.shards):
            answer = getattr(self, f"_on_{Verb(header.verb).name.lower()}")(
                [sender], header, body, shard
            )
            entries.append([shard, Status.OK, 1, pack_body(answer)])
        self.reply([sender], header, entries)

    def reply(self, sender: list[bytes], header: Header, body: Any, status: int = 1) -> None:
        head = pack_header(header.verb, header.request_id, status=status, epoch=1)
        self._socket.send_multipart([*sender, head, pack_body(body)])

    def _expire(self) -> None:
        now = time.monotonic()
        for parked in [entry for entry in self._parked if entry[0] <= now]:
            self._parked.remove(parked)
            self.reply(parked[1], parked[2], [15_000, []])
        for wait in [entry for entry in self._waits if entry[0] <= now]:
            self._waits.remove(wait)
            self.reply(wait[1], wait[2], self._answer_of_wait(wait[2], wait[3]))

    def _answer_of_wait(self, header: Header, body: Any) -> list[Any]:
        if header.verb == Verb.HEARTBEAT:
            return [len(body[0]), [], self.directives]
        job = self.jobs[body[0]]
        return [job.state, job.result, job.error]

    # --- verbs --------------------------------------------------------------------------------

    def _on_ping(self, sender: Any, header: Header, body: Any) -> Any:
        wall_ms = time.time_ns() // 1_000_000
        return ["router", self.incarnation, wall_ms, {"shards": self.shards}]

    def _on_push(self, sender: Any, header: Header, body: Any) -> Any:
        common, items = body
        exceptions = []
        queue = self.waiting.setdefault(header.queue, deque())
        for index, item in enumerate(items):
            job = FakeJob(header.queue, (*item[:3], {**(common or {}), **(item[3] or {})}))
            known = self.jobs.get(job.id) or self._by_custom_id(header.queue, job.job_id)
            if known is not None:
                exceptions.append([index, Status.OK, ["exists", known.id, known.state, False]])
                continue
            self.jobs[job.id] = job
            queue.append(job)
        self._feed()
        return [len(items), exceptions]

    def _by_custom_id(self, queue: str, job_id: str) -> FakeJob | None:
        if not job_id:
            return None
        return next((j for j in self.jobs.values() if (j.queue, j.job_id) == (queue, job_id)), None)

    def _on_pull(self, sender: Any, header: Header, body: Any) -> Any:
        self._parked.append((time.monotonic() + body[3] / 1_000, sender, header, body))
        self._feed()

    def _feed(self) -> None:
        for parked in list(self._parked):
            _, sender, header, body = parked
            groups, left = [], body[2]
            for queue in body[1]:
                waiting = self.waiting.get(queue)
                if waiting and left:
                    jobs = [waiting.popleft().lease() for _ in range(min(left, len(waiting)))]
                    left -= len(jobs)
                    groups.append([queue, jobs])
            if groups:
                self._parked.remove(parked)
                self.reply(sender, header, [body[4], groups])

    def _on_unpull(self, sender: Any, header: Header, body: Any) -> Any:
        before = len(self._parked)
        self._parked = [entry for entry in self._parked if entry[2].request_id != body[0]]
        return [before - len(self._parked)]

    def _settle(self, items: Any, settle: Callable[[FakeJob, Any], None]) -> Any:
        exceptions = []
        for index, item in enumerate(items):
            job = self.jobs.get(item[0])
            if job is None or job.token != item[1] or job.state != "active":
                exceptions.append([index, Status.STALE_TOKEN, "the lease is over"])
                continue
            settle(job, item)
            for wait in [entry for entry in self._waits if entry[3][0] == job.id]:
                if job.state in ("completed", "dead"):
                    self._waits.remove(wait)
                    self.reply(wait[1], wait[2], [job.state, job.result, job.error])
        self._feed()
        return [len(items), exceptions]

    def _on_ack(self, sender: Any, header: Header, body: Any) -> Any:
        def settle(job: FakeJob, item: Any) -> None:
            job.state, job.result = "completed", item[2]

        return self._settle(body[0], settle)

    def _on_fail(self, sender: Any, header: Header, body: Any) -> Any:
        def settle(job: FakeJob, item: Any) -> None:
            job.fail, job.error, job.result = item, item[2], item[4]
            job.failures += 1
            if item[5] or job.failures >= job.attempts:
                job.state = "dead"
                return
            job.state = "waiting"
            self.waiting[job.queue].append(job)

        return self._settle(body[0], settle)

    def _on_release(self, sender: Any, header: Header, body: Any) -> Any:
        def settle(job: FakeJob, item: Any) -> None:
            job.state = "waiting"
            job.attempt -= 1
            job.releases += 1
            self.waiting[job.queue].appendleft(job)

        return self._settle(body[0], settle)

    def _on_progress(self, sender: Any, header: Header, body: Any) -> Any:
        for item in body[0]:
            self.jobs[item[0]].progress = item[2]
        return [len(body[0]), []]

    def _on_extend(self, sender: Any, header: Header, body: Any) -> Any:
        return [len(body[0]), []]

    def _on_heartbeat(self, sender: Any, header: Header, body: Any) -> Any:
        stale = [
            [index, Status.STALE_TOKEN, ""]
            for index, (job_id, token) in enumerate(body[0])
            if job_id not in self.jobs or self.jobs[job_id].token != token
        ]
        if stale or self.directives or not body[2]:
            return [len(body[0]), stale, self.directives]
        self._waits.append((time.monotonic() + body[2] / 1_000, sender, header, body))
        return None

    def _on_result(self, sender: Any, header: Header, body: Any) -> Any:
        job = self.jobs.get(body[0])
        if job is None:
            return ["gone", None, ""]
        if job.state in ("completed", "dead") or not body[1]:
            return [job.state, job.result, job.error]
        self._waits.append((time.monotonic() + body[1] / 1_000, sender, header, body))
        return None

    def _on_get(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        if body[0] is not None:
            return [[job.view() for job in self.jobs.values() if job.id == body[0]]]
        return [[job.view() for job in self._of(shard, header.queue) if job.job_id == body[1]]]

    def _on_list(self, sender: Any, header: Header, body: Any) -> Any:
        state, after, limit, _ = body
        shard = -1 if header.queue else header.slot
        jobs = [job for job in self._of(shard, header.queue) if state in (None, job.state)]
        following = after + limit if after + limit < len(jobs) else None
        return [[job.view() for job in jobs[after : after + limit]], following]

    def _on_counts(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        counts: dict[str, dict[str, int]] = {}
        for job in self._of(shard, header.queue):
            own = counts.setdefault(job.queue, {})
            own[job.state] = own.get(job.state, 0) + 1
        return [list(counts.items()), None]

    def _on_stats(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        return [{"jobs": len(self._of(shard, ""))}]

    def _on_workers(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        return [[[["w1", "host", 7, 2, 5, ["a"]], 1]], None]

    def _on_stop_workers(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        return [1, ["w1"]]

    def _on_goodbye(self, sender: Any, header: Header, body: Any) -> Any:
        return []

    def _of(self, shard: int, queue: str) -> list[FakeJob]:
        return [
            job
            for job in self.jobs.values()
            if (not queue or job.queue == queue)
            and (shard < 0 or shard_of(slot_of_id(job.id), self.shards) == shard)
        ]


def queue_on_shard(shard: int, shards: int, prefix: str = "q") -> str:
    """Return the name of a queue that lives on `shard`."""
    return next(
        f"{prefix}{n}" for n in range(1_000) if shard_of(slot_of(f"{prefix}{n}"), shards) == shard
    )


def eventually(condition: Callable[[], Any], within: float = 10.0) -> Any:
    """Wait until `condition()` is true and return its value; fail after `within` seconds."""
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)
    return value


if __name__ == "__main__":
    FakeCluster(int(sys.argv[2]), sys.argv[1], log=False)
    threading.Event().wait()
