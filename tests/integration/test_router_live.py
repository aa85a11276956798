"""A real router process between real sockets.

The shards here are raw ROUTER sockets that speak the protocol, driven by the test; a
shard is "killed" by closing its socket, which the router sees as it sees a killed process.
Nothing sleeps for a fixed time: everything waits for what it wants, with a deadline.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

from pyq.errors import Status
from pyq.limits import BUSY_RETRY_MS, BUSY_SHARE, FRAME_BYTES_MAX, OUTSTANDING_BYTES_MAX
from pyq.messages import batch_answer
from pyq.process import ExitCode, endpoint
from pyq.routes import slot_of
from pyq.wire import (
    ALL_SHARDS,
    BY_QUEUE,
    COORDINATOR,
    ROUTER,
    Flag,
    Header,
    Verb,
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)

PATIENCE_S = 10.0
SHARDS = 2
# One queue for each shard.
QUEUES = [
    next(f"q{n}" for n in range(99) if slot_of(f"q{n}") % SHARDS == shard) for shard in (0, 1)
]


@dataclass
class Reply:
    header: Header
    body: Any

    @property
    def status(self) -> int:
        return self.header.status


@dataclass
class Asked:
    """A request as a shard (or the coordinator) received it."""

    sender: list[bytes]
    header: Header
    body: bytes
    frame: bytes


class Client:
    """A DEALER that speaks the protocol and ignores no-ops."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)
        self.incarnation = os.urandom(8)
        self.sequence = 0

    def request(self, verb: int, body: Any = (), **header: Any) -> tuple[bytes, bytes, bytes]:
        self.sequence += 1
        request_id = header.pop("request_id", self.incarnation + self.sequence.to_bytes(8, "big"))
        frame = pack_header(verb, request_id, deadline_ms=header.pop("budget_ms", 10_000), **header)
        return request_id, frame, pack_body(body)

    def send(self, verb: int, body: Any = (), **header: Any) -> bytes:
        request_id, frame, packed = self.request(verb, body, **header)
        self.socket.send_multipart([frame, packed])
        return request_id

    def receive(self, patience_s: float = PATIENCE_S) -> Reply:
        header, body = receive(self.socket, patience_s)[-2:]
        return Reply(unpack_header(header), unpack_body(body))

    def ask(self, verb: int, body: Any = (), **header: Any) -> Reply:
        request_id = self.send(verb, body, **header)
        reply = self.receive()
        assert reply.header.request_id == request_id
        return reply

    def close(self) -> None:
        self.context.destroy(linger=0)


class Shard:
    """A raw ROUTER socket in a shard's place; pings are answered, the rest is the test's."""

    def __init__(self, runtime: Path, number: int, epoch: int = 1) -> None:
        self.number, self.epoch = number, epoch
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(endpoint(runtime, f"shard-{number}"))
        self.waiting: list[Asked] = []
        self.pings = 0

    def next(self, patience_s: float = PATIENCE_S) -> Asked:
        """Return the next request that is no ping of the router."""
        give_up_at = time.monotonic() + patience_s
        while not self.waiting:
            self._read(give_up_at - time.monotonic())
        return self.waiting.pop(0)

    def await_ping(self) -> None:
        """Answer pings until one came that was sent after this call began."""
        before = self.pings
        while self.pings < before + 2:
            self._read(PATIENCE_S)

    def reply(self, asked: Asked, body: Any, status: int = Status.OK) -> None:
        header = pack_header(
            asked.header.verb, asked.header.request_id, status=status, epoch=self.epoch
        )
        self.socket.send_multipart([*asked.sender, header, pack_body(body)])

    def close(self) -> None:
        self.context.destroy(linger=0)

    def _read(self, patience_s: float) -> None:
        identity, address, *requests = receive(self.socket, patience_s)
        for at in range(0, len(requests), 2):
            frame, body = requests[at : at + 2]
            asked = Asked([identity, address], unpack_header(frame), body, frame)
            if not address and asked.header.verb == Verb.PING:
                self.pings += 1
                self.reply(asked, ["shard", bytes(8), 0, {}])
            else:
                self.waiting.append(asked)


def receive(from_socket: Any, patience_s: float) -> list[bytes]:
    """Return the next message that is no no-op."""
    give_up_at = time.monotonic() + patience_s
    while True:
        left_ms = int((give_up_at - time.monotonic()) * 1_000)
        if left_ms <= 0 or not from_socket.poll(left_ms):
            raise TimeoutError(f"no message within {patience_s} s")
        frames: list[bytes] = from_socket.recv_multipart()
        if frames[-1] or len(frames) > 2:
            return frames


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.01)


