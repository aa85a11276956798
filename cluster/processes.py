"""The command lines of the cluster's processes: the one place that knows them.

Used by the supervisor (with its pid as the parent) and by `pyq-cluster run` (parent 0).
"""

import os
import sys

from cluster.datadir import DataDir
from pyq.process import endpoint


def router_argv(data: DataDir, bind: str, parent: int) -> list[str]:
    """Return the command line of the router."""
    return [
        *_python("router"),
        "--bind", bind,
        "--runtime", str(data.runtime),
        "--shards", str(data.identity.shards),
        "--parent", str(parent),
    ]  # fmt: skip


def shard_argv(data: DataDir, shard: int, parent: int) -> list[str]:
    """Return the command line of one shard."""
    return [
        *_python("shardnode"),
        "--shard", str(shard),
        "--shards", str(data.identity.shards),
        "--data", str(data.path),
        "--runtime", str(data.runtime),
        "--cluster", data.identity.cluster,
        "--parent", str(parent),
    ]  # fmt: skip


def coordinator_argv(data: DataDir, parent: int) -> list[str]:
    """Return the command line of the coordinator."""
    return [
        *_python("cluster.coordinator"),
        "--router", endpoint(data.runtime, "router"),
        "--runtime", str(data.runtime),
        "--shards", str(data.identity.shards),
        "--parent", str(parent),
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of a process: ours, but nothing that could shadow our modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _python(module: str) -> list[str]:
    # -P: a router.py in the current folder must not be taken for ours
    return [sys.executable, "-P", "-m", module]
