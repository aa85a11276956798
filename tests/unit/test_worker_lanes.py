"""Outboxes of a worker: what waits for a message, and what is not worth one."""

from pyq.lanes import Lane, Outbox
from pyq.wire import Verb


def test_only_the_newest_progress_of_a_job_waits() -> None:
    # Was a bug: a handler that reports often filled the memory while the cluster was away.
    outbox = Outbox(newest_only=True)
    for value in (b"1", b"2", b"3"):
        outbox.add(None, (b"id-a", b"token-a", value), 0)
        outbox.add(None, (b"id-b", b"token-b", value), 0)

    assert outbox.take()[1] == [(b"id-a", b"token-a", b"3"), (b"id-b", b"token-b", b"3")]
    outbox.add(None, (b"id-a", b"token-a", b"4"), 0)
    assert outbox.take()[1] == [(b"id-a", b"token-a", b"4")]


def test_every_extension_counts() -> None:
    outbox = Outbox()
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