@dataclass
class Router:
    """One router process and what a test opened around it."""

    runtime: Path
    address: str
    process: subprocess.Popen[str]
    opened: list[Any] = field(default_factory=list)

    def client(self) -> Client:
        client = Client(self.address)
        self.opened.append(client)
        return client

    def shard(self, number: int, epoch: int = 1) -> Shard:
        """Return a shard that the router is connected to."""
        shard = Shard(self.runtime, number, epoch)
        self.opened.append(shard)
        asking = self.client()
        while not asking.ask(Verb.PING, slot=ROUTER).body[3]["shards_up"][number]:
            assert self.process.poll() is None
        shard.await_ping()
        return shard

    def info(self) -> dict[str, Any]:
        with closing(Client(self.address)) as client:
            info: dict[str, Any] = client.ask(Verb.PING, slot=ROUTER).body[3]
            return info


def start(runtime: Path, port: int, shards: int = SHARDS) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "router", "--bind", f"tcp://127.0.0.1:{port}"]
    command += ["--runtime", str(runtime), "--shards", str(shards), "--parent", str(os.getpid())]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def a_free_port() -> socket.socket:
    """Return a socket that holds a port nobody else uses.

    From below the ephemeral range: there, any connection of any process could take the port
    in the moment between two owners.
    """
    while True:
        holder = socket.socket()
        with suppress(OSError):
            holder.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return holder
        holder.close()


def free_port() -> int:
    with a_free_port() as holder:
        port: int = holder.getsockname()[1]
        return port


@pytest.fixture
def runtime() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pyqr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def router(runtime: Path) -> Iterator[Router]:
    port = free_port()
    running = Router(runtime, f"tcp://127.0.0.1:{port}", start(runtime, port))
    yield running
    for opened in running.opened:
        opened.close()
    if running.process.poll() is None:
        running.process.terminate()
    _, said = running.process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said, said


# --- one shard ------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_number", [0, 1])
def test_a_request_reaches_the_shard_of_its_queue_and_the_reply_its_client(
    router: Router, shard_number: int
):
    shard = router.shard(shard_number)
    client, other = router.client(), router.client()
    other.send(Verb.PING)
    request_id = client.send(Verb.PUSH, [None, []], queue=QUEUES[shard_number])
    asked = shard.next()
    assert (asked.header.verb, asked.header.queue) == (Verb.PUSH, QUEUES[shard_number])
    assert asked.body == pack_body([None, []]), "the body is untouched"
    shard.reply(asked, batch_answer(0, []))

    reply = client.receive()
    assert reply.header.request_id == request_id
    assert (reply.status, reply.header.epoch, reply.body) == (Status.OK, 1, (0, ()))


def test_a_request_reaches_the_shard_of_its_slot(router: Router):
    shard = router.shard(1)
    client = router.client()
    client.send(Verb.GET, [bytes(16), None, 0], slot=4095)
    assert shard.next().header.slot == 4095


def test_the_budget_becomes_a_deadline_on_the_clusters_clock(router: Router):
    shard = router.shard(0)
    client = router.client()
    before_ms = time.monotonic_ns() // 1_000_000
    client.send(Verb.COUNTS, queue=QUEUES[0], budget_ms=5_000)
    header = shard.next().header

    assert header.flags & Flag.ABSOLUTE
    assert 0 <= header.deadline_ms - 5_000 - before_ms < 2_000


def test_an_ack_and_the_next_pull_stay_one_message_for_one_shard(router: Router):
    shard = router.shard(0)
    client = router.client()
    _, ack, ack_body = client.request(Verb.ACK, [[]], queue=QUEUES[0])
    _, pull, pull_body = client.request(Verb.PULL, [], queue=QUEUES[0])
    client.socket.send_multipart([ack, ack_body, pull, pull_body])
    first, second = shard.next(), shard.next()
    assert (first.header.verb, second.header.verb) == (Verb.ACK, Verb.PULL)
    shard.reply(second, [15_000, []])
    shard.reply(first, batch_answer(0, []))

    assert [client.receive().header.verb for _ in range(2)] == [Verb.PULL, Verb.ACK]
    wait_for(lambda: router.info()["outstanding"] == (0, 0))


