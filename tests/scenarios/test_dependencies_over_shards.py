"""Jobs that depend on jobs of other shards: rows, cursors, a relay that may do anything."""

import pytest

from cluster.coordinator.relay import GAP_MS
from pyq.errors import Status
from pyq.job import BLOCKED
from pyq.limits import COMPLETED_MS_MIN, REWATCH_MS
from pyq.messages import RESOLVE, UNWATCH, WATCH, Outbox, Row
from pyq.wire import Verb
from tests.support.net import Message, Net, a_net
from tests.support.shards import (
    ack,
    block,
    cancel,
    configure,
    counts,
    deliver,
    fail,
    outbox,
    pull,
    push,
    result,
    retry,
    state_of,
    tick,
    view,
)

SOON = COMPLETED_MS_MIN + 2_000


class Pair:
    """A job on shard 0, and one on shard 1 that depends on it."""

    def __init__(self, first: dict | None = None, **options) -> None:
        self.net = Net(4)
        self.here, self.there = self.net[0], self.net[1]
        self.x, self.y = self.net.queue_on(0), self.net.queue_on(1)
        self.first = push(self.here, "a", queue=self.x, **(first or {})).id
        self.second = push(
            self.there, "b", queue=self.y, depends_on=[self.first], **options
        ).id  # fmt: skip

    def finish(self, value: bytes = b"r") -> None:
        ack(self.here, pull(self.here, self.x).job, result=value)

    def kill(self) -> None:
        fail(self.here, pull(self.here, self.x).job, unrecoverable=True)

    @property
    def state(self) -> str:
        return state_of(self.there, self.second)

    @property
    def leased(self):
        return pull(self.there, self.y)

    @property
    def kinds(self) -> list[str]:
        return [row.kind for _, _, row in self.net.carried]


# --- the plain road -------------------------------------------------------------------------


def test_a_completion_releases_a_job_on_another_shard():
    pair = Pair()
    pair.net.flow()
    assert pair.state == "blocked"
    pair.finish()
    assert pair.state == "blocked", "nobody carried the row yet"
    pair.net.flow()
    assert pair.leased.names == "b"
    assert pair.kinds == [WATCH, RESOLVE]
    assert not pair.net.clock.at, "no time had to pass"


def test_who_waits_over_there_gets_the_job_at_once():
    pair = Pair()
    parked = pull(pair.there, pair.y, wait_ms=1_000)
    pair.finish()
    pair.net.flow()
    assert parked.names == "b"


@pytest.mark.parametrize("keep", [True, False])
def test_one_that_completed_before_counts(keep):
    net = a_net()
    x, y = net.queue_on(0), net.queue_on(1)
    first = push(net[0], "a", queue=x, keep_completed=keep).id
    ack(net[0], pull(net[0], x).job)
    job_id = push(net[1], "b", queue=y, depends_on=[first]).id
    assert state_of(net[1], job_id) == "blocked", "its shard has to ask"
    net.flow()
    assert state_of(net[1], job_id) == "waiting"


@pytest.mark.parametrize("policy", ["fail", "ignore", "hold"])
def test_one_that_nobody_knows_has_not_completed(policy):
    """The client asks first; this is what is left if it vanished in between."""
    net = a_net()
    stranger = net[0].an_id(net.queue_on(0))
    job_id = push(
        net[1], "b", queue=net.queue_on(1), depends_on=[stranger], on_dep_fail=policy
    ).id  # fmt: skip
    net.flow()
    after = {"fail": "dead", "ignore": "waiting", "hold": "blocked"}[policy]
    assert state_of(net[1], job_id) == after
    assert view(net[1], job_id)["depends_on"] == ((stranger, "removed"),)


