"""What commands print: plain data in, text out.

Tables are drawn with rich on a terminal and as aligned text elsewhere; JSON is the same
everywhere. Asks nobody anything.
"""

import io
import json
import os
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from cluster.probes import Answer
from pyq.errors import Status
from pyq.job import JobState

_STATES = tuple(state.word for state in JobState if state is not JobState.GONE)
_CELL_MAX = 60


# --- health -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Health:
    """How one process answered its probe."""

    name: str
    ok: bool
    detail: str


def health_of(name: str, answer: Answer | None) -> Health:
    """Judge the answer to a PING (None: there was none in time)."""
    if answer is None:
        return Health(name, False, "no answer")
    if not answer.ok:
        return Health(name, False, answer.sentence or _status_word(answer.status))
    info: Mapping[str, Any] = answer.body[3] or {}
    if info.get("healthy") is False:
        late = [task[0] for task in info.get("tasks", ()) if task[1]]
        late += [f"schedule {one}: {reason}" for one, reason in _cron(info, "failing")]
        return Health(name, False, f"answers, but keeps failing at: {', '.join(late)}")
    facts = [f"pid {info['pid']}"] if "pid" in info else []
    if answer.epoch:
        facts.append(f"epoch {answer.epoch}")
    if info.get("disk_low"):
        facts.append("its disk is nearly full: no pushes, no pulls until there is space")
    silent = _cron(info, "silent")
    if silent:
        facts.append(
            f"the clock was set back: silent until their last tick is past: {', '.join(silent)}"
        )
    return Health(name, True, ", ".join(facts))


def _cron(info: Mapping[str, Any], what: str) -> Sequence[Any]:
    """Return what the coordinator says of schedules: those failing, or those silent."""
    return (info.get("cron") or {}).get(what) or ()


def health_lines(found: Sequence[Health]) -> list[str]:
    """Return one line per process."""
    rows = [[process.name, "ok" if process.ok else "DOWN", process.detail] for process in found]
    return aligned(rows)


def health_json(found: Sequence[Health]) -> str:
    """Return the probes as one JSON object."""
    healthy = all(process.ok for process in found)
    return json.dumps({"healthy": healthy, "processes": [asdict(process) for process in found]})


# --- status -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Everything that `status` shows."""

    url: str
    complete: bool  # every shard answered
    processes: list[dict[str, Any]] | None  # None: the supervisor was not to be asked
    shards: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    more: bool  # there are, than the first page of queues or workers of each shard


def cluster_status(
    url: str,
    processes: list[dict[str, Any]] | None,
    stats: Mapping[int, Any] | None,
    counts: Mapping[int, Any] | None,
    workers: Mapping[int, Any] | None,
) -> ClusterStatus:
    """Put what the shards said side by side; None stands for who did not answer."""
    stats, counts, workers = stats or {}, counts or {}, workers or {}
    shards = [
        {"shard": shard, "answers": body is not None, **(dict(body[0]) if body else {})}
        for shard, body in sorted(stats.items())
    ]
    complete = bool(stats) and None not in (*stats.values(), *counts.values())
    more = any(body and body[1] is not None for body in (*counts.values(), *workers.values()))
    queues, known = _queues(counts), _workers(workers)
    return ClusterStatus(url, complete, processes, shards, queues, known, more)


def _queues(counts: Mapping[int, Any]) -> list[dict[str, Any]]:
    rows = [
        {"queue": queue, "shard": shard, **{word: per_state.get(word, 0) for word in _STATES}}
        for shard, body in counts.items()
        for queue, per_state in (body[0] if body else ())
    ]
    return sorted(rows, key=lambda row: str(row["queue"]))


def _workers(per_shard: Mapping[int, Any]) -> list[dict[str, Any]]:
    """Add up the leases that each worker has on the shards it pulls from."""
    found: dict[str, dict[str, Any]] = {}
    for body in per_shard.values():
        for worker, leases in body[0] if body else ():
            name, host, pid, concurrency, started_at, queues = worker
            row = found.setdefault(
                name,
                {
                    "worker": name,
                    "host": host,
                    "pid": pid,
                    "concurrency": concurrency,
                    "started_at": started_at,
                    "queues": [],
                    "active": 0,
                },
            )
            row["queues"] = sorted({*row["queues"], *queues})
            row["active"] += leases
    return sorted(found.values(), key=lambda row: str(row["worker"]))


