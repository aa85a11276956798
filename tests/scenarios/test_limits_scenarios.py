"""Concurrency, rate, length of leases and stalls of a queue; settings hold at once and for ever."""

import pytest

from pyq.errors import Status
from pyq.limits import LEASE_MS_DEFAULT, SECOND_MS
from pyq.messages import Ack, Configure, Pull
from pyq.settings import SETTING_NAMES
from tests.support.sayings import a_push, bulk, settle_all
from tests.support.shards import (
    MONO_0,
    ack,
    cancel,
    configure,
    counts,
    extend,
    fail,
    goodbye,
    heartbeat,
    obliterate,
    pull,
    push,
    release,
    repeat,
    stall,
    state_of,
    sweep,
    tick,
    unpull,
    view,
)


def runs(shard, *queues, **fields):
    return pull(shard, *queues, jobs_max=9, **fields)


# --- concurrency ----------------------------------------------------------------------


def test_no_more_run_than_the_queue_allows(shard, maybe_restart):
    configure(shard, concurrency=2)
    push(shard, *"abcd")
    maybe_restart()
    a, b = runs(shard).jobs
    maybe_restart()
    assert runs(shard, client="w-2").jobs == []
    ack(shard, a)
    assert runs(shard).names == "c"
    ack(shard, b)
    assert runs(shard).names == "d"


def acks(shard, job):
    ack(shard, job)


def fails(shard, job):
    fail(shard, job)


def dies(shard, job):
    fail(shard, job, unrecoverable=True)


def releases(shard, job):
    release(shard, job, delay_ms=60_000)


def stalls(shard, job):
    stall(shard, job)


def confirms_a_cancel(shard, job):
    cancel(shard, job.id)
    ack(shard, job)


def says_goodbye(shard, job):
    goodbye(shard, "worker")


@pytest.mark.parametrize(
    "end", [acks, fails, dies, releases, stalls, confirms_a_cancel, says_goodbye]
)
def test_whatever_ends_a_lease_frees_its_slot_and_wakes_who_waits(shard, end):
    configure(shard, concurrency=1)
    bulk(shard, a={"backoff": [60_000, 1, 60_000, 0, []]}, b={"priority": -1})
    a = pull(shard).job
    parked = pull(shard, client="w-2", wait_ms=60_000)
    assert parked.waits
    end(shard, a)
    assert parked.names in ("b", "a")
    assert counts(shard)["emails"]["active"] == 1


def test_a_timeout_frees_its_slot(shard):
    configure(shard, concurrency=1)
    push(shard, "a", timeout_ms=1_000)
    push(shard, "b")
    pull(shard)
    parked = pull(shard, client="w-2", wait_ms=60_000)
    tick(shard, at=6_000)
    assert parked.names == "b"


def test_a_slot_is_freed_and_taken_in_one_turn(shard):
    configure(shard, concurrency=1)
    push(shard, *"ab")
    a = pull(shard).job
    _, pulled = shard.send(
        Ack(shard.origin("worker-a"), [(a.id, a.token, None)]),
        Pull(shard.origin("w-2"), "w-2", ("emails",), 9),
    )
    assert pulled.names == "b"


def test_raising_the_limit_wakes_who_waits(shard):
    configure(shard, concurrency=1)
    push(shard, *"abcd")
    pull(shard)
    parked = runs(shard, client="w-2", wait_ms=60_000)
    configure(shard, concurrency=3)
    assert parked.names == "bc"
    last = runs(shard, client="w-3", wait_ms=60_000)
    configure(shard, concurrency=None)
    assert last.names == "d"


def test_lowering_the_limit_takes_nothing_away(shard, maybe_restart):
    push(shard, *"abcd")
    jobs = pull(shard, jobs_max=3).jobs
    configure(shard, concurrency=1)
    maybe_restart()
    ack(shard, *jobs[:2])
    assert runs(shard).jobs == []
    ack(shard, jobs[2])
    assert runs(shard).names == "d"


def test_the_oldest_waiting_pull_is_served_first(shard):
    configure(shard, concurrency=1)
    push(shard, *"ab")
    a = pull(shard).job
    waiting = [pull(shard, client=f"w-{n}", wait_ms=60_000) for n in range(3)]
    ack(shard, a)
    assert [call.waits for call in waiting] == [False, True, True]


def test_a_repeated_pull_needs_no_second_slot(shard):
    configure(shard, concurrency=1)
    push(shard, *"ab")
    first = pull(shard)
    assert [job.token for job in repeat(shard, first).jobs] == [first.job.token]