@pytest.mark.parametrize("policy", ["fail", "ignore", "hold"])
def test_a_failure_over_there(policy):
    pair = Pair(on_dep_fail=policy)
    pair.net.flow()
    pair.kill()
    pair.net.flow()
    assert pair.state == {"fail": "dead", "ignore": "waiting", "hold": "blocked"}[policy]
    assert view(pair.there, pair.second)["depends_on"] == ((pair.first, "dead"),)
    if policy == "fail":
        assert "boom" in view(pair.there, pair.second)["error"]
    if policy == "hold":
        retry(pair.here, pair.first)
        pair.net.flow()
        pair.finish()
        pair.net.flow()
        assert pair.leased.names == "b"


def test_a_dead_dependent_that_is_retried_asks_again():
    pair = Pair()
    pair.net.flow()
    pair.kill()
    pair.net.flow()
    retry(pair.there, pair.second)
    pair.net.flow()
    assert view(pair.there, pair.second)["reason"] == "dependency", "still dead over there"
    retry(pair.here, pair.first)
    retry(pair.there, pair.second)
    pair.net.flow()
    assert pair.state == "blocked"
    pair.finish()
    pair.net.flow()
    assert pair.leased.names == "b"


def test_a_cancelled_dependency_settles_its_dependents_over_there():
    pair = Pair()
    pair.net.flow()
    cancel(pair.here, pair.first)
    pair.net.flow()
    assert view(pair.there, pair.second)["reason"] == "dependency"


def test_a_parent_waits_for_children_on_every_shard():
    net = a_net()
    queues = [net.queue_on(shard) for shard in range(4)]
    parent = push(net[0], "p", queue=queues[0]).id
    leased = pull(net[0], queues[0]).job
    children = [push(net[q], "c", queue=q).id for q in queues]
    assert block(net[0], leased, *children).accepted
    for queue in queues:
        net.flow()
        assert state_of(net[0], parent) == "blocked"
        ack(net[queue], pull(net[queue], queue).job)
    net.flow()
    assert pull(net[0], queues[0]).job.id == parent


def test_a_chain_over_all_shards():
    net = a_net()
    queues = [net.queue_on(shard) for shard in range(4)]
    ids = []
    for number in range(40):
        queue = queues[number % 4]
        ids += push(net[queue], "s", queue=queue, depends_on=ids[-1:]).ids
    for number in range(40):
        net.flow()
        queue = queues[number % 4]
        assert (
            sum(
                counts(rig).get(q, {}).get("waiting", 0)
                for rig, q in zip(net.rigs, queues, strict=True)
            )
            == 1
        )
        ack(net[queue], pull(net[queue], queue).job)
    assert not any(
        rig.state.queues[q].counts[BLOCKED] for rig, q in zip(net.rigs, queues, strict=True)
    )
    net.flow()
    assert not any(rig.state.awaited for rig in net.rigs), "nothing is left behind"


def test_one_that_is_added_when_the_answer_was_given_asks_again():
    pair = Pair()
    pair.finish()
    pair.net.flow()
    assert pair.state == "waiting", "its first dependent was told, and is still there"
    later = push(pair.there, "c", queue=pair.y, depends_on=[pair.first]).id
    pair.net.flow()
    assert state_of(pair.there, later) == "waiting"


def test_one_that_is_added_while_the_answer_is_on_its_way_hears_it_too():
    pair = Pair()
    pair.finish()
    message = carry_until(pair.net, Verb.DELIVER)
    while message.errand.shard != 1 or message.answer is not None:
        pair.net.arrive(message)
        message = carry_until(pair.net, Verb.DELIVER)
    later = push(pair.there, "c", queue=pair.y, depends_on=[pair.first]).id
    pair.net.arrive(message)
    assert state_of(pair.there, later) == "waiting"
    assert pair.kinds == [WATCH, RESOLVE]


# --- how many rows -----------------------------------------------------------------------------


