"""One shard for a scenario, over each store: what is promised holds in memory and on disk."""

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from shardnode.storage.sqlite import SqliteStore
from shardnode.storage.store import StoreError
from tests.support.shards import a_shard

IDENTITY = {"cluster": "c-1", "shard": 0, "shards": 1}
# Where there is a file system in memory, hundreds of scenarios need not wait for a disk.
FOLDERS = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture(params=["memory", "disk"])
def shard(request):
    """An empty shard; its invariants are checked after every turn."""
    if request.param == "memory":
        yield a_shard()
        return
    with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:

        def reopen(store):
            store.close()
            return SqliteStore(Path(folder), IDENTITY)

        rig = a_shard(SqliteStore(Path(folder), IDENTITY), reopen=reopen)
        yield rig
        with suppress(StoreError):  # a turn that failed leaves its transaction open
            rig.store.close()


@pytest.fixture
def maybe_restart(shard):
    """What a scenario calls in between: over the disk a restart, over memory nothing."""
    return shard.restart if isinstance(shard.store, SqliteStore) else lambda: None
