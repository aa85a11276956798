"""The payload codec: what an application passes as `data` or returns, as bytes and back.

Owns which types travel (README of the format: `docs/python.md`) and the sentences that
name the field which does not. The cluster never looks inside these bytes.
"""

import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack

from pyq.errors import PayloadError, TooLarge
from pyq.limits import PAYLOAD_BYTES_MAX

DEPTH_MAX = 500  # levels of nesting; msgpack itself stops at 511

# Extension types of msgpack. The numbers are in stored payloads: never reuse one.
_DATETIME, _DATE, _UUID, _DECIMAL, _TIMEDELTA, _SET, _FROZENSET = range(1, 8)


def pack(value: Any, what: str = "data", bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """Return `value` as bytes: None, bool, int, float, str, bytes, list, tuple, dict, set,
    aware datetime, date, timedelta, UUID and Decimal, nested up to 500 levels.

    A tuple comes back as a list. `what` names the value in errors: PayloadError says which
    field cannot be packed and why, TooLarge that more than `bytes_max` bytes came out.
    """
    try:
        packed: bytes = _codec.pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError, PayloadError) as error:
        _codec.renew()  # a packer that failed half-way is not reused
        _explain(value, what, DEPTH_MAX)
        raise PayloadError(f"{what}: cannot be packed: {error}") from None
    if len(packed) > bytes_max:
        raise TooLarge(f"{what} has {len(packed)} bytes packed, the limit is {bytes_max}")
    return packed


def unpack(packed: bytes, what: str = "data") -> Any:
    """Return the value that `pack` made into bytes, or raise PayloadError."""
    try:
        return msgpack.unpackb(packed, strict_map_key=False, ext_hook=_from_ext)
    except TypeError:
        return _unpack_with_tuple_keys(packed, what)
    except Exception as error:  # msgpack raises seven unrelated types on foreign bytes
        raise PayloadError(f"{what} cannot be unpacked: {_reason(error)}") from None


def _unpack_with_tuple_keys(packed: bytes, what: str) -> Any:
    """Unpack a map whose keys were tuples, which come as lists and cannot be keys."""
    try:
        return msgpack.unpackb(
            packed, strict_map_key=False, ext_hook=_from_ext, object_pairs_hook=_dict_of_pairs
        )
    except Exception as error:
        raise PayloadError(f"{what} cannot be unpacked: {_reason(error)}") from None


def _dict_of_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): value for key, value in pairs}


def _hashable(value: Any) -> Any:
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --- types beyond msgpack's own ---------------------------------------------------------------


def _to_ext(value: Any) -> Any:
    """Return what stands for a value msgpack does not know, or raise TypeError."""
    for kind, code, encode in _ENCODERS:
        if isinstance(value, kind):
            return msgpack.ExtType(code, encode(value))
    if isinstance(value, int):
        raise OverflowError
    raise TypeError(f"cannot pack {type(value)!r}")


def _datetime_bytes(value: datetime) -> bytes:
    if value.utcoffset() is None:
        raise PayloadError("a datetime needs a time zone (tzinfo)")
    return value.isoformat().encode()


def _timedelta_bytes(value: timedelta) -> bytes:
    return _nested([value.days, value.seconds, value.microseconds])


def _nested(value: list[Any]) -> bytes:
    packed: bytes = msgpack.Packer(default=_to_ext).pack(value)
    return packed


_ENCODERS: tuple[tuple[type, int, Callable[[Any], bytes]], ...] = (
    (datetime, _DATETIME, _datetime_bytes),
    (date, _DATE, lambda value: value.isoformat().encode()),
    (UUID, _UUID, lambda value: value.bytes),
    (Decimal, _DECIMAL, lambda value: str(value).encode()),
    (timedelta, _TIMEDELTA, _timedelta_bytes),
    (set, _SET, lambda value: _nested(list(value))),
    (frozenset, _FROZENSET, lambda value: _nested(list(value))),
)


def _from_ext(code: int, data: bytes) -> Any:
    decode = _DECODERS.get(code)
    if decode is None:
        raise ValueError(f"extension type {code} is not known here")
    return decode(data)


def _members(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False, use_list=False, ext_hook=_from_ext)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _DATETIME: lambda data: datetime.fromisoformat(data.decode()),
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _UUID: lambda data: UUID(bytes=data),
    _DECIMAL: lambda data: Decimal(data.decode()),
    _TIMEDELTA: lambda data: timedelta(*_members(data)),
    _SET: lambda data: set(_members(data)),
    _FROZENSET: lambda data: frozenset(_members(data)),
}


class _Codec(threading.local):
    """One packer a thread: a packer is no place for two threads to meet."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.pack = msgpack.Packer(default=_to_ext, autoreset=True).pack


_codec = _Codec()


# --- which field is it? -----------------------------------------------------------------------


def _explain(value: Any, path: str, depth: int) -> None:
    """Raise PayloadError with the path of the first part of `value` that cannot be packed."""
    if depth == 0:
        raise PayloadError(
            f"{_shortened(path)}: nested deeper than {DEPTH_MAX} levels (or it contains itself)"
        )
    if isinstance(value, dict):
        for key, item in value.items():
            _explain_leaf(key, f"{path}: key {_quoted(key)}")
            _explain(item, path + _step(key), depth - 1)
        return
    if isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            _explain(item, f"{path}[{index}]", depth - 1)
        return
    _explain_leaf(value, path)


def _explain_leaf(value: Any, path: str) -> None:
    try:
        msgpack.Packer(default=_to_ext).pack(value)
    except PayloadError as error:
        raise PayloadError(f"{_shortened(path)}: {error}") from None
    except OverflowError:
        raise PayloadError(f"{_shortened(path)}: whole numbers go from -2**63 to 2**64-1") from None
    except UnicodeEncodeError:
        raise PayloadError(
            f"{_shortened(path)}: the text contains a lone surrogate, which UTF-8 cannot carry"
        ) from None
    except (TypeError, ValueError, RecursionError):
        raise PayloadError(f"{_shortened(path)}: cannot pack {type(value)!r}") from None


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_quoted(key)}]"


def _quoted(key: Any) -> str:
    return ascii(key)[:60]


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:100]} ... {path[-80:]}"
