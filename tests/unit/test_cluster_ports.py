"""Addresses to listen at: their form, and whether they are free."""

import socket
import threading
import time

import pytest

from cluster.ports import check_bind, wait_until_free
from cluster.refusals import CannotStart
from pyq.process import ExitCode


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def url_of(server: socket.socket) -> str:
    return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "bind", ["tcp://127.0.0.1:6789", "tcp://127.8.8.8:1", "tcp://[::1]:65535", "tcp://localhost:80"]
)
def test_addresses_of_a_router(bind):
    check_bind(bind)


@pytest.mark.parametrize(
    "bind",
    ["", "6789", "127.0.0.1:6789", "tcp://", "tcp://:1", "tcp://x", "tcp://x:0", "tcp://x:65536",
     "tcp://x:-1", "tcp://x:*", "udp://x:1", "ipc:///x", "tcp://x:\N{SUPERSCRIPT TWO}"],
)  # fmt: skip
def test_what_is_none_is_a_usage_error(bind):
    with pytest.raises(CannotStart, match="write tcp://HOST:PORT") as caught:
        check_bind(bind)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_free_port_is_free_and_stays_free(listener):
    url = url_of(listener)
    listener.close()
    wait_until_free(url)
    wait_until_free(url)


def test_a_port_in_use_is_refused_after_two_seconds(listener):
    began = time.monotonic()
    with pytest.raises(CannotStart, match="something else listens") as caught:
        wait_until_free(url_of(listener))
    assert 1.5 < time.monotonic() - began < 4
    assert caught.value.exit_code == ExitCode.PORT_IN_USE


def test_a_port_that_is_given_up_meanwhile_is_taken(listener):
    timer = threading.Timer(0.2, listener.close)
    timer.start()
    wait_until_free(url_of(listener))
    timer.join()


def test_an_address_of_another_machine_is_refused_at_once():
    with pytest.raises(CannotStart, match="cannot listen at") as caught:
        wait_until_free("tcp://192.0.2.1:6789")
    assert caught.value.exit_code == ExitCode.PORT_IN_USE


def test_names_of_interfaces_are_left_to_the_router():
    wait_until_free("tcp://no-such-name.invalid:6789")
    wait_until_free("ipc:///tmp/x.sock")


@pytest.mark.parametrize(
    "bind", ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://192.0.2.1:1", "tcp://eth0:1"]
)
def test_other_machines_are_kept_out_as_long_as_nobody_can_be_told_apart(bind):
    with pytest.raises(CannotStart, match="no authentication yet") as caught:
        check_bind(bind)
    assert caught.value.exit_code == ExitCode.USAGE
