"""The parent of a cluster: starts its processes, probes, restarts and stops them.

Runs in the foreground behind `pyq-cluster up`, from the main thread (children die with the
thread that spawned them). Decides nothing about restarts; `restarts.py` does. Holds the lock
of the data directory for as long as it lives.
"""

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from cluster.answers import Request, pong, reply_to, requests_of, unsupported
from cluster.children import Child, exit_words
from cluster.datadir import DataDir, prepare_runtime
from cluster.ports import PORT_RETRY_MS, port_in_use
from cluster.processes import coordinator_argv, router_argv, shard_argv
from cluster.readiness import Readiness
from cluster.refusals import CannotStart
from cluster.restarts import OWN_PAUSE_MS, Life, ProcessState
from pyq.errors import Status
from pyq.limits import FRAME_BYTES_MAX
from pyq.log import get_logger
from pyq.process import ExitCode, StopSignal, endpoint, unlink_endpoint
from pyq.wire import Verb

# How long after the stop each group may take before the next one is asked: what a router still
# has in hand needs its shards.
_STOP_ROUTER_MS = 4_000
_STOP_COORDINATOR_MS = 5_000
STOP_MS_MAX = 10_000

_ROUTER_CANNOT = {ExitCode.PORT_IN_USE, ExitCode.USAGE}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Supervisor:
    """One cluster and its processes."""

    def __init__(self, data: DataDir, bind: str, say: Callable[[str], None]) -> None:
        """`say` gets the one line that tells the operator what is up."""
        self._data = data
        self._say = say
        self._bind = bind
        self._log: Any = get_logger("supervisor")
        self._incarnation = os.urandom(8)
        self._began_ms = _now_ms()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._router = self._child("router", router_argv(data, bind, os.getpid()), breaker=False)
        self._coordinator = self._child("coordinator", coordinator_argv(data, os.getpid()))
        self._shards = [
            self._child(f"shard-{shard}", shard_argv(data, shard, os.getpid()))
            for shard in range(data.identity.shards)
        ]
        self._children = [self._router, *self._shards, self._coordinator]
        self._announced = False
        self._readiness: Readiness | None = None
        self._stop_ms: int | None = None  # when the stop began
        self._stop_stage = 0
        self._stops_heard = 0
        self._exit_code = ExitCode.OK
        self._refusal: CannotStart | None = None

    def run(self) -> int:
        """Serve until told to stop; return the exit code.

        Raises CannotStart if the router never could.
        """
        _raise_file_limit()
        stop = StopSignal()
        _wake_up_for(signal.SIGCHLD, lambda: None)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
            _wake_up_for(signal.SIGHUP, lambda: signal.raise_signal(signal.SIGTERM))
        self._poller.register(stop.fd, zmq.POLLIN)
        server = self._listen()
        wakeup_ms = _now_ms()
        try:
            while not self._has_ended():
                self._poller.poll(max(0, wakeup_ms - _now_ms()))
                now_ms = _now_ms()
                stop.drain()
                if now_ms > wakeup_ms + OWN_PAUSE_MS:
                    self._forgive_silence()
                self._hear_stops(stop.count, now_ms)
                self._hear_children(now_ms)
                self._answer(server, now_ms)
                self._tend_children(now_ms)
                self._go_on_stopping(now_ms)
                self._announce(now_ms)
                wakeup_ms = self._next_wakeup(now_ms)
        finally:
            for child in self._children:
                child.kill()
            server.close(0)
            self._context.destroy(linger=0)
        if self._refusal is not None:
            raise self._refusal
        return self._exit_code

    def _child(self, name: str, argv: list[str], *, breaker: bool = True) -> Child:
        life = Life(self._began_ms, breaker=breaker)
        return Child(name, argv, endpoint(self._data.runtime, name), life)

    # --- one turn -------------------------------------------------------------------------

    def _hear_stops(self, count: int, now_ms: int) -> None:
        if count > self._stops_heard and self._stop_ms is None:
            self._begin_stop(now_ms, "signal")
        if count > 1 and self._stop_stage < len(self._stop_stages()):
            self._log.warning("stopping_at_once")
            self._kill_all()
        self._stops_heard = count

    def _hear_children(self, now_ms: int) -> None:
        for child in self._children:
            asker = child.asker
            if child.hear(now_ms):
                self._log.info("process_ready", name=child.name, pid=child.pid)
            if child.reap():
                assert asker is not None, "a running child has a probe"
                self._poller.unregister(asker.socket)
                self._bury(child, now_ms)

    def _bury(self, child: Child, now_ms: int) -> None:
        code = child.last_exit or 0
        if self._stop_ms is not None:
            child.life.stopped()
            if code:
                self._log.warning("process_died", name=child.name, reason=exit_words(code))
            return
        child.life.died(now_ms, disk_full=code == ExitCode.DISK_FULL)
        self._log.error(
            "process_failed" if child.life.state is ProcessState.FAILED else "process_died",
            name=child.name,
            reason=exit_words(code),
            next_start_ms=(child.life.start_due_ms or now_ms) - now_ms,
        )
        if child is self._router and not child.life.ever_ready and code in _ROUTER_CANNOT:
            self._router_cannot_start(code, now_ms)

    def _router_cannot_start(self, code: int, now_ms: int) -> None:
        """End the whole start, unless an old router may only need a moment to die."""
        if code == ExitCode.PORT_IN_USE and now_ms < self._began_ms + PORT_RETRY_MS:
            return
        self._refusal = (
            port_in_use(self._bind)
            if code == ExitCode.PORT_IN_USE
            else CannotStart(ExitCode(code), f"the router refuses to listen at {self._bind}")
        )
        self._begin_stop(now_ms, "router_cannot_start")

    def _tend_children(self, now_ms: int) -> None:
        if self._stop_ms is not None:
            return
        for child in self._children:
            if child.life.is_start_due(now_ms):
                self._start(child, now_ms)
            if child.life.is_probe_due(now_ms):
                child.probe(now_ms)
            if child.life.is_hanging(now_ms):
                self._log.error("process_hangs", name=child.name, pid=child.pid)
                child.kill()

    def _start(self, child: Child, now_ms: int) -> None:
        try:
            prepare_runtime(self._data.runtime)
            child.start(self._context, now_ms)
        except (OSError, CannotStart) as error:
            self._log.error("process_not_started", name=child.name, reason=str(error))
            child.life.died(now_ms)
            return
        assert child.asker is not None, "a started child has a probe"
        self._poller.register(child.asker.socket, zmq.POLLIN)
        self._log.info("process_started", name=child.name, pid=child.pid)

    def _announce(self, now_ms: int) -> None:
        """Say once that the cluster is ready, or what of it is."""
        states = [child.life.state for child in self._children]
        settled = all(state in (ProcessState.READY, ProcessState.FAILED) for state in states)
        if self._announced or self._stop_ms is not None or not settled:
            self._forget_readiness()
            return
        if not self._can_be_reached(now_ms):
            return
        self._announced = True
        failed = [child.name for child in self._children if child.life.state is ProcessState.FAILED]
        word = f"degraded (without {', '.join(failed)})" if failed else "ready"
        count = self._data.identity.shards
        self._say(
            f"pyq-cluster {word}: {count} shard{'s' if count > 1 else ''}, {self._bind}, "
            f"data {self._data.path} (pid {os.getpid()})"
        )

    def _can_be_reached(self, now_ms: int) -> bool:
        """Check that the router has found everyone who is ready; takes several turns."""
        if self._coordinator.life.state is not ProcessState.READY:
            return True  # degraded is all there is to say
        if self._readiness is None:
            ready = [
                number
                for number, shard in enumerate(self._shards)
                if shard.life.state is ProcessState.READY
            ]
            router = endpoint(self._data.runtime, "router")
            self._readiness = Readiness(router, self._context, ready, now_ms)
            self._poller.register(self._readiness.socket, zmq.POLLIN)
        if not self._readiness.turn(now_ms):
            return False
        self._forget_readiness()
        return True

    def _forget_readiness(self) -> None:
        """End the check: it is done, or someone died meanwhile and it starts afresh."""
        if self._readiness is not None:
            self._poller.unregister(self._readiness.socket)
            self._readiness.close()
            self._readiness = None

    def _next_wakeup(self, now_ms: int) -> int:
        if self._stop_ms is not None:
            return now_ms + 100  # the end of a child wakes us anyway; this is for the deadlines
        times = [child.life.next_wakeup() for child in self._children]
        if self._readiness is not None:
            times.append(self._readiness.next_wakeup())
        return min((at for at in times if at is not None), default=now_ms + 1_000)

    def _forgive_silence(self) -> None:
        for child in self._children:
            child.life.forgive()

    # --- stopping: the router, then the coordinator, then the shards ------------------------

    def _begin_stop(self, now_ms: int, why: str) -> None:
        if self._stop_ms is not None:
            return
        self._log.info("stopping", why=why)
        self._stop_ms = now_ms
        if any(child.life.state is ProcessState.FAILED for child in self._children):
            self._exit_code = ExitCode.INTERNAL  # somebody should look, not only restart it

    def _stop_stages(self) -> list[tuple[list[Child], int]]:
        return [
            ([self._router], _STOP_ROUTER_MS),
            ([self._coordinator], _STOP_COORDINATOR_MS),
            (self._shards, STOP_MS_MAX),
        ]

    def _go_on_stopping(self, now_ms: int) -> None:
        """Ask group after group; who is still there at the end is killed."""
        if self._stop_ms is None:
            return
        stages = self._stop_stages()
        while self._stop_stage < len(stages):
            group, deadline_ms = stages[self._stop_stage]
            for child in group:
                if child.life.state not in (ProcessState.STOPPING, ProcessState.STOPPED):
                    child.terminate()
            if any(child.pid for child in group) and now_ms < self._stop_ms + deadline_ms:
                return
            self._stop_stage += 1
        self._kill_all()

    def _kill_all(self) -> None:
        self._stop_stage = len(self._stop_stages())
        for child in self._children:
            if child.pid:
                child.life.stopping()
                child.kill()

    def _has_ended(self) -> bool:
        return self._stop_ms is not None and not any(child.pid for child in self._children)

    # --- answering ------------------------------------------------------------------------

    def _listen(self) -> zmq.Socket[bytes]:
        address = endpoint(self._data.runtime, "supervisor")
        unlink_endpoint(address)  # ours: we hold the lock of the data directory
        server: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        server.setsockopt(zmq.LINGER, 0)
        server.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        server.bind(address)
        self._poller.register(server, zmq.POLLIN)
        return server

    def _answer(self, server: zmq.Socket[bytes], now_ms: int) -> None:
        while True:
            try:
                frames = server.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            for request in requests_of(frames):
                with suppress(zmq.Again):
                    server.send_multipart(self._reply(request, now_ms), zmq.NOBLOCK)

    def _reply(self, request: Request, now_ms: int) -> list[bytes]:
        match request.header.verb:
            case Verb.PING:
                info = {"pid": os.getpid(), "shards": self._data.identity.shards}
                body: list[Any] = pong("supervisor", self._incarnation, info)
            case Verb.PROCESSES:
                body = [[child.view()] for child in self._children]
            case Verb.SHUTDOWN:
                self._begin_stop(now_ms, "asked")
                body = []
            case _:
                return unsupported(request, "supervisor")
        return reply_to(request, Status.OK, body)


def _wake_up_for(number: signal.Signals, then: Callable[[], None]) -> None:
    """Let a signal end the poll: a handler must exist for the wakeup fd of StopSignal to be fed."""
    signal.signal(number, lambda _number, _frame: then())


def _raise_file_limit() -> None:
    """Raise the limit of open files to what is allowed; the children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
