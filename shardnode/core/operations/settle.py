"""ACK, FAIL, RELEASE: how the holder of a lease ends an attempt.

All carry the token. A stale one changes nothing; the repeat of an accepted one is
answered OK, `replayed`. Any of them confirms that a job is cancelled, if that was asked for.
Every batch is answered item by item.
"""

from pyq.errors import Status
from pyq.job import ACTIVE, Verdict
from pyq.messages import Ack, Fail, Release, Reply, batch_answer, error_body
from pyq.wire import Flag
from shardnode.core.effects import Effects, Found, Need, Now, Stored, Tombstone
from shardnode.core.lifecycle import (
    complete,
    end_lease,
    give_back,
    kill,
    note_error,
    remove,
    retry_or_kill,
)
from shardnode.core.state import Job, Lease, LeaseEnd, ShardState

STALE = "the lease of this attempt has ended"
REPLAYED = "replayed"
CANCELLED = "cancelled"
DISK_RETRY_MS = 1_000
_VERDICTS = {LeaseEnd.ACKED: Verdict.COMPLETED, LeaseEnd.FAILED: Verdict.DEAD}
ACKED, HELD, STALLED = LeaseEnd.ACKED, LeaseEnd.HELD, LeaseEnd.STALLED


def ack(state: ShardState, command: Ack, now: Now, found: Found | None) -> Effects | Need:
    """Finished: each job completes, at most once."""
    if found is None and (need := _gone_repeats(state, command)) is not None:
        return need
    if state.disk_low and not _results_fit(state, [item[2] for item in command.items]):
        return _too_full(state, command)
    effects = Effects()
    exceptions: list[list[object]] = []
    done: list[tuple[Job, bytes | None]] = []
    jobs = state.jobs
    for index, (job_id, token, result) in enumerate(command.items):
        job = jobs.get(job_id)
        if job is not None:
            lease = job.lease
            if lease is not None and lease.token == token:
                if job.cancel_requested:
                    exceptions.append(confirm_cancelled(state, index, job, ACKED, now, effects))
                    continue
                if lease.end is HELD or lease.end is STALLED:
                    lease.end = ACKED  # at once: the batch may name the job twice
                    done.append((job, result))
                    continue
                if lease.end is ACKED:
                    exceptions.append([index, Status.OK, REPLAYED])
                    continue
        exceptions.append(_refuse(state, index, job_id, token, ACKED, found, effects))
    complete(state, done, now, effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def fail(state: ShardState, command: Fail, now: Now, found: Found | None) -> Effects | Need:
    """An attempt failed: delayed by the backoff, or dead when failures are used up."""
    if found is None and (need := _gone_repeats(state, command)) is not None:
        return need
    if state.disk_low and not _results_fit(state, [item[4] for item in command.items]):
        return _too_full(state, command)
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, item in enumerate(command.items):
        job_id, token, error, traceback, result, unrecoverable, retry_in_ms = item
        job = state.jobs.get(job_id)
        if job is None or job.lease is None or job.lease.token != token:
            end = LeaseEnd.FAILED
            exceptions.append(_refuse(state, index, job_id, token, end, found, effects))
        elif job.state is not ACTIVE:
            exceptions.append(_repeated(index, job, LeaseEnd.FAILED, token))
        elif job.cancel_requested:
            exceptions.append(confirm_cancelled(state, index, job, LeaseEnd.FAILED, now, effects))
        else:
            if result is not None:
                effects.results[job.seq] = result
            fail_attempt(state, job, error, traceback, unrecoverable, retry_in_ms, now, effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def fail_attempt(
    state: ShardState,
    job: Job,
    error: str,
    traceback: str,
    unrecoverable: bool,
    retry_in_ms: int,
    now: Now,
    effects: Effects,
    end: LeaseEnd = LeaseEnd.FAILED,
) -> None:
    """The present attempt of an active job counts as a failure. `retry_in_ms` -1: by backoff."""
    end_lease(state, job, end)
    if job.cancel_requested:
        remove(state, job, Verdict.CANCELLED, now, effects)
        return
    note_error(job, error, traceback, now)
    job.failures += 1
    if state.events.on:
        state.events.record("failed", now.wall_ms, [job], [[job.attempt, error]])
    if unrecoverable:
        kill(state, job, "unrecoverable", now, effects)
        return
    exhausted = job.failures >= job.options.attempts
    reason = "timeout" if end is LeaseEnd.TIMED_OUT else "exhausted"
    retry_or_kill(state, job, exhausted, reason, job.failures, retry_in_ms, now, effects)


def release(state: ShardState, command: Release, now: Now, found: Found | None) -> Effects | Need:
    """Given back: nothing is charged, and without a delay the place in line is kept."""
    if found is None and (need := _gone_repeats(state, command)) is not None:
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id, token, delay_ms) in enumerate(command.items):
        job = state.jobs.get(job_id)
        if job is None or job.lease is None or job.lease.token != token:
            end = LeaseEnd.RELEASED
            exceptions.append(_refuse(state, index, job_id, token, end, found, effects))
        elif job.state is not ACTIVE:
            exceptions.append(_repeated(index, job, LeaseEnd.RELEASED, token))
        elif job.cancel_requested:
            exceptions.append(confirm_cancelled(state, index, job, LeaseEnd.RELEASED, now, effects))
        else:
            give_back(state, job, delay_ms, now, effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def held(state: ShardState, job_id: bytes, token: bytes) -> tuple[Job, Lease] | None:
    """Return the job and its lease if the token is the one of a lease that is held."""
    job = state.jobs.get(job_id)
    if job is None or job.state is not ACTIVE or job.lease is None or job.lease.token != token:
        return None
    return job, job.lease


def stale(state: ShardState, index: int, job_id: bytes) -> list[object]:
    """Return the answer about a lease that is over, or that never was on this shard."""
    if not state.owns(job_id):
        return [index, Status.WRONG_SHARD, f"this job does not live on shard {state.shard}"]
    return [index, Status.STALE_TOKEN, STALE]


def _results_fit(state: ShardState, results: list[bytes | None]) -> bool:
    """Take the bytes of results out of what a nearly full disk has room for, or refuse."""
    size = sum(len(result) for result in results if result is not None)
    if size > state.disk_room:
        return False
    state.disk_room -= size
    return True


def _too_full(state: ShardState, command: Ack | Fail) -> Effects:
    sentence = f"the disk of shard {state.shard} has no room for these results; free some space"
    body = error_body(sentence, DISK_RETRY_MS)
    return Effects(replies=[Reply(command.origin, Status.BUSY, body)])


def _gone_repeats(state: ShardState, command: Ack | Fail | Release) -> Need | None:
    """Return what a repeat must look up: jobs that left memory, perhaps by its first sending."""
    if not command.origin.flags & Flag.REPEAT:
        return None
    missing = [("job", item[0]) for item in command.items if item[0] not in state.jobs]
    return Need(list(missing)) if missing else None


def _refuse(
    state: ShardState,
    index: int,
    job_id: bytes,
    token: bytes,
    end: LeaseEnd,
    found: Found | None,
    effects: Effects,
) -> list[object]:
    """Return the answer to a token that is not the job's: stale, or seen before."""
    ended = effects.ended.get(job_id)
    if ended is not None:  # by an earlier item of this batch
        answer = _repeated(index, ended, end, token)
        if answer[1] is Status.OK and ended.cancel_requested:
            return [index, Status.OK, CANCELLED]
        return answer
    known = found.get(("job", job_id)) if found else None
    if isinstance(known, Stored):
        return _repeated(index, known.job, end, token)
    if isinstance(known, Tombstone) and known.digest == token[4:12]:
        if known.verdict is _VERDICTS.get(end):
            return [index, Status.OK, REPLAYED]
        if known.verdict is Verdict.CANCELLED:
            return [index, Status.OK, CANCELLED]
    return stale(state, index, job_id)


def confirm_cancelled(
    state: ShardState, index: int, job: Job, end: LeaseEnd, now: Now, effects: Effects
) -> list[object]:
    """The holder of a job that shall be cancelled is done with it, however: the job is gone."""
    end_lease(state, job, end)
    remove(state, job, Verdict.CANCELLED, now, effects)
    return [index, Status.OK, CANCELLED]


def _repeated(index: int, job: Job, end: LeaseEnd, token: bytes) -> list[object]:
    """Return the answer to a token of a job that is not active under it any more."""
    if job.lease is not None and job.lease.token == token and job.lease.end is end:
        return [index, Status.OK, REPLAYED]
    return [index, Status.STALE_TOKEN, STALE]
