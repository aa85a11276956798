"""The table of outstanding requests, gathers, the coordinator's place, and the arrival clock."""

from pyq.errors import Status
from pyq.messages import batch_answer
from pyq.wire import Flag, Verb, pack_body, pack_header, unpack_body, unpack_header
from router.clock import PAUSED_MS, SETTLED_MS, STALE_MS_MAX, ArrivalClock
from router.coordinator import SILENT_MS_MAX, Attached
from router.fanout import Answer, scatter, split
from router.gathers import SCATTER, Gathers
from router.outstanding import ENTRY_MS_MAX, EXPIRED_GRACE_MS, Outstanding


def an_id(number: int) -> bytes:
    return b"client01" + number.to_bytes(8, "big")


def a_header(number: int, verb: Verb = Verb.ACK, deadline_ms: int = 1 << 40) -> bytes:
    return pack_header(verb, an_id(number), flags=Flag.ABSOLUTE, deadline_ms=deadline_ms)


def test_a_reply_settles_the_request_it_answers_once():
    table = Outstanding()
    table.add(b"A", a_header(1), 10, now_ms=0)

    assert table.settle(an_id(1), b"A") is not None
    assert table.settle(an_id(1), b"A") is None
    assert (len(table), table.bytes_count) == (0, 0)


def test_a_reply_to_the_old_address_leaves_the_repeat_outstanding():
    table = Outstanding()
    table.add(b"A", a_header(1), 10, now_ms=0)
    table.add(b"B", a_header(1), 12, now_ms=5)

    assert table.settle(an_id(1), b"A") is None
    assert (len(table), table.bytes_count) == (1, 12)
    assert table.settle(an_id(1), b"B") is not None


def test_pushes_and_pulls_stop_before_acks_do():
    table = Outstanding(count_max=10, bytes_max=1_000)
    for number in range(8):
        assert table.admits(Verb.PUSH, 1)
        table.add(b"A", a_header(number), 1, now_ms=0)

    assert not table.admits(Verb.PUSH, 1)
    assert not table.admits(Verb.PULL, 1)
    for number in range(8, 10):
        assert table.admits(Verb.ACK, 1)
        table.add(b"A", a_header(number), 1, now_ms=0)
    assert not table.admits(Verb.ACK, 1)


def test_bytes_are_bounded_like_numbers():
    table = Outstanding(count_max=10, bytes_max=1_000)

    assert table.admits(Verb.PUSH, 800)
    assert not table.admits(Verb.PUSH, 801)
    assert table.admits(Verb.ACK, 1_000)
    assert not table.admits(Verb.ACK, 1_001)


def test_what_nobody_waits_for_is_forgotten():
    table = Outstanding()
    table.add(b"A", a_header(1, deadline_ms=1_000), 1, now_ms=0)
    table.add(b"A", a_header(2, deadline_ms=60_000), 1, now_ms=0)
    table.add(b"A", a_header(3, deadline_ms=1 << 62), 1, now_ms=0)

    assert not table.take_expired(1_000 + EXPIRED_GRACE_MS)
    assert [e.request_id for e in table.take_expired(1_001 + EXPIRED_GRACE_MS)] == [an_id(1)]
    assert [e.request_id for e in table.take_expired(ENTRY_MS_MAX + 1)] == [an_id(2), an_id(3)]
    assert table.bytes_count == 0


def test_only_what_was_sent_before_counts_as_older():
    table = Outstanding()
    for number in range(3):
        table.add(b"A", a_header(number), 1, now_ms=number)

    assert [entry.request_id for entry in table.take_older(1)] == [an_id(0), an_id(1)]
    assert len(table) == 1


def test_parked_pulls_are_pulls_of_clients_that_wait_for_a_while():
    table = Outstanding()
    table.add(b"A", a_header(1, Verb.PULL), 1, now_ms=0)
    table.add(b"A", a_header(2, Verb.PUSH), 1, now_ms=0)
    table.add(b"A", a_header(3, Verb.PULL), 1, now_ms=600)

    assert [entry.request_id for entry in table.parked_pulls(500)] == [an_id(1)]


