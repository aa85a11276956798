"""The line of waiting jobs against a plain sorted list, for any order of what may happen."""

from hypothesis import given
from hypothesis import strategies as st

from pyq.job import ACTIVE, COMPLETED, WAITING
from pyq.options import Options
from shardnode.core.heap import STALE_MIN, STALE_SHARE, ReadyLine
from shardnode.core.state import Job, QueueState, new_job

QUEUE = QueueState(1, "emails")
PRIORITIES = {priority: Options(priority=priority) for priority in (-5, 0, 3, 1_000_000)}

steps = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from(list(PRIORITIES)), min_size=1, max_size=40)),
    st.tuples(st.just("take"), st.integers(1, 30), st.integers(1, 400)),
    st.tuples(st.just("put_back"), st.integers(0, 10_000)),
    st.tuples(st.just("leave"), st.integers(0, 10_000), st.integers(1, 30)),
)


class Model:
    """The same in the plainest way: a list that is sorted when somebody asks."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []

    def take(self, count: int, bytes_max: int) -> list[Job]:
        self.waiting.sort(key=lambda job: (-job.options.priority, job.ready))
        taken: list[Job] = []
        while self.waiting and len(taken) < count:
            size = sum(job.size for job in taken) + self.waiting[0].size
            if taken and size > bytes_max:
                break
            taken.append(self.waiting.pop(0))
        return taken


@given(st.lists(steps, max_size=60))
def test_the_line_is_a_sorted_list(script):
    line, model = ReadyLine(), Model()
    seq = 0
    held: list[Job] = []
    for step in script:
        if step[0] == "add":
            jobs = []
            for priority in step[1]:
                seq += 1
                size = seq * 7 % 50
                job = new_job(seq, b"", QUEUE, "", PRIORITIES[priority], size, 0, 0, WAITING)
                jobs.append(job)
            line.add(jobs)
            model.waiting += jobs
        elif step[0] == "take":
            taken = line.take(step[1], step[2])
            assert taken == model.take(step[1], step[2])
            for job in taken:
                job.state = ACTIVE
            held += taken
        elif step[0] == "put_back" and held:
            job = held.pop(step[1] % len(held))
            job.state = WAITING
            line.put_back(job)
            model.waiting.append(job)
        elif step[0] == "leave":
            for _ in range(step[2]):
                if model.waiting:
                    job = model.waiting.pop(step[1] % len(model.waiting))
                    job.state = COMPLETED
                    line.discard(job)
        assert line.count == len(model.waiting)
        stale = line.entries_count() - line.count
        assert 0 <= stale <= max(STALE_MIN, line.entries_count() // STALE_SHARE)
    rest = len(model.waiting)
    assert line.take(rest + 1, 1 << 40) == model.take(rest, 1 << 40)
    assert line.count == 0


@given(st.integers(0, 300), st.integers(0, 300))
def test_compaction_never_loses_a_job(left, stay):
    line = ReadyLine()
    options = PRIORITIES[0]
    jobs = [new_job(n + 1, b"", QUEUE, "", options, 1, 0, 0, WAITING) for n in range(left + stay)]
    line.add(jobs)
    for job in jobs[:left]:
        job.state = COMPLETED
        line.discard(job)
    assert line.take(left + stay + 1, 1 << 40) == jobs[left:]
