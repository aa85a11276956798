"""Who is next in a queue: the line, FIFO groups, and what keeps a waiting job back.

The one place that knows which waiting jobs stand in line. A job of a group stands in line
only while it is exposed, as one of the first of its group, and the group is not paused.
"""

from pyq.job import ACTIVE, WAITING, JobState
from shardnode.core.effects import Effects, Now
from shardnode.core.state import Group, Job, LeaseEnd, QueueState, ShardState


def wake(state: ShardState, queue: QueueState) -> None:
    """Remember that somebody who waits for jobs of this queue may get one now."""
    if queue.parked:
        state.awake[queue] = None


def leases_left(state: ShardState, queue: QueueState, now: Now) -> int:
    """Return how many jobs a limited queue may hand out now.

    Where its rate limit says none, a timer looks again as soon as it allows one.
    """
    settings = queue.settings
    if settings.paused:
        return 0
    left = 1 << 30
    if settings.concurrency:
        left = settings.concurrency - queue.counts[ACTIVE]
    if settings.rate_max:
        room = queue.window.room(now.mono_ms, settings.rate_max, settings.rate_per_ms)
        if room <= 0 and queue.window_at is None:
            opens_at = queue.window.opens_at(settings.rate_per_ms)
            state.timers.open_window(opens_at, queue)
        left = min(left, room)
    return max(0, left)


def note_leased(queue: QueueState, count: int, now: Now, effects: Effects) -> None:
    """Leases were granted: they count in the window of a rate limit."""
    if queue.settings.rate_max:
        queue.window.add(now.mono_ms, count)
        effects.rare.windows[queue.number] = (queue.window.count, now.wall_ms)


def open_windows(state: ShardState, now: Now) -> None:
    """Queues whose rate limit allows a lease again are looked at."""
    while (queue := state.timers.windows.pop(now.mono_ms)) is not None:
        queue.window_at = None
        wake(state, queue)


def enter(state: ShardState, job: Job) -> None:
    """A job has become ready, for the first time or again: it takes its place."""
    queue = job.queue
    options = job.options
    if options.group:
        group = queue.groups.get(options.group)
        if group is not None and job.seq in group.exposed:  # it held its group meanwhile
            _return_to_group(state, queue, group, job)
        else:
            job.ready = state.next_number()
            _join_group(queue, job)
    else:
        number = state.next_number()
        job.ready = -number if options.lifo else number
        queue.line.add([job])
    wake(state, queue)


def enter_new(queue: QueueState, jobs: list[Job]) -> None:
    """Accepted jobs, numbered in order, take their places; some of them have groups."""
    for job in jobs:
        if job.options.group:
            _join_group(queue, job)
        else:
            queue.line.add([job])


def put_back(state: ShardState, job: Job) -> None:
    """A waiting job stands where its ready number says, if it may run now."""
    queue = job.queue
    group = queue.groups.get(job.options.group) if job.options.group else None
    if group is None:
        queue.line.put_back(job)
    elif job.seq in group.exposed:
        _return_to_group(state, queue, group, job)
    wake(state, queue)


def leave(state: ShardState, job: Job, before: JobState) -> None:
    """A job has ended; it was in state `before`."""
    queue = job.queue
    name = job.options.group
    if not name:
        if before is WAITING:
            queue.line.discard(job)
        return
    group = queue.groups.get(name)
    if group is None:
        return  # it was delayed, and never ready
    if before is WAITING and job.seq in group.exposed and not group.paused:
        queue.line.discard(job)
    if before is WAITING or job.seq in group.exposed:
        _leave_group(state, queue, group, job)


def step_out(state: ShardState, job: Job, effects: Effects) -> Job:
    """Return the twin of a waiting job, which stands in line no more.

    If it was leased before and is exposed, it goes on to hold its group; otherwise it has
    left it, and what its last holder may still say is void.
    """
    twin = supersede(state, job, effects)
    group = twin.queue.groups.get(twin.options.group) if twin.options.group else None
    if group is None:
        return twin
    if _has_run(twin) and twin.seq in group.exposed:
        return twin
    if twin.lease is not None:
        twin.lease.end = LeaseEnd.RETRIED
    _leave_group(state, twin.queue, group, twin)
    return twin


def restore_groups(members: list[Job]) -> list[Job]:
    """Put jobs back into their groups; return those that stand in line."""
    in_line: list[Job] = []
    for job in sorted(members, key=lambda job: (job.state is WAITING, job.ready)):
        queue = job.queue
        name = job.options.group
        group = queue.groups.get(name)
        if group is None:
            group = queue.groups[name] = Group(name in queue.settings.paused_groups)
        if job.state is WAITING and len(group.exposed) >= queue.settings.group_concurrency:
            group.behind.append(job)
            continue
        group.exposed[job.seq] = job
        if job.state is WAITING and not group.paused:
            in_line.append(job)
    return in_line


