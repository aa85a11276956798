"""CANCEL and PURGE: a job is taken back before it runs, a dead one is forgotten.

Nothing but the tombstone stays. What runs is not touched.
"""

from pyq.errors import Status
from pyq.job import ACTIVE, DEAD, DELAYED, WAITING
from pyq.messages import Cancel, Purge, Reply, batch_answer
from pyq.wire import Flag
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored, Tombstone
from shardnode.core.lifecycle import answer_waiting, remove_dead, remove_waiting
from shardnode.core.state import Job, ShardState

GONE_ALREADY = "gone"  # by the first sending, or an earlier item


def cancel(state: ShardState, command: Cancel, now: Now, found: Found | None) -> Effects | Need:
    """Take back jobs that wait or are delayed; an answer per job, in order."""
    if found is None and (need := _unknown(state, command)) is not None:
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    removed: set[bytes] = set()
    for index, (job_id,) in enumerate(command.items):
        job = state.jobs.get(job_id)
        if job_id in removed:
            exceptions.append([index, Status.OK, GONE_ALREADY])
        elif job is None:
            known = (found or {}).get(("job", job_id))
            exceptions.append(_refusal(state, index, job_id, command, known))
        elif job.state is ACTIVE:
            sentence = "the job is running; a running job cannot be taken back yet"
            exceptions.append([index, Status.CONFLICT, sentence])
        else:
            assert job.state in (WAITING, DELAYED), "only these live and are not active"
            removed.add(job_id)
            remove_waiting(state, job, now, effects)
            answer_waiting(state, job_id, ["cancelled", None, ""], effects)
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def purge(state: ShardState, command: Purge, now: Now, found: Found | None) -> Effects | Need:
    """Forget dead jobs; an answer per job, in order."""
    if found is None and (need := _unknown(state, command)) is not None:
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    removed: set[bytes] = set()
    for index, (job_id,) in enumerate(command.items):
        live = state.jobs.get(job_id)
        known = (found or {}).get(("job", job_id))
        if job_id in removed:
            exceptions.append([index, Status.OK, GONE_ALREADY])
        elif live is not None:
            exceptions.append(_conflict(index, command, live))
        elif isinstance(known, Stored) and known.job.state is DEAD:
            removed.add(job_id)
            remove_dead(known.job, effects)
        else:
            exceptions.append(_refusal(state, index, job_id, command, known))
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def not_found(state: ShardState, index: int, job_id: bytes) -> list[object]:
    """Return the answer for an id that is not known here."""
    if not state.owns(job_id):
        return [index, Status.WRONG_SHARD, f"this job does not live on shard {state.shard}"]
    return [index, Status.NOT_FOUND, "no such job, or it was forgotten"]


def _unknown(state: ShardState, command: Cancel | Purge) -> Need | None:
    keys: list[Key] = [("job", job_id) for (job_id,) in command.items if job_id not in state.jobs]
    return Need(keys) if keys else None


def _refusal(
    state: ShardState, index: int, job_id: bytes, command: Cancel | Purge, known: object
) -> list[object]:
    """Return the answer for a job that is not in memory, nor what this is for."""
    if isinstance(known, Stored):
        return _conflict(index, command, known.job)
    if isinstance(known, Tombstone) and command.origin.flags & Flag.REPEAT:
        return [index, Status.OK, GONE_ALREADY]
    return not_found(state, index, job_id)


def _conflict(index: int, command: Cancel | Purge, job: Job) -> list[object]:
    wanted = "waiting or delayed" if isinstance(command, Cancel) else "dead"
    return [index, Status.CONFLICT, f"the job is {job.state.word}, not {wanted}"]
