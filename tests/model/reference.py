"""What one shard means, in plain dicts and lists: the reference the core is compared with.

Written from the semantics, not from the core, and to be read: no index, no timer, no record;
every question looks at all jobs. Jobs, leases, queues and who waits are bare namespaces. `wall`
decides due times and ages, `mono` leases and waits. What is asked of one job is answered by a
status, by (status, detail), or by None: plainly OK. Who waits is answered in `answers`.
This page is the life of jobs that nobody but producers and workers touch; operators.py the rest.
"""

from collections import defaultdict
from math import inf
from types import SimpleNamespace as N

from pyq.errors import BadOption, Status
from pyq.limits import TIMEOUT_GRACE_MS
from pyq.options import check_options
from pyq.settings import DEFAULT_SETTINGS
from tests.model.operators import CONFLICT, ENDED, LIVE, MISSING, OK, STALE, Operators

__all__ = ["CONFLICT", "ENDED", "LIVE", "MISSING", "OK", "STALE", "Model"]


class Model(Operators):
    def __init__(self):
        self.wall = self.mono = self.number = self.sweep_at = 0
        self.jobs = {}  # whose record is kept, by id, in order of acceptance
        self.tombs = {}  # how a job ended, and its last lease
        self.queues = defaultdict(
            lambda: N(settings=DEFAULT_SETTINGS, keys={}, custom={}, window=[], completions=0)
        )
        self.pulls, self.asks, self.beats = [], [], []  # who waits, the longest first
        self.newest = {}  # sequence of the newest pull, by client and first queue
        self.answers = []  # of those who waited: (origin, what)
        self.just_ended = set()  # by the present request

    def next(self):
        self.number += 1
        return self.number

    def all(self, *states, queue=None):
        return [j for j in self.jobs.values() if j.state in states and queue in (None, j.queue)]

    # --- time: waits end, what is due happens, then upkeep, then whoever waits is served ---------

    def tick(self, wall, mono, late=False, core=None):
        self.wall, self.mono, self.just_ended = wall, mono, set()
        for queue in self.queues.values():
            held = {k: key for k, key in queue.keys.items() if not key.until or key.until > wall}
            queue.keys = held
        due = [(job.run_at, self.ready, job) for job in self.all("delayed")]
        for job in self.all("waiting", "delayed"):
            if job.o.ttl_ms and not job.lease:
                due.append((job.created_at + job.o.ttl_ms, self.expire, job))
        self.do(due, wall)
        due = [(job.lease.timeout_at, self.time_out, job) for job in self.all("active")]
        self.do(due, mono)
        waits = (*self.pulls, *self.asks, *self.beats)
        self.do([(wait.until, self.in_vain, wait) for wait in waits], mono)
        if core is not None:
            self.tend(core)
        if self.all("active") and mono >= self.sweep_at + self.period():
            self.sweep(late)  # nobody asked for it one period after it was due
        self.serve()

    def do(self, due, now):
        for at, what, one in sorted(due, key=lambda entry: entry[0]):
            if at <= now:
                what(one)

    def expire(self, job):
        if job.state in LIVE:
            self.end(job, "expired")

    def time_out(self, job):
        error = f"timeout after {job.o.timeout_ms / 1000:g} s, ended by the server"
        self.fail(job, error, "timeout")

    def in_vain(self, wait):
        if wait in self.pulls:
            self.answer(self.pulls, wait, [])
        elif wait in self.asks:
            self.answer(self.asks, wait, self.outcome(wait.id))
        elif wait in self.beats:
            self.answer(self.beats, wait, (*wait.body, ()))

    def restart(self):
        """Leases keep their tokens and begin anew, the window counts as granted now."""
        self.pulls, self.asks, self.beats, self.newest = [], [], [], {}
        for job in self.all("active"):
            self.begin(job, job.lease.ms)
            who = job.lease.who
            self.newest[who] = max(self.newest.get(who, 0), job.lease.sequence)
        for queue in self.queues.values():
            since = self.wall - queue.settings.rate_per_ms  # records know only the wall clock
            queue.window = [(self.mono, at) for _, at in queue.window if at >= since]
        for tomb in self.tombs.values():
            tomb.lingers_until = 0
        self.sweep_at = self.mono + self.period()

    def answer(self, waiting, one, what):
        waiting.remove(one)
        self.answers.append((one.origin, what))

    # --- push -----------------------------------------------------------------------------------

    def push(self, queue, job_id, name, payload, given):
        """Known by its id or its custom id; else refused; else its key is held; else accepted."""
        q = self.queues[queue]
        known = job_id if self.known_as(job_id) else q.custom.get(given.get("job_id"))
        if known:
            job = self.jobs.get(known)
            other = job is not None and (job.name, len(job.payload)) != (name, len(payload))
            return OK, ("exists", known, self.known_as(known), other)
        try:
            o = check_options(given, q.settings.defaults)
        except BadOption:
            return Status.BAD_OPTION
        due = o.run_at or self.wall + o.delay_ms
        if o.ttl_ms and due >= self.wall + o.ttl_ms:
            return Status.BAD_OPTION
        until = self.wall + o.unique_ttl_ms if o.unique_ttl_ms else None
        key = q.keys.get(o.unique)
        if key:
            holder = self.jobs.get(key.owner)
            state = holder and holder.state
            if o.on_conflict != "replace" or state not in ("waiting", "delayed"):
                if o.on_conflict == "extend" and state == "delayed" and due > holder.run_at:
                    self.schedule(holder, due)
                if o.on_conflict == "extend" and until and key.until:
                    key.until = max(key.until, until)
                return OK, ("exists", key.owner, self.known_as(key.owner), False)
            self.end(holder, "replaced")
        if o.unique:
            q.keys[o.unique] = N(owner=job_id, until=until)
        if o.job_id:
            q.custom[o.job_id] = job_id
        job = self.jobs[job_id] = N(id=job_id, queue=queue, name=name, payload=payload, o=o)
        job.priority, job.created_at, job.place, job.lease = o.priority, self.wall, None, None
        job.attempt = job.failures = job.stalls = job.retries = job.nth = 0
        job.reason = job.error = job.result = job.progress = job.revived_by = None
        job.cancel, job.log = False, []
        self.schedule(job, due)
        return None

    def known_as(self, job_id):
        """What a producer is told of a job: its state, why it is gone, or that it is forgotten."""
        if job_id in self.jobs:
            return self.jobs[job_id].state
        tomb = self.tombs.get(job_id)
        return tomb and ("forgotten" if tomb.word in ENDED else tomb.word)

    def schedule(self, job, at):
        job.state, job.run_at, job.updated_at = "delayed", at, self.wall
        if at <= self.wall:
            self.ready(job)

    def ready(self, job):
        """The tail of its priority (lifo: the front). Who has a place in a group keeps it."""
        job.state, job.updated_at = "waiting", self.wall
        if not job.o.group or job.place is None:
            job.place = -self.next() if job.o.lifo else self.next()

    # --- pull -----------------------------------------------------------------------------------

    def head(self, queue):
        """The job to be leased next: of those that may run the highest priority, first ready."""
        q, s = self.queues[queue], self.queues[queue].settings
        q.window = [at for at in q.window if at[0] + s.rate_per_ms >= self.mono]
        full = s.concurrency and len(self.all("active", queue=queue)) >= s.concurrency
        if s.paused or full or (s.rate_max and len(q.window) >= s.rate_max):
            return None
        free = [job for job in self.all("waiting", queue=queue) if self.exposed(job, s)]
        return min(free, key=lambda job: (-job.priority, job.place), default=None)

    def exposed(self, job, s):
        """Of a group the first ready ones run; who waits for its retry still holds its place."""
        if not job.o.group or job.o.group in s.paused_groups:
            return not job.o.group
        group = [j for j in self.all(*LIVE, queue=job.queue) if j.o.group == job.o.group]
        members = sorted(j.place for j in group if j.place is not None)
        return job.place in members[: s.group_concurrency]

    def pull(self, origin, worker, queues, jobs_max, wait_ms, lease_ms, last_received):
        """Jobs, or None: it waits. A client's newest pull on its first queue counts."""
        who, sequence, until = (origin.client, queues[0]), origin.sequence, self.mono + wait_ms
        if sequence < self.newest.get(who, 0):
            return Status.SUPERSEDED
        self.newest[who] = sequence
        mine = [job for job in self.all("active") if job.lease.who == who]
        held = [job for job in mine if job.lease.sequence == sequence]
        if held:  # a repeat gets the same again
            return sorted(held, key=lambda job: job.lease.order)
        for old in [old for old in self.pulls if old.who == who]:
            if old.sequence == sequence:  # ... or keeps its place
                old.origin = origin
                return None
            self.answer(self.pulls, old, Status.SUPERSEDED)
        for job in mine:
            if job.lease.sequence > last_received:
                self.settle("released", job.id, job.lease.token)
        pull = N(origin=origin, who=who, sequence=sequence, worker=worker, queues=queues)
        pull.jobs_max, pull.lease_ms, pull.until = jobs_max, lease_ms, until
        jobs = self.lease(pull)
        if not jobs and wait_ms:
            self.pulls.append(pull)
            return None
        return jobs

    def serve(self):
        for pull in list(self.pulls):
            if jobs := self.lease(pull):
                self.answer(self.pulls, pull, jobs)

    def lease(self, pull):
        jobs, lease_ms, idle = [], [], not self.all("active")
        for queue in pull.queues:
            while len(jobs) < pull.jobs_max and (job := self.head(queue)):
                job.state, job.attempt, job.updated_at = "active", job.attempt + 1, self.wall
                job.lease = N(who=pull.who, sequence=pull.sequence, order=self.next())
                job.lease.worker, job.lease.token, job.lease.lines = pull.worker, None, 0
                job.lease.end, job.lease.ms = None, pull.lease_ms  # it is held
                settings = self.queues[queue].settings
                if settings.rate_max:
                    self.queues[queue].window.append((self.mono, self.wall))
                lease_ms.append(settings.lease_ms or pull.lease_ms)
                jobs.append(job)
        for job in jobs:
            self.begin(job, min(lease_ms))
        if (idle and self.sweep_at <= self.mono) or self.mono + self.period() < self.sweep_at:
            self.sweep_at = self.mono + self.period()
        return jobs

    def begin(self, job, lease_ms):
        lease, timeout_ms = job.lease, job.o.timeout_ms
        lease.ms, lease.until, lease.suspect, lease.told = lease_ms, 0, False, False
        lease.until = self.mono + lease_ms
        lease.timeout_at = self.mono + timeout_ms + TIMEOUT_GRACE_MS if timeout_ms else inf

    # --- leases ---------------------------------------------------------------------------------

    def held(self, job_id, token):
        job = self.jobs.get(job_id)
        return job if job and job.state == "active" and job.lease.token == token else None

    def settle(
        self, how, job_id, token, again=False, result=None, error="", delay_ms=0, last=False
    ):
        """By the holder, once. Who stalled may still ack, as long as nobody else got the job."""
        job = self.jobs.get(job_id)
        past = job or self.tombs.get(job_id)
        lives = job and job.state in LIVE
        if not past or not past.lease or past.lease.token != token:
            return STALE
        if not job and past.word == "cancelled" and (again or job_id in self.just_ended):
            return OK, "cancelled"
        lease = past.lease
        if lease.end and not (how == "acked" and lease.end == "stalled" and lives):
            seen = lease.end == how and (again or lives or job_id in self.just_ended)
            seen = seen and (job or past.word in ENDED)
            return (OK, "replayed") if seen else STALE
        if job.cancel:
            self.end(job, "cancelled")
            return OK, "cancelled"
        lease.end = how
        if how == "acked":
            job.result = result
            self.end(job, "completed")
        elif how == "failed":
            job.result = job.result if result is None else result
            self.fail(job, error, "unrecoverable" if last else "exhausted", delay_ms)
        else:  # released: nothing is charged, and without a delay it keeps its place
            job.attempt, job.state, job.updated_at = job.attempt - 1, "waiting", self.wall
            if delay_ms:
                self.schedule(job, self.wall + delay_ms)
        return None