def test_two_requests_for_two_shards_are_answered_separately(router: Router):
    shards = [router.shard(0), router.shard(1)]
    client = router.client()
    _, ack, ack_body = client.request(Verb.ACK, [[]], queue=QUEUES[0])
    _, pull, pull_body = client.request(Verb.PULL, [], queue=QUEUES[1])
    client.socket.send_multipart([ack, ack_body, pull, pull_body])

    assert [shard.next().header.verb for shard in shards] == [Verb.ACK, Verb.PULL]


# --- several shards -------------------------------------------------------------------------


def an_item(slot: int) -> list[Any]:
    return [bytes(14) + slot.to_bytes(2, "big"), bytes(20), None]


def test_a_batch_over_two_shards_is_split_and_merged_in_order(router: Router):
    shards = [router.shard(0), router.shard(1)]
    client = router.client()
    request_id = client.send(Verb.ACK, [[an_item(s) for s in (1, 0, 3, 2)]], slot=ALL_SHARDS)
    parts = [shard.next() for shard in shards]
    assert [part.header.slot for part in parts] == [0, 1]
    shards[1].reply(parts[1], batch_answer(2, [[1, Status.STALE_TOKEN, "late"]]))
    shards[0].reply(parts[0], batch_answer(2, [[0, Status.OK, "replayed"]]))

    reply = client.receive()
    assert reply.header.request_id == request_id
    assert reply.body == (4, ((1, Status.OK, "replayed"), (2, Status.STALE_TOKEN, "late")))


def test_a_batch_whose_shard_is_down_is_answered_item_by_item(router: Router):
    shard = router.shard(0)
    client = router.client()
    client.send(Verb.ACK, [[an_item(s) for s in (1, 0, 3)]], slot=ALL_SHARDS)
    shard.reply(shard.next(), batch_answer(1, []))

    count, exceptions = client.receive().body
    assert (count, [exception[:2] for exception in exceptions]) == (
        3,
        [(0, Status.UNAVAILABLE), (2, Status.UNAVAILABLE)],
    )


def test_a_batch_that_cannot_be_split_is_refused(router: Router):
    client = router.client()
    assert client.ask(Verb.ACK, ["nonsense"], slot=ALL_SHARDS).status == Status.BAD_REQUEST
    assert client.ask(Verb.ACK, [[]], slot=ALL_SHARDS).body == (0, ())
    assert client.ask(Verb.HEARTBEAT, [[]], slot=ALL_SHARDS).status == Status.BAD_REQUEST


def test_a_question_to_all_shards_lists_their_answers(router: Router):
    shards = [router.shard(0, epoch=7), router.shard(1, epoch=8)]
    client = router.client()
    client.send(Verb.COUNTS, slot=ALL_SHARDS)
    for shard in shards:
        shard.reply(shard.next(), [shard.number])

    reply = client.receive()
    assert reply.header.flags == 0
    assert reply.body == ((0, 1, 7, pack_body([0])), (1, 1, 8, pack_body([1])))


def test_one_shard_down_makes_the_answer_partial(router: Router):
    shard = router.shard(1)
    client = router.client()
    client.send(Verb.COUNTS, slot=ALL_SHARDS)
    shard.reply(shard.next(), [])

    reply = client.receive()
    assert reply.header.flags == Flag.PARTIAL
    assert [entry[1] for entry in reply.body] == [Status.UNAVAILABLE, Status.OK]


def test_a_silent_shard_makes_the_answer_partial_before_the_deadline(router: Router):
    shards = [router.shard(0), router.shard(1)]
    client = router.client()
    client.send(Verb.COUNTS, slot=ALL_SHARDS, budget_ms=1_000)
    shards[0].reply(shards[0].next(), [])

    reply = client.receive(patience_s=0.99)
    assert reply.header.flags == Flag.PARTIAL
    assert [entry[1] for entry in reply.body] == [Status.OK, Status.UNKNOWN]


# --- shards that go away --------------------------------------------------------------------


def test_a_shard_that_is_down_is_unavailable_at_once(router: Router):
    client = router.client()
    client.ask(Verb.PING)
    began_at = time.monotonic()
    reply = client.ask(Verb.PUSH, [None, []], queue=QUEUES[0])

    assert reply.status == Status.UNAVAILABLE
    assert time.monotonic() - began_at < 0.5
    assert router.info()["outstanding"] == (0, 0)


