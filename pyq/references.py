"""Jobs as applications name them: a handle, an id as text, or several of either."""

from collections.abc import Iterable
from typing import Any

from pyq.errors import BadOption
from pyq.ids import id_from_text
from pyq.options import shown


def dependency_ids(value: Any, option: str = "depends_on") -> list[bytes]:
    """Return the ids of jobs given as handles or as texts. Raises BadOption."""
    given = [value] if isinstance(value, str) or hasattr(value, "id_bytes") else value
    if not isinstance(given, Iterable):
        raise BadOption(f"{option} {shown(value)} is neither a Job nor an id, nor a list of them")
    ids: list[bytes] = []
    for item in given:
        id_bytes = id_from_text(item) if isinstance(item, str) else getattr(item, "id_bytes", None)
        if id_bytes is None:
            raise BadOption(
                f"{option} {shown(item)} is neither a Job nor the id of one; "
                "queue.get(...) finds a job by its custom id"
            )
        ids.append(id_bytes)
    return ids