def test_a_withdrawn_pull_takes_no_slot(shard):
    configure(shard, concurrency=1)
    push(shard, *"ab")
    a = pull(shard).job
    parked = pull(shard, client="worker", wait_ms=60_000)
    later = pull(shard, client="w-2", wait_ms=60_000)
    unpull(shard, parked)
    ack(shard, a)
    assert (parked.names, later.names) == ("", "b")


# --- rate -----------------------------------------------------------------------------

# At most so many leases in any window of so many milliseconds: a lease that was granted at t
# counts up to and with t + per, for two moments of one millisecond may be less than `per` apart.


def test_the_window_slides_exactly(shard):
    configure(shard, rate_max=2, rate_per_ms=1_000)
    push(shard, *"abcdef")
    assert runs(shard, at=0).names == "ab"
    assert runs(shard, at=1_000).names == ""
    assert runs(shard, at=1_001).names == "cd"
    assert runs(shard, at=2_001).names == ""
    assert runs(shard, at=2_002).names == "ef"


def test_leases_leave_the_window_one_by_one(shard):
    configure(shard, rate_max=2, rate_per_ms=1_000)
    push(shard, *"abcdef")
    assert pull(shard, at=0).names == "a"
    assert runs(shard, at=600).names == "b"
    assert runs(shard, at=1_001).names == "c", "a left the window, b did not"
    assert runs(shard, at=1_600).names == ""
    assert runs(shard, at=1_601).names == "d"


def test_who_waits_is_woken_when_the_window_opens(shard):
    configure(shard, rate_max=1, rate_per_ms=1_000)
    push(shard, *"abc")
    pull(shard)
    first = pull(shard, client="w-2", wait_ms=60_000)
    second = pull(shard, client="w-3", wait_ms=60_000)
    assert shard.shard.next_wakeup(shard.clock.now()) <= MONO_0 + 1_001
    tick(shard, at=1_000)
    assert first.waits
    tick(shard, at=1_001)
    assert first.names == "b"
    assert second.waits
    assert shard.shard.next_wakeup(shard.clock.now()) <= MONO_0 + 2_002
    tick(shard, at=2_002)
    assert second.names == "c"


def test_a_job_that_comes_while_the_window_is_full_is_given_when_it_opens(shard):
    configure(shard, rate_max=1, rate_per_ms=1_000)
    push(shard, "a")
    ack(shard, pull(shard).job)
    parked = pull(shard, wait_ms=60_000)
    push(shard, "b", at=500)
    assert parked.waits
    tick(shard, at=1_001)
    assert parked.names == "b"


def test_released_leases_count(shard):
    configure(shard, rate_max=1, rate_per_ms=1_000)
    push(shard, "a")
    release(shard, pull(shard).job)
    assert runs(shard, at=1_000).jobs == []
    assert runs(shard, at=1_001).names == "a"


def test_a_repeated_pull_counts_once(shard):
    configure(shard, rate_max=2, rate_per_ms=1_000)
    push(shard, *"ab")
    repeat(shard, pull(shard))
    assert pull(shard).names == "b"


def test_after_a_restart_the_leases_of_the_window_count_as_granted_just_now(shard):
    configure(shard, rate_max=2, rate_per_ms=1_000)
    push(shard, *"abcd")
    pull(shard, at=0)
    shard.restart(at=900)
    assert pull(shard).names == "b", "one was granted"
    assert runs(shard, at=1_900).names == "", "the other counts from the restart on"
    assert runs(shard, at=1_901).names == "cd"


def test_leases_that_had_left_the_window_do_not_count_after_a_restart(shard):
    configure(shard, rate_max=1, rate_per_ms=1_000)
    push(shard, *"ab")
    pull(shard, at=0)
    shard.restart(at=50_000)
    assert pull(shard).names == "b"


def test_a_waiter_after_a_restart_is_woken_when_the_window_opens(shard):
    configure(shard, rate_max=1, rate_per_ms=1_000)
    push(shard, *"ab")
    pull(shard)
    shard.restart(at=500)
    parked = pull(shard, client="w-2", wait_ms=60_000)
    tick(shard, at=1_500)
    assert parked.waits
    tick(shard, at=1_501)
    assert parked.names == "b"


