"""Jobs and effects for the stores: the one place that knows how the core makes them."""

from typing import Any

from pyq.cron import check_cron
from pyq.job import ACTIVE, COMPLETED, DEAD, DELAYED, GONE, WAITING, Verdict
from pyq.options import check_options
from pyq.schedule import Schedule
from shardnode.core.effects import Effects
from shardnode.core.state import Grant, Job, Lease, LeaseEnd, QueueState, new_job, new_lease


def a_job(seq: int, queue: QueueState, **options: Any) -> Job:
    """A job as it is accepted: three bytes of payload, an id that grows with `seq`."""
    checked = check_options(options)
    job_id = (1_000 + seq).to_bytes(6, "big") + bytes(8) + seq.to_bytes(2, "big")
    state = DELAYED if checked.run_at else WAITING
    name, size, created_at = f"job-{seq}", 3, 1_000 + seq
    return new_job(seq, job_id, queue, name, checked, size, created_at, checked.run_at, state)


def a_lease(number: int) -> Lease:
    grant = Grant(
        request_id=b"request-id-%05d" % number,
        worker="w-1",
        queue="queue-1",
        lease_ms=15_000,
        granted_at=1_234,
        fence=5,
    )
    return new_lease(b"\0\0\0\1" + b"token%011d" % number, grant, 0)


def leased(job: Job, like: Job | None = None, number: int = 1) -> Job:
    """The job, active; `like`: by the same pull as that one."""
    job.state = ACTIVE
    job.attempt += 1
    lease = a_lease(number)
    if like is not None and like.lease is not None:
        lease = new_lease(lease.token, like.lease.grant, 0)
    job.lease = lease
    return job


def completed(job: Job, at: int = 2_000) -> Job:
    job.state, job.updated_at = COMPLETED, at
    if job.lease is not None:
        job.lease.end = LeaseEnd.ACKED
    return job


def dead(job: Job, reason: str = "exhausted", at: int = 2_000) -> Job:
    job.state, job.updated_at = DEAD, at
    job.need_detail().reason = reason
    if job.lease is not None:
        job.lease.end = LeaseEnd.FAILED
    return job


def waiting_again(job: Job, ready: int, at: int = 3_000) -> Job:
    """The job, retried after it had ended."""
    job.state, job.updated_at, job.ready = WAITING, at, ready
    job.attempt = job.failures = job.stalls = 0
    return job


def fields(job: Job) -> dict[str, Any]:
    """Every field of a job that its records keep."""
    kept = {
        name: getattr(job, name)
        for name in Job.__slots__
        if name not in ("queue", "lease", "detail")
    }
    lease, detail = job.lease, job.detail
    kept["queue"] = job.queue.name
    kept["lease"] = lease and (
        lease.token,
        lease.end,
        lease.grant.request_id,
        lease.grant.worker,
        lease.grant.queue,
        lease.grant.lease_ms,
        lease.grant.granted_at,
        lease.grant.fence,
    )
    kept["detail"] = detail and {name: getattr(detail, name) for name in detail.__slots__}
    return kept


def payload_of(seq: int) -> bytes:
    return b"%03d" % seq


def accepted(*jobs: Job, payloads: dict[int, bytes] | None = None) -> Effects:
    """Effects that accept jobs, and make their queues known."""
    return Effects(
        queues={job.queue.number: job.queue.name for job in jobs},
        accepted={job.seq: job for job in jobs},
        payloads=payloads or {job.seq: payload_of(job.seq) for job in jobs},
        custom_ids=[job for job in jobs if job.options.job_id],
    )


def changed(*jobs: Job) -> Effects:
    return Effects(changed={job.seq: job for job in jobs})


def ended(*jobs: Job) -> Effects:
    """Effects of jobs that ended and whose records are kept."""
    return Effects(changed={job.seq: job for job in jobs}, ended={job.id: job for job in jobs})


def died(*jobs: Job) -> Effects:
    """Effects of jobs that are dead letters from now on."""
    effects = ended(*jobs)
    effects.rare.buried.update((job.seq, job) for job in jobs)
    return effects


def revived(*jobs: Job) -> Effects:
    """Effects of ended jobs that wait again."""
    effects = changed(*jobs)
    effects.rare.revived.update((job.id, None) for job in jobs)
    effects.rare.unburied.update((job.seq, None) for job in jobs)
    return effects


def removed(*jobs: Job, verdict: Verdict = Verdict.REMOVED, at: int = 2_000) -> Effects:
    """Effects of jobs of which only a tombstone with a verdict stays."""
    effects = Effects(ended={job.id: job for job in jobs}, forgotten=[job.seq for job in jobs])
    for job in jobs:
        if job.state is DEAD:
            effects.rare.unburied[job.seq] = None
        job.state, job.updated_at = GONE, at
        if verdict is not Verdict.REMOVED:
            effects.rare.verdicts[job.id] = verdict
    return effects


def purged(*jobs: Job) -> Effects:
    """Effects of dead jobs whose records go, and whose tombstones stay as they are."""
    effects = Effects(forgotten=[job.seq for job in jobs])
    effects.rare.unburied.update((job.seq, None) for job in jobs)
    return effects


def rewritten(*jobs: Job, payloads: dict[int, bytes] | None = None) -> Effects:
    effects = Effects(payloads=payloads or {})
    effects.rare.rewritten.update((job.seq, job) for job in jobs)
    return effects


def a_schedule(name: str = "nightly", **fields: Any) -> Schedule:
    """A schedule: its jobs are reports in the queue `emails`."""
    said = {"cron": check_cron({"pattern": "@daily"}), "queue": "emails", "job": "report"}
    return Schedule(name, **{**said, "payload": b"data", "options": {}, **fields})


def scheduled(*schedules: Schedule) -> Effects:
    """Effects of schedules that are added or changed."""
    effects = Effects()
    effects.rare.schedules.update((schedule.name, schedule) for schedule in schedules)
    effects.rare.ticks.update((schedule.name, schedule) for schedule in schedules)
    return effects


def ticked(schedule: Schedule) -> Effects:
    """Effects of a tick, and of nothing that was said anew."""
    effects = Effects()
    effects.rare.ticks[schedule.name] = schedule
    return effects


def unscheduled(name: str) -> Effects:
    effects = Effects()
    effects.rare.schedules[name] = None
    return effects


def logged(job: Job, *texts: str, first: int = 1) -> Effects:
    """Effects of log lines; the first of them has the number `first`."""
    effects = Effects()
    effects.rare.lines += [
        (job.seq, number, 5_000 + number, job.attempt, text)
        for number, text in enumerate(texts, first)
    ]
    return effects
