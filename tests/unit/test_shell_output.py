"""Output of shell jobs: the cut in its middle, and text out of any bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.shell.output import Capture, as_bytes, as_text
from pyq.limits import OUTPUT_BYTES_MAX


def captured(*pieces: bytes, bytes_max: int = 10) -> tuple[bytes, int]:
    capture = Capture(bytes_max)
    for piece in pieces:
        capture.write(piece)
    return capture.close()


def test_output_up_to_the_bound_is_kept_whole():
    whole = b"x" * (OUTPUT_BYTES_MAX - 1) + b"y"

    assert captured(whole, bytes_max=OUTPUT_BYTES_MAX) == (whole, 0)


def test_one_byte_over_the_bound_cuts_one_byte_out_of_the_middle():
    assert captured(b"01234Z56789") == (b"01234\n[... 1 bytes cut ...]\n56789", 1)


@given(st.lists(st.binary(max_size=40)))
def test_head_and_tail_stay_however_the_output_arrives(pieces):
    ascii_pieces = [bytes(byte % 128 for byte in piece) for piece in pieces]
    written = b"".join(ascii_pieces)

    kept, cut_count = captured(*ascii_pieces)

    if len(written) <= 10:
        assert (kept, cut_count) == (written, 0)
    else:
        assert kept.startswith(written[:5])
        assert kept.endswith(written[-5:])
        assert cut_count == len(written) - 10


def test_memory_stays_near_the_bound():
    capture = Capture(1_000)
    for _ in range(1_000):
        capture.write(b"z" * 700)
        assert len(capture._head) + len(capture._tail) <= 1_500


@pytest.mark.parametrize("char", ["ü", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_cut_does_not_tear_a_character_apart(char, shift):
    written = (b"a" * shift + char.encode() * 20)[:]

    kept, cut_count = captured(written)

    text, escaped = as_text(kept)
    assert not escaped
    mark = f"\n[... {cut_count} bytes cut ...]\n"
    head, tail = text.split(mark)
    assert len(head.encode()) + len(tail.encode()) + cut_count == len(written)


def test_utf8_stays_as_it_is():
    assert as_text("grün \0 \\ 😀\x1b[0m".encode()) == ("grün \0 \\ 😀\x1b[0m", False)


def test_other_bytes_are_shown_escaped():
    assert as_text(b"\xff\xfe\xc0abc \\ gr\xc3\xbcn") == (r"\xff\xfe\xc0abc \\ grün", True)


@given(st.binary())
def test_the_bytes_can_always_be_had_back_and_json_takes_the_text(raw):
    text, escaped = as_text(raw)

    assert as_bytes(text, escaped) == raw
    assert json.loads(json.dumps(text)) == text
    text.encode()


@given(st.lists(st.sampled_from([b"\\", b"x", b"f", b"\xff", b"\xc3", b"\xbc", b"\\xff"])))
def test_backslashes_in_the_output_are_not_taken_for_escapes(pieces):
    raw = b"".join(pieces)

    assert as_bytes(*as_text(raw)) == raw


def test_a_mebibyte_of_each_stream_is_kept():
    assert OUTPUT_BYTES_MAX == 1 << 20, "docs/shell-jobs.md promises it"
