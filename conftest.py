"""Hypothesis profiles: `ci` always draws the same examples, `explore` new ones every time.

Choose with `pytest --hypothesis-profile=explore`. This file lies beside the packages, not in
`tests/`, because pytest puts its folder on the import path, and `tests/` holds folders of the
packages' names.
"""

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("ci")
