"""The shell of a shard: carries commands to the core and effects away, in one loop.

A turn drains the socket, applies everything under one `now`, commits once, and only then
sends the replies. Reads the clock and rolls the dice, so that the core need not.
"""

import gc
import os
import time
from typing import Any

import zmq

from pyq.errors import Status
from pyq.limits import (
    DISK_BALLAST_BYTES,
    DISK_FLOOR_BYTES,
    FRAME_BYTES_MAX,
    LATE_MS,
    TURN_BYTES_MAX,
    TURN_JOBS_MAX,
    TURN_MESSAGES_MAX,
)
from pyq.messages import Command, Origin, Reply, Return, error_body
from pyq.process import ExitCode, StopSignal, endpoint, unlink_endpoint
from pyq.wire import Flag, Verb
from shardnode.config import Config
from shardnode.core.effects import Effects, Found, Need, Now
from shardnode.core.recovery import restore_jobs, restore_queues
from shardnode.core.shard import Shard
from shardnode.core.state import ShardState
from shardnode.frames import ReplyEncoder, read_message
from shardnode.health import LoopHealth
from shardnode.storage.sqlite import SqliteStore
from shardnode.storage.store import OutcomeUnknown, Store, StoreError, StoreFull
from shardnode.syncer import Syncer

IDLE_MS = 1_000  # the loop turns at least this often, so that a pause of it is noticed
DISK_CHECK_MS = 100
LINGER_MS = 500  # the last words of a shard whose disk failed


