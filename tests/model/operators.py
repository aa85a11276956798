"""The other half of the reference: how attempts and jobs end, and what operators ask for.

Read reference.py first. `how` and `verb` are the wire's words; answers are as there.
"""

from collections import Counter
from types import SimpleNamespace as N

from pyq.errors import Status
from pyq.limits import COMPLETED_MS_MIN, LOG_LINES_MAX, SWEEP_MS_MAX, SWEEP_MS_MIN
from pyq.settings import check_settings

OK, STALE, MISSING, CONFLICT = Status.OK, Status.STALE_TOKEN, Status.NOT_FOUND, Status.CONFLICT
LIVE, ENDED = ("waiting", "delayed", "active"), ("completed", "dead")
LINGER_MS = 10_000  # a result that is not kept can be asked for so long


def backoff_ms(backoff, n):
    """The delay after the n-th failure or stall, without jitter."""
    if backoff.steps_ms:
        return backoff.steps_ms[min(n, len(backoff.steps_ms)) - 1]
    return int(min(backoff.cap_ms, backoff.base_ms * backoff.factor ** (n - 1)))


class Operators:
    # --- how an attempt ends that did not succeed, and how a job ends ----------------------------

    def fail(self, job, error, reason, delay_ms=-1):
        job.failures, job.lease.end = job.failures + 1, job.lease.end or "timeout"
        last = reason == "unrecoverable" or job.failures >= job.o.attempts
        self.try_again(job, error, last and reason, job.failures, delay_ms)

    def stall(self, job):
        job.stalls, job.lease.end = job.stalls + 1, "stalled"
        error = f"stalled: no heartbeat from worker {job.lease.worker}"
        last = job.stalls > self.queues[job.queue].settings.max_stalls
        self.try_again(job, error, last and "stalled", job.stalls)

    def try_again(self, job, error, reason, n, delay_ms=-1):
        job.error = error
        if job.cancel:
            self.end(job, "cancelled")
        elif reason:
            job.reason = reason
            self.end(job, "dead")
        else:
            wait_ms = backoff_ms(job.o.backoff, n) if delay_ms < 0 else delay_ms
            self.schedule(job, self.wall + wait_ms)

    def end(self, job, word):
        """Completed, dead, or gone, and why. Its key is free then, unless it is held for a time."""
        q, was = self.queues[job.queue], job.state
        key = q.keys.get(job.o.unique)
        if key and key.owner == job.id and (key.until is None or word not in ENDED):
            del q.keys[job.o.unique]
        job.state, job.updated_at, job.cancel = word, self.wall, False
        if job.lease:
            job.lease.end = job.lease.end or "void"
        tomb = self.tombs[job.id] = N(word=word, lease=job.lease, was=was, lingers_until=0)
        self.just_ended.add(job.id)
        outcome = tomb.outcome = self.outcome(job.id)
        for ask in [ask for ask in self.asks if ask.id == job.id]:
            self.answer(self.asks, ask, outcome)
        job.nth = self.next()
        if word == "completed" and job.o.keep_completed:
            job.completions = q.completions = q.completions + 1
        elif word != "dead":
            tomb.lingers_until = self.mono + LINGER_MS
            del self.jobs[job.id]

    def outcome(self, job_id):
        """What RESULT says: the state's word, or how the job left; its result; its last error."""
        job, tomb = self.jobs.get(job_id), self.tombs.get(job_id)
        if job:
            result = job.result if job.state == "completed" else None
            return job.state, result, job.error if job.state == "dead" else ""
        if tomb and tomb.word == "completed":
            lingers = self.mono < tomb.lingers_until
            return tomb.outcome if lingers else ("result_expired", None, "")
        return tomb and (tomb.word, None, "")

    def ask(self, origin, job_id, wait_ms):
        """The outcome now, or None: it waits for the end."""
        job = self.jobs.get(job_id)
        if wait_ms and job and job.state in LIVE:
            self.asks.append(N(origin=origin, id=job_id, until=self.mono + wait_ms))
            return None
        return self.outcome(job_id) or MISSING

    def give_back(self, client, sequence=None):
        """What a client holds, of one pull or of all, goes back uncharged."""
        held = [job for job in self.all("active") if job.lease.who[0] == client]
        held = [job for job in held if sequence in (None, job.lease.sequence)]
        for job in held:
            self.settle("released", job.id, job.lease.token)
        return len(held)

    # --- what the holder of a lease tells --------------------------------------------------------

    def beat(self, origin, items, worker, wait_ms):
        """Renews leases. Answered at once if one is over, or a cancel request is news to it."""
        said, news = [], False
        for index, item in enumerate(items):
            job = self.held(*item)
            if job is None:
                said.append((index, STALE))
                news = True
                continue
            lease = job.lease
            lease.until, lease.suspect = max(lease.until, self.mono + lease.ms), False
            if job.cancel:  # said each time
                said.append((index, OK, "cancel_requested"))
                news = news or not lease.told
                lease.told = True
        for older in [beat for beat in self.beats if beat.worker == worker]:
            self.answer(self.beats, older, (*older.body, ()))
        body = len(items), tuple(said)
        if news or not worker or not wait_ms:
            return *body, ()
        until = self.mono + wait_ms
        self.beats.append(N(origin=origin, worker=worker, until=until, body=body))
        return None

    def extend(self, job_id, token, lease_ms):
        job = self.held(job_id, token)
        if job is None:
            return STALE
        job.lease.until, job.lease.suspect = self.mono + lease_ms, False
        return None

    def progress(self, job_id, token, value):
        job = self.held(job_id, token)
        if job is None:
            return STALE
        job.progress = value
        return None

    def log(self, job_id, token, first, lines):
        """Lines are numbered per lease, so that a repeat adds none."""
        job = self.held(job_id, token)
        if job is None:
            return STALE
        for number, text in enumerate(lines, first):
            if number > job.lease.lines:
                job.lease.lines = number
                last = job.log[-1][0] if job.log else 0
                job.log.append((last + 1, self.wall, job.attempt, text))
        del job.log[:-LOG_LINES_MAX]
        return None

    def logs(self, job_id, after, limit):
        job = self.jobs.get(job_id)
        if job is None:
            return MISSING
        return (tuple(line for line in job.log if line[0] > after)[:limit],)

    def period(self):
        """A sweep is due each quarter of the shortest lease."""
        shortest = min([job.lease.ms for job in self.all("active")], default=4 * SWEEP_MS_MAX)
        return min(max(shortest // 4, SWEEP_MS_MIN), SWEEP_MS_MAX)

    def sweep(self, late=False):
        """Who is silent beyond his lease is a suspect; who still is at the next sweep, stalls."""
        if self.mono < self.sweep_at:
            return 0, 0
        suspects = stalled = 0
        self.sweep_at = self.mono + self.period()
        for job in self.all("active"):
            silent = job.lease.until <= self.mono and not late
            if silent and job.lease.suspect:
                stalled += 1
                self.stall(job)
            elif silent:
                suspects += 1
            job.lease.suspect = silent
        return suspects, stalled

    # --- operators: single jobs ------------------------------------------------------------------

    def manage(self, verb, job_id, again, request_id):
        """CANCEL, PROMOTE, RETRY, PURGE."""
        job = self.jobs.get(job_id)
        if job is None:
            taken = verb in ("cancel", "purge") and job_id in self.tombs
            return (OK, "gone") if taken and (again or job_id in self.just_ended) else MISSING
        match verb, job.state:
            case "cancel", "waiting" | "delayed":
                self.end(job, "cancelled")
            case "cancel", "active":  # its worker is told, and confirms; or the lease ends
                for beat in [beat for beat in self.beats if beat.worker == job.lease.worker]:
                    if not job.cancel:
                        self.answer(self.beats, beat, (*beat.body, ("beat",)))
                job.cancel = True
                return OK, "cancel_requested"
            case "promote", "delayed":
                self.ready(job)
            case "promote", "waiting" | "active":
                return OK, ("again", job.state)
            case "retry", "completed" | "dead" if job.revived_by != request_id:
                return None if self.revive(job, request_id) else CONFLICT
            case "retry", _:
                return OK, ("again", job.state)
            case "purge", "dead":
                del self.jobs[job_id]
                self.just_ended.add(job_id)
            case _:
                return CONFLICT
        return None

    def revive(self, job, request_id=None):
        """An ended job starts afresh, unless its unique key has another holder."""
        keys, unique = self.queues[job.queue].keys, job.o.unique
        if not self.key_of(job):
            return False
        if unique and not job.o.unique_ttl_ms:
            keys[unique] = N(owner=job.id, until=None)
        job.attempt = job.failures = job.stalls = 0
        job.reason = job.error = job.result = job.place = None
        job.revived_by = request_id
        del self.tombs[job.id]
        job.lease.end = "void"
        self.ready(job)
        return True

    def key_of(self, job):
        """Whether the job has its unique key, or could have it again."""
        key = self.queues[job.queue].keys.get(job.o.unique)
        return key is None or key.owner == job.id

    def update(self, job_id, priority, delay_ms, run_at, payload):
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("waiting", "delayed"):
            return CONFLICT if job else MISSING
        job.priority = job.priority if priority is None else priority
        job.payload = job.payload if payload is None else payload
        if delay_ms is None and run_at is None:
            return None
        due = run_at or self.wall + delay_ms
        if due > self.wall and job.lease is None:
            job.place = None  # it never ran, so it holds no place in its group
        if due > self.wall or job.state == "delayed":
            self.schedule(job, due)
        return None

    # --- operators: queues -----------------------------------------------------------------------

    def configure(self, queue, changes):
        """May raise BadOption."""
        q = self.queues[queue]
        q.settings = check_settings(changes or {}, q.settings)
        q.window = q.window if q.settings.rate_max else []
        return q.settings

    def pause(self, queue, paused, group):
        s = self.queues[queue].settings
        groups = set(s.paused_groups) - {group} | ({group} if paused else set())
        change = {"paused_groups": sorted(groups)} if group else {"paused": paused}
        return int(self.configure(queue, change) != s)

    def remove(self, queue, states, limit, older_ms=None):
        """DRAIN, CLEAN and OBLITERATE: a page of jobs in order of acceptance."""
        jobs = self.all(*states, queue=queue)
        if older_ms is not None:
            jobs = [job for job in jobs if job.updated_at <= self.wall - older_ms]
        for job in jobs[:limit]:
            if job.state in ENDED:  # how it ended is known already
                del self.jobs[job.id]
            else:
                self.end(job, "removed")
        return len(jobs[:limit])

    def dead_stats(self, queue):
        at = {}
        for job in self.all("dead", queue=queue):
            at.setdefault(job.reason, []).append(job.updated_at)
        by_reason = {reason: (len(at), min(at), max(at)) for reason, at in at.items()}
        return len(self.all("dead", queue=queue)), by_reason

    def counts(self):
        """Per queue: how many jobs by state, and how many wait by priority."""
        queues = {job.queue for job in self.jobs.values()}
        return {
            queue: (
                Counter(j.state for j in self.jobs.values() if j.queue == queue),
                Counter(j.priority for j in self.all("waiting", queue=queue)),
            )
            for queue in queues
        }

    # --- upkeep: what becomes of ended jobs ------------------------------------------------------

    def may(self, job, surely=False):
        """What is right to do with an ended job by now: forget it, purge it, or retry it.

        Who ended later is told by order and by clock, which differ when a clock was set back, and
        after a restart only of those still there; `surely`: either way.
        """
        q, o, age_ms = self.queues[job.queue], job.o, self.wall - job.updated_at
        s, count = q.settings, min if surely else max
        peers = [peer for peer in self.all(job.state, queue=job.queue) if peer is not job]
        by_order = sum(peer.nth > job.nth for peer in peers)
        by_clock = sum(peer.updated_at >= job.updated_at + surely for peer in peers)
        later = count(by_order, by_clock)
        if job.state == "completed" and age_ms >= COMPLETED_MS_MIN:
            if o.keep_count:
                return (
                    {"forgotten"}
                    if count(later, q.completions - job.completions) >= o.keep_count
                    else set()
                )
            over = later >= s.keep_count or 0 < s.keep_ms <= age_ms
            return {"forgotten"} if (age_ms >= o.keep_ms if o.keep_ms else over) else set()
        right = set()
        if job.state == "dead":
            if 0 < s.dead_ms <= age_ms or (s.drop_oldest and later >= s.dead_max):
                right.add("purged")
            again = job.retries < s.auto_retry_max and age_ms >= s.auto_retry_ms << job.retries
            if again and self.key_of(job):
                right.add("retried")
        return right

    def tend(self, core):
        """Upkeep comes every few seconds: the core says when, here is said whether it may."""
        for job in list(self.jobs.values()):
            right = self.may(job)
            if "retried" in right and core.get(job.id, "dead") != "dead":
                self.revive(job)
                job.retries += 1
            elif right - {"retried"} and job.id not in core:
                del self.jobs[job.id]
