"""The socket that clients and the coordinator connect to.

Owns its options, its two addresses and the wait for a port that a dying router still
holds. What arrives and what leaves is server.py's business.
"""

import time

import zmq

from pyq.limits import FRAME_BYTES_MAX
from pyq.process import endpoint, unlink_endpoint
from router.channel import Channel
from router.config import Config

# After a kill -9 of the supervisor the old router holds the port for some milliseconds.
BIND_MS_MAX = 2_000
_BIND_AGAIN_S = 0.02

# Replies waiting for one client that does not read; beyond that they are dropped and counted.
_REPLIES_MAX = 4_096
# Requests of one client that are received and not yet looked at; then TCP makes it wait.
_REQUESTS_MAX = 512
_LAST_REPLIES_MS = 200  # what the replies sent just before the end have to leave in


class PortInUse(Exception):
    """Another process listens at our address."""


def open_front(context: "zmq.Context[zmq.Socket[bytes]]", config: Config) -> Channel:
    """Return the bound socket. Raises PortInUse with one sentence."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
    socket.setsockopt(zmq.SNDHWM, _REPLIES_MAX)
    socket.setsockopt(zmq.RCVHWM, _REQUESTS_MAX)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2_000)
    socket.setsockopt(zmq.HEARTBEAT_TTL, 4_000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 2_000)
    socket.setsockopt(zmq.BACKLOG, 1_024)
    socket.setsockopt(zmq.IPV6, int("[" in config.bind))
    try:
        _bind(socket, config.bind)
    except PortInUse:
        socket.close()
        raise
    # Only now: the port is the lock. Binding first would steal a living router's path.
    address = endpoint(config.runtime, "router")
    unlink_endpoint(address)
    socket.bind(address)
    return Channel(socket)


def close_front(front: Channel) -> None:
    """Close the socket; the last replies get a moment to leave."""
    front.socket.close(linger=_LAST_REPLIES_MS)


def _bind(socket: "zmq.Socket[bytes]", address: str) -> None:
    give_up_at = time.monotonic() + BIND_MS_MAX / 1_000
    while True:
        try:
            socket.bind(address)
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise PortInUse(f"router: cannot listen at {address}: {error.strerror}") from error
            if time.monotonic() > give_up_at:
                raise PortInUse(
                    f"router: {address} is in use by another process; "
                    "stop it or choose another port with --bind"
                ) from None
        time.sleep(_BIND_AGAIN_S)