def test_a_changed_rate_holds_at_once_for_who_waits(shard):
    configure(shard, rate_max=1, rate_per_ms=60_000)
    push(shard, *"abcd")
    pull(shard)
    parked = runs(shard, client="w-2", wait_ms=60_000)
    configure(shard, rate_max=2, rate_per_ms=60_000, at=100)
    assert parked.names == "b"
    parked = runs(shard, client="w-3", wait_ms=60_000)
    configure(shard, rate_max=2, rate_per_ms=1_000, at=200)
    assert parked.waits
    tick(shard, at=1_001)
    assert parked.names == "c"
    parked = runs(shard, client="w-4", wait_ms=60_000)
    configure(shard, rate_max=None, rate_per_ms=None)
    assert parked.names == "d"


def test_a_lowered_rate_lets_nothing_through_too_early(shard):
    configure(shard, rate_max=3, rate_per_ms=1_000)
    push(shard, *"abcdef")
    pull(shard, at=0), pull(shard, at=100), pull(shard, at=200)
    configure(shard, rate_max=1, rate_per_ms=1_000)
    parked = runs(shard, client="w-2", wait_ms=60_000)
    tick(shard, at=1_001)
    tick(shard, at=1_101)
    assert parked.waits, "the third lease is in the window"
    tick(shard, at=1_201)
    assert parked.names == "d"


def test_a_rate_beside_a_concurrency(shard):
    configure(shard, concurrency=2, rate_max=3, rate_per_ms=1_000)
    push(shard, *"abcdef")
    a, b = runs(shard).jobs
    ack(shard, a, b)
    c = runs(shard).job
    assert c.name == "c"
    assert runs(shard, client="w-2").jobs == []
    assert runs(shard, at=1_001).names == "d", "c still runs"


def test_a_full_window_of_one_queue_does_not_hold_up_another(shard):
    configure(shard, rate_max=1, rate_per_ms=1_000)
    push(shard, *"ab")
    push(shard, "c", queue="sms")
    assert runs(shard, "emails", "sms").names == "ac"
    parked = runs(shard, "emails", "sms", client="w-2", wait_ms=60_000)
    push(shard, "d", queue="sms")
    assert parked.names == "d"


@pytest.mark.parametrize("changes", [{"rate_max": 5}, {"rate_per_ms": 5}, {"auto_retry_ms": 5_000}])
def test_half_a_setting_is_refused(shard, changes):
    answer = shard.send(Configure(shard.origin("admin"), "emails", changes))[0]
    assert answer.status is Status.BAD_OPTION


# --- several queues in one pull -------------------------------------------------------


def test_each_queue_of_a_pull_gives_what_it_may(shard, maybe_restart):
    configure(shard, "emails", concurrency=1)
    configure(shard, "sms", rate_max=2, rate_per_ms=1_000)
    configure(shard, "push", paused=True)
    for queue, names in (("emails", "ab"), ("sms", "cde"), ("push", "f"), ("mail", "g")):
        push(shard, *names, queue=queue)
    maybe_restart()
    leased = pull(shard, "emails", "sms", "push", "mail", jobs_max=99)
    assert leased.names == "acdg"
    parked = pull(shard, "push", "emails", "sms", client="w-2", jobs_max=99, wait_ms=60_000)
    assert parked.waits
    ack(shard, leased.jobs[0])
    assert parked.names == "b"
    parked = pull(shard, "push", "emails", "sms", client="w-3", jobs_max=99, wait_ms=60_000)
    tick(shard, at=1_001)
    assert parked.names == "e"


def test_a_limit_does_not_use_up_what_a_pull_may_take(shard):
    configure(shard, "emails", concurrency=1)
    push(shard, *"ab")
    push(shard, *"cd", queue="sms")
    assert pull(shard, "emails", "sms", jobs_max=2).names == "ac"


# --- length of leases -----------------------------------------------------------------


def test_the_queue_says_how_long_leases_are(shard, maybe_restart):
    configure(shard, lease_ms=2_000)
    push(shard, "a")
    maybe_restart()
    pulled = pull(shard, lease_ms=50_000)
    assert pulled.body[0] == 2_000
    maybe_restart()
    stall(shard, pulled.job)
    assert shard.clock.at < 8_000


def test_the_shortest_of_the_queues_that_gave_holds_for_a_pull(shard):
    configure(shard, "emails", lease_ms=30_000)
    configure(shard, "sms", lease_ms=20_000)
    configure(shard, "push", lease_ms=1_000)
    for queue in ("emails", "sms", "mail"):
        push(shard, "a", queue=queue)
    assert pull(shard, "emails", "push", jobs_max=9, lease_ms=40_000).body[0] == 30_000
    push(shard, "a")
    assert pull(shard, "emails", "sms", "push", jobs_max=9, lease_ms=40_000).body[0] == 20_000
    assert pull(shard, "push", "mail", jobs_max=9, lease_ms=40_000).body[0] == 40_000