def status_json(status: ClusterStatus) -> str:
    """Return the status as one JSON object."""
    return json.dumps(asdict(status), default=_plain)


def status_text(status: ClusterStatus) -> str:
    """Return the status as a page of tables."""
    parts = [f"cluster at {status.url}"]
    if status.processes is not None:
        parts.append(_section("PROCESSES", _process_rows(status.processes)))
    if status.shards:
        parts.append(_section("SHARDS", _shard_rows(status.shards)))
    else:
        parts.append("the router does not answer; see `pyq-cluster health`")
    if status.queues:
        head = ["queue", "shard", *_STATES]
        rows = [[str(row[name]) for name in head] for row in status.queues]
        parts.append(_section("QUEUES", [head, *rows]))
    parts.append(_section("WORKERS", _worker_rows(status.workers)))
    low = [str(shard["shard"]) for shard in status.shards if shard.get("disk_low")]
    if low:
        parts.append(
            f"the disk of shard {', '.join(low)} is nearly full: it takes and gives no jobs until"
            " there is space; acks go on"
        )
    if status.more:
        parts.append("there are more queues or workers than are shown here")
    return "\n\n".join(parts)


def _process_rows(processes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["name", "state", "pid", "restarts", "started", "last exit"]]
    for row in processes:
        pid = str(row["pid"] or "-")
        last_exit = "-" if row["last_exit"] is None else str(row["last_exit"])
        started = moment(row["started_at"])
        rows.append([row["name"], row["state"], pid, str(row["restarts"]), started, last_exit])
    return rows


def _shard_rows(shards: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["shard", "epoch", "queues", *_STATES]]
    for row in shards:
        if not row["answers"]:
            rows.append([str(row["shard"]), "down", "-", *("-" for _ in _STATES)])
            continue
        jobs = row.get("jobs", {})
        facts = [str(row["shard"]), str(row.get("epoch", "-")), str(row.get("queues_count", "-"))]
        rows.append(facts + [str(jobs.get(word, 0)) for word in _STATES])
    return rows


def _worker_rows(workers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["worker", "host", "pid", "active", "concurrency", "queues", "started"]]
    for row in workers:
        facts = [row["worker"], row["host"], str(row["pid"]), str(row["active"])]
        queues = ", ".join(row["queues"])
        rows.append([*facts, str(row["concurrency"]), queues, moment(row["started_at"])])
    return rows


# --- jobs ---------------------------------------------------------------------------------------


# What a shell job's result says only when there is something to say; and how long it took.
_SHELL_NOTES = (
    "duration_ms", "timed_out", "output_cut_bytes", "error_cut_bytes", "escaped", "left_count",
)  # fmt: skip


