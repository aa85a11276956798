"""What the supervisor decides about one process: when to start it again, and when to give up on it.

Pure: every method takes the monotonic time in milliseconds and only keeps the books.
The supervisor does the starting, probing and killing, and tells a `Life` what it saw.
"""

from enum import StrEnum

BACKOFF_MS_MIN = 100
BACKOFF_MS_MAX = 5_000
HEALTHY_MS = 1_000  # ready for this long: earlier deaths are forgotten
BREAKER_DEATHS = 5  # early deaths in a row before a process counts as failed
FAILED_RETRY_MS = 60_000
DISK_FULL_RETRY_MS = 1_000
PROBE_MS = 1_000
DEGRADED_MS = 10_000  # a probe unanswered for this long
SILENT_KILL_MS = 60_000  # ... and for this long: the loop hangs, only a restart helps
STARTING_MS_MAX = 600_000  # a shard that reads a large file is slow, not dead
OWN_PAUSE_MS = 2_000  # a supervisor that did not turn for this long judges nobody


class ProcessState(StrEnum):
    """The state of a process as `status` shows it."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"  # runs, but does not answer
    RESTARTING = "restarting"  # waits for its next start
    FAILED = "failed"  # the breaker tripped; tried again now and then
    STOPPING = "stopping"
    STOPPED = "stopped"


class Life:
    """The life of one process of the cluster, over all its starts."""

    def __init__(self, now_ms: int, *, breaker: bool) -> None:
        self.state = ProcessState.RESTARTING
        self.start_due_ms: int | None = now_ms  # None: it runs, or shall not run again
        self.starts_count = 0
        self._breaker = breaker
        self._early_deaths = 0
        self.ever_ready = False
        self._ready_ms: int | None = None
        self._asked_ms: int | None = None  # the oldest probe that is not answered
        self._next_probe_ms = now_ms

    @property
    def restarts_count(self) -> int:
        """How often it was started again."""
        return max(0, self.starts_count - 1)

    # --- what the supervisor saw ----------------------------------------------------------

    def started(self, now_ms: int) -> None:
        """The process was spawned."""
        self.state = ProcessState.STARTING
        self.start_due_ms = None
        self.starts_count += 1
        self._next_probe_ms = now_ms
        self._ready_ms = self._asked_ms = None

    def probed(self, now_ms: int) -> None:
        """A probe was sent."""
        self._next_probe_ms = now_ms + PROBE_MS
        if self._asked_ms is None:
            self._asked_ms = now_ms

    def answered(self, now_ms: int) -> bool:
        """A probe was answered. Return True if that makes the process ready."""
        self._asked_ms = None
        if self.state not in (ProcessState.STARTING, ProcessState.DEGRADED):
            return False
        self.state = ProcessState.READY
        if self._ready_ms is not None:
            return False
        self._ready_ms = now_ms
        self.ever_ready = True
        return True

    def died(self, now_ms: int, disk_full: bool = False) -> None:
        """The process ended without being asked to.

        `disk_full`: it said so, and is tried again each second, since nothing else is wrong.
        """
        if disk_full:
            self.state = ProcessState.RESTARTING
            self.start_due_ms = now_ms + DISK_FULL_RETRY_MS
            return
        healthy = self._ready_ms is not None and now_ms - self._ready_ms >= HEALTHY_MS
        self._early_deaths = 0 if healthy else self._early_deaths + 1
        if self._breaker and self._early_deaths >= BREAKER_DEATHS:
            self.state = ProcessState.FAILED
            self.start_due_ms = now_ms + FAILED_RETRY_MS
            return
        self.state = ProcessState.RESTARTING
        doublings = max(0, min(self._early_deaths, 16) - 1)
        self.start_due_ms = now_ms + min(BACKOFF_MS_MIN << doublings, BACKOFF_MS_MAX)

    def stopping(self) -> None:
        """It was asked to stop, with the whole cluster; no more starts."""
        self.state = ProcessState.STOPPING
        self.start_due_ms = None

    def stopped(self) -> None:
        """It ended after it was asked to."""
        self.state = ProcessState.STOPPED
        self.start_due_ms = None

    def forgive(self) -> None:
        """The supervisor itself was paused: what seems silent may just not have been heard."""
        self._asked_ms = None

    # --- what the supervisor shall do -----------------------------------------------------

    def is_start_due(self, now_ms: int) -> bool:
        """Whether it is time to spawn the process."""
        return self.start_due_ms is not None and now_ms >= self.start_due_ms

    def is_probe_due(self, now_ms: int) -> bool:
        """Whether it is time to send a probe."""
        return self._runs() and now_ms >= self._next_probe_ms

    def is_hanging(self, now_ms: int) -> bool:
        """Whether the process has to be killed; marks it degraded on the way there."""
        if not self._runs() or self._asked_ms is None:
            return False
        silent_ms = now_ms - self._asked_ms
        if self._ready_ms is None:
            return silent_ms >= STARTING_MS_MAX
        if silent_ms >= DEGRADED_MS:
            self.state = ProcessState.DEGRADED
        return silent_ms >= SILENT_KILL_MS

    def next_wakeup(self) -> int | None:
        """Return the time of the next start or probe, or None if neither will come."""
        return self._next_probe_ms if self._runs() else self.start_due_ms

    def _runs(self) -> bool:
        return self.state in (
            ProcessState.STARTING,
            ProcessState.READY,
            ProcessState.DEGRADED,
        )
