"""Hypothesis profiles: `ci` always draws the same examples, `explore` new ones every time.

Choose with `pytest --hypothesis-profile=explore`. This file lies beside the packages, not in
`tests/`, because pytest puts its folder on the import path, and `tests/` holds folders of the
packages' names.
"""

from importlib.util import find_spec

from hypothesis import settings

# Flower need not be installed; without it, its room and its example cannot be imported.
collect_ignore_glob = (
    [] if find_spec("flwr") else ["*/net/flower/*", "*/examples/flower/*", "*/deltafl/flower.py"]
)

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("ci")
