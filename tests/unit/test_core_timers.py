"""Time in two clocks: nothing early, nothing twice, void entries do not pile up."""

from pyq.job import DELAYED, WAITING
from shardnode.core.state import QueueState
from shardnode.core.timers import COMPACT_MIN, Timers
from tests.support.records import a_job, leased
from tests.support.shards import a_shard, pull, push, tick

QUEUE = QueueState(1, "emails")


def a_delayed_job(seq, run_at):
    job = a_job(seq, QUEUE)
    job.state, job.run_at = DELAYED, run_at
    return job


def due(timers, wall_ms):
    found = []
    while (job := timers.delayed.pop(wall_ms)) is not None:
        found.append(job.seq)
    return found


def test_jobs_come_by_their_time_then_by_their_number():
    timers = Timers()
    for seq, run_at in [(4, 20), (3, 10), (2, 10), (1, 30)]:
        timers.delay(a_delayed_job(seq, run_at))

    assert due(timers, 9) == []
    assert due(timers, 20) == [2, 3, 4]
    assert due(timers, 30) == [1]


def test_an_entry_that_does_not_hold_any_more_is_void():
    timers = Timers()
    gone, moved = a_delayed_job(1, 10), a_delayed_job(2, 10)
    timers.delay(gone)
    timers.delay(moved)
    gone.state = WAITING
    moved.run_at = 20
    timers.delay(moved)

    assert due(timers, 10) == []
    assert due(timers, 20) == [2]


def test_a_timeout_is_of_one_lease():
    timers = Timers()
    job = leased(a_job(1, QUEUE))
    first = job.lease
    timers.limit(10, job, first)
    leased(job, number=2)

    assert timers.timeouts.pop(10) is None


def test_the_next_wakeup_is_the_earliest_of_both_clocks():
    timers = Timers()
    assert timers.next_ms(1_000, 5) is None
    timers.delay(a_delayed_job(1, 1_700))
    assert timers.next_ms(1_000, 5) == 705
    timers.park(400, b"job id")
    assert timers.next_ms(1_000, 5) == 400
    assert timers.next_ms(9_000, 5) == 5, "overdue is now"


def test_answered_waits_do_not_pile_up():
    shard = a_shard(checked=False)
    for _ in range(COMPACT_MIN + 100):
        parked = pull(shard, wait_ms=60_000)
        push(shard, "a", payload=b"")
        assert not parked.waits
    assert len(shard.state.timers.parked) <= COMPACT_MIN
    tick(shard)