def test_what_a_killed_shard_owed_is_answered_retry(router: Router):
    shard = router.shard(0)
    client = router.client()
    ids = {client.send(verb, [], queue=QUEUES[0]) for verb in (Verb.PUSH, Verb.PULL, Verb.ACK)}
    for _ in ids:
        shard.next()
    shard.close()

    replies = [client.receive() for _ in ids]
    assert {reply.header.request_id for reply in replies} == ids
    assert {reply.status for reply in replies} == {Status.RETRY}
    assert client.ask(Verb.PUSH, [], queue=QUEUES[0]).status == Status.UNAVAILABLE

    again = router.shard(0, epoch=2)
    client.send(Verb.PUSH, [None, []], queue=QUEUES[0], flags=Flag.REPEAT)
    again.reply(again.next(), batch_answer(0, []))
    assert client.receive().header.epoch == 2


def test_a_changed_epoch_means_that_older_requests_are_lost(router: Router):
    shard = router.shard(0)
    client = router.client()
    client.send(Verb.PUSH, [], queue=QUEUES[0])
    shard.next()
    shard.epoch = 2
    shard.await_ping()

    assert client.receive().status == Status.RETRY


def test_a_shard_killed_during_a_gather_leaves_the_others_answers(router: Router):
    shards = [router.shard(0), router.shard(1)]
    client = router.client()
    client.send(Verb.COUNTS, slot=ALL_SHARDS)
    shards[0].reply(shards[0].next(), [])
    shards[1].next()
    shards[1].close()

    assert [entry[1] for entry in client.receive().body] == [Status.OK, Status.RETRY]


# --- clients that go away -------------------------------------------------------------------


def test_a_parked_pull_of_a_vanished_client_is_withdrawn(router: Router):
    shard = router.shard(0)
    client = router.client()
    request_id = client.send(Verb.PULL, [], queue=QUEUES[0], budget_ms=60_000)
    assert shard.next().header.verb == Verb.PULL
    client.close()

    asked = shard.next()
    assert (asked.header.verb, asked.header.queue) == (Verb.UNPULL, QUEUES[0])
    assert unpack_body(asked.body) == (request_id,)
    assert router.info()["outstanding"] == (0, 0)


def test_a_pull_reply_that_cannot_be_delivered_goes_back_to_its_shard(router: Router):
    shard = router.shard(0)
    body = [15_000, [[QUEUES[0], [[bytes(16)]]]]]

    def returned() -> bool:
        # For about a millisecond after a client died its reply still vanishes: once more then.
        client = router.client()
        request_id = client.send(Verb.PULL, [], queue=QUEUES[0])
        asked = shard.next()
        client.close()
        shard.reply(asked, body)
        try:
            back = shard.next(patience_s=0.3)
        except TimeoutError:
            return False
        assert (back.header.verb, back.header.request_id) == (Verb.RETURN, request_id)
        assert back.header.slot % SHARDS == shard.number
        assert back.body == pack_body(body)
        shard.reply(back, [1])
        return True

    wait_for(returned)
    assert router.info()["pulls_returned"] >= 1


def test_parked_pullers_get_noops(router: Router):
    shard = router.shard(0)
    client = router.client()
    client.send(Verb.PULL, [], queue=QUEUES[0])
    shard.next()

    assert client.socket.poll(PATIENCE_S * 1_000)
    assert client.socket.recv_multipart() == [b""]


# --- the router itself ----------------------------------------------------------------------


def test_the_router_answers_a_ping_for_itself(router: Router):
    client = router.client()
    for slot in (ROUTER, BY_QUEUE):
        role, incarnation, wall_ms, info = client.ask(Verb.PING, slot=slot).body
        assert (role, len(incarnation)) == ("router", 8)
        assert abs(wall_ms - time.time() * 1_000) < 5_000
        assert (info["shards"], info["pid"]) == (SHARDS, router.process.pid)
        assert (info["shards_up"], info["coordinator"]) == ((False, False), False)


def test_it_listens_at_its_ipc_endpoint_too(router: Router):
    with closing(Client(endpoint(router.runtime, "router"))) as client:
        assert client.ask(Verb.PING).body[0] == "router"


def test_a_shard_gets_a_ping_each_second(router: Router):
    shard = router.shard(0)
    began_at = time.monotonic()
    shard.await_ping()
    assert time.monotonic() - began_at < 3.5


@pytest.mark.parametrize("verb", [Verb.RETURN, Verb.PROCESSES, Verb.SHUTDOWN, 77])
def test_verbs_not_meant_for_it_are_refused(router: Router, verb: int):
    reply = router.client().ask(verb, [], queue=QUEUES[0])
    assert reply.status == Status.UNSUPPORTED
    assert reply.body[0]


