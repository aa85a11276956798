"""Schedules as the command line shows them. Asks nobody anything."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from cluster.views import table

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def schedules_table(schedules: Sequence[Mapping[str, Any]]) -> str:
    """Return schedules as a table, one line each."""
    rows = [["name", "when", "zone", "queue", "next", "last", "jobs", "skipped", "runs"]]
    for schedule in schedules:
        limit = f"/{schedule['limit']}" if schedule["limit"] else ""
        rows.append(
            [
                schedule["name"],
                schedule["pattern"] or f"every {interval(schedule['every'])}",
                "-" if schedule["every"] else schedule["zone"],
                schedule["queue"],
                "paused" if schedule["paused"] else when(schedule["next_tick"]),
                when(schedule["last_tick"], "-"),
                f"{schedule['fired_count']}{limit}",
                str(schedule["skipped_count"]),
                _what(schedule),
            ]
        )
    return table(rows)


def schedules_json(schedules: Sequence[Mapping[str, Any]]) -> str:
    """Return schedules as one JSON array."""
    return json.dumps(list(schedules), default=_plain)


def schedule_json(schedule: Mapping[str, Any], **more: Any) -> str:
    """Return one schedule, and what else is to be said, as one JSON object."""
    return json.dumps({**more, **schedule}, default=_plain)


def when(moment: datetime | None, never: str = "never") -> str:
    """Return a moment by the clocks of its zone."""
    if moment is None:
        return never
    whole = moment.microsecond == 0
    return moment.isoformat(sep=" ", timespec="seconds" if whole else "milliseconds")


def interval(seconds: float) -> str:
    """Return an interval as users write it: 47m, 1h30m, 2.5s."""
    parts = ""
    for unit, length in _UNITS[:-1]:
        count, seconds = divmod(seconds, length)
        parts += f"{count:.0f}{unit}" if count else ""
    return parts + (f"{seconds:g}s" if seconds or not parts else "")


def _what(schedule: Mapping[str, Any]) -> str:
    data = schedule["data"]
    shell = schedule["job"] == "shell" and isinstance(data, Mapping)
    text = str(data.get("command")) if shell else schedule["job"]
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into what it does."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
