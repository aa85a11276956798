"""Listing jobs: what a listing is narrowed to, and the iterator over its pages."""

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyq.durations import moment_ms
from pyq.errors import BadOption, Unavailable
from pyq.job import STATE_WORDS, JobState
from pyq.limits import GROUP_MAX, NAME_MAX, TAG_MAX
from pyq.options import check_name, shown

if TYPE_CHECKING:
    from pyq.client import Client

Filters = dict[str, Any] | None

_PAGE = 200  # views of one LIST: with payloads a page stays well below a frame
_REASON_MAX = 32  # characters


def check_state(state: Any) -> JobState:
    """Return the state that a word stands for, or raise BadOption."""
    if not isinstance(state, str) or state not in STATE_WORDS:
        raise BadOption(f"state {shown(state)} is not one of {', '.join(sorted(STATE_WORDS))}")
    return STATE_WORDS[state]


def check_limit(limit: Any) -> None:
    """Refuse a number of jobs that is none; None stands for all."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise BadOption(f"limit {shown(limit)} is not a whole number from 0 up")


def filters_to_wire(
    name: str | None = None,
    tag: str | None = None,
    group: str | None = None,
    reason: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Filters:
    """Return the wire's map for what a listing is narrowed to, or None; BadOption if wrong."""
    filters: dict[str, Any] = {}
    texts = (
        ("name", name, NAME_MAX),
        ("tag", tag, TAG_MAX),
        ("group", group, GROUP_MAX),
        ("reason", reason, _REASON_MAX),
    )
    for what, text, longest in texts:
        if text is not None:
            filters[what] = check_name(text, what, longest)
    if since is not None:
        filters["since"] = moment_ms(since, "since")
    if until is not None:
        filters["until"] = moment_ms(until, "until")
    return filters or None


class Jobs(Iterator[dict[str, Any]]):
    """An iterator over views of jobs. `missing` names shards that did not answer so far."""

    def __init__(
        self,
        client: "Client",
        queue: str | None,
        state: str | None,
        limit: int | None,
        want: int,
        partial: bool = False,
        filters: Filters = None,
    ) -> None:
        self.missing: tuple[int, ...] = ()
        self._client = client
        self._queue = queue
        self._state = state
        self._want = want
        self._left = limit
        self._partial = partial
        self._filters = filters
        self._views = self._all_views()

    def __next__(self) -> dict[str, Any]:
        if self._left == 0:
            raise StopIteration
        view = next(self._views)
        if self._left is not None:
            self._left -= 1
        return view

    def _all_views(self) -> Iterator[dict[str, Any]]:
        if self._queue is not None:
            yield from self._views_of_shard(0)
            return
        shards = [self._views_of_shard(shard) for shard in range(self._client.shard_count())]
        yield from heapq.merge(*shards, key=lambda view: view["created_at"])

    def _views_of_shard(self, shard: int) -> Iterator[dict[str, Any]]:
        after: int | None = 0
        while after is not None:
            limit = _PAGE if self._left is None else max(1, min(_PAGE, self._left))
            body: list[Any] = [self._state, after, limit, self._want]
            if self._filters is not None:
                body.append(self._filters)
            try:
                views, after = self._client.page_of(self._queue, shard, body)
            except Unavailable:
                if not self._partial:
                    raise
                self.missing = (*self.missing, shard)
                return
            yield from views
