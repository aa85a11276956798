"""What the coordinator has to do, and when.

Pure: a list of named tasks with due times, deadlines and failures in a row; the time comes
with each call, in monotonic milliseconds. Knows nothing of what a task does: sweeps have
theirs in `sweeps.py`.
"""

from dataclasses import dataclass
from typing import Any

CRITICAL_FAILURES = 5  # failures in a row after which somebody has to look


@dataclass(slots=True)
class Task:
    """Something to be done again and again."""

    name: str
    due_ms: int | None  # None: under way
    timeout_ms: int
    retry_ms: int
    deadline_ms: int | None = None  # of the run that is under way
    failures: int = 0  # in a row
    ok_ms: int | None = None  # when it last succeeded

    @property
    def critical(self) -> bool:
        """Whether it failed so often in a row that somebody has to look."""
        return self.failures >= CRITICAL_FAILURES


class Agenda:
    """All tasks of the coordinator. One that fails delays no other."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def add(self, name: str, due_ms: int, *, timeout_ms: int, retry_ms: int) -> None:
        """Add a task. A run without an outcome after `timeout_ms` has failed."""
        assert name not in self._tasks, f"the task {name} is on the agenda already"
        self._tasks[name] = Task(name, due_ms, timeout_ms, retry_ms)

    def take_due(self, now_ms: int) -> list[str]:
        """Return the tasks to run now; each is under way until it succeeds or fails."""
        due = [
            task
            for task in self._tasks.values()
            if task.due_ms is not None and task.due_ms <= now_ms
        ]
        for task in due:
            task.due_ms = None
            task.deadline_ms = now_ms + task.timeout_ms
        return [task.name for task in due]

    def succeeded(self, name: str, now_ms: int, next_due_ms: int) -> None:
        """A run succeeded; the next one is due at `next_due_ms`."""
        task = self._tasks[name]
        task.failures = 0
        task.ok_ms = now_ms
        task.due_ms, task.deadline_ms = next_due_ms, None

    def failed(self, name: str, now_ms: int) -> bool:
        """A run failed; it is tried again. Return True if the task becomes critical by that."""
        task = self._tasks[name]
        task.failures += 1
        task.due_ms, task.deadline_ms = now_ms + task.retry_ms, None
        return task.failures == CRITICAL_FAILURES

    def hasten(self, now_ms: int) -> None:
        """Try again now what has failed and waits for its next try: its cause may be gone."""
        for task in self._tasks.values():
            if task.failures and task.due_ms is not None:
                task.due_ms = min(task.due_ms, now_ms)

    def is_under_way(self, name: str) -> bool:
        """Whether a run has neither succeeded nor failed yet."""
        return self._tasks[name].deadline_ms is not None

    def overdue(self, now_ms: int) -> list[str]:
        """Return the tasks whose run had no outcome in time; the caller calls them failed."""
        return [
            task.name
            for task in self._tasks.values()
            if task.deadline_ms is not None and task.deadline_ms <= now_ms
        ]

    def next_wakeup(self) -> int | None:
        """Return when something is due or overdue next; None without tasks."""
        times = (
            task.due_ms if task.deadline_ms is None else task.deadline_ms
            for task in self._tasks.values()
        )
        return min((at for at in times if at is not None), default=None)

    @property
    def healthy(self) -> bool:
        """Whether no task is critical."""
        return not any(task.critical for task in self._tasks.values())

    def table(self, now_ms: int) -> list[list[Any]]:
        """Return [name, failures in a row, ms since the last success or -1] of every task."""
        return [
            [task.name, task.failures, -1 if task.ok_ms is None else now_ms - task.ok_ms]
            for task in self._tasks.values()
        ]
