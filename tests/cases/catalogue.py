"""Which of the 76 cases are tested: `python -m tests.cases.catalogue` prints the report.

The cases were retold from public reports by people who ran a queue; C01 to C76 are their
numbers in that collection. A case is a test `test_cNN_...`, or it stands here with a reason.
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

CASES = [f"C{number:02}" for number in range(1, 77)]

# What the product does not have (yet).
NOT_OFFERED = {
    "C16": "dependencies: not built yet (a result is kept until its dependents ran)",
    "C17": "dependencies: not built yet (a child that fails for good)",
    "C18": "dependencies: not built yet (a child that is removed)",
    "C19": "dependencies: not built yet (on a job that is finished and gone)",
    "C20": "dependencies: not built yet (a circle)",
    "C73": "webhooks: not built yet (addresses inside the network)",
}

# Offered, and no test in this folder yet: mostly processes, sockets, files, speed.
LATER = {
    "C33": "I, shutdown: a warm shutdown finishes and acks",
    "C34": "I, shutdown: one process killed, the rest goes on, no clean exit code",
    "C48": "O, memory: thousands of queues",
    "C49": "O, files: lease and release do not grow the log",
    "C50": "P, network: a half-open link",
    "C51": "P, network: a reader that stops reading",
    "C52": "P, network: fork after connecting",
    "C53": "Q, shell: output that is not UTF-8",
    "C54": "Q, shell: a grandchild keeps the pipe",
    "C55": "Q, shell: a kill reaches the whole tree",
    "C56": "Q, shell: SIGTERM is ignored",
    "C57": "Q, shell: ten megabytes of output",
    "C58": "Q, shell: death by signal",
    "C59": "Q, shell: no zombies",
    "C60": "Q, shell: commands that read their input",
    "C61": "Q, shell: quotes, newlines, leading dashes",
    "C62": "R, start: two first starts",
    "C63": "R, start: a stale or empty PID file",
    "C64": "R, disk: full, then not",
    "C65": "S, kills: workers and cluster at once",
    "C66": "S, files: a damaged log",
    "C67": "S, files: acknowledged means on disk",
    "C68": "S, files: somebody else reads the file",
    "C69": "S, peers: the router restarts",
    "C70": "S, peers: a shard with a new identity",
    "C71": "S, peers: the server forgot the worker",
    "C72": "S, peers: hostile lengths",
    "C74": "S, batches: the same entry twice",
    "C75": "S, batches: one of ten fails",
    "C76": "S, disk: a large delayed backlog",
}

# What the tests of a case leave out, or do otherwise than it says.
PARTLY = {
    "C01": "docs have the formula, not the case's table",
    "C02": "the cost of one call is not measured",
    "C04": "a killed worker is one that is never heard again",
    "C06": "listings are by acceptance, not by priority; one by one 5,000 jobs are drained",
    "C08": "time is simulated; the cost of an idle cluster is not measured",
    "C09": "no work of the shard's own is counted instead of its CPU time",
    "C10": "no work of the shard's own is counted instead of its CPU time",
    "C11": "`doctor` does not exist; the invariants checked after every turn know no orphan key",
    "C12": "five clients take turns; they do not push at the same moment",
    "C13": "12,000 ids instead of 60,000",
    "C14": "that docs show the difference is not checked",
    "C15": "killed workers are never heard again; of processes only the shard's restart is real",
    "C23": "time is simulated",
    "C24": "simulated; live it is in tests/integration/test_cron_live.py",
    "C25": "time is simulated; the clusters' processes are shards and a coordinator in memory",
    "C26": "time is simulated",
    "C29": "time is simulated; the warning is in the coordinator's answer to a probe",
    "C30": "a stopped worker is one that is not heard meanwhile",
    "C31": "live: three jobs of twice the lease, each in a loop that never sleeps",
    "C36": "memory and latencies are not measured",
    "C38": "no HTTP is offered",
    "C39": "metrics do not exist yet",
    "C40": "live: ten rounds in one order; the random orders are simulated",
    "C41": "time is simulated",
    "C42": "a killed worker is one that is never heard again",
    "C43": "without blocked jobs, and without a job of a schedule",
    "C44": "counts are read from the file, since `doctor --counts` does not exist",
    "C45": "that the default is documented is not checked",
    "C46": "no subscriber on a real cluster",
}

_FOLDER = Path(__file__).parent


class Promise(NamedTuple):
    """What a test says; `broken` if some or all of it is expected to fail today."""

    text: str
    broken: bool


def promises() -> dict[str, list[Promise]]:
    """Return the promises that tests in this folder look at, by case."""
    found: dict[str, list[Promise]] = {}
    for path in sorted(_FOLDER.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_c"):
                number = node.name.removeprefix("test_").split("_")[0].upper()
                text = (ast.get_docstring(node) or "").split("\n")[0]
                broken = any("xfail" in ast.unparse(mark) for mark in node.decorator_list)
                found.setdefault(number, []).append(Promise(text, broken))
    return dict(sorted(found.items()))


def report() -> str:
    """Return one line per promise, and per case that has none."""
    found = promises()
    lines = []
    for case in CASES:
        for promise in found.get(case, []):
            lines.append(
                f"{case}  {'BROKEN     ' if promise.broken else 'kept       '}  {promise.text}"
            )
        if case in PARTLY:
            lines.append(f"{case}  left out     {PARTLY[case]}")
        if case in NOT_OFFERED:
            lines.append(f"{case}  not offered  {NOT_OFFERED[case]}")
        if case in LATER:
            lines.append(f"{case}  later        {LATER[case]}")
    broken = sum(any(promise.broken for promise in about) for about in found.values())
    lines.append(
        f"{len(found)} cases tested ({broken} of them broken in part), {len(NOT_OFFERED)} not"
        f" offered, {len(LATER)} later, of {len(CASES)}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