def test_an_empty_answer_says_what_was_asked(shard):
    configure(shard, lease_ms=2_000)
    assert pull(shard, lease_ms=50_000).body == (50_000, ())


# --- stalls ---------------------------------------------------------------------------


@pytest.mark.parametrize("max_stalls", [0, 1])
def test_the_queue_says_how_many_stalls_are_too_many(shard, max_stalls, maybe_restart):
    configure(shard, max_stalls=max_stalls)
    pushed = push(shard, "a", backoff=[0, 1, 0, 0, []])
    maybe_restart()
    for _ in range(max_stalls):
        stall(shard, pull(shard).job)
        assert state_of(shard, pushed.id) == "waiting"
    maybe_restart()
    stall(shard, pull(shard).job)
    assert view(shard, pushed.id)["reason"] == "stalled"


def test_a_long_running_job_is_never_removed(shard):
    """Elsewhere a cleanup fails what runs for over 30 minutes: here only its worker's silence."""
    push(shard, "a")
    job = pull(shard).job
    for at in range(0, 7_200_000, 300_000):
        heartbeat(shard, job, at=at)
        extend(shard, job, lease_ms=310_000)
        sweep(shard)
    assert ack(shard, job).accepted


# --- settings as a whole --------------------------------------------------------------


def test_all_settings_are_shown_and_stay(shard, maybe_restart):
    usual = configure(shard)
    assert set(usual) == set(SETTING_NAMES)
    changes = {
        "paused": True,
        "paused_groups": ["h", "g"],
        "concurrency": 7,
        "group_concurrency": 2,
        "rate_max": 5,
        "rate_per_ms": 1_000,
        "lease_ms": 9_000,
        "max_stalls": 0,
        "keep_count": 3,
        "keep_ms": 90_000,
        "dead_max": 4,
        "drop_oldest": True,
        "dead_ms": 70_000,
        "auto_retry_ms": 5_000,
        "auto_retry_max": 2,
        "defaults": {"priority": 3},
    }
    shown = {**changes, "paused_groups": ("g", "h")}
    assert configure(shard, **changes) == shown
    maybe_restart()
    assert configure(shard) == shown
    assert configure(shard, **dict.fromkeys(changes)) == usual
    maybe_restart()
    assert configure(shard) == usual


def test_reading_the_settings_makes_no_queue(shard):
    configure(shard, "nobody")
    assert counts(shard) == {}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"rate_max": 10_001, "rate_per_ms": 1}, "rate_max"),
        ({"speed": 1}, "speed"),
        ({"keep_ms": 59_999}, "keep_ms"),
        ({"defaults": {"unique": "k"}}, "unique"),
        ({"defaults": {"priority": 1.5}}, "priority"),
    ],
)
def test_a_wrong_setting_changes_nothing_and_is_named(shard, changes, named):
    answer = shard.send(Configure(shard.origin("admin"), "emails", {"lease_ms": 9_000, **changes}))[
        0
    ]
    assert answer.status is Status.BAD_OPTION
    assert named in answer.body[0]
    assert counts(shard) == {}
    assert configure(shard)["lease_ms"] == 0


def test_settings_belong_to_their_queue(shard):
    configure(shard, concurrency=1)
    push(shard, *"ab", queue="sms")
    assert runs(shard, "sms").names == "ab"


def test_a_new_limit_and_a_push_of_one_turn(shard):
    parked = runs(shard, wait_ms=60_000)
    shard.send(
        Configure(shard.origin("admin"), "emails", {"concurrency": 2}),
        a_push(shard, a={}, b={}, c={}),
    )
    assert parked.names == "ab"


def test_limits_are_gone_with_their_queue(shard):
    configure(shard, concurrency=1, rate_max=1, rate_per_ms=60_000)
    push(shard, *"ab")
    ack(shard, pull(shard).job)
    obliterate(shard)
    push(shard, *"cd")
    assert pull(shard, jobs_max=9).names == "cd"
    shard.restart()
    assert settle_all(shard) == ""


def test_a_lease_outlives_a_shorter_setting(shard):
    push(shard, "a")
    job = pull(shard).job
    configure(shard, lease_ms=1 * SECOND_MS)
    tick(shard, at=LEASE_MS_DEFAULT - 1)
    assert ack(shard, job).accepted
