"""Dependencies: who waits for whom, and what the end of a job means to those who wait for it.

A job that others depend on is awaited, wherever it lives. Its record is kept until the last
of them has ended, so that they can read its result. Ends are not passed on at once but in
`settle_fallout`, so that a chain of any length is no recursion and no turn is too long.
"""

from collections.abc import Sequence

from pyq.ids import id_to_text, slot_of_id
from pyq.job import BLOCKED, COMPLETED, DEAD, Verdict
from pyq.limits import ERROR_BYTES_MAX
from pyq.messages import RESOLVE, UNWATCH, WATCH, Row
from pyq.routes import shard_of
from shardnode.core.effects import Effects, Found, Stored, Tombstone
from shardnode.core.mail import post
from shardnode.core.state import Awaited, Ended, Job, ShardState

DONE = int(Verdict.COMPLETED)
UNKNOWN = int(Verdict.REMOVED)  # what is said of a job that nobody knows
_HOPEFUL = bytes((0, DONE))  # has not ended, or as it should


def shard_of_job(state: ShardState, job_id: bytes) -> int:
    """Return the number of the shard on which a job lives."""
    return shard_of(slot_of_id(job_id), state.shards_count)


def await_jobs(state: ShardState, job: Job, dep_ids: Sequence[bytes], effects: Effects) -> None:
    """A live job depends on others from now on."""
    for dep_id in dep_ids:
        awaited = state.awaited.get(dep_id)
        if awaited is None:
            awaited = state.awaited[dep_id] = Awaited()
        awaited.jobs[job.seq] = job
        if not awaited.asked and not state.owns(dep_id):
            ask(state, dep_id, awaited, effects)


def ask(state: ShardState, job_id: bytes, awaited: Awaited, effects: Effects) -> None:
    """The shard of a job shall tell when, or how, it has ended."""
    awaited.asked = True
    post(state, shard_of_job(state, job_id), Row(WATCH, job_id), effects)


def forget_all(state: ShardState, job: Job, effects: Effects) -> None:
    """A job has ended: what it depended on is awaited by one job less."""
    for dep_id in job.options.edges:
        awaited = state.awaited.get(dep_id)
        if awaited is None or awaited.jobs.pop(job.seq, None) is None or awaited.jobs:
            continue
        if not state.owns(dep_id):
            post(state, shard_of_job(state, dep_id), Row(UNWATCH, dep_id), effects)
        if not awaited.shards:
            _let_go(state, dep_id, awaited, effects)


def watch(state: ShardState, job_id: bytes, shard: int, effects: Effects) -> None:
    """Another shard has jobs that depend on this one."""
    awaited = state.awaited.get(job_id)
    if awaited is None:
        awaited = state.awaited[job_id] = Awaited()
    if shard not in awaited.shards:
        awaited.shards[shard] = None
        effects.rare.watchers[job_id, shard] = True


def unwatch(state: ShardState, job_id: bytes, shard: int, effects: Effects) -> None:
    """Another shard has no more jobs that depend on this one."""
    awaited = state.awaited.get(job_id)
    if awaited is None or shard not in awaited.shards:
        return
    del awaited.shards[shard]
    effects.rare.watchers[job_id, shard] = False
    if not awaited.jobs and not awaited.shards:
        _let_go(state, job_id, awaited, effects)


def pin(state: ShardState, job: Job, due: bool) -> None:
    """The record of a completed job is kept for those who depend on it.

    `due`: but for them it would have been forgotten.
    """
    awaited = state.awaited[job.id]
    awaited.seq, awaited.queue = job.seq, job.queue
    state.pinned[job.seq] = due


def pin_completed(state: ShardState, dep_ids: Sequence[bytes], found: Found) -> None:
    """Jobs that are depended on, and have completed before, are kept from now on."""
    for dep_id in dep_ids:
        known = found.get(("job", dep_id))
        if not isinstance(known, Stored) or dep_id not in state.awaited:
            continue
        if known.job.state is COMPLETED and known.job.seq not in state.pinned:
            pin(state, known.job, False)


def unpin(state: ShardState, job: Job) -> bool:
    """The record of a job is needed no more, or becomes another; returns whether it was due."""
    awaited = state.awaited.get(job.id)
    if awaited is not None:
        awaited.seq = 0
    return state.pinned.pop(job.seq, False)


