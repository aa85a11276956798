"""A log that cannot be written costs lines, never the work."""

import threading

import pytest

from pyq.log import LINES_MAX, LineWriter


class Stream:
    """Somebody who reads the log; `fails` and `stands_still` are what may go wrong."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.asked = threading.Semaphore(0)

    def write(self, text: str) -> int:
        self.asked.release()
        self.goes_on.wait(10)
        if self.fails:
            raise OSError("no space left")
        self.lines += text.splitlines()
        return len(text)

    def flush(self) -> None:
        pass


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_lines_come_in_order(stream: Stream) -> None:
    writer = LineWriter(stream)  # type: ignore[arg-type]
    for number in range(100):
        writer.info(str(number))
    writer.close()
    assert stream.lines == [str(number) for number in range(100)]


def test_a_full_disk_loses_lines_and_says_how_many(stream: Stream) -> None:
    writer = LineWriter(stream)  # type: ignore[arg-type]
    stream.fails = True
    writer.info("lost")
    writer.error("lost too")
    for _ in range(2):
        assert stream.asked.acquire(timeout=10)
    stream.goes_on.clear()
    writer.info("there is space again")
    assert stream.asked.acquire(timeout=10)
    stream.fails = False
    stream.goes_on.set()
    writer.close()
    assert stream.lines == ['{"event": "log_lines_dropped", "count": 2}', "there is space again"]


def test_a_reader_that_stands_still_stops_nobody(stream: Stream) -> None:
    stream.goes_on.clear()
    writer = LineWriter(stream)  # type: ignore[arg-type]
    for number in range(LINES_MAX + 50):
        writer.info(str(number))
    stream.goes_on.set()
    writer.close()
    assert len(stream.lines) >= LINES_MAX