def test_pushes_and_pulls_are_busy_before_acks_are(router: Router):
    shard = router.shard(0)
    client = router.client()
    payload = bytes(15 * 1024 * 1024)
    fitting = int(OUTSTANDING_BYTES_MAX * BUSY_SHARE) // len(payload)
    for _ in range(fitting):
        client.send(Verb.PUSH, [payload], queue=QUEUES[0])
        shard.next()
    reply = client.ask(Verb.PUSH, [payload], queue=QUEUES[0])
    assert (reply.status, reply.body[1]) == (Status.BUSY, BUSY_RETRY_MS)

    _, ack, ack_body = client.request(Verb.ACK, [[payload]], queue=QUEUES[0])
    _, pull, pull_body = client.request(Verb.PULL, [payload], queue=QUEUES[0])
    client.socket.send_multipart([ack, ack_body, pull, pull_body])
    assert client.receive().header.verb == Verb.PULL, "the pull is refused alone"
    assert shard.next().header.verb == Verb.ACK, "acks pass up to the whole bound"


# --- the coordinator ------------------------------------------------------------------------


def test_the_attached_coordinator_answers_for_its_slot(router: Router):
    coordinator, client = router.client(), router.client()
    assert client.ask(Verb.PING, slot=COORDINATOR).status == Status.UNAVAILABLE
    assert coordinator.ask(Verb.ATTACH, slot=ROUTER).status == Status.OK
    assert router.info()["coordinator"]

    request_id = client.send(Verb.PING, slot=COORDINATOR)
    sender, frame, _body = receive(coordinator.socket, PATIENCE_S)
    header = unpack_header(frame)
    assert header.flags & Flag.ABSOLUTE
    answer = pack_header(Verb.PING, header.request_id, status=Status.OK)
    coordinator.socket.send_multipart([sender, answer, pack_body(["coordinator"])])

    reply = client.receive()
    assert (reply.header.request_id, reply.body) == (request_id, ("coordinator",))


def test_nobody_else_may_answer_in_the_coordinators_place(router: Router):
    coordinator, client, liar = router.client(), router.client(), router.client()
    coordinator.ask(Verb.ATTACH, slot=ROUTER)
    client.send(Verb.PING, slot=COORDINATOR)
    sender, frame, _body = receive(coordinator.socket, PATIENCE_S)
    lie = pack_header(Verb.PING, unpack_header(frame).request_id, status=Status.OK)
    liar.socket.send_multipart([sender, lie, pack_body(["lie"])])
    wait_for(lambda: router.info()["frames_bad"] == 1)
    coordinator.socket.send_multipart([sender, lie, pack_body(["truth"])])

    assert client.receive().body == ("truth",)


def test_a_silent_coordinator_is_unavailable_and_its_requests_are_answered(router: Router):
    coordinator, client = router.client(), router.client()
    coordinator.ask(Verb.ATTACH, slot=ROUTER)
    client.send(Verb.PING, slot=COORDINATOR)
    receive(coordinator.socket, PATIENCE_S)

    assert client.receive().status == Status.RETRY
    assert client.ask(Verb.PING, slot=COORDINATOR).status == Status.UNAVAILABLE


# --- hostile peers --------------------------------------------------------------------------


def test_garbage_is_answered_once_or_counted_and_others_are_served(router: Router):
    shard = router.shard(0)
    hostile, good = router.client(), router.client()
    _, header, body = hostile.request(Verb.PUSH, [], queue=QUEUES[0])
    reply_header = header[:3] + b"\x01" + header[4:]
    silent = [[b"x"], [b""], [b"", b"", b""], [header] * 5, [b"short", body], [reply_header, body]]
    silent += [[header, body, b"short", body, b"x"], [os.urandom(20)] * 40]
    for frames in silent:
        hostile.socket.send_multipart(frames)
    answered = [
        ([b"\x09" + header[1:], body], Status.UNSUPPORTED),
        ([header + b"\xff\xfe", body], Status.BAD_REQUEST),
        ([header + b"x" * 2_000, body], Status.BAD_REQUEST),
        ([header[:6] + b"\x01\x01" + header[8:], body], Status.BAD_REQUEST),
    ]
    for frames, status in answered:
        hostile.socket.send_multipart(frames)
        assert hostile.receive().status == status
    assert not hostile.socket.poll(0)

    good.send(Verb.PUSH, [], queue=QUEUES[0])
    shard.reply(shard.next(), batch_answer(0, []))
    assert good.receive().status == Status.OK
    assert router.info()["frames_bad"] == 6


