"""BLOCK: a running job waits for others. OPEN: a flow begins. And what a job may depend on at all.

A dependency must exist when it is named: live, ended and kept, or a tombstone.
"""

from collections.abc import Sequence

from pyq.errors import Status
from pyq.ids import id_to_text
from pyq.job import DELAYED, Verdict
from pyq.limits import DEPENDS_MAX
from pyq.messages import GATE_NAME, Block, Open, Reply, batch_answer
from shardnode.core.dependencies import end_of, pin_completed, shard_of_job
from shardnode.core.effects import Effects, Found, Key, Need, Now, Tombstone
from shardnode.core.lifecycle import become_blocked, complete
from shardnode.core.mail import is_full
from shardnode.core.operations.removal import not_found
from shardnode.core.operations.settle import REPLAYED, confirm_cancelled, held, stale
from shardnode.core.state import LeaseEnd, ShardState

_LOOKED_AT_MAX = 10_000  # jobs, in search of a circle: bounds the turn


def block(state: ShardState, command: Block, now: Now, found: Found | None) -> Effects | Need:
    """The holder waits for further jobs: nothing is charged, and it runs again when they ended."""
    if found is None and (keys := _block_keys(state, command)):
        return Need(keys)
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id, token, further) in enumerate(command.items):
        holding = held(state, job_id, token)
        if holding is None:
            exceptions.append(_stale_or_repeated(state, index, job_id, token))
            continue
        job, _ = holding
        if job.cancel_requested:
            end = LeaseEnd.RELEASED
            exceptions.append(confirm_cancelled(state, index, job, end, now, effects))
            continue
        new = tuple(dict.fromkeys(d for d in further if d not in job.options.edges))
        settled, exception = look_up(state, index, job_id, new, found or {})
        if len(job.options.depends_on) + len(new) > DEPENDS_MAX:
            sentence = f"a job depends on at most {DEPENDS_MAX} others"
            exception = [index, Status.BAD_OPTION, sentence]
        if exception is None and _waits_for(state, new, job_id):
            sentence = "it would wait for a job that waits for itself"
            exception = [index, Status.BAD_OPTION, sentence]
        if exception is not None:
            exceptions.append(exception)
            continue
        become_blocked(state, job, new, settled, now, effects)
        pin_completed(state, new, found or {})
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def _waits_for(state: ShardState, job_ids: Sequence[bytes], wanted: bytes) -> bool:
    """True if one of these jobs depends on the wanted one, as far as this shard can see."""
    ahead, seen = [*job_ids], set(job_ids)
    while ahead and len(seen) < _LOOKED_AT_MAX:
        job = state.jobs.get(ahead.pop())
        if job is None:
            continue
        if wanted in job.options.edges:
            return True
        new = [job_id for job_id in job.options.edges if job_id not in seen]
        seen.update(new)
        ahead += new
    return False


def _stale_or_repeated(state: ShardState, index: int, job_id: bytes, token: bytes) -> list[object]:
    job = state.jobs.get(job_id)
    lease = job.lease if job is not None else None
    if lease is not None and lease.token == token and lease.end is LeaseEnd.RELEASED:
        return [index, Status.OK, REPLAYED]
    return stale(state, index, job_id)


def open_gates(state: ShardState, command: Open, now: Now, found: Found | None) -> Effects | Need:
    """The jobs behind a gate are all there: they may run as soon as nothing else holds them."""
    missing = [job_id for (job_id,) in command.items if job_id not in state.jobs]
    if found is None and missing:
        keys: list[Key] = [("job", job_id) for job_id in missing]
        return Need(keys)
    effects = Effects()
    exceptions: list[list[object]] = []
    for index, (job_id,) in enumerate(command.items):
        job = state.jobs.get(job_id)
        known = (found or {}).get(("job", job_id))
        if job is not None and job.name == GATE_NAME and job.state is DELAYED:
            complete(state, [(job, None)], now, effects)
        elif isinstance(known, Tombstone) and known.verdict is Verdict.COMPLETED:
            exceptions.append([index, Status.OK, REPLAYED])
        elif job is not None or known is not None:
            sentence = "this is no gate, or it was not opened in time"
            exceptions.append([index, Status.CONFLICT, sentence])
        else:
            exceptions.append(not_found(state, index, job_id))
    body = batch_answer(len(command.items), exceptions)
    effects.replies.append(Reply(command.origin, Status.OK, body))
    return effects


def _block_keys(state: ShardState, command: Block) -> list[Key]:
    return [
        ("job", dep_id)
        for _, _, further in command.items
        for dep_id in further
        if state.owns(dep_id) and dep_id not in state.jobs
    ]


def look_up(
    state: ShardState, index: int, job_id: bytes, dep_ids: Sequence[bytes], found: Found
) -> tuple[bytes, list[object] | None]:
    """Return what is known of the jobs that one shall depend on, or why it may not.

    A byte for each: 0 if it has not ended, or lives on another shard, which will tell.
    """
    settled = bytearray()
    for dep_id in dep_ids:
        verdict = 0
        if dep_id == job_id:
            return b"", [index, Status.BAD_OPTION, "a job cannot depend on itself"]
        target = shard_of_job(state, dep_id)
        if target != state.shard and is_full(state, target):
            sentence = f"too many rows wait for shard {target}; try again later"
            return b"", [index, Status.BUSY, sentence]
        if target == state.shard and dep_id not in state.jobs:
            known = found.get(("job", dep_id))
            if known is None:
                sentence = f"it depends on {id_to_text(dep_id)}, which is not known"
                return b"", [index, Status.DEP_UNKNOWN, sentence]
            verdict, _ = end_of(known)
        settled.append(verdict)
    return bytes(settled), None