class Server:
    """One shard process, from its recovery to its end."""

    def __init__(self, config: Config, store: Store, stop: StopSignal, log: Any) -> None:
        self._config = config
        self._store = store
        self._stop = stop
        self._log = log
        started_ms = _mono_ms()
        loaded = store.open()
        state = ShardState(config.shard, config.shards_count, loaded.epoch)
        state.disk_reserve_bytes = config.disk_reserve_bytes
        gc.disable()  # 2.6 times faster in the core; nothing here makes cycles
        restore_queues(state, loaded, self._now())
        restore_jobs(state, store.jobs(state.queues_by_number), self._now())
        self._shard = Shard(state)
        self._encoder = ReplyEncoder(store, loaded.epoch)
        self._health = LoopHealth()
        self._socket = self._bind()
        self._undelivered: list[Command] = []
        self._disk_checked_at = 0
        self._disk_low = False
        self._disk_room = 0
        self._syncing = False  # the open transaction reaches the disk by itself
        self._syncer: Syncer | None = None
        if isinstance(store, SqliteStore):
            store.fill_ballast(DISK_BALLAST_BYTES)
            self._syncer = Syncer(store.log_fd())
        gc.freeze()
        log.info(
            "shard_ready",
            epoch=loaded.epoch,
            queues_count=len(state.queues),
            jobs_count=len(state.jobs),
            load_ms=_mono_ms() - started_ms,
        )

    def run(self) -> int:
        """Turn until a signal asks for the end; return the exit code."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop.fd, zmq.POLLIN)
        if self._syncer is not None:
            poller.register(self._syncer.fd, zmq.POLLIN)
        late = False
        while True:
            started_ms = _mono_ms()
            timeout_ms = self._timeout_ms(started_ms)
            poller.poll(timeout_ms)
            late = late or _mono_ms() - started_ms > timeout_ms + LATE_MS
            started_ms = _mono_ms()
            try:
                drained = self._turn(late)
                late = not drained or _mono_ms() - started_ms > LATE_MS
                if self._stop.count:
                    self._store.close()
                    return self._close(ExitCode.OK)
            except StoreError as error:
                self._log.critical("store_failed", reason=str(error))
                full = isinstance(error, StoreFull)
                return self._close(ExitCode.DISK_FULL if full else ExitCode.IO)

    def _turn(self, late: bool) -> bool:
        """One turn of the loop. Returns whether it saw the end of the socket."""
        turn, drained = self._drain()
        now = self._now()
        self._check_disk(now)
        self._health.turned(len(turn.commands), late)
        effects = self._shard.tick(now, late, self._disk_low, self._disk_room)
        replies = turn.replies
        staged: list[Effects] = []
        try:
            for command in (*self._shard.chores(now), *turn.commands):
                found: Found = {}
                outcome = self._shard.apply(command, now)
                while isinstance(outcome, Need):
                    if effects.writes:  # what it asks for may be among them
                        self._stage(effects, staged, turn.durable)
                        replies += effects.replies
                        effects = Effects()
                    queues = self._shard.state.queues_by_number
                    found.update(self._store.find(outcome.keys, queues))
                    outcome = self._shard.apply(command, now, found)
                effects.merge(outcome)
            replies += effects.replies
            must_sync = turn.durable or effects.sync or any(part.sync for part in staged)
            if effects.writes or staged:
                self._stage(effects, staged, must_sync)
                self._commit(staged, now)
            if must_sync and self._syncer is not None and self._syncer.has_unsynced:
                self._store.sync()  # what was found may be committed, but not on the disk yet
                self._syncer.all_synced()
        except StoreError:
            self._answer_unknown(turn.commands)
            raise
        self._send(replies)
        self._sync()
        return drained

    def _drain(self) -> "tuple[Turn, bool]":
        """Read what waits in the socket, within the bounds of a turn."""
        turn = Turn()
        turn.commands, self._undelivered = self._undelivered, []
        jobs_count = bytes_count = 0
        for _ in range(TURN_MESSAGES_MAX):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return turn, True
            for message in read_message(frames):
                if isinstance(message, Reply):
                    turn.replies.append(message)
                    continue
                command, count = message
                turn.commands.append(command)
                turn.durable = turn.durable or bool(command.origin.flags & Flag.DURABLE)
                jobs_count += count
            bytes_count += sum(map(len, frames))
            if jobs_count >= TURN_JOBS_MAX or bytes_count >= TURN_BYTES_MAX:
                break
        return turn, False

    def _stage(self, effects: Effects, staged: list[Effects], durable: bool) -> None:
        if not staged:
            self._store.begin(sync=durable)
            self._syncing = durable
        staged.append(effects)
        try:
            self._store.stage(effects, self._shard.state.counter)
        except StoreFull:
            self._append_again(staged)

    def _commit(self, staged: list[Effects], now: Now) -> None:
        started_ns = time.monotonic_ns()
        try:
            self._store.commit()
        except StoreFull:
            self._append_again(staged)
            self._store.commit()
        self._health.committed(now, (time.monotonic_ns() - started_ns) // 1_000)
        if self._syncer is None:
            return
        if self._syncing:
            self._syncer.all_synced()
            return
        jobs_count = sum(len(part.changed) + len(part.accepted) for part in staged)
        self._syncer.committed(now.mono_ms, jobs_count)

    def _append_again(self, staged: list[Effects]) -> None:
        """The disk is full: give the ballast back and write the turn once more."""
        store = self._store
        store.rollback()
        if not isinstance(store, SqliteStore) or not store.free_ballast():
            raise StoreFull("the disk is full and nothing is left to give back; free some space")
        self._log.error("disk_full", note="ballast given back; free some space")
        self._disk_checked_at = 0
        store.begin(sync=self._syncing)
        for effects in staged:
            store.stage(effects, self._shard.state.counter)

    def _sync(self) -> None:
        """Close the window of a power failure, in the background."""
        if self._syncer is None:
            return
        try:
            window_ms = self._syncer.finished(_mono_ms())
        except OSError as error:
            raise OutcomeUnknown(f"the disk failed to sync: {error.strerror}") from error
        if window_ms is not None:
            self._health.synced(window_ms)
        self._syncer.start_if_due(_mono_ms())

    def _send(self, replies: list[Reply]) -> None:
        delivered: set[bytes] = set()
        lost: dict[bytes, Command] = {}
        for reply in replies:
            if not reply.origin.sender:
                continue  # to a command of our own
            if reply.origin.verb in (Verb.PING, Verb.STATS) and reply.status == Status.OK:
                self._health.complete(reply, self._store)
            frames = self._encoder.frames(reply)
            request_id = reply.origin.request_id
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.ZMQError:  # the peer is gone, or never reads
                self._health.undelivered_count += 1
                if reply.leased:
                    lost[request_id] = Return(Origin(request_id, verb=Verb.RETURN))
            else:
                if reply.leased:
                    delivered.add(request_id)
        # A pull may be answered twice in a turn: at its old address, and where it was repeated.
        self._undelivered += [back for key, back in lost.items() if key not in delivered]

    def _answer_unknown(self, commands: list[Command]) -> None:
        sentence = f"shard {self._config.shard} could not write; it restarts and reads the truth"
        body = error_body(sentence)
        self._send([Reply(command.origin, Status.UNKNOWN, body) for command in commands])

    def _timeout_ms(self, mono_ms: int) -> int:
        """Return how long the loop may sleep."""
        if self._undelivered:
            return 0
        timeout_ms = IDLE_MS
        wakeup_at = self._shard.next_wakeup(self._now())
        if wakeup_at is not None:
            timeout_ms = min(timeout_ms, wakeup_at - mono_ms)
        sync_at = self._syncer.due_at() if self._syncer is not None else None
        if sync_at is not None:
            timeout_ms = min(timeout_ms, sync_at - mono_ms)
        return max(0, timeout_ms)

    def _check_disk(self, now: Now) -> None:
        if not isinstance(self._store, SqliteStore):
            return
        if now.mono_ms - self._disk_checked_at < DISK_CHECK_MS:
            return
        self._disk_checked_at = now.mono_ms
        free_bytes = self._store.free_bytes()
        low = free_bytes < self._config.disk_reserve_bytes
        self._disk_room = max(0, free_bytes - DISK_FLOOR_BYTES)
        if low != self._disk_low:
            self._log.warning("disk_low" if low else "disk_has_space_again")
            self._disk_low = low
            if not low:
                self._store.fill_ballast(DISK_BALLAST_BYTES)

    def _bind(self) -> "zmq.Socket[bytes]":
        self._context = zmq.Context()
        socket = self._context.socket(zmq.ROUTER)
        socket.set(zmq.LINGER, LINGER_MS)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.set(zmq.SNDHWM, 0)  # bounded by the router's table of outstanding requests
        socket.set(zmq.RCVHWM, 0)
        address = endpoint(self._config.runtime, f"shard-{self._config.shard}")
        unlink_endpoint(address)  # we hold the lock of the folder: whoever bound it is dead
        socket.bind(address)
        return socket

    def _close(self, code: ExitCode) -> ExitCode:
        self._socket.close()
        self._context.term()
        self._log.info("shard_stopped", code=int(code))
        return code

    def _now(self) -> Now:
        return Now(time.time_ns() // 1_000_000, _mono_ms(), os.urandom(16))


class Turn:
    """What one turn works on."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.replies: list[Reply] = []  # to messages that are no commands
        self.durable = False


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000
