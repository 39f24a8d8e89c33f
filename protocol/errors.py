"""Everything that `protocol` raises.

The tree::

    ProtocolError
    ├── ConfigurationError   parameters with which no round could run: the caller's mistake
    └── SearchError          a query or an answer that cannot belong to its search

A value that its layout cannot carry, and a sum that no cohort gives, is an `EncodingError` of
`deltafl.secagg`. Each message names the wrong value and says what would be right.
"""


class ProtocolError(Exception):
    """Base class of all errors of this package."""


class ConfigurationError(ProtocolError):
    """A parameter is out of its range, or parameters do not fit together."""


class SearchError(ProtocolError):
    """A query or an answer contradicts the quantile search it was given to."""
