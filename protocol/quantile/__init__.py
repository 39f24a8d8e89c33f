"""Private weighted quantiles: three methods, one interface.

`search` holds the interface and its values, `bracket` what ranks prove, `narrowing` the search that
all methods share; `mm`, `bracketed` and `histogram` are the methods.
"""
