"""A schedule as plain data: the record that its shard keeps, and how it travels.

Pure. What its times mean is in `cron.py`; a tick's job has its ids from here, the same ones
whoever makes it, so that a tick never has two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from pyq.cron import Cron
from pyq.errors import BadOption
from pyq.limits import SCHEDULE_NAME_MAX
from pyq.options import check_name, check_options
from pyq.routes import slot_of

# What belongs to one job cannot be an option of all jobs of a schedule.
NO_TEMPLATE = ("job_id", "run_at", "depends_on", "dep_timeout_ms", "on_dep_fail", "gate")


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule: when, what, and how far it has come."""

    name: str
    cron: Cron
    queue: str  # of its jobs
    job: str  # their name
    payload: bytes
    options: Mapping[str, Any]  # as they were given, checked
    paused: bool = False
    changed_at: int = 0
    anchor_at: int = 0  # intervals are counted from here, unless they have a start
    since: int = 0  # ticks up to here are none of its: it was not there yet, or paused
    removed_at: int = 0  # what is left of a removed one remembers its last tick
    last_tick: int = 0
    fired_count: int = 0  # jobs created since it was added
    skipped_count: int = 0  # ticks without a job
    last_job: bytes = b""  # id of the job created last

    @property
    def is_used_up(self) -> bool:
        """Whether it has created all the jobs it may."""
        return bool(self.cron.limit) and self.fired_count >= self.cron.limit

    def is_over(self, now_ms: int) -> bool:
        """Whether it fires no more, unless it is changed."""
        return self.is_used_up or 0 < self.cron.end_at < now_ms

    def says_the_same(self, other: "Schedule") -> bool:
        """Whether both were registered with the same words."""
        return (self.cron, self.queue, self.job, self.payload, self.options) == (
            (other.cron, other.queue, other.job, other.payload, other.options)
        )

    def begins_anew(self, other: "Schedule") -> bool:
        """Whether this one has other ticks, or sends their jobs elsewhere: then what has passed
        is none of its.
        """
        mine, others = self.cron, other.cron
        return (self.queue, mine.pattern, mine.every_ms, mine.zone, mine.start_at) != (
            (other.queue, others.pattern, others.every_ms, others.zone, others.start_at)
        )

    def to_wire(self) -> dict[str, Any]:
        """Return every field, by the names of docs/protocol.md."""
        view = {name: getattr(self, name) for name in Schedule.__slots__}
        view["cron"] = self.cron.to_wire()
        view["options"] = dict(self.options)
        return view


def schedule_from_wire(view: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a view, not checked: the data of zones may differ from host to host.

    Names that a newer cluster adds are left out.
    """
    known = {name: view[name] for name in Schedule.__slots__ if name in view}
    times = {name: view["cron"][name] for name in Cron.__slots__ if name in view["cron"]}
    return Schedule(**{**known, "cron": Cron(**times)})


def removed(schedule: Schedule, now_ms: int) -> Schedule:
    """Return what stays of a removed schedule."""
    return replace(schedule, payload=b"", options={}, removed_at=now_ms, changed_at=now_ms)


def check_template(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a schedule's jobs, checked, in the form in which records keep them."""
    for name in NO_TEMPLATE:
        if (options or {}).get(name):
            raise BadOption(f"{name} belongs to one job; the jobs of a schedule cannot have it")
    check_options(options)
    return {name: _kept(value) for name, value in (options or {}).items()}


def check_schedule_name(name: Any) -> str:
    """Return a schedule's name (1 to 256 characters, no NUL), or raise BadOption."""
    return check_name(name, "name of a schedule", SCHEDULE_NAME_MAX)


def job_id_of_tick(name: str, tick: int) -> str:
    """Return the custom id of a tick's job."""
    return f"cron/{name}/{tick}"


def id_of_tick(name: str, tick: int, queue: str) -> bytes:
    """Return the id of a tick's job: a UUIDv7 of that moment, made of nothing but the tick."""
    digest = int.from_bytes(blake2b(f"{tick}/{name}".encode(), digest_size=8).digest(), "big")
    rand_a, rand_b = digest >> 52, digest & ((1 << 50) - 1)
    value = (tick << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | (rand_b << 12)
    return (value | slot_of(queue)).to_bytes(16, "big")


def _kept(value: Any) -> Any:
    return tuple(map(_kept, value)) if isinstance(value, list | tuple) else value
