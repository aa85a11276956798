"""Text as the protocol takes it: valid UTF-8 of a bounded length."""

_MARK = b" [cut] "


def fitted(text: str, bytes_max: int, keep_end: bool = False) -> str:
    """Return `text` as valid UTF-8 of at most `bytes_max` bytes, with a mark where it was cut."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    kept = bytes_max - len(_MARK)
    cut = _MARK + encoded[-kept:] if keep_end else encoded[:kept] + _MARK
    return cut.decode("utf-8", "ignore")
