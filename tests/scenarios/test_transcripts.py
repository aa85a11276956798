"""Each transcript is what a shard says and writes, to the letter; support/transcripts.py plays it.

`WRITE_TRANSCRIPTS=1 pytest tests/scenarios/test_transcripts.py` writes them anew: on purpose, and
then every line of the difference is to be read.
"""

import os
from pathlib import Path

import pytest

from tests.support.transcripts import replay

FOLDER = Path(__file__).parent / "transcripts"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_transcript_is_what_it_replays_to(file):
    text = file.read_text()
    played = replay(text)
    if os.environ.get("WRITE_TRANSCRIPTS"):
        file.write_text(played)
    else:
        assert played == text


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_transcript_opens_with_what_it_shows(file):
    first = file.read_text().split("\n\n")[0]
    assert first.startswith("# ")
    assert first.endswith(".")
