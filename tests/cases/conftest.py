"""The product at the levels on which cases run.

"core" is one shard in memory, "restarted" the same over a real file with a kill wherever the
case says `here()`, "live" a real cluster; a case that is to run there says so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import LocalCluster
from shardnode.storage.sqlite import SqliteStore
from shardnode.storage.store import Store
from tests.cases.adapter import Core, Live, Surface
from tests.support.shards import a_shard

IDENTITY = {"cluster": "c-1", "shard": 0, "shards": 1}


@pytest.fixture(params=["core", "restarted"])
def product(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Surface]:
    if request.param == "live":
        live = request.getfixturevalue("live")
        yield live
        return
    if request.param == "core":
        yield Core(a_shard())
        return

    def opened(_: Store | None = None) -> Store:
        return SqliteStore(tmp_path, IDENTITY)

    core = Core(a_shard(opened(), reopen=opened), restarts=True)
    yield core
    core.rig.store.close()


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(shards=2) as cluster:
        yield cluster


@pytest.fixture
def live(cluster: LocalCluster) -> Iterator[Live]:
    live = Live(cluster)
    yield live
    live.close()
