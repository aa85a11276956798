"""The data directory: who may use it, and what it says about its cluster.

Owns DATA/meta.json (cluster, shard count, format), the lock DATA/LOCK and the short private
runtime folder that holds the sockets. What is inside DATA/shard-N belongs to the shards.
"""

import errno
import fcntl
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.refusals import CannotStart
from cluster.topology import is_shard_count
from pyq.process import ExitCode

FORMAT = 1  # of the data directory; a newer one is refused
LOCK_RETRY_MS = 2_000  # how long to wait for a holder that seems to be dead already
_LOCK_POLL_S = 0.01
_INFO_BYTES_MAX = 4_096
_SOCKET_PATH_MAX = 107  # bytes of sun_path
_SOCKET_NAME_MAX = len("/coordinator.sock")  # none is longer


@dataclass(frozen=True, slots=True)
class Identity:
    """What meta.json says."""

    cluster: str
    shards: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lock file says about its holder: information, never a proof."""

    pid: int = 0
    url: str = ""
    runtime: str = ""


@dataclass(slots=True)
class DataDir:
    """A data directory that this process holds the lock of."""

    path: Path
    runtime: Path
    identity: Identity
    lock_fd: int
    runtime_fd: int = -1

    def release(self) -> None:
        """Give the lock back after a clean stop, and remove the runtime folder."""
        _remove_runtime(self.runtime)
        os.close(self.runtime_fd)
        os.ftruncate(self.lock_fd, 0)
        os.close(self.lock_fd)


# --- taking a directory into use ----------------------------------------------------------------


def open_for_supervisor(path: Path, shards: int | None, cpu_shards: int, url: str) -> DataDir:
    """Lock the data directory for one supervisor; create what is missing.

    `shards` is what the operator asked for (None: what is stored, else `cpu_shards`).
    Raises CannotStart with a sentence.
    """
    with _explained(path):
        path = _make_folder(path)
        lock_fd = _open_lock(path, os.O_CLOEXEC)
        try:
            _take_exclusively(lock_fd, path)
            identity = _identity(path, shards, cpu_shards)
            runtime = prepare_runtime(runtime_of(path))
            runtime_fd = _keep_from_tidying(runtime)
            _write_holder(lock_fd, Holder(os.getpid(), url, str(runtime)))
        except BaseException:
            os.close(lock_fd)
            raise
    return DataDir(path, runtime, identity, lock_fd, runtime_fd)


def open_for_one_process(path: Path, shards: int | None, cpu_shards: int) -> DataDir:
    """Share the data directory with the other processes of a Procfile, but with no supervisor.

    The lock survives an exec: it is held for as long as the process lives.
    """
    with _explained(path):
        path = _make_folder(path)
        lock_fd = _open_lock(path, 0)
        os.set_inheritable(lock_fd, True)
        try:
            if not _try_lock(lock_fd, fcntl.LOCK_SH):
                raise _held(path, _read_holder(lock_fd))
            identity = _identity(path, shards, cpu_shards)
            runtime = prepare_runtime(runtime_of(path))
        except BaseException:
            os.close(lock_fd)
            raise
    return DataDir(path, runtime, identity, lock_fd)


# --- looking at one from outside ----------------------------------------------------------------


def find_holder(path: Path) -> Holder | None:
    """Return who holds the data directory, or None if nobody does (or it is not there)."""
    try:
        lock_fd = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _try_lock(lock_fd, fcntl.LOCK_SH):
            # Granted beside other shared holders too: those are single processes, no supervisor.
            return None
        return _read_holder(lock_fd)
    finally:
        os.close(lock_fd)


def runtime_of(path: Path) -> Path:
    """Return the runtime folder of a data directory: short, private, the same for every process."""
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and _is_private_folder(Path(base)):
        candidate = Path(base) / f"pyq-{digest}"
        if len(os.fsencode(candidate)) + _SOCKET_NAME_MAX <= _SOCKET_PATH_MAX:
            return candidate
    return Path(f"/tmp/pyq-{os.getuid()}-{digest}")


def prepare_runtime(runtime: Path) -> Path:
    """Create the runtime folder if it is missing and check that nobody else can use it."""
    runtime.mkdir(mode=0o700, exist_ok=True)
    if not _is_private_folder(runtime):
        raise CannotStart(
            ExitCode.IO,
            f"the runtime folder {runtime} is not a private folder (mode 0700) of this user; "
            "remove it and start again",
        )
    return runtime


# --- helpers ------------------------------------------------------------------------------------


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what the operating system says into one sentence with exit code 74."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        reason = os.strerror(error.errno or errno.EIO).lower()
        raise CannotStart(
            ExitCode.IO,
            f"the data directory {path} cannot be used: {where}: {reason}; "
            "choose another one with --data",
        ) from error


def _make_folder(path: Path) -> Path:
    path = path.absolute()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "", str(path))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path.resolve()


def _open_lock(path: Path, flags: int) -> int:
    return os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | flags, 0o600)


def _try_lock(lock_fd: int, kind: int) -> bool:
    try:
        fcntl.flock(lock_fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_exclusively(lock_fd: int, path: Path) -> None:
    """Take the lock; refuse at once if a living supervisor has it.

    Just after a kill -9 the kernel may still be closing the old holder's files, and a new
    holder writes its name a moment after it took the lock: both are given two seconds.
    """
    deadline = time.monotonic() + LOCK_RETRY_MS / 1_000
    seen_alive = 0  # three times in a row: a `status` that looks at the lock shares it for a moment
    while not _try_lock(lock_fd, fcntl.LOCK_EX):
        holder = _read_holder(lock_fd)
        seen_alive = seen_alive + 1 if _is_alive(holder.pid) else 0
        if seen_alive == 3 or time.monotonic() >= deadline:
            raise _held(path, holder)
        time.sleep(_LOCK_POLL_S)


def _held(path: Path, holder: Holder) -> CannotStart:
    if _is_alive(holder.pid):
        by = f"the cluster at {holder.url} (supervisor pid {holder.pid})"
        then = f"stop it with `pyq-cluster down --data {path}`"
    else:
        by = "processes started one by one with `pyq-cluster run`"
        then = "stop them first"
    return CannotStart(
        ExitCode.LOCKED,
        f"the data directory {path} is in use by {by}; {then} or choose another with --data",
    )


def _is_alive(pid: int) -> bool:
    """Whether a process with that number runs: only decides how we wait, never whom we signal."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return pid > 0 and status.rpartition(")")[2].split()[0] not in "ZX"


