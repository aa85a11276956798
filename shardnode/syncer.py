"""Brings committed turns to the disk behind the loop's back.

A buffered turn is answered after its commit; this closes the window in which a power
failure could undo it. The thread only waits for the disk: it never touches the database,
so the loop goes on (docs/decisions/0003-sync-in-a-thread.md).
"""

import os
import threading
from queue import SimpleQueue

from pyq.limits import SYNC_JOBS_MAX, SYNC_MS


class Syncer:
    """Decides when to sync, and syncs one file in a thread, once at a time.

    `fd` becomes readable when a sync ended; then call `finished`.
    """

    def __init__(self, file: int) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.window_ms = SYNC_MS  # twice the last sync on a slow disk
        self._file = file
        self._oldest_at: int | None = None  # commits that no running sync covers
        self._jobs_count = 0
        self._started_at: int | None = None
        self._covered_at: int | None = None  # oldest commit of the running sync
        self._error: OSError | None = None
        self._orders: SimpleQueue[bool] = SimpleQueue()
        threading.Thread(target=self._work, name="syncer", daemon=True).start()

    def committed(self, mono_ms: int, jobs_count: int) -> None:
        """A turn was committed without a sync of its own."""
        if self._oldest_at is None:
            self._oldest_at = mono_ms
        self._jobs_count += jobs_count

    def all_synced(self) -> None:
        """A commit with its own sync covered everything before it."""
        self._oldest_at, self._jobs_count = None, 0

    @property
    def has_unsynced(self) -> bool:
        """True if a commit may not be on the disk yet."""
        return self._oldest_at is not None or self._started_at is not None

    def due_at(self) -> int | None:
        """Return the monotonic millisecond at which a sync shall start, or None."""
        if self._oldest_at is None or self._started_at is not None:
            return None
        if self._jobs_count >= SYNC_JOBS_MAX:
            return self._oldest_at
        return self._oldest_at + self.window_ms

    def start_if_due(self, mono_ms: int) -> None:
        """Start a sync of everything committed so far, if it is time."""
        due_at = self.due_at()
        if due_at is not None and due_at <= mono_ms:
            self._started_at, self._covered_at = mono_ms, self._oldest_at
            self.all_synced()
            self._orders.put(True)

    def finished(self, mono_ms: int) -> int | None:
        """Take note of an ended sync; return how old its oldest commit had become, in ms.

        None if no sync has ended. Raises OSError if the disk failed: nothing is sure then.
        """
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return None
        if self._error is not None:
            raise self._error
        assert self._started_at is not None, "only a started sync ends"
        assert self._covered_at is not None, "a sync covers a commit"
        self.window_ms = max(SYNC_MS, 2 * (mono_ms - self._started_at))
        self._started_at = None
        return mono_ms - self._covered_at

    def _work(self) -> None:
        while self._orders.get():
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._error = error
            os.eventfd_write(self.fd, 1)
