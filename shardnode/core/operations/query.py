"""GET, LIST, COUNTS, RESULT, PING, STATS: questions that change nothing.

A job's view is a map with fixed names, made here and nowhere else.
"""

from itertools import islice
from typing import Any

from pyq.errors import Status
from pyq.job import COMPLETED, DEAD, JobState, Verdict
from pyq.limits import (
    BATCH_BYTES_MAX,
    MATCHES_MAX,
    PAGE_ENTRIES_MAX,
    PARKED_MAX,
    PAYLOAD_BYTES_MAX,
)
from pyq.messages import (
    WANT_PAYLOAD,
    WANT_RESULT,
    Counts,
    Get,
    List,
    PayloadRef,
    Ping,
    Reply,
    Result,
    ResultRef,
    States,
    Stats,
    batch_answer,
    error_body,
)
from shardnode.core.effects import Effects, Found, Key, Need, Now, Page, Stored, Tombstone
from shardnode.core.operations.removal import not_found
from shardnode.core.queues import waiting_by_priority
from shardnode.core.state import Job, ParkedResult, QueueState, ShardState

_NAMED_MAX = 10  # queues that STATS names
PRIORITIES_MAX = 1_000  # of one queue that COUNTS lists


def get(state: ShardState, command: Get, now: Now, found: Found | None) -> Effects | Need:
    """One job by id, or every match of a custom id."""
    if command.id is not None and not state.owns(command.id):
        return _wrong_shard(state, command)
    live = _live_matches(state, command)
    if found is None and (keys := _get_keys(state, command, live)):
        return Need(keys)
    # A live job has a result only from a failed attempt; nobody knows here how large it is.
    matches = [Stored(job, PAYLOAD_BYTES_MAX if job.failures else None) for job in live]
    for known in (found or {}).values():
        for match in known if isinstance(known, list) else [known]:
            if isinstance(match, Stored) and match.job.id not in state.jobs:
                matches.append(match)
    views: list[dict[str, Any]] = []
    room = BATCH_BYTES_MAX
    for match in matches[:MATCHES_MAX]:
        room -= _weight(match, command.want)
        views.append(view(match, command.want if room >= 0 or not views else 0))
    return Effects(replies=[Reply(command.origin, Status.OK, [views])])


def list_jobs(state: ShardState, command: List, now: Now, found: Found | None) -> Effects | Need:
    """A page of jobs in order of acceptance, straight from the records."""
    number = 0
    if command.queue:
        queue = state.queues.get(command.queue)
        if queue is None:
            return Effects(replies=[Reply(command.origin, Status.OK, [[], None])])
        number = queue.number
    key: Key = (
        "page", number, command.state or 0, command.after, command.limit, command.filters
    )  # fmt: skip
    if found is None:
        return Need([key])
    page = found[key]
    assert isinstance(page, Page)
    views: list[dict[str, Any]] = []
    next_after = page.next_after
    room = BATCH_BYTES_MAX
    for stored in page.jobs:
        room -= _weight(stored, command.want)
        if room < 0 and views:
            break  # the page ends here, lest its reply exceed a frame
        views.append(view(stored, command.want))
        last = stored.job.seq
    if len(views) < len(page.jobs):
        next_after = last
    return Effects(replies=[Reply(command.origin, Status.OK, [views, next_after])])


def counts(state: ShardState, command: Counts, now: Now) -> Effects:
    """Jobs per state, of one queue or of a page of all."""
    next_after = None
    if command.queue:
        queue = state.queues.get(command.queue)
        queues = [queue] if queue is not None else []
    else:
        last = command.after + PAGE_ENTRIES_MAX
        numbers = range(command.after + 1, min(last, state.queues_made) + 1)
        known = [state.queues_by_number.get(number) for number in numbers]
        queues = [queue for queue in known if queue is not None]
        next_after = last if last < state.queues_made else None
    entries = [_count_entry(queue, command.priorities) for queue in queues]
    return Effects(replies=[Reply(command.origin, Status.OK, [entries, next_after])])


def _count_entry(queue: QueueState, priorities: bool) -> list[object]:
    entry: list[object] = [queue.name, {s.word: n for s in JobState if (n := queue.counts[s])}]
    if priorities:
        highest = islice(waiting_by_priority(queue).items(), PRIORITIES_MAX)
        entry.append([[priority, count] for priority, count in highest])
    return entry


