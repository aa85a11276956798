"""Bugs that somebody could write into the core, each as one change of its text.

`python -m tests.planted` plants them one by one into a copy of the project and shows which
test finds each. A bug that no test finds is a hole in the tests.
"""

from typing import NamedTuple


class Bug(NamedTuple):
    """A change of one file, and what is wrong with it."""

    wrong: str
    file: str
    before: str
    after: str


BUGS = [
    Bug(
        "an ack with any token completes the job",
        "shardnode/core/operations/settle.py",
        "            if lease is not None and lease.token == token:\n                if job.cancel",
        "            if lease is not None:\n                if job.cancel",
    ),
    Bug(
        "a unique key is free while its job waits for the next attempt",
        "shardnode/core/operations/settle.py",
        "    job.failures += 1\n",
        "    job.failures += 1\n    job.queue.unique.pop(job.options.unique, None)\n",
    ),
    Bug(
        "whoever waits for the result of a cancelled job is forgotten",
        "shardnode/core/lifecycle.py",
        '    answer_waiting(state, job.id, [verdict.word, None, ""], effects)\n',
        "",
    ),
    Bug(
        "the first sweep that finds a lease silent takes the job away",
        "shardnode/core/operations/sweep.py",
        "        elif lease.suspect:\n",
        "        elif lease.suspect or True:\n",
    ),
    Bug(
        "a job may stall once less than its queue says",
        "shardnode/core/operations/sweep.py",
        "    exhausted = job.stalls > job.queue.settings.max_stalls\n",
        "    exhausted = job.stalls >= job.queue.settings.max_stalls\n",
    ),
    Bug(
        "the rate limit forgets a lease one millisecond early",
        "shardnode/core/state.py",
        "mono_ms - grants[0][0] > per_ms:",
        "mono_ms - grants[0][0] >= per_ms:",
    ),
    Bug(
        "a group does not go on when one of its jobs dies",
        "shardnode/core/lifecycle.py",
        "    if job.options.group:\n        leave(state, job, before)\n    if job.options.unique:\n"
        "        release_key(job, False, effects)\n    if job.options.edges:",
        "    if job.options.unique:\n        release_key(job, False, effects)\n"
        "    if job.options.edges:",
    ),
    Bug(
        "a released job has lost an attempt",
        "shardnode/core/lifecycle.py",
        "    job.attempt -= 1\n    if delay_ms > 0:",
        "    if delay_ms > 0:",
    ),
    Bug(
        "a key that is held for a time is free after a restart",
        "shardnode/core/recovery.py",
        "        queue.timed_keys[key] = timed\n",
        "        timed = timed._replace(until=0)\n",
    ),
    Bug(
        "a job that was leased before still expires",
        "shardnode/core/timers.py",
        "    return job.may_expire and job.state in",
        "    return job.state in",
    ),
    Bug(
        "a freed slot wakes nobody",
        "shardnode/core/lifecycle.py",
        "            if queue.limited:\n                wake(state, queue)\n",
        "",
    ),
    Bug(
        "after a restart the oldest of the newest-first jobs stands first",
        "shardnode/core/recovery.py",
        "    waiting.sort(key=lambda job: job.ready)\n",
        "    waiting.sort(key=lambda job: abs(job.ready))\n",
    ),
    Bug(
        "a repeated push is accepted again",
        "shardnode/core/operations/push.py",
        "            special = repeated or bool(",
        "            special = bool(",
    ),
    Bug(
        "a cancelled active job goes back to the line when its lease ends",
        "shardnode/core/operations/sweep.py",
        "    if job.cancel_requested:\n"
        "        remove(state, job, Verdict.CANCELLED, now, effects)\n        return\n",
        "",
    ),
    Bug(
        "log lines of a repeat are written again",
        "shardnode/core/operations/reports.py",
        "            if number > detail.lines_taken:\n",
        "            if True:\n",
    ),
    Bug(
        "a completed job is forgotten in its first minute",
        "shardnode/core/retention.py",
        "    youngest = now.wall_ms - COMPLETED_MS_MIN\n",
        "    youngest = now.wall_ms + 1_000\n",
    ),
    Bug(
        "a dependent that is added when the answer was given waits in vain",
        "shardnode/core/dependencies.py",
        "        if not awaited.asked and not",
        "        if len(awaited.jobs) == 1 and not",
    ),
    Bug(
        "dependents beyond the budget of a turn are forgotten",
        "shardnode/core/dependencies.py",
        "        if not ended.left:\n            state.fallout.popleft()",
        "        state.fallout.popleft()",
    ),
    Bug(
        "a dependent that is held runs when its dependency is dead",
        "shardnode/core/dependencies.py",
        '    if job.options.on_dep_fail != "ignore":\n        return settled',
        '    if job.options.on_dep_fail == "fail":\n        return settled',
    ),
    Bug(
        "nobody over there hears that the last dependent has ended",
        "shardnode/core/dependencies.py",
        "            post(state, shard_of_job(state, dep_id), Row(UNWATCH, dep_id), effects)\n",
        "            pass\n",
    ),
    Bug(
        "rows for other shards leave before they are on the disk",
        "shardnode/core/operations/relay.py",
        "    effects.sync = True\n",
        "",
    ),
    Bug(
        "rows of another shard are confirmed before they are on the disk",
        "shardnode/core/operations/relay.py",
        "    effects = Effects(sync=True)\n",
        "    effects = Effects()\n",
    ),
    Bug(
        "rows that come after a gap are applied",
        "shardnode/core/operations/relay.py",
        "    if command.first > received + 1:\n",
        "    if False:\n",
    ),
    Bug(
        "a dependency that ended before a start is not asked about after it",
        "shardnode/core/recovery.py",
        "    state.rewatch_at = now.mono_ms\n",
        "    state.rewatch_at = now.mono_ms + 600_000\n",
    ),
    Bug(
        "a record that dependents need is forgotten with the others",
        "shardnode/core/retention.py",
        "        seqs = [seq for seq in seqs if seq not in state.pinned]\n",
        "",
    ),
    Bug(
        "a retried dependent forgets which of its dependencies completed",
        "shardnode/core/operations/deadletters.py",
        "bytes(DONE if verdict == DONE else 0 for _, verdict in known)",
        "bytes(len(known))",
    ),
    Bug(
        "a running parent is charged for waiting for its dependencies",
        "shardnode/core/lifecycle.py",
        "    job.attempt -= 1\n    _move(job, BLOCKED)",
        "    _move(job, BLOCKED)",
    ),
    Bug(
        "a target without an answer holds up all dependents",
        "cluster/coordinator/relay.py",
        "            self._due_ms = now_ms + PATIENCE_MS\n",
        "            self._due_ms = now_ms + 10 * DELIVER_MS\n",
    ),
]