def test_a_hundred_thousand_dependents_are_one_row_for_each_shard_of_theirs():
    net = a_net(checked=False)
    x = net.queue_on(0)
    first = push(net[0], "a", queue=x).id
    for shard in (1, 2, 3):
        queue = net.queue_on(shard)
        for _ in range(34):
            assert push(net[shard], *["b"] * 1_000, queue=queue, depends_on=[first]).accepted
    net.flow()
    ack(net[0], pull(net[0], x).job)
    net.flow()
    rows = [(source, target, row.kind) for source, target, row in net.carried]
    assert sorted(rows) == sorted(
        [(n, 0, WATCH) for n in (1, 2, 3)] + [(0, n, RESOLVE) for n in (1, 2, 3)]
    )
    for shard in (1, 2, 3):
        assert counts(net[shard])[net.queue_on(shard)] == {"waiting": 34_000}


def test_the_watched_shard_forgets_when_the_last_dependent_has_ended():
    pair = Pair(first={"keep_completed": False})
    push(pair.there, "c", queue=pair.y, depends_on=[pair.first])
    pair.net.flow()
    pair.finish()
    pair.net.flow()
    ack(pair.there, pair.leased.job)
    pair.net.flow()
    assert pair.kinds == [WATCH, RESOLVE]
    pair.net.pass_time(15_000)
    assert result(pair.here, pair.first).body == ("completed", b"r", ""), "C16"
    ack(pair.there, pair.leased.job)
    pair.net.flow()
    assert pair.kinds == [WATCH, RESOLVE, UNWATCH]
    assert result(pair.here, pair.first).body[0] == "result_expired"
    assert not pair.here.state.awaited


def test_retention_over_there_passes_over_what_is_needed():
    pair = Pair()
    configure(pair.here, pair.x, keep_count=0)
    pair.net.flow()
    pair.finish()
    pair.net.pass_time(SOON)
    pair.net.restart_shard(0)
    pair.net.pass_time(SOON)
    assert result(pair.here, pair.first).body[1] == b"r"
    ack(pair.there, pair.leased.job)
    pair.net.pass_time(SOON)
    assert result(pair.here, pair.first).body[0] == "result_expired"


# --- numbers ------------------------------------------------------------------------------------


def test_rows_are_applied_once_and_in_order_whatever_is_repeated():
    net = a_net(2)
    there = net[0]
    job_id = push(there, "a", queue=net.queue_on(0)).id
    row, other = Row(WATCH, job_id), Row(UNWATCH, job_id)
    assert deliver(there, 1, 1, row).body == (1,)
    assert deliver(there, 1, 1, row).body == (1,)
    assert deliver(there, 1, 3, row).body == (1,), "a gap: nothing is applied"
    assert deliver(there, 1, 1, row, other).body == (2,), "what is new of it is"
    assert not there.state.awaited
    there.restart()
    assert deliver(there, 1, 2, other, row).body == (3,)
    assert list(there.state.awaited[job_id].shards) == [1]


@pytest.mark.parametrize("source", [0, 2, 63])
def test_rows_of_a_shard_that_cannot_be_are_refused(source):
    net = a_net(2)
    assert deliver(net[0], source, 1, Row(WATCH, bytes(16))).status is Status.BAD_REQUEST


def test_rows_stay_until_they_are_confirmed_and_have_the_same_numbers_after_a_restart():
    pair = Pair()
    deliver(pair.here, 1, 1, Row(WATCH, pair.first))
    pair.finish()
    expected = (((1, 1, ((RESOLVE, pair.first, 5, ""),)),),)
    assert outbox(pair.here).body == expected
    assert outbox(pair.here, skipped=[1]).body == ((),)
    pair.here.restart()
    assert outbox(pair.here).body == expected
    assert outbox(pair.here, (1, 1)).body == ((),)
    pair.here.restart()
    assert outbox(pair.here).body == ((),)
    deliver(pair.here, 1, 2, Row(WATCH, pair.first))
    assert outbox(pair.here).body[0][0][:2] == (1, 2)


def test_a_confirmation_of_what_was_never_sent_loses_nothing():
    pair = Pair()
    assert outbox(pair.there, (0, 7)).body[0][0][:2] == (0, 1)


