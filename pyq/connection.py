"""One DEALER socket to the router, and everything asked through it that is not answered yet.

Owns request ids, deadlines, repeats and the discovery that the other side died or came
back. Belongs to one thread. When to repeat is decided in `repeats.py`, what a request
means in `client.py` and `fetcher.py`.
"""

import contextlib
import math
import os
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import zmq

from pyq.errors import (
    ERRORS_BY_STATUS,
    Busy,
    OutcomeUnknown,
    PyqError,
    Status,
    Unreachable,
    Unsupported,
    UsageError,
)
from pyq.ids import IdFactory
from pyq.limits import FRAME_BYTES_MAX, PING_MS, REPEAT_MS_MAX, REQUEST_MS_DEFAULT
from pyq.repeats import LATER_S, Known, Repeats
from pyq.wire import (
    BY_QUEUE,
    HEADER_BYTES,
    ROUTER,
    Flag,
    Verb,
    WireError,
    pack_header,
    request_id_of,
    status_of,
    unpack_body,
)

URL_DEFAULT = "tcp://127.0.0.1:6789"
PINGS_UNANSWERED_MAX = 2
_LINGER_MS = 200  # what was sent just before close() still leaves
_RECONNECT_MS, _RECONNECT_MS_MAX = 20, 200
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 1_000, 2_000
_RECEIVE_MAX = 64  # messages read before the caller gets a turn
_FLAGS_AT = 2
_SHORT_WAIT_MS = 20  # most answers come sooner, and a plain receive costs half a poll
_SOCKETS_MAX = 16_384  # per process; libzmq's own 1,023 are used up by 170 workers
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_FOREVER = math.inf
# Not `zmq.utils.monitor`: its import costs 39 ms.
_EVENT = struct.Struct("=hi")
_EVENTS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class Reply(NamedTuple):
    """An answer with status OK."""

    flags: int
    body: Any  # unpacked: tuples and scalars


class Pending:
    """One request on its way. Finished when `reply` or `error` is set."""

    __slots__ = (
        "body", "context", "deadline", "error", "flags", "queue", "refusal", "repeat_at", "repeats",
        "reply", "request_id", "sequence", "slot", "verb",
    )  # fmt: skip

    def __init__(
        self,
        request_id: bytes,
        sequence: int,
        verb: int,
        body: bytes,
        queue: str,
        slot: int,
        flags: int,
        deadline: float,
    ) -> None:
        self.request_id = request_id
        self.sequence = sequence
        self.verb = verb
        self.body = body
        self.queue = queue
        self.slot = slot
        self.flags = flags
        self.deadline = deadline  # time.monotonic()
        self.repeats = Repeats()
        self.repeat_at = _FOREVER
        self.refusal = ("", 0)  # of the last "not now": sentence and milliseconds
        self.reply: Reply | None = None
        self.error: PyqError | None = None
        self.context: Any = None  # the caller's

    @property
    def done(self) -> bool:
        return self.reply is not None or self.error is not None


def cluster_url(url: str | None) -> str:
    """Return `url`, else the environment's PYQ_URL, else the default; UsageError if it is none."""
    chosen = url or os.environ.get("PYQ_URL") or URL_DEFAULT
    if not isinstance(chosen, str) or not chosen.startswith(("tcp://", "ipc://")):
        raise UsageError(f"url {chosen!r} does not start with tcp:// or ipc://")
    return chosen


class _ClusterClock:
    """The cluster's wall clock as far as we know it. Apart, so that a Connection is in no cycle
    and its sockets close as soon as its thread ends.
    """

    def __init__(self) -> None:
        self._offset_ms = 0

    def set(self, wall_ms: int) -> None:
        self._offset_ms = wall_ms - time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms


