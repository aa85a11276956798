"""Start one shard: `python -P -m shardnode --shard 0 --shards 2 --data DIR --runtime DIR`."""

import argparse
import fcntl
import os
import sys
import time
from pathlib import Path

from pyq.log import get_logger
from pyq.process import ExitCode, StopSignal, die_with_parent
from shardnode.config import Config, parse_config
from shardnode.server import Server
from shardnode.storage.memory import MemoryStore
from shardnode.storage.sqlite import SqliteStore
from shardnode.storage.store import Store, StoreError, StoreFull

LOCK_WAIT_S = 2.0  # a killed predecessor holds its lock for some milliseconds more


def main() -> int:
    """Run until told to stop; return an exit code of architecture's table."""
    try:
        config = parse_config(sys.argv[1:])
    except argparse.ArgumentError as error:
        print(f"shardnode: {error}", file=sys.stderr)
        return ExitCode.USAGE
    die_with_parent(config.parent_pid)
    stop = StopSignal()
    log = get_logger(f"shard-{config.shard}")
    try:
        config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _lock(config.folder / "LOCK")
        server = Server(config, _store(config), stop, log)
    except StoreFull as error:
        log.error("shard_refused", reason=str(error))
        return ExitCode.DISK_FULL
    except StoreError as error:
        log.error("shard_refused", reason=str(error))
        return ExitCode.IO
    except OSError as error:
        log.error("shard_refused", reason=f"{config.folder}: {error.strerror}")
        return ExitCode.IO
    code = server.run()
    os.close(lock)
    return code


def _store(config: Config) -> Store:
    if config.store == "memory":
        return MemoryStore()
    identity = {
        "cluster": config.cluster,
        "shard": config.shard,
        "shards": config.shards_count,
    }
    return SqliteStore(config.folder, identity)


def _lock(path: Path) -> int:
    """Take the lock of the shard's folder, or raise StoreError when another process keeps it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{path.parent} is in use by another shard process; stop it first"
                ) from None
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
