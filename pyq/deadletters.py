"""The dead letters of a queue: list them, let them start afresh, forget them, count them."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

from pyq.client import Changed
from pyq.errors import BadOption, NotFound, PyqError
from pyq.handle import Job
from pyq.ids import id_from_text
from pyq.limits import BATCH_JOBS_MAX
from pyq.listing import Jobs
from pyq.options import shown
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.queue import Queue

JobLike: TypeAlias = Job | str | Mapping[str, Any]  # a handle, an id, or a view


class DeadFilters(TypedDict, total=False):
    """What dead letters are narrowed to: the reason (exhausted, unrecoverable, timeout, stalled),
    the job's name, one of its tags, its group, and when it was added: at or after the aware
    datetime `since`, before `until`.
    """

    reason: str | None
    name: str | None
    tag: str | None
    group: str | None
    since: datetime | None
    until: datetime | None


class DeadLetters:
    """The dead jobs of one queue. Made by `queue.dead`; making it asks nothing."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.jobs()

    def jobs(
        self,
        limit: int | None = None,
        *,
        payload: bool = True,
        result: bool = True,
        **filters: Unpack[DeadFilters],
    ) -> Jobs:
        """Return an iterator over views of dead jobs, in the order in which they were added.

        At most `limit`, narrowed by `reason`, `name`, `tag`, `group`, `since`, `until` (aware
        datetimes; when the job was added). `payload` and `result` say whether `data` and
        `result` are fetched, too. Raises BadOption.
        """
        queue = self._queue
        return queue.client.jobs(
            queue.name, "dead", limit, payload=payload, result=result, **filters
        )

    def retry(self, jobs: JobLike | Iterable[JobLike]) -> Changed:
        """Let one dead job or several start afresh: a handle, an id (UUID or custom), a view, or
        an iterable of these.

        Returns how many did. Of one, a refusal is raised: NotFound, or Conflict when another job
        holds its unique key. Of several all are tried, and `refused` of the number returned lists
        (id, error) of those that could not.
        """
        return self._change(Verb.RETRY, jobs)

    def purge(self, jobs: JobLike | Iterable[JobLike]) -> Changed:
        """Forget one dead job or several, for good. Arguments, answer and errors as in `retry`;
        Conflict when a job is not dead.
        """
        return self._change(Verb.PURGE, jobs)

    def retry_all(self, **filters: Unpack[DeadFilters]) -> Changed:
        """Let all dead jobs, or those that the filters of `jobs` leave, start afresh.

        Returns how many did; its `refused` lists (id, error) of those that could not. Safe to
        repeat.
        """
        return self._change_all(Verb.RETRY, filters)

    def purge_all(self, **filters: Unpack[DeadFilters]) -> Changed:
        """Forget all dead jobs, or those that the filters of `jobs` leave, for good.

        Answer as `retry_all`. Safe to repeat.
        """
        return self._change_all(Verb.PURGE, filters)

    def stats(self) -> dict[str, Any]:
        """Return how many there are and since when, as a dict: `count`, `oldest_at` and
        `newest_at` (when they died, ms since 1970, or None), and `by_reason`: the same three for
        each reason.
        """
        count, reasons = self._queue._ask(Verb.DEAD_STATS, [])
        by_reason = {
            reason: {"count": own, "oldest_at": oldest, "newest_at": newest}
            for reason, (own, oldest, newest) in sorted(reasons.items())
        }
        return {
            "count": count,
            "oldest_at": min((row["oldest_at"] for row in by_reason.values()), default=None),
            "newest_at": max((row["newest_at"] for row in by_reason.values()), default=None),
            "by_reason": by_reason,
        }

    def _change(self, verb: int, jobs: JobLike | Iterable[JobLike]) -> Changed:
        client = self._queue.client
        if not isinstance(jobs, Job | str | Mapping):
            if not isinstance(jobs, Iterable):
                raise BadOption(
                    f"{shown(jobs)} is neither a job, an id, a view nor several of them"
                )
            return client.change_ids(verb, [self._id_of(job) for job in jobs])
        changed = client.change_ids(verb, [self._id_of(jobs)])
        for _, error in changed.refused:
            raise error
        return changed

    def _change_all(self, verb: int, filters: DeadFilters) -> Changed:
        """Change page after page. What is changed leaves the list behind the reader's place."""
        views = self.jobs(payload=False, result=False, **filters)
        count = 0
        refused: list[tuple[str, PyqError]] = []
        while ids := [self._id_of(view) for view in islice(views, BATCH_JOBS_MAX)]:
            changed = self._queue.client.change_ids(verb, ids)
            count += changed
            refused += changed.refused
        return Changed(count, refused)

    def _id_of(self, job: Any) -> bytes:
        """Return the bytes of a job's id; a custom id is looked up."""
        if isinstance(job, Job):
            return job._id
        text = job.get("id") if isinstance(job, Mapping) else job
        if not isinstance(text, str):
            raise BadOption(f"{shown(job)} is neither a job nor an id nor a view")
        id_bytes = id_from_text(text)
        if id_bytes is not None:
            return id_bytes
        found = self._queue.get(text)
        if found is None:
            raise NotFound(f"no job in {self._queue.name!r} has the id {shown(text)}")
        return found._id

    def __repr__(self) -> str:
        return f"<DeadLetters of {self._queue.name!r}>"
