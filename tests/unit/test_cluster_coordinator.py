"""The coordinator and the small asking and answering parts, over real sockets in one process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from cluster.answers import Request, pong, reply_to, requests_of, unsupported
from cluster.probes import Answer, Asker, Question, ask
from pyq.errors import Busy, NotFound, Status, Unreachable
from pyq.process import endpoint
from pyq.wire import ROUTER, Verb, pack_body, pack_header, unpack_body, unpack_header

WAIT_S = 15.0


class FakeRouter:
    """The router's socket, driven by hand."""

    def __init__(self, folder: Path) -> None:
        self.address = endpoint(folder, "router")
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(self.address)
        self.heard: list[Request] = []

    def next(self, verb: Verb, slot: int) -> Request:
        """Return the next request of that verb for that slot; others wait for their turn."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for request in self.heard:
                if (request.header.verb, request.header.slot) == (verb, slot):
                    self.heard.remove(request)
                    return request
            if self.socket.poll(100):
                self.heard += requests_of(self.socket.recv_multipart())
        raise AssertionError(f"no {verb.name} for slot {slot}")

    def answer(self, request: Request, status: Status, body: list[Any]) -> None:
        self.socket.send_multipart(reply_to(request, status, body))

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(f"/tmp/pyqt-{os.getpid()}")
    path.mkdir(mode=0o700)
    yield path
    for socket in path.iterdir():
        socket.unlink()
    path.rmdir()


@pytest.fixture
def router(folder: Path) -> Iterator[FakeRouter]:
    found = FakeRouter(folder)
    yield found
    found.close()


def start_coordinator(folder: Path, parent: int = 0) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-P", "-m", "cluster.coordinator", "--runtime", str(folder)]
    argv += ["--router", endpoint(folder, "router"), "--shards", "2", "--parent", str(parent)]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL)


@pytest.fixture
def coordinator(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = start_coordinator(folder)
    yield process
    process.kill()
    process.wait()


def info_of(folder: Path) -> dict[str, Any]:
    answer = ask(endpoint(folder, "coordinator"), Question(Verb.PING), 10_000)
    info: dict[str, Any] = answer.value()[3]
    return info


def test_it_attaches_and_sweeps_every_shard_when_the_shard_asks_for_it(folder, router, coordinator):
    router.answer(router.next(Verb.ATTACH, ROUTER), Status.OK, [])
    router.answer(router.next(Verb.SWEEP, 0), Status.OK, [250, 0, 0])
    router.answer(router.next(Verb.SWEEP, 0), Status.OK, [5_000, 0, 0])
    router.answer(router.next(Verb.ATTACH, ROUTER), Status.OK, [])
    info = info_of(folder)
    assert info["pid"] == coordinator.pid
    assert info["healthy"]
    names = {task[0] for task in info["tasks"]}
    assert names >= {
        "attach",
        *(f"{what} shard-{n}" for what in ("sweep", "relay") for n in (0, 1)),
    }


def test_a_shard_that_refuses_is_swept_again_in_a_second_and_delays_no_other(
    folder, router, coordinator
):
    router.answer(router.next(Verb.SWEEP, 1), Status.UNAVAILABLE, ["down", 0])
    for _ in range(3):
        router.answer(router.next(Verb.SWEEP, 0), Status.OK, [250, 0, 0])
    router.answer(router.next(Verb.SWEEP, 1), Status.UNAVAILABLE, ["down", 0])
    failures = {task[0]: task[1] for task in info_of(folder)["tasks"]}
    assert failures["sweep shard-1"] >= 1
    assert failures["sweep shard-0"] == 0


ROWS = [["watch", b"j" * 16, 0, ""]]


def test_it_carries_rows_from_shard_to_shard_as_soon_as_they_are_there(router, coordinator):
    first = router.next(Verb.OUTBOX, 0)
    confirmed, skipped, limit, wait_ms = first.body
    assert (confirmed, skipped) == ((), ())
    assert limit >= 1_000
    assert first.header.deadline_ms > wait_ms >= 10_000, "a request outlives its long poll"
    began = time.monotonic()
    router.answer(first, Status.OK, [[[1, 5, ROWS]]])
    delivered = router.next(Verb.DELIVER, 1)
    assert delivered.body == (0, 5, tuple(map(tuple, ROWS)))
    router.answer(delivered, Status.OK, [5])
    assert router.next(Verb.OUTBOX, 0).body[0] == ((1, 5),)
    assert time.monotonic() - began < 1


def test_after_the_router_was_away_it_asks_for_rows_at_once(folder, coordinator):
    for _ in range(2):
        router = FakeRouter(folder)
        try:
            router.next(Verb.OUTBOX, 0)
            began = time.monotonic()
            router.next(Verb.ATTACH, ROUTER)
            assert time.monotonic() - began < 2
        finally:
            router.close()


def test_rows_that_are_missing_make_it_unhealthy(folder, router, coordinator):
    router.answer(router.next(Verb.OUTBOX, 0), Status.OK, [[[1, 9, ROWS]]])
    router.answer(router.next(Verb.DELIVER, 1), Status.OK, [3])
    assert router.next(Verb.OUTBOX, 0).body[1] == (1,), "left out from now on"
    assert not info_of(folder)["healthy"]


def test_it_answers_what_the_router_forwards_with_the_clients_address_in_front(router, coordinator):
    attach = router.next(Verb.ATTACH, ROUTER)
    header = pack_header(Verb.PING, b"c" * 16, deadline_ms=1_000)
    router.socket.send_multipart([attach.sender, b"client", header, pack_body([])])
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        frames = router.socket.recv_multipart()
        if len(frames) == 4:
            break
    sender, client, reply, body = frames
    assert (sender, client) == (attach.sender, b"client")
    assert unpack_header(reply).request_id == b"c" * 16
    assert unpack_header(reply).status == Status.OK
    assert unpack_body(body)[0] == "coordinator"


def test_it_finds_a_router_that_comes_later(folder):
    process = start_coordinator(folder)
    try:
        failures = {task[0]: task[1] for task in info_of(folder)["tasks"]}
        assert failures["attach"] >= 1
        late = FakeRouter(folder)
        try:
            late.answer(late.next(Verb.ATTACH, ROUTER), Status.OK, [])
        finally:
            late.close()
    finally:
        process.kill()
        process.wait()


def test_sigterm_ends_it_with_0(router, coordinator):
    router.next(Verb.ATTACH, ROUTER)
    coordinator.terminate()
    assert coordinator.wait(WAIT_S) == 0


def test_it_does_not_start_under_another_parent(folder):
    assert start_coordinator(folder, parent=1).wait(WAIT_S) == 70


def test_a_wrong_command_line_is_64():
    argv = [sys.executable, "-P", "-m", "cluster.coordinator", "--shards", "many"]
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode == 64


# --- asking and answering -------------------------------------------------------------------------


def a_request(verb: int = Verb.PING) -> list[bytes]:
    return [pack_header(verb, b"r" * 16, slot=7), pack_body([])]


def test_a_message_of_two_requests_is_two_requests():
    found = requests_of([b"me", *a_request(Verb.PING), *a_request(Verb.PROCESSES)])
    assert [request.header.verb for request in found] == [Verb.PING, Verb.PROCESSES]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"x", b"y"],
        [b"x" * 36, b"\xc1"],
        a_request()[:1],
        [*a_request(), b""],
        [pack_header(Verb.PING, b"r" * 16, status=1), pack_body([])],
        [pack_header(Verb.PING, b"r" * 16), pack_body({})],
    ],
)
def test_what_is_no_request_is_left_out(frames):
    assert requests_of([b"me", *frames]) == []


def test_a_reply_goes_to_its_sender_with_its_request_id():
    (request,) = requests_of([b"me", *a_request()])
    sender, header, body = reply_to(request, Status.OK, pong("supervisor", b"i" * 8, {}))
    assert sender == b"me"
    assert unpack_header(header)[:4] == (Verb.PING, 0, Status.OK, 7)
    assert unpack_body(body)[:2] == ("supervisor", b"i" * 8)


@pytest.mark.parametrize("verb", [Verb.PUSH, 99])
def test_an_unknown_verb_is_refused(verb):
    (request,) = requests_of([b"me", *a_request(verb)])
    header, body = unsupported(request, "supervisor")[1:]
    assert unpack_header(header).status == Status.UNSUPPORTED
    assert "supervisor" in unpack_body(body)[0]


def test_no_answer_is_unreachable_at_the_deadline(folder):
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no answer within 100 ms"):
        ask(endpoint(folder, "router"), Question(Verb.PING), 100)
    assert time.monotonic() - began < 2


def test_gather_returns_what_came_and_none_for_what_did_not(router):
    with Asker(router.address) as asker:
        asker.send(Question(Verb.PING, 1), 1_000)
        router.answer(router.next(Verb.PING, 1), Status.OK, [])  # nobody waits for this one
        assert asker.gather([Question(Verb.PING, 2)], 100) == [None]


def test_an_answer_is_a_value_or_the_error_of_its_status():
    assert Answer(Status.OK, 0, (1,)).value() == (1,)
    with pytest.raises(NotFound, match="gone"):
        Answer(Status.NOT_FOUND, 0, ("gone", 0)).value()
    with pytest.raises(Busy) as caught:
        Answer(Status.BUSY, 0, ("later", 70)).value()
    assert caught.value.retry_after == 0.07
