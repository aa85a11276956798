"""Bodies of commands: bounds, and sentences that stay sentences."""

from typing import Any

import pytest

from pyq.errors import Status
from pyq.limits import (
    BATCH_JOBS_MAX,
    ERROR_BYTES_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LIST_JOBS_MAX,
    PAYLOAD_BYTES_MAX,
    PROGRESS_BYTES_MAX,
    PULL_QUEUES_MAX,
    WAIT_MS_MAX,
)
from pyq.messages import Origin, batch_answer, error_body
from pyq.parsing import parse
from pyq.routes import slot_of
from pyq.wire import Verb, WireError, pack_body, pack_header, unpack_body, unpack_header

JOB_ID = bytes(14) + slot_of("emails").to_bytes(2, "big")
TOKEN = bytes(20)


def parsed(verb: int, body: list[Any], queue: str = "emails") -> Any:
    header = unpack_header(pack_header(verb, bytes(16), queue=queue))
    return parse(header, Origin(bytes(16)), unpack_body(pack_body(body)))


def refusal(verb: int, body: list[Any], queue: str = "emails") -> WireError:
    with pytest.raises(WireError) as caught:
        parsed(verb, body, queue)
    return caught.value


def test_origin_takes_its_request_id_apart():
    origin = Origin(b"incarnat" + (77).to_bytes(8, "big"))
    assert (origin.client, origin.sequence) == (b"incarnat", 77)


def test_the_parts_of_a_push():
    job = [JOB_ID, "name", b"data", {"priority": 2}]
    command = parsed(Verb.PUSH, [{"attempts": 5}, [job]])
    ((job_id, name, payload, options),) = command.jobs
    assert (command.queue, job_id, name, payload) == ("emails", JOB_ID, "name", b"data")
    assert (options.attempts, options.priority) == (5, 2)


