"""On which levels a case runs, where it is not "core" and "restarted"."""

import pytest

_LIVE = pytest.param("live", marks=pytest.mark.slow)

# No time passes in these, so a real cluster can be asked as well.
everywhere = pytest.mark.parametrize("product", ["core", "restarted", _LIVE], indirect=True)
# Nothing is stored in these, so a restart would show nothing.
refusals = pytest.mark.parametrize("product", ["core", _LIVE], indirect=True)
# Too many jobs to do it twice.
in_memory = pytest.mark.parametrize("product", ["core"], indirect=True)
on_disk = pytest.mark.parametrize("product", ["restarted"], indirect=True)
