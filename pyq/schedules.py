"""Schedules as applications see them: jobs by the clock, added, listed, paused, removed.

Which moments a schedule names is in `cron.py`; that they have their jobs is the coordinator's
business. Everything here is one question to the shard that keeps the schedule.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Unpack

from pyq.client import Rows, readable
from pyq.codec import pack
from pyq.cron import check_count, check_cron, next_ticks, step_hints, zone_of
from pyq.durations import Duration, duration_ms, moment_ms
from pyq.errors import BadOption, NotFound
from pyq.given_options import JobOptions, options_to_user, options_to_wire
from pyq.handle import Job
from pyq.ids import id_to_text
from pyq.limits import DELAY_MS_MAX, EVERY_MS_MIN, SCHEDULE_BYTES_MAX, SCHEDULES_PAGE_MAX
from pyq.options import check_name, check_queue, shown
from pyq.routes import slot_of
from pyq.schedule import Schedule, check_schedule_name, check_template, schedule_from_wire
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.client import Client

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Overlap = Literal["skip", "allow"]
Misfire = Literal["skip", "once", "all"]
Ticks: TypeAlias = list[datetime]


class Added(NamedTuple):
    """What `add` did: `added`, `changed` or `unchanged`; the schedule as it is now, and hints."""

    outcome: str
    schedule: dict[str, Any]
    hints: list[str]  # sentences about a pattern that may not mean what it seems to


class Schedules:
    """The schedules of a cluster. Made by `client.cron`; making it asks nothing."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def add(
        self,
        name: str,
        pattern: str | None = None,
        queue: str = "default",
        job: str | None = None,
        data: Any = None,
        *,
        every: Duration | None = None,
        zone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        overlap: Overlap = "skip",
        misfire: Misfire = "once",
        **options: Unpack[JobOptions],
    ) -> Added:
        """Add a schedule, or change the one of this name; the same again changes nothing.

        `name` (1 to 256 characters) is unique in the cluster. At each tick a job is added to
        `queue`, with the name `job` (by default that of the schedule), `data` and the `options`
        of `Queue.add` but `job_id`, `run_at` and `depends_on`.

        - `pattern`: five fields (minute hour day-of-month month day-of-week), six with seconds in
          front, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`, by the clocks of `zone`
        - `every`: instead of a pattern, a duration from a second to ten years; the first tick is
          at `start`, else one interval from now
        - `start` / `end`: aware datetimes; no tick before or after
        - `limit`: so many jobs in all
        - `overlap`: what a tick does while the last job has not ended: "skip" it, or "allow" two
        - `misfire`: what becomes of ticks that were missed: "skip" them, "once" for the newest,
          or "all" (at most the newest 1,000)

        Raises BadOption, which names the option, the value and the bound, before anything is
        sent; Busy when there are too many schedules.
        """
        times: dict[str, Any] = {"overlap": overlap, "misfire": misfire}
        if pattern is not None:
            times["pattern"] = pattern
        if every is not None:
            times["every_ms"] = duration_ms(every, "every", EVERY_MS_MIN, DELAY_MS_MAX)
        if zone != "UTC":
            times["zone"] = zone
        if start is not None:
            times["start_at"] = moment_ms(start, "start")
        if end is not None:
            times["end_at"] = moment_ms(end, "end")
        if limit is not None:
            times["limit"] = _limit(limit)
        cron = check_cron(times)
        wire = options_to_wire(options)
        check_template(wire)
        body = [
            cron.to_wire(),
            check_queue(queue),
            check_name(name if job is None else job, "job"),
            pack(data, "data", SCHEDULE_BYTES_MAX),
            wire or None,
        ]
        word, view = self._ask(Verb.SCHEDULE, name, body)
        return Added(word, _to_user(schedule_from_wire(view)), step_hints(cron.pattern))

    def list(self, *, partial: bool = False) -> Rows:
        """Return all schedules, by name, as dicts: see `get`. With `partial` those of shards
        that do not answer are left out, and `missing` names these.
        """
        scattered = self._client._scatter(Verb.SCHEDULES, _page(0, 0), partial)
        found: dict[str, Schedule] = {}
        for shard, body in scattered.answers:
            while True:
                epoch, after, more, views = body
                known = map(schedule_from_wire, views)
                found.update((one.name, one) for one in known if not one.removed_at)
                if not more:
                    break
                body = (
                    self._client.connection()
                    .request(Verb.SCHEDULES, _page(epoch, after), slot=shard)
                    .body
                )
        rows = Rows(_to_user(found[name]) for name in sorted(found))
        rows.missing = scattered.missing
        return rows

    def get(self, name: str) -> dict[str, Any]:
        """Return a schedule as a dict, or raise NotFound.

        `name`, `pattern` or `every` (seconds), `zone`, `start`, `end`, `limit`, `overlap`,
        `misfire`, `queue`, `job`, `data`, `options` (as `add` takes them), `paused`; and how far
        it has come: `next_tick`, `last_tick` (datetimes in its zone, or None), `fired_count` (jobs
        created), `skipped_count` (ticks without a job), `last_job` (the id), `changed_at` (ms
        since 1970).
        """
        return _to_user(self._record(name))

    def next(self, what: str, n: int = 10, *, zone: str = "UTC") -> Ticks:
        """Return the next `n` ticks (1 to 1,000) of a schedule, by its name, or of a pattern.

        What has five or six words, or begins with "@", is a pattern; `zone` is for that. See also
        `pyq.cron_preview`.
        """
        if what.startswith("@") or len(what.split()) in (5, 6):
            return cron_preview(what, n, zone=zone)
        check_count(n)
        record = self._record(what)
        check_cron(record.cron.to_wire())
        return _next_of(record, n)

    def run_now(self, name: str) -> Job:
        """Add a job as a tick would, now and beside all ticks; return its handle.

        It is not counted, and `overlap` does not look at it. Raises NotFound.
        """
        record = self._record(name)
        connection = self._client.connection()
        id_bytes = connection.ids.make(slot_of(record.queue))[0]
        row = (id_bytes, record.job, record.payload, dict(record.options) or None)
        reply = connection.request(Verb.PUSH, [None, [row]], queue=record.queue)
        job = Job(self._client.queue(record.queue), id_bytes, record.job)
        for _, status, detail in reply.body[1]:
            job._take_over(status, detail)
        return job

    def pause(self, name: str) -> bool:
        """Fire no more until `resume`. Returns False if it was paused already.

        Raises NotFound.
        """
        return bool(self._ask(Verb.SUSPEND, name, [True])[0])

    def resume(self, name: str) -> bool:
        """Go on with the ticks to come; those slept through are not made up for.

        Returns False if it was not paused. Raises NotFound.
        """
        return bool(self._ask(Verb.SUSPEND, name, [False])[0])

    def remove(self, name: str) -> bool:
        """Remove a schedule; its jobs stay. Returns False if there is none."""
        return bool(self._ask(Verb.UNSCHEDULE, name, [])[0])

    def _record(self, name: str) -> Schedule:
        _, _, _, views = self._ask(Verb.SCHEDULES, name, _page(0, 0))
        for view in views:
            return schedule_from_wire(view)
        raise NotFound(f"there is no schedule {shown(name)}")

    def _ask(self, verb: Verb, name: str, body: Any) -> Any:
        """Ask the shard that keeps the schedule: it is found by the name, as that of a queue."""
        check_schedule_name(name)
        return self._client.connection().request(verb, body, queue=name).body

    def __repr__(self) -> str:
        return f"<Schedules at {self._client.url}>"


