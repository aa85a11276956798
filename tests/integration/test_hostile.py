"""Garbage on the port: whatever arrives, the cluster lives on and others are served."""

import os
import random
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import psutil
import pytest
import zmq

import pyq
from cluster.local import LocalCluster
from pyq.errors import Status
from pyq.limits import FRAME_BYTES_MAX, MIB
from pyq.wire import (
    BY_QUEUE,
    HEADER_BYTES,
    Verb,
    pack_body,
    pack_header,
    status_of,
    unpack_body,
)

SEED = 20261130


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(shards=2) as running:
        yield running


@pytest.fixture(autouse=True)
def nobody_died(cluster: LocalCluster) -> Iterator[None]:
    before = {name: facts["pid"] for name, facts in cluster.processes().items()}
    yield
    with pyq.connect(cluster.url, timeout=5) as client:
        job = client.queue("emails").add("still served", b"\0\xff")
        assert job.view()["data"] == b"\0\xff"
    assert {name: facts["pid"] for name, facts in cluster.processes().items()} == before


def tcp(cluster: LocalCluster) -> socket.socket:
    host, port = cluster.url.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def send_all_that_fits(raw: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # it hangs up when it has seen enough
        raw.sendall(data)


def test_random_bytes(cluster: LocalCluster) -> None:
    chance = random.Random(SEED)
    for length in (1, 10, 64, 1_000, 100_000):
        with closing(tcp(cluster)) as raw:
            send_all_that_fits(raw, chance.randbytes(length))


def test_a_greeting_that_never_ends(cluster: LocalCluster) -> None:
    with closing(tcp(cluster)) as raw:
        send_all_that_fits(raw, b"\xff\0\0\0\0\0\0\0\x01\x7f\x03")  # the start of a real one


def test_an_http_request(cluster: LocalCluster) -> None:
    with closing(tcp(cluster)) as raw:
        send_all_that_fits(raw, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.fixture
def dealer(cluster: LocalCluster) -> Iterator["zmq.Socket[bytes]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.setsockopt(zmq.LINGER, 0)
    raw.connect(cluster.url)
    yield raw
    raw.close()
    context.term()


def test_wrong_frames(dealer: "zmq.Socket[bytes]") -> None:
    header = pack_header(Verb.PUSH, os.urandom(16), queue="emails", deadline_ms=1_000)
    for frames in (
        [b""],
        [header],
        [header, b"", b""],
        [header] * 5,
        [b"x" * HEADER_BYTES, b"\x90"],
        [header[:20], b"\x90"],
        [header + b"\xff\xfe", b"\x90"],
        [b"\x02" + header[1:], b"\x90"],
        [header[:1] + b"\xfa" + header[2:], b"\x90"],
        [header, b"\xc1"],
        [header, b"\x91" * 2_000],
        [header, b"\xdd\xff\xff\xff\xff"],
        [header, pack_body([None, [[b"id", 7, "payload", []]]])],
        [header, pack_body([None, [[os.urandom(16), "name", b"", None]]])],
        [header, pack_body([{"priority": 1 << 63}, []])],
    ):
        dealer.send_multipart(frames)
    statuses = set()
    while dealer.poll(500):
        answer, body = dealer.recv_multipart()
        statuses.add(status_of(answer))
        sentence, _ = unpack_body(body)
        assert 10 < len(sentence) < 300, sentence
    assert statuses == {Status.BAD_REQUEST, Status.BAD_OPTION, Status.UNSUPPORTED}


def test_mutated_requests(dealer: "zmq.Socket[bytes]") -> None:
    chance = random.Random(SEED)
    for _ in range(2_000):
        verb = chance.choice([verb for verb in Verb if verb is not Verb.ATTACH])
        header = bytearray(
            pack_header(
                verb,
                chance.randbytes(16),
                slot=chance.choice([BY_QUEUE, 0xFFFE, 0xFFFD, 0xFFFC, 7]),
                queue=chance.choice(["emails", "", "\N{PILE OF POO}"]),
                deadline_ms=chance.choice([0, -1, 1_000, 1 << 62]),
            )
        )
        body = bytearray(pack_body([[[chance.randbytes(16), chance.randbytes(20), None]], 0, 1]))
        for frame in (header, body):
            if chance.random() < 0.5:
                frame[chance.randrange(len(frame))] = chance.randrange(256)
        if header[1] == Verb.ATTACH:  # whoever attaches is the coordinator: there is no login yet
            continue
        dealer.send_multipart([bytes(header), bytes(body)])


def test_a_message_of_100_mb_is_refused_and_costs_no_memory(
    cluster: LocalCluster, dealer: "zmq.Socket[bytes]"
) -> None:
    assert FRAME_BYTES_MAX < 100 * MIB
    router = psutil.Process(cluster.processes()["router"]["pid"])
    before = router.memory_info().rss
    header = pack_header(Verb.PUSH, os.urandom(16), queue="emails", deadline_ms=1_000)
    dealer.send_multipart([header, bytes(100 * MIB)])
    assert dealer.poll(1_000) == 0, "it is not answered: its connection was dropped"
    assert router.memory_info().rss - before < 64 * MIB


def test_a_client_that_never_reads(cluster: LocalCluster, dealer: "zmq.Socket[bytes]") -> None:
    dealer.setsockopt(zmq.RCVHWM, 1)
    deadline_ms = 5_000
    for number in range(3_000):
        request_id = number.to_bytes(16, "big")
        header = pack_header(Verb.LIST, request_id, slot=0xFFFE, deadline_ms=deadline_ms)
        with suppress(zmq.Again):
            dealer.send_multipart([header, pack_body([None, 0, 1_000, 3])], zmq.NOBLOCK)
    with pyq.connect(cluster.url, timeout=10) as client:
        assert client.queue("emails").add("served meanwhile").state == "waiting"