def waiting_by_priority(queue: QueueState) -> dict[int, int]:
    """Return the number of waiting jobs by priority, highest first."""
    counts = queue.line.priorities()
    for group in queue.groups.values():
        hidden = [*group.behind]
        if group.paused:
            hidden += [job for job in group.exposed.values() if job.state is WAITING]
        for job in hidden:
            counts[job.options.priority] = counts.get(job.options.priority, 0) + 1
    return dict(sorted(counts.items(), reverse=True))


def holds_group(job: Job) -> bool:
    """True if the job is a member of its group: ready once, and not ended."""
    return job.state in (WAITING, ACTIVE) or _has_run(job)


def _has_run(job: Job) -> bool:
    """True if the job was leased since it was accepted or retried."""
    return job.lease is not None and job.lease.end is not LeaseEnd.RETRIED


def supersede(state: ShardState, job: Job, effects: Effects) -> Job:
    """Take a waiting job out of line and return its twin, which is in every index but the line.

    The entry in the line belongs to the old object, so it is stale for good.
    """
    queue = job.queue
    group = queue.groups.get(job.options.group) if job.options.group else None
    in_line = group is None or (job.seq in group.exposed and not group.paused)
    twin = job.twin()
    if in_line:
        queue.line.discard(job)
    state.jobs[twin.id] = twin
    options = twin.options
    if options.job_id:
        queue.custom[options.job_id] = twin
    if queue.unique.get(options.unique) is job:
        queue.unique[options.unique] = twin
    if group is not None:
        if twin.seq in group.exposed:
            group.exposed[twin.seq] = twin
        else:
            group.behind[group.behind.index(job)] = twin
    if twin.may_expire:
        state.timers.expire(twin)
    for dep_id in options.edges:
        state.awaited[dep_id].jobs[twin.seq] = twin
    effects.changed[twin.seq] = twin
    return twin


def pause_group(state: ShardState, queue: QueueState, name: str, effects: Effects) -> None:
    """No job of the group is in line any more."""
    group = queue.groups.get(name)
    if group is None or group.paused:
        return
    for job in list(group.exposed.values()):
        if job.state is WAITING:
            supersede(state, job, effects)
    group.paused = True


def resume_group(state: ShardState, queue: QueueState, name: str) -> None:
    """The exposed jobs of the group are in line again."""
    group = queue.groups.get(name)
    if group is None or not group.paused:
        return
    group.paused = False
    for job in group.exposed.values():
        if job.state is WAITING:
            queue.line.put_back(job)
    wake(state, queue)


def regroup(state: ShardState, queue: QueueState, effects: Effects) -> None:
    """The number of jobs that a group may expose has changed."""
    limit = queue.settings.group_concurrency
    for group in queue.groups.values():
        waiting = [job for job in group.exposed.values() if job.state is WAITING]
        surplus = max(0, len(group.exposed) - limit)
        last = sorted(waiting, key=lambda job: job.ready)[max(0, len(waiting) - surplus) :]
        for job in reversed(last):
            hidden = job if group.paused else supersede(state, job, effects)
            del group.exposed[job.seq]
            group.behind.appendleft(hidden)
        _advance(state, queue, group)


def _join_group(queue: QueueState, job: Job) -> None:
    """A job that is ready for the first time joins the tail of its group."""
    name = job.options.group
    group = queue.groups.get(name)
    if group is None:
        group = queue.groups[name] = Group(name in queue.settings.paused_groups)
    if group.behind or len(group.exposed) >= queue.settings.group_concurrency:
        group.behind.append(job)
        return
    group.exposed[job.seq] = job
    if not group.paused:
        queue.line.add([job])


def _leave_group(state: ShardState, queue: QueueState, group: Group, job: Job) -> None:
    """A member leaves: the next of its group may be exposed in its place."""
    if group.exposed.pop(job.seq, None) is None:
        group.behind.remove(job)
    else:
        _advance(state, queue, group)
    if not group.exposed and not group.behind:
        del queue.groups[job.options.group]


def _return_to_group(state: ShardState, queue: QueueState, group: Group, job: Job) -> None:
    """A member that had run waits again: in line, unless fewer may run at once than before."""
    overtaken = bool(group.behind) and group.behind[0].ready < job.ready
    if overtaken or len(group.exposed) > queue.settings.group_concurrency:
        del group.exposed[job.seq]
        place = sum(other.ready < job.ready for other in group.behind)
        group.behind.insert(place, job)
        _advance(state, queue, group)
    elif not group.paused:
        queue.line.put_back(job)


def _advance(state: ShardState, queue: QueueState, group: Group) -> None:
    """Expose the next of the group, as far as there is room."""
    while group.behind and len(group.exposed) < queue.settings.group_concurrency:
        job = group.behind.popleft()
        group.exposed[job.seq] = job
        if not group.paused:
            queue.line.put_back(job)
            wake(state, queue)
