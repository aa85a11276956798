"""Shell jobs: commands run for the queue, each worker with a runner process of its own.

Imports nothing by itself: the runner shall start fast and stay small.
"""

from collections.abc import Sequence

__all__ = ["run_workers"]


def run_workers(
    url: str | None,
    queues: Sequence[str],
    count: int,
    concurrency: int = 1,
    *,
    environment_also: Sequence[str] = (),
) -> int:
    """Run workers for shell jobs in the foreground until they are told to stop.

    See `cluster.shell.workers`. Returns an exit code.
    """
    from cluster.shell import workers

    return workers.run_workers(url, queues, count, concurrency, environment_also=environment_also)
