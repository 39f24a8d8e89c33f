"""Private weighted quantiles: four methods, one interface.

`search` contains the interface and its values. `mm`, `bracketed` and `histogram` ask for exact
ranks: `bracket` says what these prove, and `narrowing` is the search that the three share. `noisy`
asks for noisy ranks, which prove nothing and reveal less.
"""