def test_jobs_without_options_of_their_own_share_one_object():
    command = parsed(Verb.PUSH, [{"attempts": 5}, [[JOB_ID, "a", b"", None]] * 2])
    assert command.jobs[0][3] is command.jobs[1][3]


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        (Verb.PUSH, [None, [[bytes(16), "a", b"", None]]], Status.BAD_REQUEST),  # other slot
        (Verb.PUSH, [None, [[JOB_ID, "", b"", None]]], Status.BAD_OPTION),
        (Verb.PUSH, [None, [[JOB_ID, "a", "text", None]]], Status.BAD_REQUEST),
        (Verb.PUSH, [None, [[JOB_ID, "a", b"", 5]]], Status.BAD_REQUEST),
        (Verb.PUSH, [[], []], Status.BAD_REQUEST),
        (Verb.PUSH, [None, [[JOB_ID, "a", bytes(PAYLOAD_BYTES_MAX + 1), None]]], Status.TOO_LARGE),
        (Verb.PUSH, [None, [[JOB_ID, "a", b"", None]] * (BATCH_JOBS_MAX + 1)], Status.TOO_LARGE),
        (Verb.PULL, ["w", [], 1, 0, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"] * (PULL_QUEUES_MAX + 1), 1, 0, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], 0, 0, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], BATCH_JOBS_MAX + 1, 0, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], 1, WAIT_MS_MAX + 1, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], 1, 0, LEASE_MS_MIN - 1, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], 1, 0, LEASE_MS_MAX + 1, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], True, 0, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w" * 129, ["q"], 1, 0, 15_000, 0], Status.BAD_REQUEST),
        (Verb.PULL, ["w", ["q"], 1, 0, 15_000], Status.BAD_REQUEST),
        (Verb.ACK, [[[JOB_ID, TOKEN[:-1], None]]], Status.BAD_REQUEST),
        (Verb.ACK, [[[JOB_ID[:-1], TOKEN, None]]], Status.BAD_REQUEST),
        (Verb.ACK, [[[JOB_ID, TOKEN]]], Status.BAD_REQUEST),
        (Verb.ACK, [[[JOB_ID, TOKEN, bytes(PAYLOAD_BYTES_MAX + 1)]]], Status.TOO_LARGE),
        (Verb.ACK, [[[JOB_ID, TOKEN, None]] * (BATCH_JOBS_MAX + 1)], Status.TOO_LARGE),
        (
            Verb.FAIL,
            [[[JOB_ID, TOKEN, "x" * (ERROR_BYTES_MAX + 1), "", None, False, -1]]],
            Status.BAD_REQUEST,
        ),
        (Verb.FAIL, [[[JOB_ID, TOKEN, "x", "", None, 0, -1]]], Status.BAD_REQUEST),
        (Verb.FAIL, [[[JOB_ID, TOKEN, "x", "", None, False, -2]]], Status.BAD_REQUEST),
        (Verb.RELEASE, [[[JOB_ID, TOKEN, -1]]], Status.BAD_REQUEST),
        (Verb.EXTEND, [[[JOB_ID, TOKEN, 0]]], Status.BAD_REQUEST),
        (Verb.PROGRESS, [[[JOB_ID, TOKEN, bytes(PROGRESS_BYTES_MAX + 1)]]], Status.TOO_LARGE),
        (Verb.GET, [None, None, 0], Status.BAD_REQUEST),
        (Verb.GET, [JOB_ID, "x", 0], Status.BAD_REQUEST),
        (Verb.LIST, ["nonsense", 0, 10, 0], Status.BAD_OPTION),
        (Verb.LIST, [None, 0, LIST_JOBS_MAX + 1, 0], Status.BAD_REQUEST),
        (Verb.LIST, [None, -1, 10, 0], Status.BAD_REQUEST),
        (Verb.RESULT, [JOB_ID, WAIT_MS_MAX + 1], Status.BAD_REQUEST),
        (Verb.GOODBYE, [""], Status.BAD_OPTION),
        (Verb.ATTACH, [], Status.UNSUPPORTED),
        (Verb.SHUTDOWN, [], Status.UNSUPPORTED),
        (200, [], Status.UNSUPPORTED),
    ],
)
def test_what_does_not_fit_is_refused(verb, body, status):
    error = refusal(verb, body)
    assert error.status is status
    assert 10 < len(str(error)) < 300


@pytest.mark.parametrize("word", ["waiting", "pending", "processing", "running", "failed"])
def test_words_of_other_queues_are_filters_too(word):
    assert parsed(Verb.LIST, [word, 0, 10, 0]).state is not None


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        (Verb.LIST, ["\0" * 1_000_000, 0, 10, 0]),
        (Verb.LIST, [b"\0" * 1_000_000, 0, 10, 0]),
        (Verb.PUSH, [{"\0" * 1_000_000: 1}, []]),
        (Verb.PUSH, [None, [[JOB_ID, "x" * 1_000_000, b"", None]]]),
        (Verb.PUSH, [{"priority": "x" * 1_000_000}, []]),
        (Verb.PULL, ["w" * 1_000_000, ["q"], 1, 0, 15_000, 0]),
        (Verb.PULL, ["w", ["q" * 1_000_000], 1, 0, 15_000, 0]),
        (Verb.GET, [None, "x" * 1_000_000, 0]),
        (Verb.GOODBYE, ["x" * 1_000_000]),
    ],
    ids=["state", "state bytes", "option", "name", "value", "worker", "queue", "custom", "goodbye"],
)
def test_a_refusal_is_a_sentence_whatever_was_sent(verb, body):
    # A value repeated whole, escaped to four times its size, would make an answer that no
    # socket of ours accepts: the router would drop the shard's connection (I32).
    assert len(str(refusal(verb, body))) < 1_000


def test_the_shapes_of_answers():
    assert batch_answer(3, [[1, 20, "x"]]) == [3, [[1, 20, "x"]]]
    assert error_body("no") == ["no", 0]
