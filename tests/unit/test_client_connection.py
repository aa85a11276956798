"""The client against a stand-in for the cluster: repeats, restarts, refusals, forks."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from client_fake_cluster import DROP, FakeCluster, eventually, queue_on_shard

import pyq
from pyq.connection import Connection, cluster_url
from pyq.errors import Status
from pyq.wire import ROUTER, Flag, Verb


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[pyq.Client]:
    with pyq.connect(cluster.url, timeout=5) as client:
        yield client


def answering(verb: Verb, *answers: Any) -> Any:
    """Return a script that gives these answers to a verb, one after the other, then behaves."""
    left = list(answers)

    def script(header: Any, body: Any) -> Any:
        return left.pop(0) if header.verb == verb and left else None

    return script


def free_address() -> str:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    return f"tcp://127.0.0.1:{port}"


def waiting(count: int) -> dict[str, int]:
    states = ("waiting", "delayed", "blocked", "active", "completed", "dead")
    return dict.fromkeys(states, 0) | {"waiting": count}


# --- connecting -------------------------------------------------------------------------------


def test_nothing_there_is_one_sentence_after_a_second() -> None:
    url = free_address()
    begin = time.monotonic()
    with pytest.raises(pyq.Unreachable) as caught:
        pyq.connect(url)

    assert 0.9 < time.monotonic() - begin < 3
    assert str(caught.value) == (
        f"nothing answers at {url}; start a cluster with `pyq-cluster up` or set PYQ_URL"
    )


def test_a_cluster_that_starts_a_moment_later_is_found() -> None:
    url = free_address()
    started: list[FakeCluster] = []
    timer = threading.Timer(0.3, lambda: started.append(FakeCluster(url=url)))
    timer.start()
    with pyq.connect(url, timeout=10) as client:
        assert client.ping()["shards"] == 2
    timer.join()
    started[0].close()


def test_the_address_comes_from_argument_environment_or_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYQ_URL", "tcp://10.0.0.1:1")
    assert cluster_url("tcp://h:2") == "tcp://h:2"
    assert cluster_url(None) == "tcp://10.0.0.1:1"
    monkeypatch.delenv("PYQ_URL")
    assert cluster_url(None) == "tcp://127.0.0.1:6789"
    with pytest.raises(pyq.UsageError, match="does not start with tcp://"):
        cluster_url("localhost:6789")
    with pytest.raises(pyq.UsageError, match="is not an address"):
        pyq.connect("tcp://nowhere")


# --- repeats ----------------------------------------------------------------------------------


def test_not_now_is_repeated_with_the_same_id_and_the_flag(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    refusals = [
        (Status.RETRY, ["the shard restarted", 0]),
        (Status.BUSY, ["a buffer is full", 10]),
        (Status.UNAVAILABLE, ["shard 1 is down", 0]),
    ]
    cluster.script = answering(Verb.PUSH, *refusals)
    job = client.queue("emails").add("welcome", 1)

    pushes = cluster.seen(Verb.PUSH)
    assert [header.flags & Flag.REPEAT for header, _ in pushes] == [0, 2, 2, 2]
    assert len({header.request_id for header, _ in pushes}) == 1
    assert not job.deduplicated
    assert job.state == "waiting"


def test_a_repeat_that_finds_its_own_job_is_no_duplicate(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    real = cluster._on_push

    def lost_answer(header: Any, body: Any) -> Any:
        if header.verb == Verb.PUSH and not header.flags & Flag.REPEAT:
            real([], header, body)
            return (Status.RETRY, ["the shard restarted", 0])
        return None

    cluster.script = lost_answer
    job = client.queue("emails").add("welcome", 1)

    assert not job.deduplicated
    assert client.counts() == {"emails": waiting(1)}


def test_at_the_deadline_the_last_definite_answer_is_raised(cluster: FakeCluster) -> None:
    connection = Connection(cluster.url)
    cluster.script = answering(Verb.COUNTS, *[(Status.BUSY, ["a buffer is full", 20])] * 99)
    with pytest.raises(pyq.Busy, match="a buffer is full") as caught:
        connection.request(Verb.COUNTS, [], queue="q", budget_ms=200)
    assert caught.value.retry_after == 0.02

    cluster.script = answering(Verb.COUNTS, *[(Status.UNAVAILABLE, ["shard 1 is down", 0])] * 99)
    with pytest.raises(pyq.Unavailable, match="shard 1 is down"):
        connection.request(Verb.COUNTS, [], queue="q", budget_ms=200)

    cluster.script = answering(Verb.COUNTS, *[DROP] * 99)
    with pytest.raises(pyq.OutcomeUnknown, match="may or may not have taken effect"):
        connection.request(Verb.COUNTS, [], queue="q", budget_ms=200)
    connection.close()


def test_a_definite_refusal_becomes_its_exception_at_once(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    cluster.script = answering(Verb.PUSH, (Status.DISK_FULL, ["free some space", 0]))
    with pytest.raises(pyq.DiskFull, match="free some space"):
        client.queue("emails").add("welcome")
    assert len(cluster.seen(Verb.PUSH)) == 1


def test_a_restarted_router_gets_everything_outstanding_again(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    cluster.script = answering(Verb.PUSH, DROP)
    timer = threading.Timer(0.1, cluster.restart)
    timer.start()
    job = client.queue("emails").add("welcome")
    timer.join()

    assert job.state == "waiting"
    assert [header.flags for header, _ in cluster.seen(Verb.PUSH)] == [0, Flag.REPEAT]


def test_a_changed_incarnation_in_a_pong_makes_it_ask_again(cluster: FakeCluster) -> None:
    connection = Connection(cluster.url)
    connection.request(Verb.PING, [], slot=ROUTER)
    cluster.script = answering(Verb.COUNTS, DROP)  # taken by a router that then forgot it
    pending = connection.send(Verb.COUNTS, [], queue="q")
    cluster.incarnation = b"another1"

    assert connection.wait(pending).body == ((), None)
    assert [header.flags for header, _ in cluster.seen(Verb.COUNTS)] == [0, Flag.REPEAT]
    connection.close()


def test_a_router_that_answers_no_ping_is_connected_to_anew(cluster: FakeCluster) -> None:
    connection = Connection(cluster.url)
    connection.request(Verb.PING, [], slot=ROUTER)
    answers_again_at = time.monotonic() + 2.5
    cluster.script = lambda header, body: DROP if time.monotonic() < answers_again_at else None
    socket = connection._socket
    connection.request(Verb.COUNTS, [], queue="q")

    assert connection._socket is not socket
    connection.close()


def test_single_frames_and_strays_are_ignored(cluster: FakeCluster) -> None:
    connection = Connection(cluster.url)
    strays: list[bytes] = []
    connection.on_stray = lambda header, body: strays.append(header)

    def noise(header: Any, body: Any) -> Any:
        if header.verb == Verb.COUNTS:
            sender = cluster_sender(cluster)
            cluster._socket.send_multipart([sender, b""])
            cluster.reply([sender], header._replace(request_id=b"s" * 16), [])
        return None

    def cluster_sender(cluster: FakeCluster) -> bytes:
        return senders[-1]

    senders: list[bytes] = []
    on_request = cluster._on_request
    cluster._on_request = lambda sender, head, packed: (  # type: ignore[method-assign]
        senders.append(sender),
        on_request(sender, head, packed),
    )[1]
    cluster.script = noise
    assert connection.request(Verb.COUNTS, [0], queue="q").body == ((), None)
    assert len(strays) == 1
    connection.close()


# --- jobs -------------------------------------------------------------------------------------


def test_result_of_a_job_that_ends_in_each_way(cluster: FakeCluster, client: pyq.Client) -> None:
    job = client.queue("emails").add("welcome")
    packed = b"\xa2ok"
    for state, result, error, expected in [
        ("completed", packed, "", "ok"),
        ("completed", None, "", None),
        ("dead", None, "ValueError: no", pyq.JobFailed),
        ("removed", None, "", pyq.JobGone),
        ("expired", None, "", pyq.JobGone),
        ("gone", None, "", pyq.JobGone),
        ("result_expired", None, "", pyq.ResultExpired),
    ]:
        cluster.script = answering(Verb.RESULT, (Status.OK, [state, result, error]))
        if isinstance(expected, type):
            with pytest.raises(expected, match=error or "."):
                job.result(timeout=1)
        else:
            assert job.result(timeout=1) == expected


def test_result_asks_again_until_the_job_ends_or_time_is_over(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    job = client.queue("emails").add("welcome")
    cluster.script = answering(Verb.RESULT, *[(Status.OK, ["active", None, ""])] * 3)
    with pytest.raises(TimeoutError, match="it is waiting"):
        job.result(timeout=0.2)
    assert len(cluster.seen(Verb.RESULT)) >= 4


def test_a_taken_custom_id_gives_the_job_that_has_it(client: pyq.Client) -> None:
    queue = client.queue("emails")
    first = queue.add("welcome", job_id="invoice-42")
    again = queue.add("welcome", job_id="invoice-42")

    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again == first
    assert queue.get("invoice-42") == first
    assert queue.get(first.id) == first
    assert queue.get("nobody") is None


def test_bulk_is_cut_into_messages_and_answers_in_order(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    jobs = client.queue("emails").add_bulk(("welcome", {"n": n}) for n in range(2_500))

    assert [len(body[1]) for _, body in cluster.seen(Verb.PUSH)] == [1_000, 1_000, 500]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert [view["data"]["n"] for view in client.jobs(limit=300)] == list(range(300))


def test_bulk_messages_stay_below_their_bytes(cluster: FakeCluster, client: pyq.Client) -> None:
    client.queue("emails").add_bulk([("big", b"x" * 1_500_000)] * 5)

    assert [len(body[1]) for _, body in cluster.seen(Verb.PUSH)] == [2, 2, 1]


def test_bulk_options_are_common_or_an_items_own(cluster: FakeCluster, client: pyq.Client) -> None:
    items = [("a", 1), ("b", 2, {"priority": 9, "job_id": "b"}), ("c", 3, {})]
    jobs = client.queue("emails").add_bulk(items, attempts=7, durable=True)

    [(header, body)] = cluster.seen(Verb.PUSH)
    assert header.flags & Flag.DURABLE
    assert body[0] == {"attempts": 7}
    assert [item[3] for item in body[1]] == [None, {"priority": 9, "job_id": "b"}, None]
    assert [job.job_id for job in jobs] == [None, "b", None]


def test_each_item_of_a_bulk_succeeds_or_fails_on_its_own(client: pyq.Client) -> None:
    items: list[Any] = [
        ("a", 1), ("b", object()), ("", 3), "cd", ("e", 5, {"atempts": 1}), ("f", 6),
    ]  # fmt: skip
    with pytest.raises(pyq.BulkError, match=r"4 of 6 jobs were not added; first: item 1") as caught:
        client.queue("emails").add_bulk(items)

    assert [job is not None for job in caught.value.jobs] == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    kinds = [(index, type(error)) for index, error in caught.value.failures]
    assert kinds == [
        (1, pyq.PayloadError), (2, pyq.BadOption), (3, pyq.BadOption), (4, pyq.BadOption),
    ]  # fmt: skip
    assert client.counts() == {"emails": waiting(2)}


def test_items_the_shard_refuses_are_listed(cluster: FakeCluster, client: pyq.Client) -> None:
    cluster.script = answering(
        Verb.PUSH, (Status.OK, [2, [[1, Status.BAD_OPTION, "priority 5 is too much"]]])
    )
    with pytest.raises(pyq.BulkError, match="item 1: priority 5 is too much"):
        client.queue("emails").add_bulk([("a", 1), ("b", 2)])


def test_a_bulk_that_fails_as_a_whole_raises_the_reason(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    cluster.script = answering(Verb.PUSH, *[(Status.DISK_FULL, ["free some space", 0])] * 9)
    with pytest.raises(pyq.DiskFull):
        client.queue("emails").add_bulk([("a", n) for n in range(8_000)])
    assert client.queue("emails").add_bulk([]) == []


def test_options_of_the_call_are_checked_before_anything_is_sent(
    cluster: FakeCluster, client: pyq.Client
) -> None:
    queue = client.queue("emails")
    for call in (
        lambda: queue.add_bulk([("a", 1)], colour="red"),
        lambda: queue.add_bulk([("a", 1)], job_id="x"),
        lambda: queue.add("a", attempts=True),
        lambda: queue.add("a", durable=1),  # type: ignore[arg-type]
        lambda: queue.add(""),
        lambda: client.queue(""),
    ):
        with pytest.raises(pyq.BadOption):
            call()
    assert not cluster.seen(Verb.PUSH)


# --- questions --------------------------------------------------------------------------------


def test_questions_to_all_shards_are_merged(client: pyq.Client) -> None:
    names = [queue_on_shard(0, 2), queue_on_shard(1, 2)]
    for name in names:
        client.queue(name).add("same", {"n": 1}, job_id="order-7")

    found = client.find("order-7")
    assert {row["queue"] for row in found} == set(names)
    assert found.missing == ()
    assert [row["data"] for row in client.find(found[0]["id"])] == [{"n": 1}]
    assert len(client.find("order-7", queue=names[0])) == 1
    assert client.counts() == {name: waiting(1) for name in names}
    assert client.queue(names[0]).counts() == waiting(1)
    assert [row["id"] for row in client.workers()] == ["w1"]
    assert client.stop_workers() == 1
    assert [row["shard"] for row in client.stats()] == [0, 1]


def test_listing_pages_through_all_shards(client: pyq.Client) -> None:
    names = [queue_on_shard(0, 2), queue_on_shard(1, 2)]
    for name in names:
        client.queue(name).add_bulk([("n", n) for n in range(450)])

    assert len(list(client.jobs())) == 900
    assert len(list(client.jobs(limit=500))) == 500
    assert len(list(client.jobs(names[0], state="waiting"))) == 450
    assert list(client.jobs(state="dead")) == []
    with pytest.raises(pyq.BadOption, match="state 'ready' is not one of"):
        client.jobs(state="ready")


def test_a_missing_shard_is_an_error_or_named(
    cluster: FakeCluster, client: pyq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = b"\x92\xb0shard 1 is down!\x00"
    entries = [[0, Status.OK, 1, b"\x92\x90\xc0"], [1, Status.UNAVAILABLE, 0, refusal]]
    cluster.script = answering(Verb.COUNTS, (Status.OK, entries))
    assert client.counts(partial=True).missing == (1,)

    monkeypatch.setattr("pyq.client.REQUEST_MS_DEFAULT", 200)
    cluster.script = answering(Verb.COUNTS, *[(Status.OK, entries)] * 99)
    with pytest.raises(pyq.Unavailable, match=r"no answer from shard 1 \(shard 1 is down!\)"):
        client.counts()


# --- threads and processes --------------------------------------------------------------------


def test_threads_share_a_client(cluster: FakeCluster, client: pyq.Client) -> None:
    queue = client.queue("emails")
    threads = [
        threading.Thread(target=lambda: [queue.add("welcome", n) for n in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert queue.counts() == waiting(400)
    incarnations = {header.request_id[:8] for header, _ in cluster.seen(Verb.PUSH)}
    assert len(incarnations) == 8
    eventually(lambda: len(client._connections) == 1)  # a thread's end closes its socket


def test_closing_wakes_a_thread_that_waits(client: pyq.Client) -> None:
    job = client.queue("emails").add("welcome")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            job.result(timeout=30)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: any(connection.busy for connection in list(client._connections)))
    client.close()
    thread.join(5)

    assert not thread.is_alive()
    assert "closed" in str(errors[0])
    with pytest.raises(pyq.UsageError, match="closed"):
        job.view()


def _add_in_child(client: pyq.Client) -> None:
    client.queue("emails").add("from the child")
    os._exit(0 if client.counts()["emails"] == waiting(2) else 1)


def test_a_forked_child_makes_its_own_socket(client: pyq.Client) -> None:
    client.queue("emails").add("from the parent")
    child = multiprocessing.get_context("fork").Process(target=_add_in_child, args=(client,))
    child.start()
    child.join(10)

    assert child.exitcode == 0
    assert client.counts() == {"emails": waiting(2)}
