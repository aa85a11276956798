"""Outboxes of a worker: what waits for a message, and what is not worth one."""

from pyq.lanes import Lane, Outbox, lanes_of
from pyq.limits import LOG_LINES_MAX
from pyq.wire import Verb


def test_only_the_newest_progress_of_a_job_waits() -> None:
    # Was a bug: a handler that reports often filled the memory while the cluster was away.
    outbox = Outbox(Verb.PROGRESS)
    for value in (b"1", b"2", b"3"):
        outbox.add(None, (b"id-a", b"token-a", value), 0)
        outbox.add(None, (b"id-b", b"token-b", value), 0)

    assert outbox.take()[1] == [(b"id-a", b"token-a", b"3"), (b"id-b", b"token-b", b"3")]
    outbox.add(None, (b"id-a", b"token-a", b"4"), 0)
    assert outbox.take()[1] == [(b"id-a", b"token-a", b"4")]


def test_every_extension_counts() -> None:
    outbox = Outbox(Verb.EXTEND)
    for lease_ms in (1_000, 2_000):
        outbox.add(None, (b"id", b"token", lease_ms), 0)
    assert len(outbox.take()[1]) == 2


def test_a_lane_keeps_only_progress_short() -> None:
    lane = Lane(0, ["emails"])
    for verb in (Verb.PROGRESS, Verb.ACK):
        for _ in range(2):
            lane.outboxes[verb].add(None, (b"id", b"token", b""), 0)
    assert [len(lane.outboxes[verb].items) for verb in (Verb.PROGRESS, Verb.ACK)] == [1, 2]
    assert lane.has_endings


def test_log_lines_of_a_lease_become_one_item() -> None:
    outbox = Outbox(Verb.LOG)
    for number, text in enumerate(["a", "b", "c"], 1):
        outbox.add(None, (b"id", b"token", number, [text]), 1)
    outbox.add(None, (b"id", b"other lease", 1, ["x"]), 1)

    assert outbox.bytes_count == 4
    assert outbox.take()[1] == [
        (b"id", b"token", 1, ["a", "b", "c"]),
        (b"id", b"other lease", 1, ["x"]),
    ]
    assert outbox.bytes_count == 0
    outbox.add(None, (b"id", b"token", 4, ["d"]), 1)
    assert outbox.take()[1] == [(b"id", b"token", 4, ["d"])]


def test_no_more_log_lines_wait_than_the_cluster_keeps() -> None:
    outbox = Outbox(Verb.LOG)
    for number in range(1, LOG_LINES_MAX + 6):
        outbox.add(None, (b"id", b"token", number, [f"line {number}"]), 1)

    [(_, _, first, lines)] = outbox.take()[1]
    assert (first, len(lines)) == (6, LOG_LINES_MAX)
    assert (lines[0], lines[-1]) == ("line 6", f"line {LOG_LINES_MAX + 5}")


def test_a_lane_keeps_to_the_shortest_lease_of_a_minute() -> None:
    [lane] = lanes_of(["emails"], 1, 15_000)

    assert lane.note_lease(300, now=100.0)
    assert not lane.note_lease(300, now=101.0)
    assert not lane.note_lease(15_000, now=102.0)  # another queue's: the short one may come again
    assert lane.lease_ms == 300
    assert not lane.note_lease(15_000, now=162.0)
    assert lane.lease_ms == 15_000
