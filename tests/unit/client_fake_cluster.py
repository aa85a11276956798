"""A stand-in for router and shards: one ROUTER loop that speaks the protocol, in a thread.

Just enough of a job queue for the client's and the worker's tests. What arrives is read by
the shard's own parser first, so a body of the wrong shape is refused as a shard would.
`script` lets a test answer differently: it gets (header, body) and returns None (behave),
DROP, or a (status, body).
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from pyq.errors import BadOption, Status
from pyq.ids import slot_of_id
from pyq.messages import Origin
from pyq.parsing import parse
from pyq.routes import shard_of, slot_of
from pyq.settings import DEFAULT_SETTINGS, SETTING_NAMES, check_settings
from pyq.wire import (
    ALL_SHARDS,
    Header,
    Verb,
    WireError,
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)

DROP = object()
ENDED = ("completed", "dead", "cancelled", "replaced", "removed", "expired")
# Batches of items: the router splits and merges them, the reply is one batch answer.
_SPLIT = (Verb.RETRY, Verb.CANCEL, Verb.PURGE, Verb.PROMOTE, Verb.UPDATE)
Script = Callable[[Header, Any], Any]


class FakeJob:
    """One job, in the simplest form that tells the truth."""

    def __init__(self, queue: str, item: Any) -> None:
        self.id, self.name, self.payload, self.options = item
        self.queue = queue
        self.state = "delayed" if (self.options or {}).get("delay_ms") else "waiting"
        self.token = b""
        self.attempt = 0
        self.failures = 0
        self.releases = 0
        self.leases = 0
        self.result: bytes | None = None
        self.error = ""
        self.fail: Any = None
        self.progress: bytes | None = None
        self.cancel_requested = False
        self.reason: str | None = None
        self.priority = (self.options or {}).get("priority", 0)
        self.lines: list[Any] = []
        self.lines_taken = 0  # of the present lease
        self.attempts = (self.options or {}).get("attempts", 3)
        self.timeout_ms = (self.options or {}).get("timeout_ms", 0)
        self.job_id = (self.options or {}).get("job_id", "")

    def lease(self) -> list[Any]:
        self.state = "active"
        self.attempt += 1
        self.leases += 1
        self.lines_taken = 0
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
            "failures": self.failures, "error": self.error or None, "reason": self.reason,
            "tags": (self.options or {}).get("tags", ()), "meta": (self.options or {}).get("meta"),
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
        self.granted_lease_ms = 0  # 0: what was asked for
        self.settings: dict[str, dict[str, Any]] = {}
        self.epochs = [1] * shards
        self.events: list[list[Any]] = [[] for _ in range(shards)]
        self.page = 2  # jobs that one page of a removal takes
        self.incarnation = os.urandom(8)
        self._log = log
        self._told: set[bytes] = set()  # tokens whose holders know of the cancel request
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
        try:
            parse(header, Origin(header.request_id), body)
        except WireError as error:
            self.reply([sender], header, [str(error), 0], status=error.status)
            return
        if self.script is not None:
            answer = self.script(header, body)
            if answer is DROP:
                return
            if answer is not None:
                self.reply([sender], header, answer[1], status=answer[0])
                return
        if header.slot == ALL_SHARDS and header.verb not in _SPLIT:
            self._on_scatter(sender, header, body)
            return
        handler = getattr(self, f"_on_{Verb(header.verb).name.lower()}")
        answer = handler([sender], header, body)
        if isinstance(answer, Refusal):
            self.reply([sender], header, [answer.sentence, 0], status=answer.status)
        elif answer is not None:
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
        for wait in [entry for entry in self._waits if entry[2].verb == Verb.EVENTS]:
            answer = self._events_after(wait[2], wait[3])
            if answer[2] or answer[3]:
                self._waits.remove(wait)
                self.reply(wait[1], wait[2], answer)
        for wait in [entry for entry in self._waits if entry[0] <= now]:
            self._waits.remove(wait)
            self.reply(wait[1], wait[2], self._answer_of_wait(wait[2], wait[3]))

    def _answer_of_wait(self, header: Header, body: Any) -> list[Any]:
        if header.verb == Verb.HEARTBEAT:
            return [len(body[0]), self._cancels(body[0]), self.directives]
        if header.verb == Verb.EVENTS:
            return self._events_after(header, body)
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
            known = known or self._holder(header.queue, job.options)
            if known is not None:
                exceptions.append([index, Status.OK, ["exists", known.id, known.state, False]])
                continue
            self.jobs[job.id] = job
            if job.state == "waiting":
                queue.append(job)
        self._feed()
        return [len(items), exceptions]

    def _by_custom_id(self, queue: str, job_id: str) -> FakeJob | None:
        if not job_id:
            return None
        return next((j for j in self.jobs.values() if (j.queue, j.job_id) == (queue, job_id)), None)

    def _holder(self, queue: str, options: dict[str, Any]) -> FakeJob | None:
        """Return the live job that holds the key; one that is replaced holds it no longer."""
        for job in self._of(-1, queue):
            if not options.get("unique") or job.options.get("unique") != options["unique"]:
                continue
            if job.state in ENDED:
                continue
            if options.get("on_conflict") != "replace" or job.state == "active":
                return job
            self._end(job, "replaced")
        return None

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
                self.reply(sender, header, [self.granted_lease_ms or body[4], groups])

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
            if job.cancel_requested:
                self._end(job, "cancelled")
                exceptions.append([index, Status.OK, "cancelled"])
                continue
            settle(job, item)
            if job.state in ENDED:
                self._end(job, job.state)
        self._feed()
        return [len(items), exceptions]

    def _end(self, job: FakeJob, state: str) -> None:
        """Let a job end and tell whoever waits for it."""
        job.state = state
        if job in self.waiting.get(job.queue, ()):
            self.waiting[job.queue].remove(job)
        for wait in [entry for entry in self._waits if entry[3][0] == job.id]:
            self._waits.remove(wait)
            self.reply(wait[1], wait[2], [job.state, job.result, job.error])

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
                job.reason = "unrecoverable" if item[5] else "exhausted"
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
        cancels = self._cancels(body[0])
        news = [item for item in cancels if body[0][item[0]][1] not in self._told]
        self._told |= {body[0][item[0]][1] for item in cancels}
        if stale or self.directives or news or not body[2]:
            return [len(body[0]), stale + cancels, self.directives]
        self._waits.append((time.monotonic() + body[2] / 1_000, sender, header, body))
        return None

    def _cancels(self, items: Any) -> list[Any]:
        return [
            [index, Status.OK, "cancel_requested"]
            for index, (job_id, token) in enumerate(items)
            if job_id in self.jobs
            and self.jobs[job_id].token == token
            and self.jobs[job_id].cancel_requested
        ]

    def _on_result(self, sender: Any, header: Header, body: Any) -> Any:
        job = self.jobs.get(body[0])
        if job is None:
            return ["gone", None, ""]
        if job.state in ENDED or not body[1]:
            return [job.state, job.result, job.error]
        self._waits.append((time.monotonic() + body[1] / 1_000, sender, header, body))
        return None

    def _on_get(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        if body[0] is not None:
            return [[job.view() for job in self.jobs.values() if job.id == body[0]]]
        return [[job.view() for job in self._of(shard, header.queue) if job.job_id == body[1]]]

    def _on_list(self, sender: Any, header: Header, body: Any) -> Any:
        state, after, limit, _, *more = body
        shard = -1 if header.queue else header.slot
        # By place in the whole list, whatever became of the jobs before it.
        everything = self._of(shard, header.queue)
        jobs = [
            (place, job)
            for place, job in enumerate(everything, 1)
            if place > after and state in (None, job.state) and _fits(job, *more)
        ]
        following = jobs[limit - 1][0] if len(jobs) > limit else None
        return [[job.view() for _, job in jobs[:limit]], following]

    def _on_counts(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        counts: dict[str, dict[str, int]] = {}
        priorities: dict[str, dict[int, int]] = {}
        for job in self._of(shard, header.queue):
            own = counts.setdefault(job.queue, {})
            own[job.state] = own.get(job.state, 0) + 1
            waiting = priorities.setdefault(job.queue, {})
            if job.state == "waiting":
                waiting[job.priority] = waiting.get(job.priority, 0) + 1
        if len(body) > 1 and body[1]:
            entries = [[q, counts[q], list(waiting.items())] for q, waiting in priorities.items()]
            return [entries, None]
        return [list(counts.items()), None]

    def _on_stats(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        return [{"jobs": len(self._of(shard, ""))}]

    def _on_workers(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        return [[[["w1", "host", 7, 2, 5, ["a"]], 1]], None]

    def _on_stop_workers(self, sender: Any, header: Header, body: Any, shard: int = -1) -> Any:
        return [1, ["w1"]]

    def _on_goodbye(self, sender: Any, header: Header, body: Any) -> Any:
        return []

    # --- verbs of operators and readers -------------------------------------------------------

    def _each(self, items: Any, change: Callable[[FakeJob, Any], Any]) -> Any:
        """Apply `change` to the job of each item; what it returns is the item's exception."""
        exceptions = []
        for index, item in enumerate(items):
            job = self.jobs.get(item[0])
            refusal = (Status.NOT_FOUND, "no such job") if job is None else change(job, item)
            if refusal is not None:
                exceptions.append([index, *refusal])
        self._feed()
        return [len(items), exceptions]

    def _wait_again(self, job: FakeJob) -> None:
        job.state = "waiting"
        self.waiting.setdefault(job.queue, deque()).append(job)

    def _on_retry(self, sender: Any, header: Header, body: Any) -> Any:
        def retry(job: FakeJob, item: Any) -> Any:
            if job.state not in ("completed", "dead"):
                return Status.OK, ["again", job.state]
            if self._holder(job.queue, {"unique": job.options.get("unique")}):
                return Status.CONFLICT, "another job holds its unique key"
            job.failures = job.attempt = 0
            self._wait_again(job)
            return None

        return self._each(body[0], retry)

    def _on_cancel(self, sender: Any, header: Header, body: Any) -> Any:
        def cancel(job: FakeJob, item: Any) -> Any:
            if job.state == "active":
                job.cancel_requested = True
                self._let_beat()
                return Status.OK, "cancel_requested"
            if job.state in ("completed", "dead"):
                return Status.CONFLICT, f"the job is {job.state}"
            if job.state in ENDED:
                return Status.OK, "gone"
            self._end(job, "cancelled")
            return None

        return self._each(body[0], cancel)

    def _let_beat(self) -> None:
        """Answer the parked heartbeats: their worker shall beat again, and hear of it."""
        for wait in list(self._waits):
            if wait[2].verb == Verb.HEARTBEAT:
                self._waits.remove(wait)
                self.reply(wait[1], wait[2], [len(wait[3][0]), [], ["beat"]])

    def _on_purge(self, sender: Any, header: Header, body: Any) -> Any:
        def purge(job: FakeJob, item: Any) -> Any:
            if job.state != "dead":
                return Status.CONFLICT, f"the job is {job.state}, not dead"
            job.state = "removed"
            return None

        return self._each(body[0], purge)

    def _on_promote(self, sender: Any, header: Header, body: Any) -> Any:
        def promote(job: FakeJob, item: Any) -> Any:
            if job.state in ENDED:
                return Status.CONFLICT, f"the job is {job.state}"
            if job.state != "delayed":
                return Status.OK, ["again", job.state]
            self._wait_again(job)
            return None

        return self._each(body[0], promote)

    def _on_update(self, sender: Any, header: Header, body: Any) -> Any:
        def update(job: FakeJob, item: Any) -> Any:
            if job.state not in ("waiting", "delayed"):
                return Status.CONFLICT, f"the job is {job.state}, not waiting or delayed"
            _, changes, payload = item
            job.options = {**job.options, **(changes or {})}
            job.payload = job.payload if payload is None else payload
            return None

        return self._each(body[0], update)

    def _on_configure(self, sender: Any, header: Header, body: Any) -> Any:
        settings = check_settings(self.settings.get(header.queue, {}), DEFAULT_SETTINGS)
        try:
            settings = check_settings(body[0] or {}, settings)
        except BadOption as error:
            return Refusal(Status.BAD_OPTION, str(error))
        self.settings[header.queue] = settings.to_wire()
        everything = {name: getattr(settings, name) for name in SETTING_NAMES}
        return [{**everything, "defaults": settings.defaults.to_wire() or {}}]

    def _on_pause(self, sender: Any, header: Header, body: Any) -> Any:
        paused, group = body
        settings = self.settings.setdefault(header.queue, {})
        if group is None:
            before, settings["paused"] = settings.get("paused", False), paused
            return [int(before != paused)]
        groups = {*settings.get("paused_groups", ())}
        before = group in groups
        settings["paused_groups"] = sorted(groups | {group} if paused else groups - {group})
        return [int(before != paused)]

    def _removed(self, jobs: list[FakeJob], after: int, limit: int) -> Any:
        """Remove a page of jobs; the cursor only counts pages."""
        page = jobs[: min(limit, self.page)]
        for job in page:
            self._end(job, "removed")
        return [len(page), after + 1 if len(jobs) > len(page) else None]

    def _on_drain(self, sender: Any, header: Header, body: Any) -> Any:
        states = ("waiting", "delayed") if body[0] else ("waiting",)
        jobs = [job for job in self._of(-1, header.queue) if job.state in states]
        return self._removed(jobs, *body[1:])

    def _on_clean(self, sender: Any, header: Header, body: Any) -> Any:
        jobs = [job for job in self._of(-1, header.queue) if job.state == body[0]]
        return self._removed(jobs, *body[2:])

    def _on_obliterate(self, sender: Any, header: Header, body: Any) -> Any:
        jobs = [job for job in self._of(-1, header.queue) if job.state != "removed"]
        if not body[0] and any(job.state == "active" for job in jobs):
            return Refusal(Status.CONFLICT, "jobs are active")
        return self._removed(jobs, *body[1:])

    def _on_dead_stats(self, sender: Any, header: Header, body: Any) -> Any:
        dead = [job for job in self._of(-1, header.queue) if job.state == "dead"]
        reasons = {job.reason for job in dead}
        return [
            len(dead),
            {reason: [sum(job.reason == reason for job in dead), 5, 9] for reason in reasons},
        ]

    def _on_log(self, sender: Any, header: Header, body: Any) -> Any:
        exceptions = []
        for index, (job_id, token, first, lines) in enumerate(body[0]):
            job = self.jobs[job_id]
            if job.token != token or job.state != "active":
                exceptions.append([index, Status.STALE_TOKEN, "the lease is over"])
                continue
            for number, line in enumerate(lines, first):
                if number > job.lines_taken:
                    job.lines_taken = number
                    job.lines.append([len(job.lines) + 1, 1_000, job.attempt, line])
        return [len(body[0]), exceptions]

    def _on_logs(self, sender: Any, header: Header, body: Any) -> Any:
        job_id, after, _ = body
        if job_id not in self.jobs:
            return Refusal(Status.NOT_FOUND, "no such job")
        lines = [line for line in self.jobs[job_id].lines if line[0] > after]
        page = lines[: self.page]
        return [page, page[-1][0] if len(lines) > len(page) else None]

    def emit(self, kind: str, queue: str, detail: Any = None, job: FakeJob | None = None) -> None:
        """Let something happen in a queue, for those who read events."""
        shard = shard_of(slot_of(queue), self.shards)
        own = (None, None) if job is None else (job.id, job.name)
        self.events[shard].append([len(self.events[shard]) + 1, kind, 1_000, queue, *own, detail])

    def _on_events(self, sender: Any, header: Header, body: Any) -> Any:
        answer = self._events_after(header, body)
        if answer[2] or answer[3] or body[1] < 0 or not body[3]:
            return answer
        self._waits.append((time.monotonic() + body[3] / 1_000, sender, header, body))
        return None

    def _events_after(self, header: Header, body: Any) -> Any:
        epoch, after, limit, _ = body
        shard = shard_of(slot_of(header.queue), self.shards) if header.queue else header.slot
        events = self.events[shard]
        if after < 0:
            return [self.epochs[shard], len(events), 0, []]
        missed = 0
        if epoch != self.epochs[shard]:
            missed, after = -1, 0
        elif events and events[0][0] > after + 1:
            missed = events[0][0] - after - 1
        wanted = [e for e in events if e[0] > after and header.queue in ("", e[3])]
        page = wanted[:limit]
        following = page[-1][0] if len(wanted) > len(page) else max(after, len(events))
        return [self.epochs[shard], following, missed, page]

    def _of(self, shard: int, queue: str) -> list[FakeJob]:
        return [
            job
            for job in self.jobs.values()
            if (not queue or job.queue == queue)
            and (shard < 0 or shard_of(slot_of_id(job.id), self.shards) == shard)
        ]


class Refusal:
    """What a handler returns instead of a body: the request is refused as a whole."""

    def __init__(self, status: Status, sentence: str) -> None:
        self.status = status
        self.sentence = sentence


def _fits(job: FakeJob, filters: Any = None) -> bool:
    given = filters or {}
    created_at = int.from_bytes(job.id[:6], "big")
    return (
        given.get("name", job.name) == job.name
        and given.get("reason", job.reason) == job.reason
        and ("tag" not in given or given["tag"] in job.options.get("tags", ()))
        and given.get("group", job.options.get("group")) == job.options.get("group")
        and given.get("since", 0) <= created_at < given.get("until", 1 << 62)
    )


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
