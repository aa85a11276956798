"""Cases J and K: payloads, ids and the names of queues."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from pyq.errors import TooLarge
from pyq.limits import (
    ERROR_BYTES_MAX,
    LOG_LINE_BYTES_MAX,
    MIB,
    PAYLOAD_BYTES_MAX,
    PROGRESS_BYTES_MAX,
    QUEUE_NAME_MAX,
)
from tests.cases.adapter import Core, Refused, Surface, library_refusal, packed_size
from tests.cases.levels import everywhere, refusals

# --- J. Payloads ----------------------------------------------------------------------------------

NULS = {"one": "a\x00b", "alone": "\x00", "a mebibyte": "\x00" * MIB}


@everywhere
@pytest.mark.parametrize("what", NULS)
def test_c35_a_nul_travels_like_any_other_character(product: Surface, what: str) -> None:
    """Data, result, error, progress and log come back bit for bit, up to their bounds."""
    text = NULS[what]
    queue = product.queue()
    job = product.push(queue, {"text": text, "bytes": text.encode()}).id
    lease = product.pull_one(queue)
    assert lease.data == {"text": text, "bytes": text.encode()}
    progress = text[: PROGRESS_BYTES_MAX - 8]
    line = text[:LOG_LINE_BYTES_MAX]
    assert product.progress(lease, progress) == "ok"
    assert product.log(lease, line, line) == "ok"
    assert product.fail(lease, text[:ERROR_BYTES_MAX]) == "ok"
    product.here()
    view = product.get(job)
    assert (view["state"], view["error"]) == ("delayed", text[:ERROR_BYTES_MAX])
    assert product.promote(job) == "ok"
    assert product.ack(product.pull_one(queue), text) == "ok"

    product.here()
    assert product.wait(job).end == ("completed", text, "")
    view = product.get(job)
    assert (view["data"]["text"], view["progress"]) == (text, progress)
    assert product.logs(job) == [line, line]


@refusals
def test_c35_what_is_beyond_its_bound_is_refused_and_leaves_the_job_as_it_was(
    product: Surface,
) -> None:
    """A text that is too long is a definite error; the job can still fail or complete."""
    queue = product.queue()
    job = product.push(queue).id
    lease = product.pull_one(queue)
    with pytest.raises(Refused, match="error is not a text of at most 4096 characters"):
        product.fail(lease, "\x00" * MIB)
    with pytest.raises(Refused, match=r"progress has .* bytes, the limit is 4096"):
        product.progress(lease, "\x00" * MIB)
    with pytest.raises(Refused, match="a line is not a text of at most 1024 characters"):
        product.log(lease, "\x00" * MIB)

    assert product.get(job)["state"] == "active"
    assert product.ack(lease) == "ok"


SIZES = [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, MIB, PAYLOAD_BYTES_MAX]


@everywhere
def test_c36_a_large_payload_arrives_whole(product: Surface) -> None:
    """Up to the limit every byte arrives, and small jobs go by meanwhile."""
    queue = product.queue()
    dice = random.Random(190)
    hashes: list[tuple[int, str]] = []
    for size in SIZES:
        data = dice.randbytes(size - (3 if size < 65_538 else 5))  # what msgpack adds
        assert packed_size(data) in (size, size + 2)
        hashes.append((len(data), hashlib.sha256(data).hexdigest()))
        product.push(queue, data)
        product.push(queue, "small")
    product.here()

    seen: list[Any] = []
    while leases := product.pull(queue, 10):
        seen += [lease.data for lease in leases]
        product.ack_many([(lease, None) for lease in leases])
    assert seen[1::2] == ["small"] * len(SIZES)
    assert [(len(data), hashlib.sha256(data).hexdigest()) for data in seen[::2]] == hashes


@refusals
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX + 1, 64 * MIB])
def test_c36_above_the_limit_nothing_is_sent(product: Surface, size: int) -> None:
    """What is too large is refused before it leaves; the connection goes on."""
    queue = product.queue()
    with pytest.raises(TooLarge, match=f"the limit is {PAYLOAD_BYTES_MAX}"):
        product.push(queue, bytes(size - 5))

    assert product.counts(queue) == {}
    product.push(queue, "small")
    assert product.pull_one(queue).data == "small"


# --- K. Ids and names -----------------------------------------------------------------------------

IDS = ["order:42", "a:b:c:", ":", "cron/x/1", "jobs", "x y", "é\N{GRINNING FACE}", "a" * 200]
HOSTILE_IDS = ["user/234", "../../etc/passwd", "a%2Fb", "a?b#c", "-rf", "--help"]


@everywhere
def test_c37_an_accepted_id_is_a_job_that_runs(product: Surface) -> None:
    """Whatever an id looks like, its job is found by it, runs, and is cancelled."""
    for job_id in IDS + HOSTILE_IDS:
        job_runs_and_is_cancelled(product, job_id)


def job_runs_and_is_cancelled(product: Surface, job_id: str) -> None:
    queue = product.queue()
    runs = product.push(queue, "runs", job_id=job_id).id
    product.here()
    assert product.get(job_id, queue)["id"] == runs
    assert product.push(queue, job_id=job_id) == (runs, True, "waiting")
    lease = product.pull_one(queue)
    assert product.get(job_id, queue)["state"] == "active"
    assert product.ack(lease, "done") == "ok"
    product.here()
    assert product.get(job_id, queue)["result"] == "done"

    other = product.queue()
    product.push(other, "later", job_id=job_id, delay_ms=60_000)
    assert product.cancel(product.get(job_id, other)["id"]) == "ok"
    product.here()
    assert product.get(job_id, other) is None
    assert product.counts(other) == {}
    assert product.push(other, job_id=job_id).state == "cancelled", "its tombstone"
    assert (product.obliterate(queue), product.obliterate(other)) == (1, 0)


@refusals
@pytest.mark.parametrize("job_id", ["a" * 513, "a\x00b", 7, None])
def test_c37_an_id_outside_the_rule_is_refused(product: Surface, job_id: object) -> None:
    """1 to 512 characters without NUL; anything else is a definite error."""
    queue = product.queue()
    with pytest.raises(
        Refused, match=r"job_id .* is not a text of 1 to 512 characters without NUL"
    ):
        product.push(queue, job_id=job_id)
    assert product.counts(queue) == {}


LEGAL_NAMES = [
    " ", "q:1", "q/1", "\u540d\u524d", "\N{GRINNING FACE}", "a" * 255, "b" * QUEUE_NAME_MAX, "a\nb",
    "\x1b[31m", "*", "..", "\N{GRINNING FACE}" * QUEUE_NAME_MAX,
]  # fmt: skip
ILLEGAL_NAMES = ["", "a" * (QUEUE_NAME_MAX + 1), "a" * 65_536, "a\x00b"]


@everywhere
@pytest.mark.parametrize("name", LEGAL_NAMES)
def test_c39_a_legal_name_works_from_end_to_end(
    product: Surface, name: str, tmp_path: Path
) -> None:
    """One rule for names; under it a queue does everything, and no file is named after it."""
    cursor = product.events(name)()
    job = product.push(name, "data", job_id=name).id
    assert product.get(name, name)["queue"] == name
    assert product.listing(name)[0]["id"] == job
    if not (isinstance(product, Core) and product.restarts):
        assert [event.queue for event in product.events(name, cursor)().events] == [name]
    product.pause(name)
    product.here()
    assert product.pull(name) == []
    product.resume(name)
    assert product.counts(name) == {"waiting": 1}
    lease = product.pull_one(name)
    assert (lease.id, lease.queue) == (job, name)
    assert product.ack(lease) == "ok"
    assert product.clean(name, "completed") == 1
    assert product.obliterate(name) == 0
    files = {path.name for path in tmp_path.rglob("*")}
    assert files <= {"shard.db", "shard.db-wal", "shard.db-shm", "shard.lock", "ballast"}


@refusals
@pytest.mark.parametrize("name", ILLEGAL_NAMES)
def test_c39_an_illegal_name_is_refused(product: Surface, name: str) -> None:
    """The library names the rule, and the cluster refuses what another client sends."""
    assert "is not a text of 1 to 256 characters without NUL" in library_refusal(name)
    with pytest.raises(Refused) as refusal:
        product.push(name)
    assert refusal.value.status in ("BAD_OPTION", "BAD_REQUEST")