def test_long_polls_and_own_pings_do_not_hold_up_a_stop():
    table = Outstanding()
    table.add(b"A", a_header(1, Verb.PULL), 1, now_ms=0)
    table.add(b"", a_header(2, Verb.PING), 1, now_ms=0)
    assert not table.owes_replies()

    table.add(b"A", a_header(3, Verb.PUSH), 1, now_ms=0)
    assert table.owes_replies()


def test_a_gather_replies_with_its_last_answer():
    gathers = Gathers(b"router01")
    count, parts = split(
        pack_body([[[bytes(15) + bytes((n,)), bytes(20), None] for n in (0, 1)]]), 2
    )
    gather = gathers.open(b"A", a_header(1), count, parts, now_ms=0)
    fine = Answer(Status.OK, 1, pack_body(batch_answer(1, [])))

    assert gathers.answer(gather.ids[0], fine) is None
    assert gathers.answer(gather.ids[0], fine) is None, "the same answer twice counts once"
    assert gathers.answer(gather.ids[1], fine) is gather
    address, header, body = gather.reply()
    assert (address, unpack_header(header).request_id) == (b"A", an_id(1))
    assert unpack_body(body) == (2, ())


def test_a_gather_is_due_a_little_before_its_callers_deadline():
    gathers = Gathers(b"router01")
    gathers.open(b"A", a_header(1, Verb.PING, 1_000), SCATTER, scatter(b"", 2), now_ms=0)

    assert not gathers.take_due(799)
    (gather,) = gathers.take_due(800)
    _, header, body = gather.reply()
    assert unpack_header(header).flags == Flag.PARTIAL
    assert [entry[1] for entry in unpack_body(body)] == [Status.UNKNOWN] * 2
    assert len(gathers) == 0


def test_the_last_to_attach_is_the_coordinator():
    place = Attached()
    assert place.attach(b"A", 0) == []
    assert place.attach(b"A", 1_000) is None
    place.outstanding.add(b"C", a_header(1), 1, now_ms=1_000)

    orphaned = place.attach(b"B", 1_500)
    assert orphaned is not None
    assert [entry.address for entry in orphaned] == [b"C"]
    assert place.address == b"B"


def test_a_silent_coordinator_is_forgotten():
    place = Attached()
    assert place.detach_if_silent(SILENT_MS_MAX * 2) is None
    place.attach(b"A", 0)
    assert place.detach_if_silent(SILENT_MS_MAX) is None
    assert place.detach_if_silent(SILENT_MS_MAX + 1) == []
    assert place.address == b""


def test_messages_found_after_a_pause_are_as_old_as_the_pause():
    clock = ArrivalClock(0)
    clock.turn(PAUSED_MS)
    assert clock.arrived_ms == PAUSED_MS

    clock.turn(30_000)
    assert clock.arrived_ms == PAUSED_MS
    clock.reached_end()
    clock.turn(30_000 + SETTLED_MS - 1)
    assert clock.arrived_ms == PAUSED_MS, "zeromq's thread may not have read yet"


def test_after_the_buffer_was_empty_messages_are_new_again():
    clock = ArrivalClock(0)
    clock.turn(30_000)
    clock.turn(30_000 + SETTLED_MS)
    clock.reached_end()
    clock.turn(30_000 + SETTLED_MS + 1)
    assert clock.arrived_ms == 30_000 + SETTLED_MS + 1


def test_a_buffer_that_never_empties_is_trusted_again_after_a_second():
    clock = ArrivalClock(0)
    clock.turn(30_000)
    clock.turn(30_000 + STALE_MS_MAX)
    assert clock.arrived_ms == 30_000 + STALE_MS_MAX


def test_questions_and_long_polls_leave_room_for_what_ends_work():
    # Was a bug (P16): twenty thousand parked RESULTs made acks and heartbeats BUSY.
    table = Outstanding(count_max=10)
    for number in range(8):
        table.add(b"a", pack_header(Verb.RESULT, number.to_bytes(16, "big")), 1, 0)

    assert not table.admits(Verb.RESULT, 1)
    assert not table.admits(Verb.LIST, 1)
    assert table.admits(Verb.HEARTBEAT, 1)
    assert table.admits(Verb.ACK, 1)
