"""The data directory: identity, lock, refusals, runtime folder."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.datadir import (
    FORMAT,
    DataDir,
    find_holder,
    open_for_one_process,
    open_for_supervisor,
    prepare_runtime,
    runtime_of,
)
from cluster.refusals import CannotStart
from pyq.process import ExitCode, endpoint

URL = "tcp://127.0.0.1:7001"


def take(path: Path, shards: int | None = None, cpu_shards: int = 2) -> DataDir:
    return open_for_supervisor(path, shards, cpu_shards, URL)


def refusal(path: Path, shards: int | None = None) -> CannotStart:
    with pytest.raises(CannotStart) as caught:
        take(path, shards)
    return caught.value


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def test_first_start_creates_identity_folders_and_a_private_runtime_folder(data):
    held = take(data, 4)
    meta = json.loads((data / "meta.json").read_text())
    assert meta["shards"] == held.identity.shards == 4
    assert meta["cluster"] == held.identity.cluster
    assert meta["format"] == FORMAT
    assert sorted(path.name for path in data.glob("shard-*")) == [f"shard-{n}" for n in range(4)]
    assert {path.stat().st_mode & 0o777 for path in data.glob("shard-*")} == {0o700}
    assert held.runtime.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in data.iterdir() if path.is_file()) == ["LOCK", "meta.json"]
    held.release()
    assert not held.runtime.exists()


def test_the_identity_stays_whatever_the_cores_say_later(data):
    first = take(data, None, cpu_shards=2)
    first.release()
    second = take(data, None, cpu_shards=16)
    assert second.identity == first.identity
    second.release()


def test_another_shard_count_is_refused(data):
    take(data, 2).release()
    error = refusal(data, 4)
    assert error.exit_code == ExitCode.USAGE
    assert "has 2 shards, not 4" in str(error)
    take(data, 2).release()


def test_a_newer_format_is_refused(data):
    take(data).release()
    meta = json.loads((data / "meta.json").read_text())
    (data / "meta.json").write_text(json.dumps(meta | {"format": FORMAT + 1}))
    error = refusal(data)
    assert error.exit_code == ExitCode.IO
    assert "newer pyq-cluster" in str(error)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"cluster": "x", "shards": 2, "format": 1}', "\x00"]
)
def test_a_damaged_meta_file_is_refused(data, content):
    take(data).release()
    (data / "meta.json").write_text(content)
    error = refusal(data)
    assert error.exit_code == ExitCode.IO
    assert "damaged" in str(error)


def test_a_shard_count_that_cannot_be_is_damage(data):
    take(data).release()
    meta = json.loads((data / "meta.json").read_text())
    (data / "meta.json").write_text(json.dumps(meta | {"shards": 3}))
    assert "damaged" in str(refusal(data))


def test_shards_without_identity_are_refused_not_adopted(data):
    take(data).release()
    (data / "meta.json").unlink()
    assert "no meta.json" in str(refusal(data))


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/pyq-data", "/proc"])
def test_a_place_where_nothing_can_be_written_is_one_sentence(tmp_path, where):
    (tmp_path / "file").write_text("not a directory")
    error = refusal(tmp_path / where)
    assert error.exit_code == ExitCode.IO
    assert "choose another one with --data" in str(error)


def test_a_living_holder_is_named_at_once(data):
    code = (
        "import sys, time; from pathlib import Path; from cluster.datadir import *;"
        f"open_for_supervisor(Path(sys.argv[1]), None, 2, {URL!r}); print('held', flush=True);"
        "time.sleep(60)"
    )
    argv = [sys.executable, "-P", "-c", code, str(data)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            began = time.monotonic()
            error = refusal(data)
            assert time.monotonic() - began < 0.5
            assert error.exit_code == ExitCode.LOCKED
            assert f"pid {holder.pid}" in str(error)
            assert URL in str(error)
            found = find_holder(data)
            assert found is not None
            assert (found.pid, found.url) == (holder.pid, URL)
        finally:
            holder.kill()
    held = take(data)  # a dead holder's file is no hindrance
    held.release()


def test_a_stale_holder_file_is_only_information(data):
    take(data).release()
    for content in ("", "123", "not json", '{"pid": 1, "url": "x", "runtime": "/"}'):
        (data / "LOCK").write_text(content)
        assert find_holder(data) is None
        take(data).release()


def test_nobody_holds_a_directory_that_is_not_there(data):
    assert find_holder(data) is None


def test_the_lock_is_released_with_everything(data):
    held = take(data)
    assert find_holder(data) is not None
    held.release()
    assert find_holder(data) is None


def test_the_lock_does_not_survive_an_exec(data):
    held = take(data)
    assert not os.get_inheritable(held.lock_fd)
    held.release()


def test_single_processes_share_the_directory_but_not_with_a_supervisor(data):
    one, two = open_for_one_process(data, 2, 2), open_for_one_process(data, None, 8)
    assert one.identity == two.identity
    assert os.get_inheritable(one.lock_fd)
    error = refusal(data)
    assert error.exit_code == ExitCode.LOCKED
    assert "pyq-cluster run" in str(error)
    os.close(one.lock_fd)
    os.close(two.lock_fd)

    held = take(data)
    with pytest.raises(CannotStart) as caught:
        open_for_one_process(data, None, 2)
    assert caught.value.exit_code == ExitCode.LOCKED
    held.release()


def _open_one(path: str, found: "multiprocessing.SimpleQueue[str]") -> None:
    found.put(open_for_one_process(Path(path), 2, 2).identity.cluster)


def test_processes_that_start_at_once_agree_on_one_identity(data):
    spawn = multiprocessing.get_context("spawn")
    found = spawn.SimpleQueue()
    processes = [spawn.Process(target=_open_one, args=(str(data), found)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert len({found.get() for _ in processes}) == 1


# --- the runtime folder -------------------------------------------------------------------------


def test_the_runtime_folder_follows_from_the_resolved_path(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert runtime_of(tmp_path / "data") == runtime_of(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    assert runtime_of(Path("data")) == runtime_of(tmp_path / "data")
    assert runtime_of(tmp_path / "other") != runtime_of(tmp_path / "data")


def test_socket_paths_fit_however_long_the_data_path_is(tmp_path, monkeypatch):
    long = tmp_path / "/".join(["long-folder-name"] * 20)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 80)))
    (tmp_path / ("x" * 80)).mkdir(mode=0o700)
    address = endpoint(runtime_of(long), "coordinator")
    assert len(address.removeprefix("ipc://").encode()) <= 107


def test_a_short_private_xdg_folder_is_used_and_a_shared_one_is_not(data, monkeypatch, tmp_path):
    folder = Path(f"/tmp/pyqt{os.getpid()}")
    folder.mkdir(mode=0o700)
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        assert runtime_of(data).parent == folder
        folder.chmod(0o755)
        assert runtime_of(data).parent == Path("/tmp")
    finally:
        folder.rmdir()


def test_a_runtime_folder_that_others_can_use_is_refused(tmp_path):
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(CannotStart, match="not a private folder"):
        prepare_runtime(folder)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(CannotStart, match="not a private folder"):
        prepare_runtime(tmp_path / "link")
