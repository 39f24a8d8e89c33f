"""Private weighted quantiles: four methods, one interface.

`search` holds the interface and its values. `bracket` is what exact ranks prove, `narrowing` the
search that the methods share which ask for them: `mm`, `bracketed` and `histogram`. `noisy` asks
for noisy ranks, which prove nothing and give less away.
"""
