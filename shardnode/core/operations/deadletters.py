"""RETRY: a dead letter becomes a waiting job again, as if it had never run.

Its history stays; its error, failures and stalls do not count any more.
"""

from pyq.errors import Status
from pyq.job import DEAD, LEGAL, WAITING
from pyq.messages import Reply, Retry, batch_answer
from pyq.wire import Flag
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored
from shardnode.core.lifecycle import wake
from shardnode.core.operations.removal import not_found
from shardnode.core.state import Job, ShardState


def retry(state: ShardState, command: Retry, now: Now, found: Found | None) -> Effects | Need:
    """Give dead jobs a fresh start; an answer per job, in order."""
    if found is None:
        keys: list[Key] = [
            ("job", job_id) for (job_id,) in command.items if job_id not in state.jobs
        ]
        if keys:
            return Need(keys)
        found = {}
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id,) in enumerate(command.items):
        live = state.jobs.get(job_id)
        if live is not None:
            again = ["again", live.state.word]  # a repeat, or named twice: it is alive already
            exceptions.append([index, Status.OK, again])
            continue
        known = found.get(("job", job_id))
        if not isinstance(known, Stored):
            exceptions.append(not_found(state, index, job_id))
        elif known.job.state is not DEAD and command.origin.flags & Flag.REPEAT:
            exceptions.append([index, Status.OK, ["again", known.job.state.word]])
        elif known.job.state is not DEAD:
            sentence = f"the job is {known.job.state.word}; only dead jobs are retried"
            exceptions.append([index, Status.CONFLICT, sentence])
        else:
            _revive(state, known.job, now, effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def _revive(state: ShardState, job: Job, now: Now, effects: Effects) -> None:
    assert LEGAL[DEAD][WAITING]
    queue = job.queue
    del queue.dead[job.seq]
    queue.counts[DEAD] -= 1
    queue.counts[WAITING] += 1
    job.state = WAITING
    job.run_at = 0
    job.attempt = job.failures = job.stalls = 0
    job.ready = state.next_number()
    job.updated_at = now.wall_ms
    detail = job.need_detail()
    detail.reason = detail.error = detail.traceback = ""
    state.jobs[job.id] = job
    if job.options.job_id:
        queue.custom[job.options.job_id] = job
    else:
        state.tombstones_count -= 1
    queue.line.add([job])
    effects.changed[job.seq] = job
    effects.results[job.seq] = None
    effects.revived.append(job.id)
    wake(state, job)
