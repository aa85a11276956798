"""The address a router shall listen at: its form, and whether it is free.

Asked before any process starts, so that a port in use is one sentence and no shard has
opened a file. The router binds for real a moment later and has the last word.
"""

import errno
import ipaddress
import os
import socket
import time

from cluster.refusals import CannotStart
from pyq.process import ExitCode

PORT_RETRY_MS = 2_000  # a router that lost its supervisor to a kill -9 may still be dying
_POLL_S = 0.02


def check_bind(bind: str) -> None:
    """Refuse an address that no router can listen at."""
    found = _host_and_port(bind)
    if found is None:
        raise CannotStart(
            ExitCode.USAGE, f"{bind!r} is no address to listen at; write tcp://HOST:PORT"
        )
    if not _is_loopback(found[0]):
        raise CannotStart(
            ExitCode.USAGE,
            f"cannot listen at {bind}: there is no authentication yet, so only addresses of this"
            " machine are allowed; write tcp://127.0.0.1:PORT",
        )


def wait_until_free(bind: str) -> None:
    """Return when the port is free; refuse one in use for longer than a dying router lives."""
    found = _host_and_port(bind)
    if found is None:
        return
    deadline = time.monotonic() + PORT_RETRY_MS / 1_000
    while (reason := _refusal(*found)) == errno.EADDRINUSE and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if reason == errno.EADDRINUSE:
        raise port_in_use(bind)
    if reason:
        raise CannotStart(
            ExitCode.PORT_IN_USE,
            f"cannot listen at {bind}: {os.strerror(reason).lower()}; choose another --bind",
        )


def port_in_use(bind: str) -> CannotStart:
    """Return the refusal for an address that something else listens at."""
    return CannotStart(
        ExitCode.PORT_IN_USE,
        f"something else listens at {bind} already; stop it or choose another --bind",
    )


def _host_and_port(bind: str) -> tuple[str, int] | None:
    host, colon, port = bind.removeprefix("tcp://").rpartition(":")
    if not bind.startswith("tcp://") or not colon or not host or not port.isascii():
        return None
    if not port.isdigit() or not 1 <= int(port) <= 65_535:
        return None
    return ("0.0.0.0" if host == "*" else host.strip("[]")), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refusal(host: str, port: int) -> int:
    """Return why one cannot bind there, 0 if one can. Binds without listening: nobody connects."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            return 0  # the name of an interface, perhaps: the router will say
        except OSError as error:
            return error.errno or errno.EIO
    return 0
