"""Which processes belong to a command, and their end.

A command leads a session of its own. Its members are whoever is still in that session,
and their descendants: `timeout` and `set -m` leave the process group, not the session.
A process that called setsid() and lost its parent is nobody's member any more.
Linux only: reads /proc. Knows nothing of jobs.
"""

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4  # in a process's flags: it runs no more code of its own
_LOOK_AGAIN_S = 0.002  # between two looks at processes that were just killed


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    started: int  # clock ticks since boot: with the pid it names a process for good
    alive: bool  # false: a zombie, or about to become one


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, so that it can find and reap them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def look_at(pid: int) -> Process | None:
    """Return what the process table says of `pid`, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses itself: what follows the last one.
    fields = line[line.rindex(b")") + 2 :].split()
    alive = fields[0] not in b"ZX" and not int(fields[6]) & _PF_EXITING
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), alive)


def may_have_orphans(known: Collection[int]) -> bool:
    """Return whether this process has children besides the `known` ones, as far as it can tell.

    Spares a look at the whole process table after each command; true where the kernel
    doesn't offer the list. Counts the children of the main thread only.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return any(int(pid) not in known for pid in file.read().split())
    except FileNotFoundError:
        return True


def reap_orphans(known: Collection[int]) -> bool:
    """Reap adopted processes that have ended; return whether there are any children left.

    A zombie of `known` stays, and may hide others from us until its owner reaps it.
    """
    try:
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in known:
                return True
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return False


def members(sessions: Collection[int], known: Collection[Process] = ()) -> list[Process]:
    """Return all living processes of the sessions, and of what was `known` to belong to them.

    A process that left its session is found through its parent; once that is dead only
    somebody who saw it before can tell whose it is.
    """
    table = list(_table())
    seen = {(process.pid, process.started) for process in known}
    found = {
        process.pid
        for process in table
        if process.session in sessions or (process.pid, process.started) in seen
    }
    while True:
        more = {process.pid for process in table if process.parent in found} - found
        if not more:
            break
        found |= more
    return [process for process in table if process.alive and process.pid in found]


def signal_sessions(
    sessions: Collection[int], number: int, known: Collection[Process] = ()
) -> list[Process]:
    """Send a signal to all members once; return whom it was sent to."""
    found = members(sessions, known)
    # The command first: else its children's end would look to it like the end of its work.
    for process in sorted(found, key=lambda process: (process.pid not in sessions, process.pid)):
        _send(process.pid, number)
    return found


def kill_sessions(
    sessions: Collection[int], patience_s: float = 1.0, known: Collection[Process] = ()
) -> int:
    """Kill all members and wait until none lives, at most `patience_s`; return how many.

    Looks more than once: a process may fork between the look and the signal.
    """
    killed = set(known)
    pids: set[int] = set()
    until = time.monotonic() + patience_s
    while sessions:
        found = signal_sessions(sessions, signal.SIGKILL, killed)
        killed.update(found)
        pids.update(process.pid for process in found)
        if not found or time.monotonic() > until:
            break
        time.sleep(_LOOK_AGAIN_S)
    return len(pids)


def _table() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = look_at(int(name))
            if process is not None:
                yield process


def _send(pid: int, number: int) -> None:
    # It may have just ended, or changed its user (sudo): then we are not allowed to.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
