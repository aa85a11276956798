"""Log lines of our processes: written by a thread, so that a log can never stop the work.

A full disk, a closed pipe or a reader that stands still costs lines, which are counted and
reported when there is room again; nothing else happens. One structured event a line.
"""

import atexit
import json
import queue
import sys
import threading
from contextlib import suppress
from typing import Any, TextIO

LINES_MAX = 1_000  # waiting for a slow reader; more are dropped and counted
LAST_LINES_S = 1.0  # how long an ending process waits for its last lines


class LineWriter:
    """What structlog writes to: every method takes one finished line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._dropped_count = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def msg(self, line: str) -> None:
        """Write a line soon, or count it as dropped."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped_count += 1

    log = debug = info = warn = warning = error = critical = exception = fatal = msg

    def close(self) -> None:
        """Write what is left, within a second."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(LAST_LINES_S)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped_count, self._dropped_count = self._dropped_count, 0
            if dropped_count:
                facts = {"event": "log_lines_dropped", "count": dropped_count}
                line = f"{json.dumps(facts)}\n{line}"
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):  # no space, nobody reads, or closed
                self._dropped_count += 1 + dropped_count


_writer: LineWriter | None = None


def get_logger(process: str) -> Any:
    """Return a structured logger that writes one line an event to standard error.

    Console style on a terminal, JSON lines elsewhere. Payloads and tokens are never logged.
    """
    import structlog

    global _writer
    if _writer is None:
        _writer = LineWriter(sys.stderr)
    writer = _writer
    renderer: Any = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=lambda *args: writer,
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger().bind(process=process)
