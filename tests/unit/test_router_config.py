"""What the router refuses at the door, in one sentence each."""

from pathlib import Path

import pytest

from pyq.errors import UsageError
from router.config import check_bind, from_arguments


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ("tcp://127.0.0.1:6789", "tcp://127.0.0.1:6789"),
        ("tcp://127.1.2.3:1", "tcp://127.1.2.3:1"),
        ("tcp://localhost:65535", "tcp://127.0.0.1:65535"),
        ("tcp://[::1]:6789", "tcp://[::1]:6789"),
        ("tcp://::1:6789", "tcp://[::1]:6789"),
    ],
)
def test_loopback_addresses_are_accepted(given: str, bound: str):
    assert check_bind(given) == bound


@pytest.mark.parametrize(
    "given",
    [
        "tcp://0.0.0.0:6789",
        "tcp://*:6789",
        "tcp://[::]:6789",
        "tcp://10.0.0.1:6789",
        "tcp://example.org:6789",
        "tcp://[::ffff:127.0.0.1]:6789",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:*",
        "tcp://127.0.0.1:²",
        "tcp://127.0.0.1",
        "127.0.0.1:6789",
        "ipc:///tmp/x",
        "",
    ],
)
def test_other_addresses_are_refused(given: str):
    with pytest.raises(UsageError):
        check_bind(given)


@pytest.mark.parametrize("count", ["0", "3", "65", "128", "-1", "many"])
def test_the_number_of_shards_is_a_power_of_two(count: str, tmp_path: Path):
    with pytest.raises(UsageError):
        from_arguments(["--runtime", "/tmp", "--shards", count])


def test_a_runtime_folder_must_exist_and_be_short(tmp_path: Path):
    with pytest.raises(UsageError, match="not a folder"):
        from_arguments(["--runtime", str(tmp_path / "missing"), "--shards", "2"])
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with pytest.raises(UsageError, match="too long"):
        from_arguments(["--runtime", str(long), "--shards", "2"])


def test_flags_become_one_frozen_object():
    config = from_arguments(["--runtime", "/tmp", "--shards", "4", "--parent", "12"])
    assert (config.shards_count, config.parent_pid, config.runtime) == (4, 12, Path("/tmp"))