def job_facts(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job under the names that queue-ctl's users know, and ours."""
    result = view.get("result")
    outcome: Mapping[str, Any] = result if isinstance(result, Mapping) else {}
    is_shell = view.get("name") == "shell"
    waits = view["state"] in ("waiting", "delayed", "blocked")  # then nobody holds it
    data = view.get("data")
    facts: dict[str, Any] = {
        "id": view.get("job_id") or _text_of_id(view["id"]),
        "uuid": _text_of_id(view["id"]),
        "queue": view["queue"],
        "name": view.get("name"),
        "state": view["state"],
        "attempts": view.get("attempt", 0),
        "max_retries": view.get("attempts"),
        "failures": view.get("failures", 0),
        "stalls": view.get("stalls", 0),
        "priority": view.get("priority", 0),
        "created_at": view.get("created_at"),
        "updated_at": view.get("updated_at"),
        "finished_at": view.get("finished_at"),
        "next_retry_at": view.get("run_at") if view["state"] == "delayed" else None,
        "worker": view.get("worker"),
        "locked_by": view.get("worker") if not waits else None,
        "locked_at": view.get("started_at") if not waits else None,
        "reason": view.get("reason"),
        "error": view.get("error") if view["state"] != "completed" else None,
        "history": view.get("history", []),
    }
    if not is_shell:
        return {**facts, "data": data, "result": result}
    command = data.get("command") if isinstance(data, Mapping) else None
    return {
        **facts,
        "command": command,
        "exit_code": outcome.get("exit_code"),
        "signal": outcome.get("signal"),
        "output": outcome.get("output"),
        **{name: outcome[name] for name in _SHELL_NOTES if name in outcome},
        "error": outcome.get("error") or facts["error"],
    }


def one_job_json(view: Mapping[str, Any]) -> str:
    """Return one job as one JSON object."""
    return json.dumps(job_facts(view), default=_plain)


def job_json(views: Sequence[Mapping[str, Any]]) -> str:
    """Return jobs as one JSON array."""
    return json.dumps([job_facts(view) for view in views], default=_plain)


def jobs_table(views: Sequence[Mapping[str, Any]]) -> str:
    """Return jobs as a table, one line each."""
    rows = [["id", "queue", "state", "attempts", "priority", "updated", "command"]]
    for view in views:
        facts = job_facts(view)
        what = facts.get("command") or facts["name"] or ""
        attempts = f"{facts['attempts']}/{facts['max_retries']}"
        row = [facts["id"], facts["queue"], facts["state"], attempts, str(facts["priority"])]
        rows.append([*row, moment(facts["updated_at"]), _short(str(what))])
    return table(rows)


def dead_table(views: Sequence[Mapping[str, Any]]) -> str:
    """Return dead jobs as a table, one line each."""
    rows = [["id", "queue", "attempts", "reason", "died", "error"]]
    for view in views:
        facts = job_facts(view)
        error = str(view.get("error") or "")
        row = [facts["id"], facts["queue"], str(facts["attempts"]), str(facts["reason"])]
        rows.append([*row, moment(facts["finished_at"]), _short(error)])
    return table(rows)


def job_text(view: Mapping[str, Any]) -> str:
    """Return one job as lines `name: value`; what it printed comes last.

    As it is where it is piped; on a terminal without what would command that terminal.
    """
    facts = job_facts(view)
    long = [(name, facts.pop(name, None)) for name in ("output", "error", "data", "result")]
    history = facts.pop("history")
    rows = [
        [f"{name}:", moment(value) if name.endswith("_at") else harmless(str(value))]
        for name, value in facts.items()
        if value is not None
    ]
    lines = aligned(rows)
    for attempt, at_ms, error in history:
        lines.append(f"attempt {attempt}: {moment(at_ms)}, {harmless(error)}")
    show = harmless if sys.stdout.isatty() else str
    for name, value in long:
        if value not in (None, ""):
            lines += [f"{name}:", show(str(value).rstrip("\n"))]
    return "\n".join(lines)


# --- shared -------------------------------------------------------------------------------------


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows (the first one is the head) as a table fit for where it goes."""
    return _rich_table(rows) if sys.stdout.isatty() else "\n".join(aligned(rows))


def harmless(text: str) -> str:
    """Return text without characters that a terminal obeys; lines and tabs stay."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text
    )


def _cell(text: str) -> str:
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    rows = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def moment(at_ms: int | None) -> str:
    """Return a time as people here read it, `-` for none."""
    if not at_ms:
        return "-"
    return datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n{table(rows)}" if len(rows) > 1 else f"{title}\nnone"


def _rich_table(rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in rows[0]:
        # On a narrow terminal names and commands are folded, never cut; numbers stay whole.
        drawn.add_column(title, overflow="fold", no_wrap=title not in (rows[0][0], rows[0][-1]))
    for row in rows[1:]:
        drawn.add_row(*(Text(_cell(cell), style=_style(cell)) for cell in row))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=True,
        no_color=bool(os.environ.get("NO_COLOR")),
        width=shutil.get_terminal_size().columns,
    )
    console.print(drawn)
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip("\n").splitlines())


_STYLES = {
    "completed": "green",
    "ready": "green",
    "active": "cyan",
    "starting": "cyan",
    "delayed": "yellow",
    "restarting": "yellow",
    "degraded": "yellow",
    "dead": "red",
    "failed": "red",
    "down": "red",
}


def _style(cell: str) -> str:
    return _STYLES.get(cell, "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CELL_MAX else line[: _CELL_MAX - 3] + "..."


def _text_of_id(value: Any) -> str:
    return str(uuid.UUID(bytes=value)) if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into text."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _status_word(code: int) -> str:
    return Status(code).name if code in set(Status) else f"status {code}"
