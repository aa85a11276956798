"""Where the router sends a header, for every kind of route."""

import pytest

from pyq.errors import Status
from pyq.limits import QUEUE_NAME_BYTES_MAX
from pyq.routes import slot_of
from pyq.wire import ALL_SHARDS, BY_QUEUE, COORDINATOR, ROUTER, Verb, pack_header
from router.routing import SCATTER_VERBS, SPLIT_VERBS, Route, Target, route_of

REQUEST_ID = bytes(16)


def route(verb: int, slot: int = BY_QUEUE, queue: str = "", shards: int = 4) -> Route:
    return route_of(pack_header(verb, REQUEST_ID, slot=slot, queue=queue), shards)


def refused(status: Status, given: Route) -> bool:
    return given.target is Target.REFUSAL and given.status == status and bool(given.sentence)


def test_a_queue_goes_to_the_shard_of_its_slot():
    assert route(Verb.PUSH, queue="emails") == Route(Target.SHARD, slot_of("emails") & 3)
    assert route(Verb.PULL, queue="emails", shards=1) == Route(Target.SHARD, 0)


def test_a_slot_goes_to_the_shard_that_owns_it():
    assert route(Verb.ACK, slot=4095) == Route(Target.SHARD, 3)
    assert route(Verb.GET, slot=6) == Route(Target.SHARD, 2)
    assert route(Verb.PING, slot=0) == Route(Target.SHARD, 0)


@pytest.mark.parametrize("verb", sorted(SPLIT_VERBS))
def test_a_batch_about_leases_for_all_shards_is_split(verb: Verb):
    assert route(verb, slot=ALL_SHARDS).target is Target.SPLIT


@pytest.mark.parametrize("verb", sorted(SCATTER_VERBS))
def test_a_question_for_all_shards_is_scattered(verb: Verb):
    assert route(verb, slot=ALL_SHARDS).target is Target.SCATTER


@pytest.mark.parametrize("verb", sorted(set(Verb) - SPLIT_VERBS - SCATTER_VERBS))
def test_anything_else_for_all_shards_is_refused(verb: Verb):
    assert route(verb, slot=ALL_SHARDS).target is Target.REFUSAL


def test_a_heartbeat_is_never_split():
    assert refused(Status.BAD_REQUEST, route(Verb.HEARTBEAT, slot=ALL_SHARDS))
    assert route(Verb.HEARTBEAT, queue="emails").target is Target.SHARD


def test_a_ping_without_a_name_is_for_the_router():
    assert route(Verb.PING).target is Target.PONG
    assert route(Verb.PING, slot=ROUTER).target is Target.PONG
    assert route(Verb.PING, queue="emails").target is Target.SHARD


def test_only_ping_and_attach_are_for_the_router_itself():
    assert route(Verb.ATTACH, slot=ROUTER).target is Target.ATTACH
    assert refused(Status.UNSUPPORTED, route(Verb.COUNTS, slot=ROUTER))
    assert refused(Status.BAD_REQUEST, route(Verb.ATTACH, queue="emails"))


def test_the_coordinators_slot_goes_to_the_coordinator():
    assert route(Verb.PING, slot=COORDINATOR).target is Target.COORDINATOR


def test_a_name_is_needed_where_the_route_is_a_name():
    assert refused(Status.BAD_REQUEST, route(Verb.PUSH))
    assert refused(Status.BAD_REQUEST, route(Verb.ACK))


@pytest.mark.parametrize("verb", [Verb.RETURN, Verb.PROCESSES, Verb.SHUTDOWN])
@pytest.mark.parametrize("slot", [BY_QUEUE, ALL_SHARDS, COORDINATOR, ROUTER, 7])
def test_verbs_that_are_not_for_the_router_are_refused(verb: Verb, slot: int):
    assert refused(Status.UNSUPPORTED, route(verb, slot=slot, queue="emails"))


@pytest.mark.parametrize("verb", [0, 99, 255])
def test_an_unknown_verb_is_refused(verb: int):
    assert refused(Status.UNSUPPORTED, route(verb, queue="emails"))


def test_hostile_headers_are_refused():
    good = pack_header(Verb.PUSH, REQUEST_ID, queue="emails")
    assert refused(Status.UNSUPPORTED, route_of(b"\x02" + good[1:], 4))
    assert refused(Status.BAD_REQUEST, route_of(good[:4] + b"\x10\x00" + good[6:], 4))
    assert refused(Status.BAD_REQUEST, route_of(good[:6] + b"\x00\x01" + good[8:], 4))
    assert refused(Status.BAD_REQUEST, route_of(good + b"\xff", 4))
    assert refused(Status.BAD_REQUEST, route_of(good + b"x" * QUEUE_NAME_BYTES_MAX, 4))
