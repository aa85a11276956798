"""Where the fetcher and the handler threads of a worker meet.

Jobs go one way, outcomes the other; no lock is taken per job. `ready` wakes one thread,
and a thread that took a job wakes the next: fast handlers are all run by a few threads.
"""

import contextlib
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from pyq.codec import pack
from pyq.context import JobContext
from pyq.errors import PyqError
from pyq.limits import ERROR_BYTES_MAX
from pyq.outcomes import Discard, Failed, Release, Retry, WaitFor
from pyq.texts import fitted
from pyq.wire import Verb

if TYPE_CHECKING:
    from pyq.client import Client

Handler: TypeAlias = Callable[[JobContext], Any]
# context, verb, item of the verb's body, bytes of it that count against a message
Note: TypeAlias = tuple[JobContext, Verb, tuple[Any, ...], int]

ENDINGS = frozenset((Verb.ACK, Verb.FAIL, Verb.RELEASE, Verb.BLOCK))
_BY_BACKOFF = -1


class Handoff:
    """Jobs to run, what became of them, and a pipe that wakes the fetcher."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._client: Client | None = None
        self._making = threading.Lock()
        self.ready: SimpleQueue[JobContext | None] = SimpleQueue()
        self.notes: deque[Note] = deque()
        self.asleep = False  # set by the fetcher before it waits
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def work(self, handler: Handler) -> None:
        """Run jobs until a None comes. The body of each handler thread."""
        get, note, empty = self.ready.get, self.notes.append, self.ready.empty
        while (context := get()) is not None:
            # One that timed out or was taken back before its turn came is not run any more.
            unwanted = context.settled or context.cancel_requested
            note(_not_run(context) if unwanted else attempt(handler, context))
            # While jobs wait for a thread the fetcher has no reason to hurry.
            if self.asleep and empty():
                self.wake()

    @property
    def client(self) -> "Client":
        """A client for handlers, made at its first use; each thread has its own connection."""
        with self._making:
            if self._client is None:
                from pyq.client import Client

                self._client = Client(self._url)
            return self._client

    def tell(self, context: JobContext, verb: Verb, item: tuple[Any, ...], size: int = 0) -> None:
        """Pass on what a handler says while it runs."""
        self.notes.append((context, verb, item, size))
        if self.asleep:
            self.wake()

    def wake(self) -> None:
        """Make the fetcher's poll return. Callable from any thread and from signal handlers."""
        self.asleep = False
        with contextlib.suppress(BlockingIOError, OSError):  # full, or closed: nobody waits
            os.write(self._write_fd, b"x")

    def drain(self) -> None:
        """Empty the pipe after a poll."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 256)) == 256:
                pass

    def close(self) -> None:
        """Close the pipe. The threads that are stuck in a handler can still call `wake`."""
        if self._client is not None:
            self._client.close()
        write_fd, self._write_fd = self._write_fd, -1
        os.close(write_fd)
        os.close(self.fd)


def _not_run(context: JobContext) -> Note:
    return context, Verb.RELEASE, (context.id_bytes, context.token, 0), 0


def attempt(handler: Handler, context: JobContext) -> Note:
    """Run the handler once and return how the attempt ended. Raises nothing."""
    try:
        result = handler(context)
        if result is None:
            return context, Verb.ACK, (context.id_bytes, context.token, None), 0
        packed = pack(result, "result")
        return context, Verb.ACK, (context.id_bytes, context.token, packed), len(packed)
    except BaseException as error:  # whatever a handler raises must not end the thread
        try:
            return ending_of(context, error)
        except BaseException:
            return failure(context, f"{type(error).__name__}: it cannot be shown")


def ending_of(context: JobContext, error: BaseException) -> Note:
    """Return the end of an attempt whose handler raised `error`."""
    if isinstance(error, Release):
        return context, Verb.RELEASE, (context.id_bytes, context.token, error.delay_ms), 0
    if isinstance(error, WaitFor):
        return context, Verb.BLOCK, (context.id_bytes, context.token, error.ids), 0
    if isinstance(error, Discard):
        return failure(context, str(error) or "discarded", unrecoverable=True)
    if isinstance(error, Retry):
        return failure(context, str(error), retry_in_ms=error.delay_ms)
    if isinstance(error, Failed):
        return _failed_with_result(context, error)
    sentence = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return failure(context, sentence, _traceback_of(error))


def failure(
    context: JobContext,
    error: str,
    trace: str = "",
    result: bytes | None = None,
    unrecoverable: bool = False,
    retry_in_ms: int = _BY_BACKOFF,
) -> Note:
    """Return a FAIL; its texts are cut to what the protocol takes."""
    item = (
        context.id_bytes,
        context.token,
        fitted(error, ERROR_BYTES_MAX),
        fitted(trace, ERROR_BYTES_MAX, keep_end=True),
        result,
        unrecoverable,
        retry_in_ms,
    )
    return context, Verb.FAIL, item, 2 * ERROR_BYTES_MAX + len(result or b"")


def _failed_with_result(context: JobContext, error: Failed) -> Note:
    try:
        result = None if error.result is None else pack(error.result, "result")
    except PyqError as refusal:
        return failure(context, f"{error} (and its result was not kept: {refusal})")
    return failure(context, str(error), result=result)


def _traceback_of(error: BaseException) -> str:
    own = error.__traceback__
    theirs = own.tb_next if own is not None else None  # without the frame of `attempt`
    return "".join(traceback.format_exception(type(error), error, theirs))
