"""How a command of the operator fails: one sentence and an exit code, raised anywhere below it."""

from pyq.process import ExitCode


class CannotStart(Exception):
    """A process of the cluster cannot start. Its exit code is one of `ExitCode`."""

    def __init__(self, exit_code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CommandFailed(Exception):
    """A command could not do its job. Exit codes: 1 failed, 2 usage, 3 not found, 5 refused."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