def test_no_target_waits_until_everything_is_told_to_another():
    net = a_net()
    for shard in (0, 2, 3):
        for job_id in push(net[shard], *"abcdef", queue=net.queue_on(shard)).ids:
            push(net[1], "w", queue=net.queue_on(1), depends_on=[job_id])
    (parts,) = outbox(net[1], limit=6).body
    assert [(target, len(rows)) for target, _, rows in parts] == [(0, 2), (2, 2), (3, 2)]
    (parts,) = outbox(net[1], limit=1).body
    assert [target for target, _, _ in parts] == [0, 2, 3]


def test_the_relay_is_answered_as_soon_as_there_is_a_row_or_its_time_is_over():
    net = a_net(2)
    waits = outbox(net[1], wait_ms=1_000)
    assert waits.waits
    first = push(net[0], "a", queue=net.queue_on(0)).id
    push(net[1], "b", queue=net.queue_on(1), depends_on=[first])
    assert [row[0] for row in waits.body[0][0][2]] == [WATCH]
    skipping = outbox(net[1], skipped=[0], wait_ms=1_000)
    tick(net[1], at=999)
    assert skipping.waits
    tick(net[1], at=1_000)
    assert skipping.body == ((),)


def test_what_leaves_a_shard_or_confirms_to_one_must_be_on_the_disk():
    """Else a power failure would undo what another shard has acted upon."""
    pair = Pair()
    assert outbox(pair.there).answers
    assert any(effects.sync for effects in pair.there.effects)
    deliver(pair.here, 1, 1, Row(WATCH, pair.first))
    assert any(effects.sync for effects in pair.here.effects)
    waits = outbox(pair.here, wait_ms=1_000)
    assert not any(effects.sync for effects in pair.here.effects), "nothing was said yet"
    pair.finish()
    assert waits.answers
    assert any(effects.sync for effects in pair.here.effects)


def test_a_full_outbox_refuses_new_dependents_and_no_ack(monkeypatch):
    monkeypatch.setattr("shardnode.core.mail.OUTBOX_ROWS_MAX", 2)
    net = a_net(2)
    many = push(net[0], *"abc", queue=net.queue_on(0)).ids
    y = net.queue_on(1)
    for job_id in many[:2]:
        assert push(net[1], "w", queue=y, depends_on=[job_id]).accepted
    refused = push(net[1], "w", queue=y, depends_on=[many[2]])
    assert [status for _, status, _ in refused.exceptions] == [Status.BUSY]
    push(net[1], "p", queue=y)
    assert block(net[1], pull(net[1], y).job, many[2]).exceptions[0][1] == Status.BUSY
    net.flow()
    assert push(net[1], "w", queue=y, depends_on=[many[2]]).accepted


# --- faults -------------------------------------------------------------------------------------


def carry_until(net: Net, wanted: Verb) -> Message:
    """Let messages travel until the next one is a request or answer of this kind; take it."""
    for _ in range(100):
        net.send_due()
        net.collect()
        message = net.on_the_way.pop(0)
        if message.errand.verb is wanted:
            return message
        net.arrive(message)
    raise AssertionError(f"no {wanted.name}")


def steps_of_a_release() -> int:
    """How many messages it takes to release a job on another shard."""
    pair = Pair()
    pair.finish()
    return count_steps(pair.net)


def count_steps(net: Net, limit: int = 1_000) -> int:
    """Carry at most `limit` messages; return how many there were."""
    for number in range(limit):
        net.collect()
        net.send_due()
        if not net.on_the_way:
            return number
        net.arrive(net.on_the_way.pop(0))
    return limit


