"""Dependencies and flows through the client and a worker, on a real cluster of several shards."""

import threading

import pytest

import pyq
from cluster.local import LocalCluster

pytestmark = pytest.mark.slow

QUEUES = tuple(f"flow-{number}" for number in range(8))  # they lie on several shards
WAIT = 30


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with pyq.connect(cluster.url) as client:
        yield client


@pytest.fixture(scope="module")
def worker(cluster):
    with pyq.Worker(*QUEUES, handler=HANDLERS, url=cluster.url, concurrency=8) as worker:
        yield worker


ALLOWED = threading.Event()


def _spawn(job):
    done = job.dependencies()
    if not done:
        queues = [job.client.queue(name) for name in QUEUES[:3]]
        raise pyq.WaitFor([queue.add("give", n) for n, queue in enumerate(queues)])
    return [child.result for child in done], job.attempt


def _discard(job):
    raise pyq.Discard("no good")


HANDLERS = {
    "give": lambda job: job.data,
    "sum": lambda job: sum(child.result for child in job.dependencies()),
    "tell": lambda job: [(child.state, child.result) for child in job.dependencies()],
    "wait": lambda job: ALLOWED.wait(WAIT),
    "spawn": _spawn,
    "bad": _discard,
}


def test_a_job_runs_when_those_it_depends_on_have_completed(client, worker):
    parts = [client.queue(name).add("give", n) for n, name in enumerate(QUEUES)]
    total = client.queue(QUEUES[0]).add("sum", depends_on=parts)

    assert total.result(WAIT) == sum(range(8))
    assert {state for _, state in total.view()["depends_on"]} == {"completed"}


def test_a_job_that_depends_on_a_failed_one_fails_and_says_why(client, worker):
    bad = client.queue(QUEUES[1]).add("bad")
    last = client.queue(QUEUES[2]).add("give", 1, depends_on=bad)
    after_last = client.queue(QUEUES[3]).add("give", 1, depends_on=last)

    with pytest.raises(pyq.JobFailed, match=f"dependency {bad.id} is dead: no good"):
        last.result(WAIT)
    with pytest.raises(pyq.JobFailed, match=f"dependency {last.id} is dead"):
        after_last.result(WAIT)


def test_a_job_may_run_in_spite_of_a_failed_dependency_and_see_it(client, worker):
    parts = [client.queue(QUEUES[1]).add("bad"), client.queue(QUEUES[2]).add("give", 5)]
    told = client.queue(QUEUES[0]).add("tell", depends_on=parts, on_dep_fail="ignore")

    assert told.result(WAIT) == [["dead", None], ["completed", 5]]


def test_a_job_that_holds_resumes_when_the_failed_one_is_retried(client):
    """Without a worker of these queues: the test runs the jobs, one by one."""
    first = client.queue("held-1").add("first", attempts=1)
    last = client.queue("held-2").add("last", depends_on=first, on_dep_fail="hold")
    outcomes = iter([RuntimeError("broken"), None])

    def first_breaks(job):
        error = next(outcomes)
        if error is not None:
            raise error

    with pyq.Worker("held-1", handler=first_breaks, url=client.url):
        assert first.wait(WAIT) == "dead"
        assert last.state == "blocked"
        assert first.retry()
        assert first.wait(WAIT) == "completed"
    with pyq.Worker("held-2", handler=lambda job: "ran", url=client.url):
        assert last.result(WAIT) == "ran"


def test_a_running_job_adds_jobs_and_waits_for_them(client, worker):
    parent = client.queue(QUEUES[5]).add("spawn")

    assert parent.result(WAIT) == [[0, 1, 2], 1]


def test_a_flow_runs_from_its_leaves_to_its_root(client, worker):
    leaves = [pyq.Step(name, "give", n) for n, name in enumerate(QUEUES)]
    halves = [pyq.Step(QUEUES[6], "sum", children=leaves[at::2]) for at in (0, 1)]
    flow = client.flow(pyq.Step(QUEUES[7], "sum", children=halves))

    assert flow.result(WAIT) == sum(range(8))
    assert [node.job.name for node in flow] == [*["give"] * 4, "sum", *["give"] * 4, "sum", "sum"]
    tree = client.read_flow(flow.job)
    assert [len(child["children"]) for child in tree["children"]] == [4, 4]
    assert tree["children"][0]["children"][0]["state"] == "completed"


def test_a_chain_runs_in_order(client, worker):
    steps = [pyq.Step(QUEUES[n % 8], "tell") for n in range(40)]
    assert client.flow(pyq.chain(*steps)).result(WAIT) is not None


def test_a_refused_step_refuses_the_flow_and_leaves_nothing(client):
    first, second = pyq.Step("refused-1", "give"), pyq.Step("refused-2", "give")
    unknown = {"depends_on": "0197c0de-0000-7000-8000-000000000001"}
    root = pyq.Step("refused-3", "give", options=unknown, children=[first, second])

    with pytest.raises(pyq.DepUnknown):
        client.flow(root)
    for name in ("refused-1", "refused-2", "refused-3"):
        assert all(_soon(lambda name=name: not any(client.queue(name).counts().values())))


def test_no_step_runs_before_the_whole_flow_is_there(client, monkeypatch):
    """The gate is shut until the end: a worker finds nothing while steps are being added."""
    import pyq.flows as flows

    seen = []
    opened = flows._open

    def look_then_open(client, gate):
        with pyq.Worker("gated", handler=seen.append, url=client.url) as worker:
            assert worker.running
            seen.append(client.queue("gated").counts()["active"])
        opened(client, gate)

    monkeypatch.setattr(flows, "_open", look_then_open)
    flow = client.flow(pyq.Step("gated", "give", children=[pyq.Step("gated", "give")]))
    assert seen == [0]
    monkeypatch.undo()
    with pyq.Worker("gated", handler=lambda job: "ran", url=client.url):
        assert flow.result(WAIT) == "ran"


def _soon(condition, tries=200):
    """Ask until it holds."""
    for _ in range(tries):
        if condition():
            return [True]
        threading.Event().wait(0.05)
    return [condition()]
