"""What a command writes: kept up to a bound, and made into text.

Owns the cut (head and tail stay, a mark says how much is missing) and the escaping of
output that is not UTF-8. Reads no pipes; `runner.py` does.
"""

import re

_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")
_CHARACTER_BYTES_MAX = 4  # of UTF-8


class Capture:
    """The first and the last half of a bound; what lies between is counted and dropped."""

    __slots__ = ("_half", "_head", "_tail", "_written")

    def __init__(self, bytes_max: int) -> None:
        self._half = bytes_max // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._written = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._written += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed only now and then: each trim moves half the bound.
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def close(self) -> tuple[bytes, int]:
        """Return what is kept, and how many bytes were cut out of its middle."""
        if self._written <= 2 * self._half:
            return bytes(self._head + self._tail), 0
        head = _without_torn_end(bytes(self._head))
        tail = _without_torn_start(bytes(self._tail[-self._half :]))
        cut_count = self._written - len(head) - len(tail)
        return head + b"\n[... %d bytes cut ...]\n" % cut_count + tail, cut_count


def as_text(raw: bytes) -> tuple[str, bool]:
    r"""Return output as text, and whether it had to be escaped.

    UTF-8 stays as it is, NULs included. In anything else each byte that does not fit is
    written \xNN and each backslash is doubled: `as_bytes` gives the bytes back exactly.
    """
    try:
        return raw.decode(), False
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace"), True


def as_bytes(text: str, escaped: bool) -> bytes:
    """Return the bytes that `as_text` was given."""
    raw = text.encode()
    if not escaped:
        return raw
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", raw)


def _without_torn_end(head: bytes) -> bytes:
    """Drop the start of a character whose end was cut: the cut must not make text unreadable."""
    for back in range(1, min(_CHARACTER_BYTES_MAX, len(head) + 1)):
        byte = head[-back]
        if byte < 0x80:
            return head
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return head[:-back] if length > back else head
    return head


def _without_torn_start(tail: bytes) -> bytes:
    for start in range(min(_CHARACTER_BYTES_MAX, len(tail))):
        if not 0x80 <= tail[start] < 0xC0:
            return tail[start:]
    return tail
