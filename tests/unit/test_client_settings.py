"""Settings of a queue as users write them, as the map that travels, and back."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from client_fake_cluster import FakeCluster

import pyq
from pyq.given_settings import QueueSettings, settings_to_user, settings_to_wire
from pyq.settings import SETTING_NAMES
from pyq.wire import Verb


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def queue(cluster: FakeCluster) -> Iterator[pyq.Queue]:
    with pyq.connect(cluster.url, timeout=5) as client:
        yield client.queue("emails")


EVERYTHING: QueueSettings = {
    "concurrency": 5,
    "group_concurrency": 2,
    "rate": (100, "1m"),
    "lease": timedelta(seconds=30),
    "max_stalls": 0,
    "keep_count": 10,
    "keep_age": "7d",
    "dead_max": 50,
    "drop_oldest": True,
    "dead_age": "30d",
    "auto_retry": ("10m", 3),
    "defaults": {"attempts": 7, "backoff": "5s", "delay": 1, "keep_completed": 3},
    "paused": True,
    "paused_groups": ["b", "a"],
}


def test_a_queue_that_was_never_configured_tells_its_defaults(queue: pyq.Queue) -> None:
    assert queue.settings() == {
        "paused": False, "paused_groups": [], "concurrency": None, "group_concurrency": 1,
        "rate": None, "lease": None, "max_stalls": 3, "keep_count": 1_000, "keep_age": None,
        "dead_max": 10_000, "drop_oldest": False, "dead_age": None, "auto_retry": None,
        "defaults": {},
    }  # fmt: skip


def test_everything_can_be_set_read_set_elsewhere_and_taken_back(queue: pyq.Queue) -> None:
    before = queue.settings()
    now = queue.configure(**EVERYTHING)

    assert now == queue.settings()
    assert (now["rate"], now["lease"], now["auto_retry"]) == ((100, 60), 30, (600, 3))
    assert (now["keep_count"], now["keep_age"], now["dead_age"]) == (10, 604_800, 2_592_000)
    assert (now["paused"], now["paused_groups"]) == (True, ["a", "b"])
    assert now["defaults"] == {
        "attempts": 7, "delay": 1, "keep_completed": 3,
        "backoff": pyq.Backoff(5_000, 1.0, 3_600_000, 0.0),
    }  # fmt: skip
    assert queue.client.queue("other").configure(**now) == now  # type: ignore[typeddict-item]
    nothing: Any = dict.fromkeys(EVERYTHING)
    assert queue.configure(**nothing) == before


def test_what_is_not_named_stays(cluster: FakeCluster, queue: pyq.Queue) -> None:
    queue.configure(concurrency=5, defaults={"attempts": 7})
    assert queue.configure(rate=(1, 1))["concurrency"] == 5
    assert queue.configure()["defaults"] == {"attempts": 7}
    assert [body[0] for _, body in cluster.seen(Verb.CONFIGURE)][1:] == [
        {"rate_max": 1, "rate_per_ms": 1_000}, None,
    ]  # fmt: skip


def test_every_setting_of_the_wire_can_be_said() -> None:
    assert set(settings_to_wire(EVERYTHING)) == set(SETTING_NAMES)
    assert set(EVERYTHING) == set(QueueSettings.__annotations__)
    assert set(settings_to_user({})) == set(EVERYTHING)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"colour": "red"}, "unknown setting 'colour'; known are auto_retry, concurrency"),
        ({"concurrency": 0}, "concurrency 0 is not a whole number from 1 to 1000000"),
        ({"concurrency": True}, "concurrency True is not a whole number"),
        ({"group_concurrency": 1_001}, "group_concurrency 1001 is not a whole number from 1"),
        ({"rate": 5}, "rate 5 is not a pair of a number of jobs and a duration"),
        ({"rate": (10_001, 1)}, "rate 10001 is not a whole number from 1 to 10000"),
        ({"rate": (5, "2d")}, "rate per '2d' is not a duration from 0.001 s to 86400 s"),
        ({"lease": "2h"}, "lease '2h' is not a duration from 0.1 s to 3600 s"),
        ({"max_stalls": -1}, "max_stalls -1 is not a whole number from 0 to 1000"),
        ({"keep_count": 1.5}, "keep_count 1.5 is not a whole number from 0 to 1000000"),
        ({"keep_age": 5}, "keep_age 5 is not a duration from 60 s"),
        ({"dead_age": "59s"}, "dead_age '59s' is not a duration from 60 s"),
        ({"drop_oldest": 1}, "drop_oldest 1 is neither true nor false"),
        ({"auto_retry": ("10m",)}, "auto_retry ('10m',) is not a pair of a duration and a number"),
        ({"auto_retry": (0.5, 1)}, "auto_retry after 0.5 is not a duration from 1 s"),
        ({"auto_retry": (1, 101)}, "auto_retry times 101 is not a whole number from 1 to 100"),
        ({"defaults": 5}, "defaults 5 is not a dict of options"),
        ({"defaults": {"attemps": 5}}, "unknown option 'attemps'"),
        ({"defaults": {"attempts": 0}}, "attempts 0 is not a whole number from 1 to 1000"),
        ({"defaults": {"job_id": "a"}}, "job_id belongs to one job"),
        ({"defaults": {"unique": "a"}}, "unique belongs to one job"),
        ({"defaults": {"group": "a"}}, "group belongs to one job"),
        ({"paused_groups": "a"}, "paused_groups 'a' is not a list of at most 1000 groups"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_sent(
    settings: Any, sentence: str, cluster: FakeCluster, queue: pyq.Queue
) -> None:
    with pytest.raises(pyq.BadOption) as caught:
        queue.configure(**settings)

    assert sentence in str(caught.value)
    assert not cluster.seen(Verb.CONFIGURE)


def test_pause_and_resume_say_whether_they_changed_anything(
    cluster: FakeCluster, queue: pyq.Queue
) -> None:
    assert (queue.pause(), queue.pause()) == (True, False)
    assert (queue.pause("tenant-1"), queue.settings()["paused_groups"]) == (True, ["tenant-1"])
    assert (queue.resume(), queue.resume()) == (True, False)
    assert (queue.resume("tenant-1"), queue.settings()["paused_groups"]) == (True, [])
    with pytest.raises(pyq.BadOption, match="group '' is not a text of 1 to 256 characters"):
        queue.pause("")