def states(state: ShardState, command: States, now: Now, found: Found | None) -> Effects | Need:
    """Where jobs are, item by item."""
    if found is None:
        keys: list[Key] = [
            ("job", job_id) for (job_id,) in command.items if job_id not in state.jobs
        ]
        if keys:
            return Need(keys)
    answers: list[list[object]] = []
    for index, (job_id,) in enumerate(command.items):
        job = state.jobs.get(job_id)
        known = (found or {}).get(("job", job_id))
        if job is not None:
            answers.append([index, Status.OK, job.state.word])
        elif isinstance(known, Stored):
            answers.append([index, Status.OK, known.job.state.word])
        elif isinstance(known, Tombstone):
            answers.append([index, Status.OK, known.verdict.word])
        else:
            answers.append(not_found(state, index, job_id))
    body = batch_answer(len(command.items), answers)
    return Effects(replies=[Reply(command.origin, Status.OK, body)])


def result(state: ShardState, command: Result, now: Now, found: Found | None) -> Effects | Need:
    """How a job ended, and with what; waits for the end, at most `wait_ms`."""
    job = state.jobs.get(command.id)
    if job is None and not state.owns(command.id):
        return _wrong_shard(state, command)
    if job is not None:
        if command.wait_ms == 0 or state.parked_count >= PARKED_MAX:
            return _answer(command, [job.state.word, None, ""])
        parked = ParkedResult(command)
        state.results.setdefault(command.id, []).append(parked)
        state.parked_count += 1
        until = min(now.mono_ms + command.wait_ms, command.origin.deadline_ms)
        state.timers.park(until, parked)
        return Effects()
    if command.id in state.lingering:
        return _answer(command, [COMPLETED.word, state.lingering[command.id], ""])
    if found is None:
        return Need([("job", command.id)])
    known = found.get(("job", command.id))
    if known is None:
        sentence = "no such job, or it was forgotten"
        reply = Reply(command.origin, Status.NOT_FOUND, error_body(sentence))
        return Effects(replies=[reply])
    return _answer(command, _end_of(known))


def expire_result(state: ShardState, parked: ParkedResult, effects: Effects) -> None:
    """The wait is over and the job has not ended: say where it is."""
    parked.done = True
    state.parked_count -= 1
    command = parked.command
    waiting = state.results.get(command.id, [])
    if parked in waiting:
        waiting.remove(parked)
        if not waiting:
            del state.results[command.id]
    job = state.jobs.get(command.id)
    word = job.state.word if job is not None else "removed"
    effects.replies.append(Reply(command.origin, Status.OK, [word, None, ""]))


def ping(state: ShardState, command: Ping, now: Now) -> Effects:
    """I am here, and my loop turns. The shell adds incarnation and pid."""
    body = [
        "shard",
        b"",
        now.wall_ms,
        {"shard": state.shard, "epoch": state.epoch, "disk_low": state.disk_low},
    ]
    return Effects(replies=[Reply(command.origin, Status.OK, body)])


def stats(state: ShardState, command: Stats, now: Now) -> Effects:
    """Numbers of the whole shard. The shell adds those of its loop and file."""
    totals = {s.word: 0 for s in JobState}
    for queue in state.queues.values():
        for s in JobState:
            totals[s.word] += queue.counts[s]
    totals.pop("gone")
    body = {
        "shard": state.shard,
        "epoch": state.epoch,
        "queues_count": len(state.queues),
        "jobs": totals,
        "parked_count": state.parked_count,
        "workers_count": len(state.workers),
        "tombstones_count": state.tombstones_count,
        "disk_low": state.disk_low,
        "dead_over": _over_their_cap(state),
        "events_recorded": state.events.on,
        "schedules_count": sum(not schedule.removed_at for schedule in state.schedules),
        "sweep_in_ms": max(0, state.sweep_at - now.mono_ms),
    }
    return Effects(replies=[Reply(command.origin, Status.OK, [body])])


def _over_their_cap(state: ShardState) -> list[str]:
    """Return some queues with more dead letters than they should have: somebody must look."""
    over = [
        queue.name
        for queue in state.queues.values()
        if queue.counts[DEAD] > queue.settings.dead_max
    ]
    return over[:_NAMED_MAX]


def _weight(stored: Stored, want: int) -> int:
    """Return an upper bound of the bytes that a view takes in a reply."""
    job = stored.job
    detail = job.detail
    options = job.options
    texts = len(job.name) + len(options.job_id) + len(job.queue.name) + len(options.meta)
    texts += len(options.unique) + len(options.group) + sum(map(len, options.tags))
    if detail is not None:
        texts += len(detail.error) + len(detail.traceback) + len(detail.progress)
        texts += sum(len(entry[2]) + 8 for entry in detail.history)
    weight = 1_024 + 4 * texts + 32 * len(options.depends_on)
    if want & WANT_PAYLOAD:
        weight += job.size
    if want & WANT_RESULT:
        weight += stored.result_bytes or 0
    return weight