@pytest.mark.parametrize("fault", ["relay", "shard 0", "shard 1", "both", "lost", "twice", "late"])
@pytest.mark.parametrize("step", range(steps_of_a_release() + 1))
def test_a_fault_at_any_step_only_delays(fault, step):
    pair = Pair()
    pair.finish()
    net = pair.net
    count_steps(net, step)
    if fault == "relay":
        net.restart_relay()
    if fault in ("shard 0", "both"):
        net.restart_shard(0)
    if fault in ("shard 1", "both"):
        net.restart_shard(1)
    if fault == "lost":
        net.on_the_way.clear()
    if fault == "twice":
        requests = [m for m in net.on_the_way if m.answer is None]
        for message in requests:
            net.arrive(message)
    if fault == "late":
        held, net.on_the_way = net.on_the_way, []
        net.pass_time(5_000)
        for message in held:
            net.arrive(message)
    net.pass_time(30_000)
    leased = pair.leased
    assert leased.names == "b"
    ack(pair.there, leased.job)
    net.pass_time(1_000)
    assert not any(rig.state.awaited for rig in net.rigs)
    assert not any(bag.rows for rig in net.rigs for bag in rig.state.mail.values())
    assert not net.troubles


def test_a_shard_that_does_not_answer_holds_up_no_other():
    net = a_net()
    x = net.queue_on(0)
    first = push(net[0], "a", queue=x).id
    jobs = {
        shard: push(net[shard], "b", queue=net.queue_on(shard), depends_on=[first]).id
        for shard in (1, 2, 3)
    }
    net.flow()
    ack(net[0], pull(net[0], x).job)
    stuck = []
    for _ in range(100):
        net.collect()
        net.send_due()
        stuck += [
            m for m in net.on_the_way if m.errand.verb is Verb.DELIVER and m.errand.shard == 2
        ]
        net.on_the_way = [m for m in net.on_the_way if m not in stuck]
        if net.on_the_way:
            net.arrive(net.on_the_way.pop(0))
    assert stuck
    assert [state_of(net[n], jobs[n]) for n in (1, 2, 3)] == ["waiting", "blocked", "waiting"]
    net.pass_time(3_000)
    assert state_of(net[2], jobs[2]) == "waiting"


def test_rows_that_were_lost_are_a_critical_trouble_and_no_endless_loop():
    """Shard 0 came back from an old copy of its file: it has forgotten what it had received."""
    pair = Pair()
    pair.net.flow()
    pair.here.state.received.clear()
    pair.here.checked = False
    cancel(pair.there, pair.second)
    pair.net.flow()
    (trouble,) = pair.net.troubles
    assert trouble.startswith("relay shard-1 to shard-0: shard 0 has rows of shard 1 up to 0")
    assert not pair.net.relays.healthy
    before = len(pair.net.carried)
    pair.net.pass_time(2 * GAP_MS)
    assert len(pair.net.carried) <= before + 3
    assert len(pair.net.troubles) == 1


def test_an_answer_that_was_missed_is_asked_for_again():
    pair = Pair()
    pair.net.flow()
    pair.here.state.awaited[pair.first].shards.clear()  # as if the watcher had been lost
    del pair.here.state.awaited[pair.first]
    pair.here.store._watchers.clear()
    pair.finish()
    pair.net.pass_time(REWATCH_MS - 1_000)
    assert pair.state == "blocked"
    pair.net.pass_time(2_000)
    assert pair.state == "waiting"


def test_at_its_start_a_shard_asks_again():
    pair = Pair()
    pair.net.flow()
    del pair.here.state.awaited[pair.first]
    pair.here.store._watchers.clear()
    pair.finish()
    pair.net.restart_shard(1)
    pair.net.pass_time(100)
    assert pair.state == "waiting"


def test_an_old_relay_beside_a_new_one_does_no_harm():
    pair = Pair()
    old = carry_until(pair.net, Verb.DELIVER)
    pair.net.restart_relay()
    pair.net.flow()
    pair.finish()
    pair.net.flow()
    pair.net.arrive(old)
    pair.net.flow()
    assert pair.leased.names == "b"
    answer = pair.there.send(Outbox(pair.there.origin("relay-2"), [(0, 1)], (), 9, 0))[0]
    assert answer.body == ((),)