class Connection:
    """Sends requests and finds out what became of them. Use it from one thread."""

    _pid: int
    _incarnation: bytes
    _sequence: int
    _outstanding: dict[bytes, Pending]
    _finished: list[Pending]
    _pings: dict[bytes, float]  # sent and not answered
    _pings_unanswered: int
    _ping_at: float
    _due_at: float  # no timer is due earlier
    _router: bytes | None  # the router's incarnation
    _lost: bool  # disconnected since the last handshake
    _pack: Callable[[Any], bytes]
    _socket: "zmq.Socket[bytes]"
    _monitor: "zmq.Socket[bytes]"
    _poller: zmq.Poller

    def __init__(self, url: str) -> None:
        self.url = url
        self.shards = 0  # learned from the first PONG
        self.on_stray: Callable[[bytes, bytes], None] | None = None  # a reply nobody waits for
        self.closing = False  # set by another thread; the owner notices within a second
        self.busy = False
        self.interrupted = False  # the watched fd ended the last poll
        self._clock = _ClusterClock()
        self._watched_fd: int | None = None
        self.ids = IdFactory(self._clock.now_ms)
        self._begin()

    # --- asking -------------------------------------------------------------------------------

    def request(
        self,
        verb: int,
        body: Any,
        *,
        queue: str = "",
        slot: int = BY_QUEUE,
        flags: int = 0,
        budget_ms: float = REQUEST_MS_DEFAULT,
    ) -> Reply:
        """Ask and wait for the answer. Raises PyqError where it is not OK."""
        pending = self.send(verb, body, queue=queue, slot=slot, flags=flags, budget_ms=budget_ms)
        return self.wait(pending)

    def send(
        self,
        verb: int,
        body: Any,
        *,
        queue: str = "",
        slot: int = BY_QUEUE,
        flags: int = 0,
        budget_ms: float = REQUEST_MS_DEFAULT,
    ) -> Pending:
        """Ask without waiting; `wait` or `poll` brings the answer."""
        pending = self.prepare(verb, body, queue=queue, slot=slot, flags=flags, budget_ms=budget_ms)
        self.transmit(pending)
        return pending

    def prepare(
        self,
        verb: int,
        body: Any,
        *,
        queue: str = "",
        slot: int = BY_QUEUE,
        flags: int = 0,
        budget_ms: float = REQUEST_MS_DEFAULT,
    ) -> Pending:
        """Return a request for `transmit`. `body` is what the protocol says, unpacked."""
        if os.getpid() != self._pid:
            self._begin()  # a forked child must not touch its parent's socket
        self._sequence = sequence = self._sequence + 1
        budget_s = min(budget_ms, REPEAT_MS_MAX) / 1_000
        return Pending(
            self._incarnation + sequence.to_bytes(8, "big"),
            sequence,
            verb,
            self._pack(body),
            queue,
            slot,
            flags,
            time.monotonic() + budget_s,
        )

    def transmit(self, *pendings: Pending) -> None:
        """Send one prepared request, or two in one message."""
        was_busy, self.busy = self.busy, True
        try:
            self._transmit(pendings)
        finally:
            self.busy = was_busy

    def _transmit(self, pendings: tuple[Pending, ...]) -> None:
        now = time.monotonic()
        for pending in pendings:
            self._outstanding[pending.request_id] = pending
            self._due_at = min(self._due_at, pending.deadline, self._ping_at)
        frames = [frame for pending in pendings for frame in self._frames(pending, now)]
        sent = self._send_frames(frames)
        for pending in pendings:
            self._note_sent(pending, sent, now)

    def wait(self, pending: Pending) -> Reply:
        """Wait for the answer to `pending`, at most until its deadline.

        Raises the PyqError that the answer, or the lack of one, stands for. Other requests
        that finish meanwhile are `done`, but no later `poll` returns them.
        """
        self.busy = True
        try:
            if pending.repeats.sent_count and not pending.done and not self.closing:
                self._receive_soon()
            while not pending.done:
                self._refuse_if_closing()
                self.poll(PING_MS)
        finally:
            self.busy = False
            self._finished.clear()
        if pending.error is not None:
            raise pending.error
        assert pending.reply is not None, "a finished request has a reply or an error"
        return pending.reply

    def poll(self, timeout_ms: float) -> list[Pending]:
        """Wait until something finished, the watched fd is readable or the time is over.

        Returns the requests that finished.
        """
        now = time.monotonic()
        end = now + timeout_ms / 1_000
        self.interrupted = False
        while True:
            if now >= self._due_at:
                self._run_timers(now)
            if self._finished:
                break
            wait_ms = math.ceil(max(0.0, min(end, self._due_at) - now) * 1_000)
            self.interrupted = self._receive(dict(self._poller.poll(wait_ms)))
            now = time.monotonic()
            if self._finished or self.interrupted or now >= end or self.closing:
                break
        finished, self._finished = self._finished, []
        return finished

    def watch(self, fd: int) -> None:
        """Let `poll` return when the file descriptor `fd` is readable; its owner empties it."""
        self._watched_fd = fd
        self._poller.register(fd, zmq.POLLIN)

    def forget(self, pending: Pending) -> None:
        """Stop waiting for `pending`; an answer that comes all the same is a stray."""
        self._outstanding.pop(pending.request_id, None)

    @property
    def outstanding_count(self) -> int:
        """How many requests are not finished."""
        return len(self._outstanding)

    def close(self) -> None:
        """Close the socket. What was sent leaves, what is outstanding is forgotten."""
        if self._pid == os.getpid():
            self._close_sockets(_LINGER_MS)
        self._outstanding.clear()
        self.closing = True

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the interpreter anything may be gone
            if self._pid == os.getpid():
                self._close_sockets(_LINGER_MS)

    def _refuse_if_closing(self) -> None:
        if self.closing:
            self.close()
            raise UsageError("the client is closed")

    # --- the socket ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a new incarnation: at first, and in a forked child."""
        self._pid = os.getpid()
        self._incarnation = os.urandom(8)
        self._sequence = 0
        self._outstanding = {}
        self._finished = []
        self._pings = {}
        self._pings_unanswered = 0
        self._ping_at = time.monotonic() + PING_MS / 1_000
        self._due_at = _FOREVER
        self._router = None
        self._pack = msgpack.Packer(use_bin_type=True).pack
        self._open_sockets()

    def _open_sockets(self) -> None:
        context = _context()
        self._lost = False
        self._socket = socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.setsockopt(zmq.RCVTIMEO, _SHORT_WAIT_MS)
        socket.setsockopt(zmq.SNDHWM, 0)  # what is outstanding is bounded by who asks
        socket.setsockopt(zmq.RCVHWM, 0)
        # Without a connection a send fails at once: nothing waits unseen in a buffer.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        address = f"inproc://pyq-{os.urandom(8).hex()}"
        socket.monitor(address, _EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.connect(address)
        try:
            socket.connect(self.url)
        except zmq.ZMQError as error:
            self._close_sockets(0)
            raise UsageError(f"url {self.url!r} is not an address: {error}") from None
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        if self._watched_fd is not None:
            self._poller.register(self._watched_fd, zmq.POLLIN)

    def _close_sockets(self, linger_ms: int) -> None:
        if getattr(self, "_socket", None) is None or self._socket.closed:
            return
        self._socket.monitor(None, 0)
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _rebuild(self) -> None:
        self._close_sockets(0)
        self._pings.clear()
        self._pings_unanswered = 0
        self._router = None
        self._open_sockets()
        self._lost = True  # the handshake re-sends everything

    # --- out ----------------------------------------------------------------------------------

    def _frames(self, pending: Pending, now: float) -> tuple[bytes, bytes]:
        flags = pending.flags | Flag.REPEAT if pending.repeats.sent_count else pending.flags
        header = pack_header(
            pending.verb,
            pending.request_id,
            flags=flags,
            slot=pending.slot,
            deadline_ms=max(1, round((pending.deadline - now) * 1_000)),
            queue=pending.queue,
        )
        return header, pending.body

    def _send_frames(self, frames: list[bytes]) -> bool:
        """Send one message; False if there is no connection."""
        send, last = self._socket.send, len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                send(frame, _NOBLOCK if index == last else _NOBLOCK_MORE)
        except zmq.Again:
            return False
        return True

    def _note_sent(self, pending: Pending, sent: bool, now: float) -> None:
        if sent:
            pending.repeats.sent()
            pending.repeat_at = _FOREVER
        else:
            pending.repeat_at = now + LATER_S
            self._due_at = min(self._due_at, pending.repeat_at)

    def _repeat(self, pending: Pending, now: float) -> None:
        self._note_sent(pending, self._send_frames([*self._frames(pending, now)]), now)

    def _repeat_all(self, unsent_only: bool) -> None:
        now = time.monotonic()
        for pending in self._outstanding.values():
            if not unsent_only or not pending.repeats.sent_count:
                self._repeat(pending, now)

    def _ping(self, now: float) -> None:
        self._sequence += 1
        request_id = self._incarnation + self._sequence.to_bytes(8, "big")
        header = pack_header(Verb.PING, request_id, slot=ROUTER, deadline_ms=2 * PING_MS)
        self._ping_at = now + PING_MS / 1_000
        if not self._send_frames([header, self._pack([])]):
            return
        self._pings_unanswered += 1
        self._pings[request_id] = now
        while len(self._pings) > 2 * PINGS_UNANSWERED_MAX:
            del self._pings[next(iter(self._pings))]

    # --- time ---------------------------------------------------------------------------------

    def _run_timers(self, now: float) -> None:
        due_at = _FOREVER
        for pending in list(self._outstanding.values()):
            if pending.deadline <= now:
                self._finish(pending, None, self._error_at_deadline(pending))
                continue
            if pending.repeat_at <= now:
                self._repeat(pending, now)
            due_at = min(due_at, pending.deadline, pending.repeat_at)
        if self._outstanding:
            if self._ping_at <= now:
                if self._pings_unanswered >= PINGS_UNANSWERED_MAX:
                    self._rebuild()
                self._ping(now)
            due_at = min(due_at, self._ping_at)
        self._due_at = due_at

    def _error_at_deadline(self, pending: Pending) -> PyqError:
        known = pending.repeats.known_at_deadline()
        if known is Known.NEVER_SENT:
            return Unreachable(
                f"nothing answers at {self.url}; "
                "start a cluster with `pyq-cluster up` or set PYQ_URL"
            )
        if known is Known.REFUSED:
            return _error_of(pending.repeats.last_status, pending.refusal)
        return OutcomeUnknown(
            f"no answer from {self.url} in time; the request may or may not have taken effect"
        )

    # --- in -----------------------------------------------------------------------------------

    def _receive(self, events: dict[Any, int]) -> bool:
        """Read what is there; True if the watched fd is readable."""
        if not events:
            return False
        if self._socket in events:
            self._receive_messages()
        if self._monitor in events:
            self._receive_monitor()
        return self._watched_fd is not None and self._watched_fd in events

    def _receive_soon(self) -> None:
        """Wait a short time for one message, without an eye on anything else."""
        with contextlib.suppress(zmq.Again):
            self._on_message(self._socket.recv_multipart())

    def _receive_messages(self) -> None:
        for _ in range(_RECEIVE_MAX):
            try:
                frames = self._socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            self._on_message(frames)
            if not self._outstanding:
                return

    def _on_message(self, frames: list[bytes]) -> None:
        self._pings_unanswered = 0
        if len(frames) % 2 == 0:  # a single frame is a no-op
            for index in range(0, len(frames), 2):
                self._on_reply(frames[index], frames[index + 1])

    def _receive_monitor(self) -> None:
        while True:
            try:
                frames = self._monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            event = _EVENT.unpack_from(frames[0])[0]
            if event == zmq.Event.DISCONNECTED:
                self._lost = True
                self._router = None
            elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._socket.getsockopt(zmq.EVENTS)  # makes the new pipe known before we send
                self._repeat_all(unsent_only=not self._lost)
                self._lost = False

    def _on_reply(self, header: bytes, body: bytes) -> None:
        if len(header) < HEADER_BYTES:
            return
        request_id = request_id_of(header)
        pending = self._outstanding.get(request_id)
        if pending is None:
            self._on_other_reply(request_id, header, body)
            return
        try:
            values = unpack_body(body)
            if status_of(header) != Status.OK:
                self._on_refusal(pending, status_of(header), values)
                return
            reply = Reply(header[_FLAGS_AT], values)
        except WireError as error:
            self._finish(pending, None, Unsupported(f"the answer cannot be read: {error}"))
            return
        if pending.verb == Verb.PING and pending.slot == ROUTER:
            self._learn(values)
        self._finish(pending, reply, None)

    def _on_refusal(self, pending: Pending, status: int, body: Any) -> None:
        sentence, retry_after_ms = _refusal_of(body)
        after_s = pending.repeats.answered(status, retry_after_ms)
        if after_s is None:
            self._finish(pending, None, _error_of(status, (sentence, retry_after_ms)))
            return
        pending.refusal = (sentence, retry_after_ms)
        pending.repeat_at = time.monotonic() + after_s
        self._due_at = min(self._due_at, pending.repeat_at)

    def _on_other_reply(self, request_id: bytes, header: bytes, body: bytes) -> None:
        if self._pings.pop(request_id, None) is not None:
            try:
                self._learn(unpack_body(body) if status_of(header) == Status.OK else None)
            except WireError:
                return
        elif self.on_stray is not None:
            self.on_stray(header, body)

    def _learn(self, pong: Any) -> None:
        """Take over what a PONG says: the router's incarnation, cluster time, shards."""
        try:
            _, incarnation, wall_ms, info = pong
            shards = int(info.get("shards", 0))
        except (TypeError, ValueError, AttributeError):
            return
        self.shards = shards or self.shards
        self._clock.set(wall_ms)
        changed = self._router is not None and incarnation != self._router
        self._router = incarnation
        if changed:
            self._repeat_all(unsent_only=False)

    def _finish(self, pending: Pending, reply: Reply | None, error: PyqError | None) -> None:
        self._outstanding.pop(pending.request_id, None)
        pending.reply = reply
        pending.error = error
        self._finished.append(pending)


def _refusal_of(body: Any) -> tuple[str, int]:
    try:
        sentence, retry_after_ms = body
        return str(sentence), int(retry_after_ms)
    except (TypeError, ValueError):
        return "the cluster refused without a reason", 0


def _error_of(status: int, refusal: tuple[str, int]) -> PyqError:
    """Return the exception that a status on the wire stands for."""
    sentence, retry_after_ms = refusal
    kind = ERRORS_BY_STATUS.get(status)  # type: ignore[call-overload]  # an unknown int is fine
    if kind is Busy:
        return Busy(sentence, retry_after_ms / 1_000)
    return PyqError(f"{sentence} (code {status})") if kind is None else kind(sentence)


_contexts: dict[int, "zmq.Context[zmq.Socket[bytes]]"] = {}


def _context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Return the ZeroMQ context of this process; a forked child makes its own."""
    pid = os.getpid()
    context = _contexts.get(pid)
    if context is None:
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        context = _contexts.setdefault(pid, context)
    return context