def view(stored: Stored, want: int) -> dict[str, Any]:
    """Return what is known of a job, by the names of docs/protocol.md."""
    job = stored.job
    lease = job.lease
    detail = job.detail
    ended = job.state in (COMPLETED, DEAD)
    body: dict[str, Any] = {
        "id": job.id,
        "job_id": job.options.job_id or None,
        "queue": job.queue.name,
        "name": job.name,
        "state": job.state.word,
        "priority": job.options.priority,
        "attempts": job.options.attempts,
        "attempt": job.attempt,
        "failures": job.failures,
        "stalls": job.stalls,
        "created_at": job.created_at,
        "run_at": job.run_at or None,
        "updated_at": job.updated_at,
        "worker": lease.grant.worker if lease is not None else None,
        "started_at": lease.grant.granted_at if lease is not None else None,
        "finished_at": job.updated_at if ended else None,
        "timeout_ms": job.options.timeout_ms,
        "expires_at": _expires_at(job),
        "lifo": job.options.lifo,
        "unique": job.options.unique or None,
        "group": job.options.group or None,
        "tags": list(job.options.tags),
        "meta": job.options.meta or None,
        "cancel_requested": job.cancel_requested,
        "depends_on": _dependencies(job),
        "on_dep_fail": job.options.on_dep_fail,
        "error": detail.error if detail and detail.error else None,
        "traceback": detail.traceback if detail and detail.traceback else None,
        "reason": detail.reason if detail and detail.reason else None,
        "history": [list(entry) for entry in detail.history] if detail else [],
        "progress": detail.progress if detail and detail.progress else None,
    }
    if want & WANT_PAYLOAD:
        body["payload"] = PayloadRef(job.seq)
    if want & WANT_RESULT:
        body["result"] = ResultRef(job.seq) if stored.result_bytes is not None else None
    return body


def _dependencies(job: Job) -> list[list[object]]:
    """Return the jobs this one depends on, with a word for how each ended, or `pending`."""
    settled = job.detail.settled if job.detail is not None else b""
    skip = 1 if job.options.gate else 0
    return [
        [dep_id, Verdict(verdict).word if verdict else "pending"]
        for dep_id, verdict in zip(job.options.depends_on, settled[skip:], strict=False)
    ]


def _expires_at(job: Job) -> int | None:
    """Return when a job is given up that was never leased, or None."""
    return job.created_at + job.options.ttl_ms if job.may_expire else None


def _live_matches(state: ShardState, command: Get) -> list[Job]:
    if command.id is not None:
        job = state.jobs.get(command.id)
        return [job] if job is not None else []
    if command.queue:
        queue = state.queues.get(command.queue)
        job = queue.custom.get(command.job_id) if queue is not None else None
        return [job] if job is not None else []
    queues = state.queues.values()
    return [queue.custom[command.job_id] for queue in queues if command.job_id in queue.custom]


def _get_keys(state: ShardState, command: Get, live: list[Job]) -> list[Key]:
    if command.id is not None:
        return [] if live else [("job", command.id)]
    if command.queue:
        queue = state.queues.get(command.queue)
        known = queue is not None and not live
        return [("custom", queue.number, command.job_id)] if known and queue else []
    return [("custom_any", command.job_id)]


def _wrong_shard(state: ShardState, command: Get | Result) -> Effects:
    sentence = f"this job does not live on shard {state.shard}"
    return Effects(replies=[Reply(command.origin, Status.WRONG_SHARD, error_body(sentence))])


def _answer(command: Result, body: list[object]) -> Effects:
    return Effects(replies=[Reply(command.origin, Status.OK, body)])


def _end_of(known: object) -> list[object]:
    """Return the answer for a job that is not in memory."""
    if isinstance(known, Stored):
        job = known.job
        if job.state is COMPLETED:
            value = ResultRef(job.seq) if known.result_bytes is not None else None
            return [job.state.word, value, ""]
        return [job.state.word, None, job.detail.error if job.detail else ""]
    assert isinstance(known, Tombstone)
    word = "result_expired" if known.verdict is Verdict.COMPLETED else known.verdict.word
    return [word, None, ""]
