"""`python -m cluster.coordinator`: the command line of the coordinator process."""

import argparse
import sys
from typing import NoReturn

from cluster.coordinator.service import Coordinator, CoordinatorConfig
from pyq.process import ExitCode, die_with_parent


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def main() -> int:
    """Run the coordinator until it is told to stop."""
    parser = _Parser(prog="python -m cluster.coordinator", description=__doc__)
    parser.add_argument("--router", required=True, help="address of the router")
    parser.add_argument("--runtime", required=True, help="folder of the sockets")
    parser.add_argument("--shards", required=True, type=int, help="number of shards")
    parser.add_argument("--parent", default=0, type=int, help="pid to die with; 0: none")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    config = CoordinatorConfig(arguments.router, arguments.runtime, arguments.shards)
    Coordinator(config).run()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
