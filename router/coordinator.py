"""The coordinator as the router sees it: an address that says ATTACH each second.

Pure. Owns who is attached and what was handed to it. The last to say ATTACH is the one:
a restarted coordinator takes over at once, and what the old one was asked is failed.
"""

from router.outstanding import Entry, Outstanding

SILENT_MS_MAX = 3_000  # three times ATTACH


class Attached:
    """The coordinator's place at the router."""

    def __init__(self) -> None:
        self.address = b""  # empty: nobody
        self.outstanding = Outstanding()
        self._seen_ms = 0

    def attach(self, address: bytes, now_ms: int) -> list[Entry] | None:
        """Take note of an ATTACH.

        Returns None if it was attached already, else what its predecessor did not answer.
        """
        self._seen_ms = now_ms
        if address == self.address:
            return None
        self.address = address
        return self.outstanding.take_all()

    def detach_if_silent(self, now_ms: int) -> list[Entry] | None:
        """Return what a coordinator left unanswered that is silent for too long, else None."""
        if not self.address or now_ms - self._seen_ms <= SILENT_MS_MAX:
            return None
        return self.detach()

    def detach(self) -> list[Entry]:
        """Forget the coordinator and return what it left unanswered."""
        self.address = b""
        return self.outstanding.take_all()
