"""Starts one router: `python -P -m router --bind tcp://127.0.0.1:6789 --runtime DIR --shards N`.

The door: flags, limits of the process, the signal, exit codes. Everything else is below.
"""

import gc
import resource
import sys
import traceback

import zmq

from pyq.errors import UsageError
from pyq.log import get_logger
from pyq.process import ExitCode, StopSignal, die_with_parent
from router.config import Config, from_arguments
from router.front import PortInUse
from router.server import Server


def main(arguments: list[str]) -> int:
    """Run a router until it is told to stop; return its exit code."""
    try:
        config = from_arguments(arguments)
    except UsageError as error:
        sys.stderr.write(f"router: {error}\n")
        return ExitCode.USAGE
    die_with_parent(config.parent_pid)
    stop = StopSignal()
    _raise_files_limit()
    try:
        return _serve(config, stop)
    except PortInUse as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.PORT_IN_USE
    except Exception:  # a mistake of ours; the supervisor starts the next router
        traceback.print_exc()
        return ExitCode.INTERNAL


def _serve(config: Config, stop: StopSignal) -> int:
    context = zmq.Context()
    try:
        server = Server(context, config, stop, get_logger("router"))
        # The loop makes no reference cycles, and a collection is a pause for everybody.
        gc.collect()
        gc.freeze()
        gc.disable()
        server.run()
    finally:
        context.destroy(linger=None)
    return ExitCode.OK


def _raise_files_limit() -> None:
    """Each client is an open file; the soft limit is for programs that use select()."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
