"""Readers of events against a stand-in for the cluster: order, gaps, cursors, restarts."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from client_fake_cluster import FakeCluster, eventually, queue_on_shard

import pyq
from pyq.errors import Status
from pyq.wire import Verb


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[pyq.Client]:
    with pyq.connect(cluster.url, timeout=5) as client:
        yield client


QUEUES = queue_on_shard(0, 2), queue_on_shard(1, 2)


def kinds(events: pyq.QueueEvents, count: int) -> list[str]:
    return [events.next(timeout=5).kind for _ in range(count)]


def nothing(events: pyq.QueueEvents) -> bool:
    with pytest.raises(TimeoutError, match="no event in time"):
        events.next(timeout=0.1)
    return True


def test_what_happens_after_it_is_made_is_seen(cluster: FakeCluster, client: pyq.Client) -> None:
    cluster.emit("added", "emails")
    with pyq.QueueEvents(client, "emails") as events:
        cluster.emit("added", "emails")
        cluster.emit("active", "emails", [1, "w1"])
        cluster.emit("added", queue_on_shard(0, 2, "other"))  # another queue
        assert kinds(events, 2) == ["added", "active"]
        assert nothing(events)
        cluster.emit("completed", "emails")
        assert kinds(events, 1) == ["completed"]


def test_an_event_says_what_its_kind_knows(cluster: FakeCluster, client: pyq.Client) -> None:
    job = client.queue("emails").add("welcome")
    fake = cluster.jobs[job._id]
    events = pyq.QueueEvents(client, "emails")
    for kind, detail in [
        ("added", [9_000]), ("added", None), ("active", [2, "w1"]), ("failed", [2, "no"]),
        ("waiting", None), ("stalled", [1]), ("delayed", [7_000]),
        ("dead", ["exhausted", "no"]), ("removed", ["cancelled"]), ("progress", [b"\x07"]),
        ("retried", None), ("a new kind", ["what", "ever"]), ("active", [4, "w1", "and more"]),
    ]:  # fmt: skip
        cluster.emit(kind, "emails", detail, fake)
    cluster.emit("paused", "emails", ["tenant-1"])
    cluster.emit("resumed", "emails", [""])
    seen = [events.next(timeout=5) for _ in range(15)]

    first = seen[0]
    assert (first.kind, first.number, first.at, first.shard) == ("added", 1, 1_000, 0)
    assert (first.queue, first.id, first.name, first.run_at) == ("emails", job.id, "welcome", 9_000)
    assert repr(seen[1]) == (
        f"Event(kind='added', shard=0, number=2, at=1000, queue='emails', id='{job.id}', "
        "name='welcome')"
    )
    assert (seen[2].attempt, seen[2].worker) == (2, "w1")
    assert (seen[3].attempt, seen[3].error, seen[4].kind) == (2, "no", "waiting")
    assert (seen[5].stalls, seen[6].run_at) == (1, 7_000)
    assert (seen[7].reason, seen[7].error) == ("exhausted", "no")
    assert (seen[8].verdict, seen[9].progress) == ("cancelled", 7)
    assert (seen[10].kind, seen[11].kind, seen[12].attempt) == ("retried", "a new kind", 4)
    assert (seen[13].group, seen[13].id, seen[13].name) == ("tenant-1", None, None)
    assert (seen[14].kind, seen[14].group) == ("resumed", None)
    events.close()


def test_all_queues_of_all_shards(cluster: FakeCluster, client: pyq.Client) -> None:
    with pyq.QueueEvents(client) as events:
        for n in range(300):
            cluster.emit("added", QUEUES[n % 2], [n])
        seen = [events.next(timeout=5) for _ in range(300)]
        assert nothing(events)

    for shard in (0, 1):
        own = [event.run_at for event in seen if event.shard == shard]
        assert own == list(range(shard, 300, 2))  # in order within a shard


def test_a_cursor_goes_on_after_the_last_event_delivered(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    with pyq.QueueEvents(client) as events:
        for n in range(10):
            cluster.emit("added", QUEUES[n % 2], [n])
        before = [events.next(timeout=5).run_at for _ in range(5)]
        cursor = events.cursor
    for n in range(10, 12):
        cluster.emit("added", QUEUES[n % 2], [n])
    with pyq.QueueEvents(client, since=cursor) as events:
        after = [events.next(timeout=5).run_at for _ in range(7)]
        assert nothing(events)

    assert sorted(before + after) == list(range(12))  # type: ignore[type-var]


def test_a_cursor_of_one_queue_passes_over_the_others(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    with pyq.QueueEvents(client, QUEUES[0]) as events:
        cluster.emit("added", QUEUES[0])
        cluster.emit("added", queue_on_shard(0, 2, "other"))
        kinds(events, 1)
        assert nothing(events)
        assert events.cursor == "1.2"
    with pyq.QueueEvents(client, QUEUES[0], since="1.2") as events:
        assert nothing(events)


def test_what_was_lost_is_told(cluster: FakeCluster, client: pyq.Client) -> None:
    with pyq.QueueEvents(client, "emails") as events:
        for _ in range(9):
            cluster.emit("added", "emails")
        del cluster.events[0][:6]  # the ring is full
        gap = events.next(timeout=5)
        assert (gap.kind, gap.missed, gap.shard, gap.number) == ("gap", 6, 0, 6)
        cursor = events.cursor
        assert kinds(events, 3) == ["added"] * 3
    with pyq.QueueEvents(client, "emails", since=cursor) as events:
        assert kinds(events, 3) == ["added"] * 3  # not the gap again


def test_a_restart_of_a_shard_is_a_gap(cluster: FakeCluster, client: pyq.Client) -> None:
    with pyq.QueueEvents(client, "emails") as events:
        cluster.emit("added", "emails")
        kinds(events, 1)
        cluster.epochs[0] = 2
        cluster.events[0].clear()
        cluster.emit("completed", "emails")
        gap, event = events.next(timeout=5), events.next(timeout=5)

    assert (gap.kind, gap.missed, event.kind) == ("gap", None, "completed")


def test_a_cursor_of_another_number_of_shards_begins_with_gaps(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    with pyq.QueueEvents(client, since="1.5-1.5-1.5-1.5") as events:
        assert [events.next(timeout=5).missed for _ in range(2)] == [None, None]
        assert nothing(events)


def test_a_reshard_while_reading_begins_again_with_gaps(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    with pyq.QueueEvents(client) as events:
        cluster.shards = 1
        cluster.restart()
        gap = events.next(timeout=10)
        assert (gap.kind, gap.shard, gap.missed) == ("gap", 0, None)
        cluster.emit("added", "emails")
        assert kinds(events, 1) == ["added"]
        assert events.cursor == "1.1"


@pytest.mark.parametrize("since", ["", "1", "1.x", "-1.5", "1.5-", 5, "1.5 "])
def test_a_wrong_cursor_is_refused(since: Any, client: pyq.Client) -> None:
    with pytest.raises(pyq.BadOption, match=r"since .* is not the cursor of a reader of events"):
        pyq.QueueEvents(client, "emails", since=since)


def test_misuse_and_refusals_are_raised(cluster: FakeCluster, client: pyq.Client) -> None:
    with pytest.raises(pyq.BadOption, match="queue '' is not a text"):
        pyq.QueueEvents(client, "")
    cluster.script = lambda header, body: (
        (Status.UNSUPPORTED, ["verb 37 is not known here", 0])
        if header.verb == Verb.EVENTS
        else None
    )
    with pytest.raises(pyq.Unsupported, match="verb 37 is not known here"):
        pyq.QueueEvents(client, "emails")


def test_a_cluster_that_goes_away_is_waited_for(cluster: FakeCluster, client: pyq.Client) -> None:
    with pyq.QueueEvents(client, "emails") as events:
        assert nothing(events)
        cluster.stop()
        assert nothing(events)
        cluster._parked.clear()
        cluster._waits.clear()
        cluster._open()
        cluster.emit("added", "emails")
        assert kinds(events, 1) == ["added"]


def test_a_shard_that_cannot_park_the_question_is_not_asked_without_pause(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    cluster.script = lambda header, body: (
        (Status.OK, [1, max(0, body[1]), 0, []]) if header.verb == Verb.EVENTS else None
    )
    with pyq.QueueEvents(client, "emails") as events:
        for _ in range(3):
            assert nothing(events)
    assert len(cluster.seen(Verb.EVENTS)) < 12


def test_closing_ends_the_iteration(cluster: FakeCluster, client: pyq.Client) -> None:
    closers: list[Any] = [lambda events: events.close(), lambda events: client.close()]
    for close in closers:
        events = pyq.QueueEvents(client, "emails")
        seen: list[str] = []

        def read(events: pyq.QueueEvents = events, seen: list[str] = seen) -> None:
            seen += [event.kind for event in events] + ["end"]

        thread = threading.Thread(target=read)
        thread.start()
        eventually(lambda events=events: events._connection.outstanding_count)  # type: ignore[misc]
        close(events)
        thread.join(5)
        assert seen == ["end"]
        with pytest.raises(pyq.UsageError, match="closed"):
            events.next(timeout=1)
    with pytest.raises(pyq.UsageError, match="closed"):
        pyq.QueueEvents(client)
