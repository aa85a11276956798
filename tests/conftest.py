"""Profiles of hypothesis, and nothing else.

`HYPOTHESIS_PROFILE=nightly pytest` looks further. A failure prints the line that replays it.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", settings.get_profile("ci"), derandomize=False)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
