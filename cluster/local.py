"""A whole cluster for a while, as a context manager: for the demo, the benchmarks and tests.

Starts `pyq-cluster up` the way a user does, on a free port of loopback and in a folder that
is removed at the end, and stops it by its own pid.
"""

import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cluster.datadir import runtime_of
from cluster.probes import Question, ask
from cluster.processes import environment
from pyq.process import endpoint
from pyq.wire import Verb

START_S = 30.0
STOP_S = 15.0


class LocalCluster:
    """`with LocalCluster(shards=2) as cluster: pyq.connect(cluster.url)`.

    Logs of its processes go to `folder/log`. `kill` is for those who want to see what the
    next `start` finds.
    """

    def __init__(self, shards: int = 2, folder: Path | None = None) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="pyq-"))
        self.data = self.folder / "data"
        self.shards = shards
        self.url = f"tcp://127.0.0.1:{_free_port()}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The supervisor's pid."""
        assert self._process is not None, "the cluster was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the processes wrote to standard error so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the supervisor and wait until every process answers."""
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                self.command_line("up", "--shards", str(self.shards), "--bind", self.url),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
                process_group=0,
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline() if readable else f"not within {START_S:g} s; "
        if not line.startswith("pyq-cluster ready"):
            raise RuntimeError(f"the cluster did not start: {line}{self.log}")

    def stop(self) -> int:
        """Stop cleanly; return the exit code of `up`."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the supervisor with -9; its children die with it."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def processes(self) -> dict[str, dict[str, Any]]:
        """Return the supervisor's table of processes by name."""
        address = endpoint(runtime_of(self.data), "supervisor")
        body = ask(address, Question(Verb.PROCESSES), 2_000).value()
        return {entry[0]["name"]: entry[0] for entry in body}

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which commands find this cluster."""
        return {**environment(), "PYQ_URL": self.url, "PYQ_DATA": str(self.data)}

    @staticmethod
    def command_line(*arguments: str) -> list[str]:
        """Return the command line of a `pyq-cluster` command."""
        return [sys.executable, "-P", "-m", "cluster.cli", *arguments]

    def run(self, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line against this cluster."""
        return subprocess.run(
            self.command_line(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def spawn(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command of the command line that keeps running, such as `worker start`."""
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                self.command_line(*arguments),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