def tell(state: ShardState, job_id: bytes, verdict: int, error: str, effects: Effects) -> None:
    """A job has ended: other shards are told, dependents of this one are settled soon."""
    awaited = state.awaited.get(job_id)
    if awaited is None:
        return
    row = Row(RESOLVE, job_id, verdict, error[: ERROR_BYTES_MAX // 16])
    for shard in awaited.shards:
        post(state, shard, row, effects)
    note_end(state, job_id, verdict, row.error)


def note_end(state: ShardState, job_id: bytes, verdict: int, error: str) -> None:
    """Dependents of this shard are to be settled soon."""
    awaited = state.awaited.get(job_id)
    if awaited is None:
        return
    awaited.asked = False  # who depends on it from now on has to ask again
    if awaited.jobs:
        state.fallout.append(Ended(job_id, verdict, error, [*reversed(awaited.jobs.values())]))


def end_of(known: object) -> tuple[int, str]:
    """Return verdict and error of a job that is not live, given what the store has of it."""
    if isinstance(known, Stored):
        detail = known.job.detail
        error = detail.error[: ERROR_BYTES_MAX // 16] if detail is not None else ""
        return int(known.job.state), error if known.job.state is DEAD else ""
    if isinstance(known, Tombstone) and known.verdict is not Verdict.DEAD:
        return int(known.verdict), ""
    return UNKNOWN, ""  # never there, forgotten, or a dead one that was purged


def take_fallout(state: ShardState, limit: int) -> list[tuple[Job, int, Ended]]:
    """Return at most `limit` of (dependent, place, what it waited for): edges to settle now."""
    edges: list[tuple[Job, int, Ended]] = []
    while state.fallout and len(edges) < limit:
        ended = state.fallout[0]
        while ended.left and len(edges) < limit:
            job = ended.left.pop()
            if job.state is not BLOCKED:
                continue
            place = job.options.edges.index(ended.id)
            if job.need_detail().settled[place] not in (ended.verdict, DONE):
                edges.append((job, place, ended))
        if not ended.left:
            state.fallout.popleft()
    return edges


def ask_again(state: ShardState) -> None:
    """Whatever blocked jobs wait for is to be asked about, in case an answer was missed."""
    seen: set[int] = set()
    for awaited in state.awaited.values():
        for seq, job in awaited.jobs.items():
            if seq in seen or job.state is not BLOCKED:
                continue
            seen.add(seq)
            known = zip(job.options.edges, job.need_detail().settled, strict=True)
            state.unasked.update((dep_id, None) for dep_id, verdict in known if verdict != DONE)


def settle(job: Job, place: int, verdict: int) -> None:
    """Note how the dependency at this place ended."""
    detail = job.need_detail()
    known = bytearray(detail.settled)
    known[place] = verdict
    detail.settled = bytes(known)


def is_released(job: Job) -> bool:
    """True if nothing holds the job back any more."""
    settled = job.need_detail().settled
    if job.options.on_dep_fail != "ignore":
        return settled.count(DONE) == len(settled)
    return 0 not in settled and not (job.options.gate and settled[0] != DONE)


def is_shut_out(job: Job) -> bool:
    """True if the gate of its flow has ended without being opened."""
    return bool(job.options.gate) and job.need_detail().settled[0] not in (0, DONE)


def failure_of(job: Job, error: str = "") -> str | None:
    """Return the sentence about the dependency that makes the job dead, or None."""
    if job.options.on_dep_fail != "fail":
        return None
    settled = job.need_detail().settled
    if not settled.translate(None, _HOPEFUL):
        return None
    for dep_id, verdict in zip(job.options.edges, settled, strict=True):
        if verdict not in (0, DONE):
            word = Verdict(verdict).word
            return f"dependency {id_to_text(dep_id)} is {word}" + (f": {error}" if error else "")
    return None


def _let_go(state: ShardState, job_id: bytes, awaited: Awaited, effects: Effects) -> None:
    """Nobody depends on a job any more: its record is kept as long as any other."""
    del state.awaited[job_id]
    if state.pinned.pop(awaited.seq, False):
        assert awaited.queue is not None
        awaited.queue.counts[COMPLETED] -= 1
        effects.forgotten.append(awaited.seq)
