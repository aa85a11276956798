"""The way to one shard: its socket, whether it is up, its epoch, what is outstanding there.

A link is up from the handshake to the disconnect, as the socket's monitor tells them.
Nothing is sent while it is down: libzmq still takes messages for a connection that has
just died, and loses them.
"""

import struct
from enum import Enum, auto
from pathlib import Path

import zmq

from pyq.limits import FRAME_BYTES_MAX, OUTSTANDING_MAX
from pyq.process import endpoint
from router.channel import Channel, Delivery
from router.outstanding import Outstanding

# Every reply to what is outstanding must fit, or the shard's socket would drop some.
_MESSAGES_MAX = OUTSTANDING_MAX + 1_000
_EVENT = struct.Struct("=hi")  # as libzmq writes it; zmq.utils.monitor costs 39 ms at import


class LinkEvent(Enum):
    """A change that the monitor saw."""

    UP = auto()
    DOWN = auto()


class Link:
    """A DEALER connected to one shard, and its table."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", runtime: Path, number: int
    ) -> None:
        self.number = number
        self.up = False
        self.epoch = 0  # 0: not known yet
        self.outstanding = Outstanding()
        self.channel = Channel(_open(context))
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        address = f"inproc://monitor-{number}"
        events = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        self.channel.socket.monitor(address, events)
        self.monitor.connect(address)
        self.channel.socket.connect(endpoint(runtime, f"shard-{number}"))

    def send(self, frames: list[bytes]) -> bool:
        """Send a message to the shard; False: it is down and nothing was sent."""
        return self.up and self.channel.send(frames) is Delivery.DONE

    def forward(self, frames: list[bytes], now_ms: int) -> bool:
        """Send `[return address, header, body ...]` and note each of its requests."""
        if not self.send(frames):
            return False
        for at in range(1, len(frames), 2):
            header = frames[at]
            size = len(header) + len(frames[at + 1])
            self.outstanding.add(frames[0], header, size, now_ms)
        return True

    def next_event(self) -> LinkEvent | None:
        """Return the next change, in order, or None."""
        while True:
            try:
                event, _address = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            number, _value = _EVENT.unpack(event)
            up = number == zmq.Event.HANDSHAKE_SUCCEEDED
            if up != self.up:  # a handshake that never succeeds is "disconnected" again and again
                self.up = up
                return LinkEvent.UP if up else LinkEvent.DOWN

    def close(self) -> None:
        self.channel.socket.disable_monitor()
        self.monitor.close()
        self.channel.socket.close()


def _open(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 100)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
    socket.setsockopt(zmq.SNDHWM, _MESSAGES_MAX)
    socket.setsockopt(zmq.RCVHWM, _MESSAGES_MAX)
    # A stopped shard keeps its connection for ever without these.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2_000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 2_000)
    return socket
