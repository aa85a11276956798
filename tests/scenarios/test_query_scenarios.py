"""GET, LIST, COUNTS: what was asked, in order of acceptance, whatever state it is in."""

import pytest

from pyq.errors import Status
from pyq.job import ACTIVE, BLOCKED, COMPLETED, DEAD, DELAYED, WAITING
from pyq.limits import KIB, MIB, PAGE_ENTRIES_MAX, PAYLOAD_BYTES_MAX
from pyq.messages import WANT_PAYLOAD, WANT_RESULT, Counts, Ping, Stats
from pyq.wire import Verb
from tests.support.shards import a_shard, ack, counts, fail, get, page, pull, push, view

STATES = {"waiting": "ab", "delayed": "cd", "active": "ef", "completed": "gh", "dead": "ij"}


def a_shard_with_jobs_in_all_states():
    shard = a_shard()
    for name in "ijghef":
        push(shard, name, attempts=1)
    dead = pull(shard, jobs_max=2).jobs
    done = pull(shard, jobs_max=2).jobs
    pull(shard, jobs_max=2)
    fail(shard, *dead)
    ack(shard, *done, result=b"r")
    push(shard, "a", "b")
    push(shard, "c", "d", delay_ms=60_000)
    push(shard, "z", queue="other")
    return shard


def names(views):
    return "".join(seen["name"] for seen in views)


@pytest.mark.parametrize("restarted", [False, True])
def test_each_state_is_listed(restarted):
    shard = a_shard_with_jobs_in_all_states()
    if restarted:
        shard.restart()
    for state in (WAITING, DELAYED, ACTIVE, COMPLETED, DEAD, BLOCKED):
        found, _ = page(shard, queue="emails", state=state)
        assert names(found) == STATES.get(state.word, "")
        assert {seen["state"] for seen in found} <= {state.word}
    found, _ = page(shard, queue="emails")
    assert names(found) == "ijghefabcd", "in order of acceptance"
    assert names(page(shard)[0]) == "ijghefabcdz", "of every queue"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 11, 100])
@pytest.mark.parametrize("state", [None, WAITING, DEAD])
def test_pages_follow_each_other_without_gap_or_repeat(limit, state):
    shard = a_shard_with_jobs_in_all_states()
    whole, _ = page(shard, state=state)
    found, after, pages = [], 0, 0
    while after is not None:
        views, after = page(shard, state=state, after=after, limit=limit)
        assert len(views) <= limit
        found += views
        pages += 1
    assert found == whole
    assert pages <= len(whole) // limit + 1


def test_a_listing_goes_on_while_jobs_come_and_go():
    shard = a_shard()
    push(shard, *"abcdef")
    first, after = page(shard, limit=3)
    ack(shard, *pull(shard, jobs_max=2).jobs)
    push(shard, "g")
    rest, _ = page(shard, after=after)

    assert names(first) + names(rest) == "abcdefg"


def test_an_unknown_queue_has_an_empty_page():
    assert page(a_shard(), queue="nobody") == ([], None)


def test_counts_are_per_queue_and_state():
    shard = a_shard_with_jobs_in_all_states()
    expected = dict.fromkeys(STATES, 2)

    assert counts(shard) == {"emails": expected, "other": {"waiting": 1}}
    assert counts(shard, "emails") == {"emails": expected}
    assert counts(shard, "nobody") == {}
    shard.restart()
    assert counts(shard, "emails") == {"emails": expected}


def test_counts_of_many_queues_come_in_pages():
    shard = a_shard(checked=False)
    names = [f"queue-{number}" for number in range(2 * PAGE_ENTRIES_MAX + 1)]
    for name in names:
        push(shard, "a", queue=name)
    (first,) = shard.send(Counts(shard.origin("admin")))

    assert len(first.body[0]) == PAGE_ENTRIES_MAX
    assert list(counts(shard)) == names
    shard.restart()
    assert list(counts(shard)) == names


def test_a_job_is_found_by_its_id_in_every_state():
    shard = a_shard_with_jobs_in_all_states()
    for seen in page(shard)[0]:
        assert view(shard, seen["id"], want=0) == seen
    assert get(shard, shard.an_id("emails")) == []