def _read_holder(lock_fd: int) -> Holder:
    try:
        content = json.loads(os.pread(lock_fd, _INFO_BYTES_MAX, 0))
        return Holder(int(content["pid"]), str(content["url"]), str(content["runtime"]))
    except (ValueError, KeyError, TypeError):
        return Holder()  # empty, stale or edited by hand: it is only information


def _write_holder(lock_fd: int, holder: Holder) -> None:
    content = {"pid": holder.pid, "url": holder.url, "runtime": holder.runtime}
    text = json.dumps(content).encode()
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, text + b"\n", 0)


def _identity(path: Path, shards: int | None, cpu_shards: int) -> Identity:
    """Return the stored identity, or make one; refuse what does not fit."""
    stored = _read_meta(path)
    if stored is None:
        if any(path.glob("shard-*")):
            raise CannotStart(
                ExitCode.IO,
                f"{path} has shards but no meta.json; restore that file from a backup",
            )
        stored = _create_meta(path, Identity(str(uuid.uuid4()), shards or cpu_shards))
    if shards is not None and shards != stored.shards:
        raise CannotStart(
            ExitCode.USAGE,
            f"the data directory {path} has {stored.shards} shards, not {shards}; the count is "
            "fixed at the first start: leave --shards away or choose another --data",
        )
    for shard in range(stored.shards):
        (path / f"shard-{shard}").mkdir(mode=0o700, exist_ok=True)
    return stored


def _read_meta(path: Path) -> Identity | None:
    try:
        text = (path / "meta.json").read_bytes()
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        identity = Identity(
            str(uuid.UUID(content["cluster"])), int(content["shards"]), int(content["format"])
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        identity = Identity("", 0, 0)
    if identity.format > FORMAT:
        raise CannotStart(
            ExitCode.IO,
            f"the data directory {path} was written by a newer pyq-cluster (format "
            f"{identity.format}, this one knows {FORMAT}); install that version",
        )
    if identity.format < 1 or not is_shard_count(identity.shards):
        raise CannotStart(
            ExitCode.IO, f"{path / 'meta.json'} is damaged; restore that file from a backup"
        )
    return identity


def _create_meta(path: Path, identity: Identity) -> Identity:
    """Write meta.json so that it is there as a whole or not at all; return the one that won.

    A link instead of a rename: of several processes that start at once, one is the first.
    """
    content = {
        "format": identity.format,
        "cluster": identity.cluster,
        "shards": identity.shards,
        "created_at": time.time_ns() // 1_000_000,
    }
    temporary = path / f"meta.json.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path / "meta.json")
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    _sync_folder(path)
    stored = _read_meta(path)
    assert stored is not None, "meta.json was just written"
    return stored


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_private_folder(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and private


def _keep_from_tidying(runtime: Path) -> int:
    """Hold a lock on the runtime folder: systemd-tmpfiles leaves a locked folder in /tmp alone."""
    folder = os.open(runtime, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _try_lock(folder, fcntl.LOCK_SH)
    return folder


def _remove_runtime(runtime: Path) -> None:
    for socket in runtime.glob("*.sock"):
        socket.unlink(missing_ok=True)
    with suppress(OSError):  # something else lies in it: it stays
        runtime.rmdir()
