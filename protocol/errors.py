"""Everything that `protocol` raises.

The tree::

    ProtocolError
    ├── ConfigurationError   parameters with which no round could run: the caller's mistake
    ├── EncodingError        a value its layout cannot carry, or a sum that no cohort gives
    └── SearchError          a query or an answer that cannot belong to its search

Each message names the wrong value and says what would be right.
"""


class ProtocolError(Exception):
    """Base class of all errors of this package."""


class ConfigurationError(ProtocolError):
    """A parameter is out of its range, or parameters do not fit together."""


class EncodingError(ProtocolError):
    """A value does not fit its declared field, or a ring vector does not fit its layout."""


class SearchError(ProtocolError):
    """A query or an answer contradicts the quantile search it was given to."""
