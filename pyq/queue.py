"""A queue as applications see it: jobs go in, handles come out, and what operators want of it.

How options and settings are written by users is in `given_options.py` and
`given_settings.py`, many jobs at once in `bulk.py`, dead ones in `deadletters.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from pyq.bulk import Bulk, BulkItem
from pyq.codec import pack
from pyq.durations import Duration, duration_ms
from pyq.errors import BadOption
from pyq.given_options import JobOptions, options_to_wire
from pyq.given_settings import QueueSettings, settings_to_user, settings_to_wire
from pyq.handle import Job
from pyq.ids import id_from_text
from pyq.job import JobState
from pyq.limits import DELAY_MS_MAX, GROUP_MAX, REMOVED_MAX
from pyq.listing import check_limit, check_state
from pyq.options import check_name, check_queue, shown
from pyq.routes import slot_of
from pyq.wire import Flag, Verb

if TYPE_CHECKING:
    from pyq.client import Client
    from pyq.deadletters import DeadLetters
    from pyq.listing import Jobs


class Queue:
    """One queue of a cluster. Made by `client.queue(name)`; making it asks nothing."""

    def __init__(self, client: "Client", name: str) -> None:
        self.client = client
        self.name = check_queue(name)
        self._slot = slot_of(name)

    # --- adding -------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        data: Any = None,
        /,
        *,
        durable: bool = False,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job and return its handle once the cluster has it.

        `name` (1 to 256 characters) is what handlers are chosen by, `data` anything
        `docs/python.md` lists, at most 10 MiB packed. `durable`: return only after the job is
        synced to disk. An option that is left out, or None, is as the queue's settings say
        (`configure(defaults=...)`), else:

        - `delay` / `run_at` (at once): not before this duration from now / this aware datetime;
          at most ten years
        - `priority` (0): higher runs first; -1,000,000 to 1,000,000
        - `lifo` (False): before the others of its priority, the newest first; not with `group`
        - `attempts` (3): runs in total, the first included; 1 to 1,000
        - `backoff` (`pyq.exponential()`: 1 s, doubling, up to 1 h): delay before the next
          attempt: a duration (always the same), a list of durations (the last repeats), or
          `pyq.exponential(...)`
        - `timeout` (none): longest time for one attempt, up to a day; "none": no limit
        - `ttl` (none): may wait this long for its first attempt, then it is gone (expired); longer
          than `delay`, up to ten years; "none": no limit
        - `job_id` (none): your own id, 1 to 512 characters, unique in this queue; when it is taken,
          the job that has it is returned with `deduplicated` True
        - `unique` (none): a key of 1 to 512 characters that one unfinished job of the queue may
          hold; when it is held, `on_conflict` decides: "return" (default) returns the holder with
          `deduplicated` True; "replace" takes a holder that has not started out and adds this
          one; "extend" returns the holder, pushed out to this job's due time. `unique_ttl`: the
          key is held for exactly this long instead, up to 365 days
        - `group` (none): jobs of one group run one at a time, in order; 1 to 256 characters
        - `depends_on` (none): jobs of any queue that must complete first, as handles or ids, up to
          1,000; until then this one is blocked. `on_dep_fail` ("fail"): when one of them fails for
          good, "fail" makes this one dead, too, "ignore" runs it all the same, "hold" leaves it
          blocked until that one is retried and completes. `dep_timeout` (none): longest time
          blocked, then it is dead. Its handler finds their results in `job.dependencies()`
        - `tags` (none): up to 20 texts of 1 to 128 characters, to list by
        - `meta` (none): a dict of up to 4 KiB packed, shown in views
        - `keep_completed` (True: as the queue's settings say): False forgets record and result at
          completion; a whole number keeps it until so many later jobs have completed, up to
          1,000,000; a timedelta or text such as "7d" keeps it that long, a minute to ten years

        Raises BadOption, PayloadError or TooLarge before anything is sent; DepUnknown if a job
        it depends on is not known; Busy, DiskFull or
        Unavailable when the cluster refused; OutcomeUnknown when the job may or may not have
        been added (add it again with the same `job_id` to be sure).
        """
        wire = options_to_wire(options) or None if options else None
        check_name(name)
        if wire is not None and wire.get("depends_on"):
            self.client.must_know(wire["depends_on"], self._slot)
        connection = self.client.connection()
        id_bytes = connection.ids.make(self._slot)[0]
        reply = connection.request(
            Verb.PUSH,
            [wire, [(id_bytes, name, pack(data), None)]],
            queue=self.name,
            flags=_durability(durable),
        )
        job = Job(self, id_bytes, name, None if wire is None else wire.get("job_id"))
        for _, status, detail in reply.body[1]:
            job._take_over(status, detail)
        return job

    def add_bulk(
        self,
        jobs: Iterable[BulkItem],
        *,
        durable: bool = False,
        **common_options: Unpack[JobOptions],
    ) -> list[Job]:
        """Add many jobs and return their handles in order.

        An item is `(name, data)` or `(name, data, {options})`; `common_options` are those of
        `add` and hold for all items that do not say otherwise. `job_id` and `unique` belong to
        an item, `durable` to all.

        Every item is added or refused on its own, also those refused before sending. If any
        was refused, BulkError carries the handles and the failures; if none could be added
        for one and the same reason, that reason is raised (Unreachable, Unavailable ...).
        """
        return Bulk(self, common_options, _durability(durable)).run(jobs)

    # --- looking ------------------------------------------------------------------------------

    def get(self, id: str) -> Job | None:
        """Return the job with this id (a UUID or a custom id) in this queue, or None."""
        views = self.client.find(id, queue=self.name, payload=False, result=False)
        for view in views:
            if view["queue"] == self.name:
                return self._job_of(view)
        return None

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state: {"waiting": 3, "delayed": 0, ...}."""
        return self.client.counts(self.name)[self.name]

    def priorities(self) -> dict[int, int]:
        """Return how many jobs wait under each priority, the highest first: {5: 2, 0: 130}."""
        entries, _ = self._ask(Verb.COUNTS, [0, True])
        for queue, _, waiting in entries:
            if queue == self.name:
                return dict(sorted(dict(waiting).items(), reverse=True))
        return {}

    def jobs(
        self,
        state: str | None = None,
        limit: int | None = None,
        *,
        name: str | None = None,
        tag: str | None = None,
        group: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        payload: bool = True,
        result: bool = True,
    ) -> "Jobs":
        """Return an iterator over views of this queue's jobs; see `Client.jobs`."""
        return self.client.jobs(
            self.name, state, limit, name=name, tag=tag, group=group, since=since, until=until,
            payload=payload, result=result,
        )  # fmt: skip

    @property
    def dead(self) -> "DeadLetters":
        """The queue's dead letters: to list, retry, purge and count."""
        from pyq.deadletters import DeadLetters

        return DeadLetters(self)

    # --- settings -----------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return all settings of the queue as `configure` takes them, those never set included.

        Durations are seconds; None stands for no limit.
        """
        return settings_to_user(self._ask(Verb.CONFIGURE, [None])[0])

    def configure(self, **settings: Unpack[QueueSettings]) -> dict[str, Any]:
        """Change settings of the queue, for good, and return all of them as `settings` does.

        What is not named stays as it is; None goes back to the default.

        - `concurrency` (no limit): jobs running at once, over all workers; 1 to 1,000,000
        - `group_concurrency` (1): jobs of one group at once; 1 to 1,000
        - `rate` (no limit): a pair of how many jobs (1 to 10,000) may start within any duration
          of this length (up to a day), as in `rate=(100, "1m")`
        - `lease` (as the worker says): how long a job stays with a worker that is not heard;
          0.1 s to an hour
        - `max_stalls` (3): a job is dead when its workers were lost more often; 0 to 1,000
        - `keep_count` (1,000): completed jobs kept; 0 to 1,000,000. `keep_age` (no limit): how long
          they are kept at most; a minute to ten years. None is forgotten in its first minute
        - `dead_max` (10,000): dead letters before health warns, or with `drop_oldest` (False)
          before the oldest are purged; 1 to 10,000,000. `dead_age` (no limit): older dead letters
          are purged; a minute to ten years
        - `auto_retry` (never): a pair of a duration and a number (1 to 100): a dead job is retried
          after this duration, then after twice that ..., so many times; 1 s to ten years
        - `defaults` (none): a dict of options for jobs that do not say otherwise; it replaces the
          one before. Not `job_id`, `unique`, `on_conflict`, `unique_ttl`, `group`, `run_at`, `meta`
        - `paused`, `paused_groups`: better done with `pause` and `resume`

        Raises BadOption before anything is sent.
        """
        return settings_to_user(self._ask(Verb.CONFIGURE, [settings_to_wire(settings) or None])[0])

    def pause(self, group: str | None = None) -> bool:
        """Hand out no more jobs of this queue, or of one group in it, until `resume`.

        What runs goes on; jobs can still be added. Returns False if it was paused already.
        """
        return self._pause(True, group)

    def resume(self, group: str | None = None) -> bool:
        """Hand out jobs of this queue, or of one group in it, again.

        A group stays paused with its queue, and the other way round. Returns False if it was
        not paused.
        """
        return self._pause(False, group)

    def _pause(self, paused: bool, group: str | None) -> bool:
        if group is not None:
            check_name(group, "group", GROUP_MAX)
        return bool(self._ask(Verb.PAUSE, [paused, group])[0])

    # --- removing -----------------------------------------------------------------------------

    def drain(self, *, delayed: bool = False) -> int:
        """Remove all jobs that wait, with `delayed` also those that are delayed.

        What runs is left alone. Returns how many were removed. Safe to repeat.
        """
        return sum(self._removals(Verb.DRAIN, [_flag("delayed", delayed)]))

    def clean(self, state: str, *, older_than: Duration = 0, limit: int | None = None) -> int:
        """Remove jobs in one state (waiting, delayed, completed or dead) that have been in it
        for `older_than` (a duration up to ten years) or longer, at most `limit` of them.

        Returns how many were removed. Safe to repeat.
        """
        if check_state(state) in (JobState.ACTIVE, JobState.BLOCKED):
            raise BadOption(f"state {shown(state)} is not waiting, delayed, completed or dead")
        older_ms = duration_ms(older_than, "older_than", 0, DELAY_MS_MAX)
        check_limit(limit)
        return sum(self._removals(Verb.CLEAN, [state, older_ms], limit))

    def obliterate(self, *, force: bool = False) -> int:
        """Remove the queue with all its jobs and settings.

        Raises Conflict when jobs are running, unless `force`: then they are gone, too, and what
        their handlers return does not count. Returns how many jobs were removed. Safe to repeat.
        """
        return sum(self._removals(Verb.OBLITERATE, [_flag("force", force)]))

    def _removals(self, verb: int, body: list[Any], limit: int | None = None) -> Iterator[int]:
        """Ask page by page and yield how many jobs each removed."""
        after: int | None = 0
        left = limit
        while after is not None and left != 0:
            page = REMOVED_MAX if left is None else min(left, REMOVED_MAX)
            removed, after = self._ask(verb, [*body, after, page])
            if left is not None:
                left = max(0, left - removed)
            yield removed

    def _ask(self, verb: int, body: list[Any]) -> Any:
        return self.client.connection().request(verb, body, queue=self.name).body

    def _job_of(self, view: Mapping[str, Any]) -> Job:
        id_bytes = id_from_text(view["id"])
        assert id_bytes is not None, "the id of a view is a UUIDv7"
        return Job(self, id_bytes, view["name"], view["job_id"])

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} at {self.client.url}>"


def _flag(option: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadOption(f"{option} {shown(value)} is neither true nor false")
    return value


def _durability(durable: Any) -> int:
    return Flag.DURABLE if _flag("durable", durable) else Flag.NONE
