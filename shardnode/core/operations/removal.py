"""CANCEL and PURGE: a job is taken back before it runs, a dead one is forgotten.

Nothing but the tombstone stays. What runs is not touched.
"""

from pyq.errors import Status
from pyq.job import ACTIVE, DEAD, DELAYED, GONE, WAITING
from pyq.messages import Cancel, Purge, Reply, batch_answer
from pyq.wire import Flag
from shardnode.core.effects import Effects, Found, Key, Need, Now, Stored, Tombstone
from shardnode.core.lifecycle import answer_waiting, remove_dead, remove_waiting
from shardnode.core.state import ShardState

UNKNOWN = "no such job, or it was forgotten"


def cancel(state: ShardState, command: Cancel, now: Now, found: Found | None) -> Effects | Need:
    """Take back jobs that wait or are delayed; an answer per job, in order."""
    if found is None and (need := _unknown(state, command)) is not None:
        return need
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id,) in enumerate(command.items):
        job = state.jobs.get(job_id)
        if job is None:
            known = (found or {}).get(("job", job_id)) or effects.ended.get(job_id)
            exceptions.append(_refusal(index, command, known))
        elif job.state is ACTIVE:
            sentence = "the job is running; a running job cannot be taken back yet"
            exceptions.append([index, Status.CONFLICT, sentence])
        else:
            assert job.state in (WAITING, DELAYED), "only these live and are not active"
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
    purged: set[bytes] = set()
    for index, (job_id,) in enumerate(command.items):
        known = (found or {}).get(("job", job_id))
        if isinstance(known, Stored) and known.job.state is DEAD and job_id not in purged:
            purged.add(job_id)
            remove_dead(known.job, effects)
        elif job_id in purged:
            exceptions.append([index, Status.OK, "gone"])
        else:
            exceptions.append(_refusal(index, command, known or state.jobs.get(job_id)))
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def _unknown(state: ShardState, command: Cancel | Purge) -> Need | None:
    keys: list[Key] = [("job", job_id) for (job_id,) in command.items if job_id not in state.jobs]
    return Need(keys) if keys else None


def _refusal(index: int, command: Cancel | Purge, known: object) -> list[object]:
    """Return the answer for a job that is not in the state this is for."""
    if known is None:
        return [index, Status.NOT_FOUND, UNKNOWN]
    gone = isinstance(known, Tombstone) or getattr(known, "state", None) is GONE
    if gone and (command.origin.flags & Flag.REPEAT or not isinstance(known, Tombstone)):
        return [index, Status.OK, "gone"]  # by the first sending, or an earlier item
    if isinstance(known, Tombstone):
        return [index, Status.NOT_FOUND, UNKNOWN]
    job = known.job if isinstance(known, Stored) else known
    word = job.state.word  # type: ignore[attr-defined]  # a Job: everything else is above
    wanted = "waiting or delayed" if isinstance(command, Cancel) else "dead"
    return [index, Status.CONFLICT, f"the job is {word}, not {wanted}"]
