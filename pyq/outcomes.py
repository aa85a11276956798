"""What a handler may raise to say how its attempt ended, other than by an ordinary error.

Any other exception is an ordinary failure: the job is retried by its backoff until its
attempts are used up.
"""

from typing import Any

from pyq.durations import Duration, duration_ms
from pyq.limits import DELAY_MS_MAX
from pyq.references import dependency_ids


class Outcome(Exception):
    """Root of the exceptions that are answers, not accidents."""


class Discard(Outcome):
    """The job can never succeed: it is dead at once, whatever attempts are left."""


class Retry(Outcome):
    """This attempt failed; the next one comes after `delay` instead of the backoff.

    `delay` is a duration up to ten years, `reason` the error that is kept with the job.
    """

    def __init__(self, delay: Duration, reason: str = "the handler asked for a retry") -> None:
        super().__init__(reason)
        self.delay_ms = duration_ms(delay, "delay", 0, DELAY_MS_MAX)


class Release(Outcome):
    """Give the job back without a failure; it waits again after `delay` (default: at once)."""

    def __init__(self, delay: Duration = 0) -> None:
        super().__init__("released")
        self.delay_ms = duration_ms(delay, "delay", 0, DELAY_MS_MAX)


class Snooze(Release):
    """Not yet: the same as Release, with a delay that must be given."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)


class WaitFor(Outcome):
    """Wait for further jobs, given as handles or ids: this one is blocked until they have
    completed, then its handler is called again. Nothing is charged; its options `on_dep_fail`
    and `dep_timeout` hold. With those it waited for before, up to 1,000 in all.
    """

    def __init__(self, *jobs: Any) -> None:
        super().__init__("waits for further jobs")
        self.ids = dependency_ids(jobs[0] if len(jobs) == 1 else jobs, "WaitFor")


class Failed(Outcome):
    """This attempt failed, and `result` (anything packable) is kept with it."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
