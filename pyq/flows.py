"""Flows: jobs that wait for each other, added all or none.

with pyq.connect() as client:
    flow = client.flow(
        pyq.Step("reports", "monthly", children=[
            pyq.Step("numbers", "sum", {"part": n}) for n in range(12)
        ])
    )
    print(flow.result(timeout="5m"))

A step runs when its children have completed, on whatever queues and shards they are. First
a gate is added, a job that nobody runs; every step waits for it beside its children. When all
steps are there the gate is opened. Should anything go wrong before, it is cancelled, or
expires after a minute, and all steps behind it are gone as if they had never been added.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyq.codec import pack
from pyq.errors import (
    BadOption,
    Conflict,
    OutcomeUnknown,
    PyqError,
    Status,
    TooLarge,
    Unavailable,
    item_error,
)
from pyq.given_options import options_to_wire
from pyq.handle import Job
from pyq.ids import id_from_text, slot_of_id
from pyq.limits import (
    BATCH_BYTES_MAX,
    BATCH_JOBS_MAX,
    FLOW_DEPTH_MAX,
    FLOW_STEPS_MAX,
    GATE_MS,
)
from pyq.options import check_name, check_options, check_queue
from pyq.routes import slot_of
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.client import Client

_GATE_NAME = ":gate"  # messages.GATE_NAME, whose import applications need not pay for
_PASSING = (Status.BUSY, Status.UNAVAILABLE, Status.RETRY)  # the same may be taken a moment later
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Step:
    """A job of a flow: queue, name, data, options as in `Queue.add`, and what must run before it.

    `children` are steps; `options["depends_on"]` may name jobs that exist already.
    """

    queue: str
    name: str
    data: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    children: Iterable["Step"] = ()

    def after(self, *steps: "Step") -> "Step":
        """Return this step with further children."""
        return replace(self, children=(*self.children, *steps))


def chain(*steps: Step) -> Step:
    """Return the last of the steps, each waiting for the one before it."""
    if not steps:
        raise BadOption("a chain has at least one step")
    last = steps[0]
    for step in steps[1:]:
        last = step.after(last)
    return last


class FlowNode:
    """A job of a flow that was added, with its children in the order given."""

    __slots__ = ("children", "job")

    def __init__(self, job: Job, children: "list[FlowNode]") -> None:
        self.job = job
        self.children = children

    def __iter__(self) -> "Iterator[FlowNode]":
        """All nodes, children before their parents."""
        waiting: list[tuple[FlowNode, bool]] = [(self, False)]
        while waiting:
            node, done = waiting.pop()
            if done:
                yield node
            else:
                waiting.append((node, True))
                waiting += [(child, False) for child in reversed(node.children)]

    def result(self, timeout: Any = None) -> Any:
        """Wait for the whole flow and return what its last step returned; as `Job.result`."""
        return self.job.result(timeout)


def add_flow(client: "Client", root: Step) -> FlowNode:
    """Add a step with all its children, all or none; returns the tree of handles.

    At most 10,000 steps, 100 deep, 1,000 children each. Raises what `Queue.add` raises; then
    none was added, but after OutcomeUnknown: then all were, or none.
    """
    planned = _plan(client, root)
    gate = _shut_gate(client, root.queue)
    try:
        for depth in sorted({step.depth for step in planned}, reverse=True):
            _add_level(client, planned, depth, gate.id_bytes)
        _open(client, gate.id_bytes)
    except OutcomeUnknown:
        raise  # it may be open: what is behind it must not be taken back
    except BaseException:
        with contextlib.suppress(PyqError):  # or it expires by itself
            gate.cancel()
        raise
    nodes: list[FlowNode] = [FlowNode(step.job, []) for step in planned]
    for node, step in zip(nodes, planned, strict=True):
        node.children += [nodes[child] for child in step.children]
    return nodes[0]


def read_flow(client: "Client", job: Job) -> dict[str, Any]:
    """Return the view of a job, with the views of those it depends on under `children`, and so
    on; one whose record is gone has only `id` and `state`. At most 10,000 jobs.
    """
    root = client.view_of(job.id_bytes)
    level, count = [root], 1
    while level:
        wanted = [(view, dep_id, word) for view in level for dep_id, word in view["depends_on"]]
        count += len(wanted)
        if count > FLOW_STEPS_MAX:
            raise TooLarge(f"a flow has at most {FLOW_STEPS_MAX} steps")
        found = client.views_of([id_from_text(dep_id) for _, dep_id, _ in wanted])
        for view in level:
            view["children"] = []
        level = []
        for (parent, dep_id, word), child in zip(wanted, found, strict=True):
            parent["children"].append(child or {"id": dep_id, "state": word, "children": []})
            level += [child] if child else []
    return root


@dataclass(slots=True)
class _Planned:
    """A step with everything that is known of it before it is sent."""

    job: Job
    payload: bytes
    wire: dict[str, Any]
    depth: int
    children: list[int]  # places in the plan


def _plan(client: "Client", root: Step) -> list[_Planned]:
    """Check and pack the whole flow; parents stand before their children."""
    planned: list[_Planned] = []
    to_do: list[tuple[Step, int, int]] = [(root, 0, -1)]
    while to_do:
        step, depth, parent = to_do.pop()
        if depth >= FLOW_DEPTH_MAX:
            raise TooLarge(f"a flow is at most {FLOW_DEPTH_MAX} steps deep")
        if len(planned) >= FLOW_STEPS_MAX:
            raise TooLarge(f"a flow has at most {FLOW_STEPS_MAX} steps")
        if parent >= 0:
            planned[parent].children.append(len(planned))
        planned.append(_planned(client, step, depth))
        at = len(planned) - 1
        to_do += [(child, depth + 1, at) for child in reversed(list(step.children))]
    return planned


def _planned(client: "Client", step: Step, depth: int) -> _Planned:
    if not isinstance(step, Step):
        raise BadOption(f"{step!r} is not a pyq.Step")
    check_queue(step.queue)
    wire = options_to_wire(step.options)
    if "durable" in step.options:
        raise BadOption("durable does not belong to a step")
    id_bytes = client.connection().ids.make(slot_of(step.queue))[0]
    job = Job(client.queue(step.queue), id_bytes, check_name(step.name), wire.get("job_id"))
    return _Planned(job, pack(step.data), wire, depth, [])


def _shut_gate(client: "Client", queue: str) -> Job:
    gate = Job(client.queue(queue), client.connection().ids.make(slot_of(queue))[0], _GATE_NAME)
    options = {"delay_ms": GATE_MS, "keep_completed": False}
    _push(client, queue, [(gate.id_bytes, _GATE_NAME, b"", options)], [gate])
    return gate


def _add_level(client: "Client", planned: list[_Planned], depth: int, gate: bytes) -> None:
    """Add the steps of one depth, whose children are there already; queue by queue."""
    by_queue: dict[str, tuple[list[Any], list[Job]]] = {}
    for step in planned:
        if step.depth != depth:
            continue
        wire = step.wire
        existing = wire.get("depends_on", [])
        if existing:
            client.must_know(existing, slot_of(step.job.queue))
        children = [planned[child].job.id_bytes for child in step.children]
        wire["depends_on"] = [*existing, *children]
        wire["gate"] = gate
        check_options(wire)
        rows, jobs = by_queue.setdefault(step.job.queue, ([], []))
        rows.append((step.job.id_bytes, step.job.name, step.payload, wire))
        jobs.append(step.job)
    for queue, (rows, jobs) in by_queue.items():
        _push(client, queue, rows, jobs)


def _push(client: "Client", queue: str, rows: list[Any], jobs: list[Job]) -> None:
    """Push jobs in messages that fit, in order; all are taken, or the first refusal is raised."""
    first = size = 0
    for at, row in enumerate(rows):
        size += len(row[2])
        if at > first and (at - first == BATCH_JOBS_MAX or size > BATCH_BYTES_MAX):
            _push_message(client, queue, rows[first:at], jobs[first:at])
            first, size = at, len(row[2])
    _push_message(client, queue, rows[first:], jobs[first:])


def _push_message(client: "Client", queue: str, rows: list[Any], jobs: list[Job]) -> None:
    until = time.monotonic() + GATE_MS / 1_000
    while rows:
        reply = client.connection().request(Verb.PUSH, [None, rows], queue=queue)
        again: list[int] = []
        for index, status, detail in reply.body[1]:
            if status in _PASSING and time.monotonic() < until:
                again.append(index)
            else:
                jobs[index]._take_over(status, detail)
        rows, jobs = [rows[index] for index in again], [jobs[index] for index in again]
        if again:
            time.sleep(_PAUSE_S)


def _open(client: "Client", gate: bytes) -> None:
    """Let the flow begin. Repeating it is harmless, so it is tried until somebody answers."""
    until = time.monotonic() + GATE_MS / 1_000
    while True:
        try:
            reply = client.connection().request(Verb.OPEN, [[[gate]]], slot=slot_of_id(gate))
            break
        except (OutcomeUnknown, Unavailable):
            if time.monotonic() > until:
                raise OutcomeUnknown("the flow may have begun, or nothing of it is kept") from None
    for _, status, detail in reply.body[1]:
        if status == Status.CONFLICT:
            raise Conflict(
                f"it took more than {GATE_MS // 1_000} s to add the flow; none of it is kept"
            )
        if status != Status.OK:
            raise item_error(status, detail)