def cron_preview(
    pattern: str | None = None,
    n: int = 10,
    *,
    every: Duration | None = None,
    zone: str = "UTC",
    after: datetime | None = None,
) -> Ticks:
    """Return the first `n` ticks (1 to 1,000) of a pattern, in its zone, or of an interval, after
    an aware datetime (now). Asks nobody. Raises BadOption.
    """
    check_count(n)
    times: dict[str, Any] = {} if pattern is None else {"pattern": pattern}
    if every is not None:
        times["every_ms"] = duration_ms(every, "every", EVERY_MS_MIN, DELAY_MS_MAX)
    if zone != "UTC" and every is None:
        times["zone"] = zone
    cron = check_cron(times)
    after_ms = _now_ms()
    if after is not None:  # rounded down: a tick of the very next millisecond is after it
        after_ms = moment_ms(after, "after") - (after.microsecond % 1_000 > 0)
    return [_moment(tick, zone) for tick in next_ticks(cron, after_ms, n, after_ms)]


def _page(epoch: int, after: int) -> list[int]:
    return [epoch, after, SCHEDULES_PAGE_MAX, 0]


def _limit(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise BadOption(f"limit {shown(value)} is not a whole number from 1 on")
    return value


def _to_user(record: Schedule) -> dict[str, Any]:
    cron = record.cron
    try:
        zone = check_cron(cron.to_wire()).zone
        ticks = [] if record.paused else _next_of(record, 1)
    except BadOption:  # a zone that the data of this host does not know
        zone, ticks = "UTC", []
    return {
        "name": record.name,
        "pattern": cron.pattern or None,
        "every": cron.every_ms / 1_000 if cron.every_ms else None,
        "zone": cron.zone,
        "start": _moment(cron.start_at, zone) if cron.start_at else None,
        "end": _moment(cron.end_at, zone) if cron.end_at else None,
        "limit": cron.limit or None,
        "overlap": cron.overlap,
        "misfire": cron.misfire,
        "queue": record.queue,
        "job": record.job,
        "data": readable(record.payload),
        "options": _options_to_user(record.options),
        "paused": record.paused,
        "next_tick": ticks[0] if ticks else None,
        "last_tick": _moment(record.last_tick, zone) if record.last_tick else None,
        "fired_count": record.fired_count,
        "skipped_count": record.skipped_count,
        "last_job": id_to_text(record.last_job) if record.last_job else None,
        "changed_at": record.changed_at,
    }


def _options_to_user(wire: Mapping[str, Any]) -> dict[str, Any]:
    given = options_to_user(wire)
    for name in ("unique", "on_conflict", "group"):
        if wire.get(name):
            given[name] = wire[name]
    if wire.get("unique_ttl_ms"):
        given["unique_ttl"] = wire["unique_ttl_ms"] / 1_000
    if wire.get("meta"):
        given["meta"] = readable(wire["meta"])
    return given


def _next_of(record: Schedule, n: int) -> list[datetime]:
    """Return the next ticks of a schedule, as they will be if nothing is in the way."""
    if record.is_used_up:
        return []
    after_ms = max(record.last_tick, record.since)
    if not record.cron.every_ms or record.last_tick <= _now_ms():
        after_ms = max(after_ms, _now_ms())
    ticks = next_ticks(record.cron, after_ms, n, record.anchor_at)
    return [_moment(tick, record.cron.zone) for tick in ticks]


def _moment(at_ms: int, zone: str) -> datetime:
    return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone_of(zone))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