def test_a_frame_over_the_limit_ends_its_connection_and_no_other(router: Router):
    hostile, good = router.client(), router.client()
    good.ask(Verb.PING)
    _, header, _body = hostile.request(Verb.PUSH, [], queue=QUEUES[0])
    hostile.socket.send_multipart([header, bytes(FRAME_BYTES_MAX + 1)])

    assert good.ask(Verb.PING).status == Status.OK
    assert hostile.ask(Verb.PING).status == Status.OK, "its next connection is served"


# --- beginning and end ----------------------------------------------------------------------


def test_a_port_in_use_is_one_sentence_and_its_exit_code(runtime: Path):
    with a_free_port() as holder:
        holder.listen()
        process = start(runtime, holder.getsockname()[1])
        _, said = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == ExitCode.PORT_IN_USE
    assert "is in use" in said
    assert said.count("\n") == 1
    assert not (runtime / "router.sock").exists(), "a living router's path is not touched"


def test_a_port_that_becomes_free_soon_is_taken(runtime: Path):
    holder = a_free_port()
    holder.listen()
    port = holder.getsockname()[1]
    process = start(runtime, port)
    wait_for(lambda: has_begun_to_bind(process.pid))
    holder.close()
    try:
        with closing(Client(f"tcp://127.0.0.1:{port}")) as client:
            assert client.ask(Verb.PING).body[0] == "router"
    finally:
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.OK, said


def has_begun_to_bind(pid: int) -> bool:
    """ZeroMQ opens its event poll with the first socket; the bind follows at once."""
    with suppress(FileNotFoundError):
        return any("eventpoll" in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_other_mistakes_are_one_sentence_and_exit_code_64(runtime: Path):
    command = [sys.executable, "-P", "-m", "router", "--runtime", str(runtime), "--shards", "2"]
    done = subprocess.run(
        [*command, "--bind", "tcp://0.0.0.0:6789"], capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.count("\n") == 1
    assert "loopback" in done.stderr


def test_sigterm_answers_what_is_outstanding_and_takes_no_new_work(router: Router):
    shard = router.shard(0)
    client = router.client()
    client.send(Verb.PULL, [], queue=QUEUES[0])
    request_id = client.send(Verb.PUSH, [], queue=QUEUES[0])
    _parked, push = shard.next(), shard.next()
    router.process.terminate()

    def refused() -> bool:
        client.send(Verb.PUSH, [], queue=QUEUES[0])
        try:
            return client.receive(patience_s=0.05).status == Status.UNAVAILABLE
        except TimeoutError:
            return False

    wait_for(refused)
    shard.reply(push, batch_answer(0, []))
    while (reply := client.receive()).header.request_id != request_id:
        assert reply.status == Status.UNAVAILABLE
    assert reply.status == Status.OK
    assert router.process.wait(PATIENCE_S) == ExitCode.OK


def test_an_idle_router_stops_at_once(router: Router):
    router.client().ask(Verb.PING)
    began_at = time.monotonic()
    router.process.terminate()
    assert router.process.wait(PATIENCE_S) == ExitCode.OK
    assert time.monotonic() - began_at < 1.0


def test_after_kill_nine_the_next_router_serves_the_same_clients(router: Router):
    shard = router.shard(0)
    client = router.client()
    before = client.ask(Verb.PING).body[1]
    router.process.send_signal(signal.SIGKILL)
    router.process.communicate(timeout=PATIENCE_S)
    router.process = start(router.runtime, int(router.address.rpartition(":")[2]))

    after = client.ask(Verb.PING).body[1]
    assert after != before
    wait_for(lambda: router.info()["shards_up"][0])
    client.send(Verb.PUSH, [], queue=QUEUES[0])
    shard.reply(shard.next(), batch_answer(0, []))
    assert client.receive().status == Status.OK


def test_it_dies_with_its_parent(runtime: Path):
    port = free_port()
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-P', '-m', 'router', '--bind', sys.argv[1],"
        " '--runtime', sys.argv[2], '--shards', '1', '--parent', str(os.getpid())])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, f"tcp://127.0.0.1:{port}", str(runtime)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        with closing(Client(f"tcp://127.0.0.1:{port}")) as client:
            client.ask(Verb.PING)
        parent.kill()
    wait_for(lambda: is_dead(child))


def is_dead(pid: int) -> bool:
    """A zombie counts: the sandbox's init may never reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
