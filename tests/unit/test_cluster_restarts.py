"""When the supervisor starts a process again, and when it gives up on it for a while."""

from cluster.restarts import (
    BREAKER_DEATHS,
    DEGRADED_MS,
    FAILED_RETRY_MS,
    HEALTHY_MS,
    PROBE_MS,
    SILENT_KILL_MS,
    STARTING_MS_MAX,
    Life,
    ProcessState,
)


def a_life(*, breaker: bool = True) -> Life:
    return Life(0, breaker=breaker)


def a_ready_life(at: int = 0) -> Life:
    life = a_life()
    life.started(at)
    assert life.answered(at)
    return life


def die_early(life: Life, at: int) -> int:
    """Start and die at once; return the wait until the next start."""
    life.started(at)
    life.died(at)
    assert life.start_due_ms is not None
    return life.start_due_ms - at


def test_a_new_process_is_due_at_once():
    life = a_life()
    assert life.is_start_due(0)
    assert life.next_wakeup() == 0


def test_a_started_process_is_ready_with_its_first_answer_only():
    life = a_life()
    life.started(10)
    assert life.state is ProcessState.STARTING
    assert not life.is_start_due(10_000)
    assert life.answered(20)
    assert life.state is ProcessState.READY
    assert not life.answered(30)


def test_backoff_doubles_up_to_five_seconds():
    life = a_life(breaker=False)
    waits = [die_early(life, at * 10_000) for at in range(9)]
    assert waits == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000]


def test_the_wait_stays_bounded_after_a_very_long_crash_loop():
    life = a_life(breaker=False)
    assert [die_early(life, at) for at in range(200)][-1] == 5_000


def test_a_healthy_second_resets_the_backoff():
    life = a_life()
    for at in range(3):
        die_early(life, at)
    life.started(1_000)
    life.answered(1_100)
    life.died(1_100 + HEALTHY_MS)
    assert life.start_due_ms == 1_100 + HEALTHY_MS + 100
    assert die_early(life, 5_000) == 100


def test_a_death_within_a_second_of_ready_is_an_early_one():
    life = a_life()
    for at in range(0, BREAKER_DEATHS * 10_000, 10_000):
        life.started(at)
        life.answered(at + 50)
        life.died(at + 50 + HEALTHY_MS - 1)
    assert life.state is ProcessState.FAILED


def test_five_early_deaths_trip_the_breaker():
    life = a_life()
    waits = [die_early(life, at) for at in range(BREAKER_DEATHS)]
    assert waits == [100, 200, 400, 800, FAILED_RETRY_MS]
    assert life.state is ProcessState.FAILED


def test_a_failed_process_is_tried_again_and_fails_again_with_one_death():
    life = a_life()
    for at in range(BREAKER_DEATHS):
        die_early(life, at)
    assert die_early(life, 100_000) == FAILED_RETRY_MS
    assert life.state is ProcessState.FAILED


def test_a_failed_process_that_gets_healthy_starts_with_a_clean_slate():
    life = a_life()
    for at in range(BREAKER_DEATHS):
        die_early(life, at)
    life.started(100_000)
    life.answered(100_100)
    assert life.state is ProcessState.READY
    life.died(100_100 + HEALTHY_MS)
    assert life.state is ProcessState.RESTARTING


def test_without_a_breaker_nobody_gives_up():
    life = a_life(breaker=False)
    for at in range(50):
        die_early(life, at)
    assert life.state is ProcessState.RESTARTING


def test_restarts_are_counted_without_the_first_start():
    life = a_life()
    assert life.restarts_count == 0
    life.started(0)
    assert life.restarts_count == 0
    life.died(1)
    life.started(2)
    assert life.restarts_count == 1


def test_probes_go_out_every_second():
    life = a_ready_life()
    assert life.is_probe_due(0)
    life.probed(0)
    assert not life.is_probe_due(PROBE_MS - 1)
    assert life.is_probe_due(PROBE_MS)
    assert life.next_wakeup() == PROBE_MS


def test_a_silent_process_is_degraded_then_killed():
    life = a_ready_life()
    life.probed(0)
    for at in range(PROBE_MS, DEGRADED_MS, PROBE_MS):
        life.probed(at)
        assert not life.is_hanging(at)
    assert life.state is ProcessState.READY
    assert not life.is_hanging(DEGRADED_MS)
    assert life.state is ProcessState.DEGRADED
    assert not life.is_hanging(SILENT_KILL_MS - 1)
    assert life.is_hanging(SILENT_KILL_MS)


def test_an_answer_makes_a_degraded_process_ready_again():
    life = a_ready_life()
    life.probed(0)
    life.is_hanging(DEGRADED_MS)
    assert not life.answered(DEGRADED_MS + 1)  # it did not *become* ready: it was
    assert life.state is ProcessState.READY
    assert not life.is_hanging(SILENT_KILL_MS + 1)


def test_a_process_that_loads_a_large_file_is_not_killed():
    life = a_life()
    life.started(0)
    life.probed(0)
    assert not life.is_hanging(STARTING_MS_MAX - 1)
    assert life.state is ProcessState.STARTING
    assert life.is_hanging(STARTING_MS_MAX)


def test_a_supervisor_that_slept_itself_judges_nobody():
    life = a_ready_life()
    life.probed(0)
    life.forgive()
    assert not life.is_hanging(SILENT_KILL_MS)
    life.probed(SILENT_KILL_MS)
    assert life.is_hanging(2 * SILENT_KILL_MS)


def test_a_stopping_process_is_neither_probed_nor_started_again():
    life = a_ready_life()
    life.stopping()
    assert not life.is_probe_due(10_000)
    assert not life.is_start_due(10_000)
    assert life.next_wakeup() is None
    life.stopped()
    assert life.state is ProcessState.STOPPED
    assert life.next_wakeup() is None


def test_a_process_that_ran_out_of_disk_is_tried_again_each_second_without_a_breaker():
    life = Life(0, breaker=True)
    for at in range(0, 20_000, 1_000):
        assert life.is_start_due(at)
        life.started(at)
        life.died(at, disk_full=True)
    assert life.state is ProcessState.RESTARTING
