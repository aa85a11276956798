"""When a message arrived, as well as it can be known.

Pure. A budget cannot see the time a message spent in a socket's buffer. While the loop
turns that is nothing; but after the process stood still (SIGSTOP, suspend) what lies in
the buffers may be as old as the pause, and counts as such until the buffer is empty.
"""

# The loop turns at least each 500 ms; a gap above this is no work, it is a pause.
PAUSED_MS = 1_500
# ZeroMQ's own thread wakes up with us: only then an empty buffer means that nothing is left.
SETTLED_MS = 100
# Under load the buffer may never look empty; by then the old messages are through.
STALE_MS_MAX = 1_000


class ArrivalClock:
    """The time that deadlines are counted from."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.arrived_ms = now_ms
        self._resumed_ms = 0
        self._stale_until_ms = 0

    def turn(self, now_ms: int) -> None:
        """A turn of the loop begins."""
        if now_ms - self.now_ms > PAUSED_MS:
            self.arrived_ms = self.now_ms
            self._resumed_ms = now_ms
            self._stale_until_ms = now_ms + STALE_MS_MAX
        elif now_ms >= self._stale_until_ms:
            self.arrived_ms = now_ms
        self.now_ms = now_ms

    def reached_end(self) -> None:
        """The buffer is empty: what comes from now on has just arrived."""
        if self.now_ms >= self._resumed_ms + SETTLED_MS:
            self._stale_until_ms = 0