def test_payload_and_result_come_only_if_they_are_wanted():
    shard = a_shard()
    pushed = push(shard, "a", payload=b"data")
    ack(shard, pull(shard).job, result=b"r")

    assert not {"payload", "result"} & view(shard, pushed.id, 0).keys()
    assert view(shard, pushed.id, WANT_PAYLOAD)["payload"] == b"data"
    assert view(shard, pushed.id, WANT_RESULT)["result"] == b"r"
    assert "payload" not in view(shard, pushed.id, WANT_RESULT)


def test_a_job_without_a_result_says_so():
    shard = a_shard()
    pushed = push(shard, "a")
    assert view(shard, pushed.id)["result"] is None
    ack(shard, pull(shard).job)
    assert view(shard, pushed.id)["result"] is None


def test_a_custom_id_is_found_in_one_queue_or_in_all():
    shard = a_shard()
    live = push(shard, "a", job_id="order-1")
    done = push(shard, "b", queue="sms", job_id="order-1")
    ack(shard, pull(shard, "sms").job)
    push(shard, "c", queue="third", job_id="order-2")

    assert [seen["id"] for seen in get(shard, "order-1", "emails")] == [live.id]
    assert [seen["id"] for seen in get(shard, "order-1", "sms")] == [done.id]
    assert [seen["id"] for seen in get(shard, "order-1")] == [live.id, done.id], "each once"
    assert get(shard, "order-1", "third") == []
    assert get(shard, "order-1", "nobody") == []
    assert get(shard, "order-9") == []


def test_a_job_forgotten_under_its_custom_id_is_not_found():
    shard = a_shard()
    push(shard, "a", job_id="order-1", keep_completed=False)
    ack(shard, pull(shard).job)

    assert get(shard, "order-1", "emails") == []
    assert get(shard, "order-1") == []


def test_a_page_with_payloads_never_breaks_the_connection():
    # Was a bug (I32): nothing bounds the bytes of a LIST reply. A frame is bounded; 1,000 jobs
    # with 20 KiB each make 20 MiB, with the largest payloads 10 GiB, all built in memory, and
    # the router's socket drops the shard's connection with everything that is under way on it.
    shard = a_shard(checked=False)
    for _ in range(10):
        push(shard, *"x" * 100, payload=bytes(20 * KIB))
    found, _ = page(shard, limit=1_000, want=WANT_PAYLOAD)  # the rig refuses too large a frame
    assert found


def test_a_page_with_results_never_breaks_the_connection():
    # Was a bug (I32): as above, with results.
    shard = a_shard(checked=False)
    push(shard, "a", "b", "c")
    ack(shard, *pull(shard, jobs_max=3).jobs, result=bytes(6 * MIB))
    assert page(shard, want=WANT_RESULT)[0]


def test_the_largest_payload_and_the_largest_result_fit_into_one_reply():
    shard = a_shard(checked=False)
    pushed = push(shard, "a", payload=bytes(PAYLOAD_BYTES_MAX))
    ack(shard, pull(shard).job, result=bytes(PAYLOAD_BYTES_MAX))

    seen = view(shard, pushed.id, WANT_PAYLOAD | WANT_RESULT)
    assert len(seen["payload"]) == len(seen["result"]) == PAYLOAD_BYTES_MAX


def test_a_page_of_long_errors_never_breaks_the_connection():
    # Was a bug (I32): the same without any payload: 4,096 characters are up to 16 KiB.
    shard = a_shard(checked=False)
    text = "\N{MUSICAL SYMBOL G CLEF}" * 4_096
    push(shard, *"x" * 600, attempts=1)
    fail(shard, *pull(shard, jobs_max=600).jobs, error=text, traceback=text)
    assert page(shard, limit=1_000)[0]


def test_ping_and_stats_say_who_is_there():
    shard = a_shard_with_jobs_in_all_states()
    ping, stats = Ping(shard.origin("admin")), Stats(shard.origin("admin"))
    ping.origin.verb, stats.origin.verb = Verb.PING, Verb.STATS
    now = shard.clock.now()
    (pong,) = shard.shard.apply(ping, now).replies
    (said,) = shard.shard.apply(stats, now).replies

    assert pong.status is Status.OK
    assert pong.body == ["shard", b"", now.wall_ms, {"shard": 0, "epoch": 1, "disk_low": False}]
    assert said.body[0]["jobs"]["dead"] == 2
    assert said.body[0]["queues_count"] == 2
