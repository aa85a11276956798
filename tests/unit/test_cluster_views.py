"""What commands print."""

import json
import uuid

import pytest

from cluster.probes import Answer
from cluster.views import (
    aligned,
    cluster_status,
    harmless,
    health_json,
    health_lines,
    health_of,
    job_text,
    jobs_table,
    moment,
    one_job_json,
    status_json,
    status_text,
)
from pyq.errors import Status

ID = uuid.UUID("019f0000-0000-7000-8000-000000000001")


def a_view(**changes):
    return {
        "id": str(ID),
        "job_id": "job1",
        "queue": "default",
        "name": "shell",
        "state": "completed",
        "priority": 0,
        "attempts": 3,
        "attempt": 1,
        "failures": 0,
        "stalls": 0,
        "created_at": 1_700_000_000_000,
        "updated_at": 1_700_000_001_000,
        "run_at": None,
        "worker": None,
        "started_at": None,
        "finished_at": 1_700_000_001_000,
        "error": None,
        "history": [],
        "data": {"command": "echo Hello"},
        "result": {"exit_code": 0, "signal": None, "output": "Hello\n", "error": ""},
        **changes,
    }


def test_show_json_has_the_names_of_queue_ctl_and_ours():
    job = json.loads(one_job_json(a_view()))
    assert job["id"] == "job1"
    assert job["uuid"] == str(ID)
    assert (job["attempts"], job["max_retries"]) == (1, 3)
    assert (job["command"], job["exit_code"], job["output"]) == ("echo Hello", 0, "Hello\n")
    assert {"queue", "state", "priority", "created_at", "updated_at", "next_retry_at"} <= set(job)
    assert {"locked_by", "locked_at", "signal", "error"} <= set(job)


def test_a_job_without_a_custom_id_is_called_by_its_uuid():
    job = json.loads(one_job_json(a_view(job_id=None, id=ID.bytes)))
    assert job["id"] == job["uuid"] == str(ID)


def test_a_delayed_job_says_when_it_is_next():
    job = json.loads(one_job_json(a_view(state="delayed", run_at=5, result=None, error="exit 1")))
    assert job["next_retry_at"] == 5
    assert job["error"] == "exit 1"
    assert job["exit_code"] is None


def test_other_jobs_show_data_and_result():
    job = json.loads(one_job_json(a_view(name="mail", data={"to": b"\xff"}, result=[1])))
    assert job["data"] == {"to": "\\xff"}
    assert job["result"] == [1]
    assert "command" not in job


def test_jobs_are_aligned_text_when_piped():
    lines = jobs_table([a_view(), a_view(job_id="a-longer-name", state="dead")]).splitlines()
    assert lines[0].split() == [
        "id", "queue", "state", "attempts", "priority", "updated", "command",
    ]  # fmt: skip
    assert len({line.index("default") for line in lines[1:]}) == 1
    assert "\x1b" not in "".join(lines)


def test_a_job_as_text_ends_with_what_it_printed():
    text = job_text(a_view(result={"exit_code": 1, "output": "one\ntwo\n", "error": "oops"}))
    assert "exit_code:" in text
    assert text.endswith("output:\none\ntwo\nerror:\noops")


def test_aligned_pads_all_but_the_last_column():
    assert aligned([["a", "b"], ["long", ""]]) == ["a     b", "long"]


def test_moment_of_nothing_is_a_dash():
    assert moment(None) == moment(0) == "-"


@pytest.mark.parametrize(
    ("answer", "ok", "words"),
    [
        (None, False, "no answer"),
        (Answer(Status.UNAVAILABLE, 0, ("it is down", 0)), False, "it is down"),
        (Answer(Status.OK, 3, ("shard", b"", 0, {"pid": 7})), True, "pid 7, epoch 3"),
        (
            Answer(
                Status.OK,
                0,
                ("coordinator", b"", 0, {"healthy": False, "tasks": (("sweep", 5, -1),)}),
            ),
            False,
            "keeps failing at: sweep",
        ),
    ],
)
def test_health_judges_an_answer(answer, ok, words):
    found = health_of("it", answer)
    assert found.ok is ok
    assert words in found.detail
    assert ("DOWN" in health_lines([found])[0]) is not ok
    assert json.loads(health_json([found]))["healthy"] is ok


def a_status(**changes):
    worker = ("w1", "host", 9, 4, 1_700_000_000_000, ("b",))
    parts = {
        "processes": None,
        "stats": {0: ({"epoch": 1, "queues_count": 1, "jobs": {"waiting": 2}},), 1: None},
        "counts": {0: ((("b", {"waiting": 2}),), None), 1: None},
        "workers": {0: (((worker, 1),), None), 1: (((worker, 2),), None)},
        **changes,
    }
    return cluster_status("tcp://x:1", **parts)


def test_status_adds_up_a_worker_over_shards_and_marks_a_shard_that_is_down():
    status = a_status()
    assert not status.complete
    assert [row["active"] for row in status.workers] == [3]
    text = status_text(status)
    assert "1      down" in text
    assert json.loads(status_json(status))["queues"][0]["waiting"] == 2


def test_status_without_an_answering_router_shows_the_processes():
    row = {
        "name": "router", "state": "failed", "pid": 0, "restarts": 4,
        "started_at": 0, "last_exit": -9,
    }  # fmt: skip
    text = status_text(a_status(processes=[row], stats=None, counts=None, workers=None))
    assert "router  failed" in text
    assert "does not answer" in text


def test_nothing_that_a_job_says_commands_the_terminal():
    line = aligned([["a\x1b[2Jb\nc\td", "x"]])[0]
    assert line == "a\\x1b[2Jb\\nc\\td  x"
    assert harmless("one\ntwo\x07\N{SNOWMAN}") == "one\ntwo\\x07\N{SNOWMAN}"
