"""What a shard process is told: one frozen object, built from the command line and checked."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyq.limits import DISK_RESERVE_BYTES, SHARDS_MAX


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one shard process."""

    shard: int
    shards_count: int
    data: Path  # the cluster's data directory; the shard's own folder is below it
    runtime: Path  # folder of the sockets
    cluster: str  # identity of the cluster, must match the one in the file
    parent_pid: int  # 0: no parent to die with
    store: str  # sqlite or memory
    disk_reserve_bytes: int

    @property
    def folder(self) -> Path:
        """The shard's own folder."""
        return self.data / f"shard-{self.shard}"


def parse_config(arguments: Sequence[str]) -> Config:
    """Return the configuration of a command line. Wrong usage exits with 64 and one sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m shardnode", description="One shard of a pyq-cluster.", exit_on_error=False
    )
    parser.add_argument("--shard", type=int, required=True, help="number of this shard")
    parser.add_argument("--shards", type=int, required=True, help="number of all shards")
    parser.add_argument("--data", type=Path, required=True, help="data directory of the cluster")
    parser.add_argument("--runtime", type=Path, required=True, help="folder of the sockets")
    parser.add_argument("--cluster", default="", help="identity of the cluster")
    parser.add_argument("--parent", type=int, default=0, help="pid to die with; 0: none")
    parser.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument(
        "--disk-reserve",
        type=int,
        default=DISK_RESERVE_BYTES,
        help="bytes of free space below which pushes and pulls are refused",
    )
    known = parser.parse_args(arguments)
    count = known.shards
    if not 1 <= count <= SHARDS_MAX or count & (count - 1) or not 0 <= known.shard < count:
        parser.error(f"--shards is a power of two up to {SHARDS_MAX}, and --shard is below it")
    return Config(
        known.shard,
        count,
        known.data,
        known.runtime,
        known.cluster,
        known.parent,
        known.store,
        known.disk_reserve,
    )
