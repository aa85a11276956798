"""One shard process and raw sockets in place of its routers: what only real sockets show."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from pyq.ids import IdFactory
from pyq.process import endpoint
from pyq.routes import slot_of
from pyq.wire import Flag, Verb, pack_body, pack_header, unpack_body
from tests.integration.ledger import wait_for

QUEUE = "emails"
SOON_MS = 10_000


class Router:
    """A peer of the shard, as a router is: frames with a return address in front."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", runtime: Path) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint(runtime, "shard-0"))

    def send(
        self, address: bytes, verb: Verb, request_id: bytes, body: Any, flags: int = 0
    ) -> None:
        deadline_ms = time.monotonic_ns() // 1_000_000 + 60_000
        header = pack_header(
            verb, request_id, flags=flags | Flag.ABSOLUTE, deadline_ms=deadline_ms, queue=QUEUE
        )
        self.socket.send_multipart([address, header, pack_body(body)])

    def receive(self) -> tuple[bytes, Any]:
        assert self.socket.poll(SOON_MS), "no answer"
        address, _, body = self.socket.recv_multipart()
        return address, unpack_body(body)


@pytest.fixture
def runtime() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pyq-") as folder:
        yield Path(folder)


@pytest.fixture
def shard(runtime: Path) -> Iterator["subprocess.Popen[bytes]"]:
    arguments = ["--shard", "0", "--shards", "1", "--cluster", "test", "--parent", str(os.getpid())]
    folders = ["--data", str(runtime / "data"), "--runtime", str(runtime)]
    process = subprocess.Popen([sys.executable, "-P", "-m", "shardnode", *arguments, *folders])
    yield process
    process.kill()
    process.wait()


def test_leases_that_reached_their_worker_by_a_repeat_are_not_taken_back(
    runtime: Path, shard: "subprocess.Popen[bytes]"
) -> None:
    # Was a bug: a pull was parked through a router that died. In one turn a push served it at
    # its old address, and its repeat got the same leases through the new router. The first
    # reply could not be delivered, so the leases were freed under the worker's hands.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pull = ["worker", [QUEUE], 1, 30_000, 15_000, 0]
    pull_id = os.urandom(8) + (1).to_bytes(8, "big")
    old = Router(context, runtime)
    old.send(b"old address", Verb.PULL, pull_id, pull)
    old.send(b"anybody", Verb.PING, os.urandom(16), [])
    assert old.receive()[0] == b"anybody"
    old.socket.close()

    new = Router(context, runtime)
    new.send(b"anybody", Verb.PING, os.urandom(16), [])
    assert new.receive()[0] == b"anybody"
    shard.send_signal(signal.SIGSTOP)  # so that both messages meet in one turn
    job = [IdFactory().make(slot_of(QUEUE))[0], "welcome", b"payload", None]
    new.send(b"producer", Verb.PUSH, os.urandom(16), [None, [job]])
    new.send(b"new address", Verb.PULL, pull_id, pull, Flag.REPEAT)
    wait_for(lambda: is_stopped(shard.pid), 5)
    shard.send_signal(signal.SIGCONT)
    answers = dict([new.receive(), new.receive()])
    assert [row[0] for row in answers[b"new address"][1][0][1]] == [job[0]]

    second_id = os.urandom(8) + (1).to_bytes(8, "big")
    new.send(b"second", Verb.PULL, second_id, ["second", [QUEUE], 1, 500, 15_000, 0])
    assert new.receive() == (b"second", (15_000, ()))
    new.socket.close()
    context.term()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_leases_that_nobody_can_receive_are_given_to_the_next(
    runtime: Path, shard: "subprocess.Popen[bytes]"
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gone, here = Router(context, runtime), Router(context, runtime)
    pull = ["worker", [QUEUE], 1, 30_000, 15_000, 0]
    gone.send(b"x", Verb.PULL, os.urandom(8) + (1).to_bytes(8, "big"), pull)
    gone.send(b"anybody", Verb.PING, os.urandom(16), [])
    gone.receive()
    gone.socket.close()
    here.send(b"anybody", Verb.PING, os.urandom(16), [])
    here.receive()

    job = [IdFactory().make(slot_of(QUEUE))[0], "welcome", b"payload", None]
    here.send(b"producer", Verb.PUSH, os.urandom(16), [None, [job]])
    assert here.receive()[0] == b"producer"
    here.send(b"next", Verb.PULL, os.urandom(8) + (1).to_bytes(8, "big"), pull)
    address, (_, groups) = here.receive()
    assert (address, groups[0][1][0][0]) == (b"next", job[0])
    here.socket.close()
    context.term()
