"""The learning side: models, data, local training, strategies, metrics, the superquantile.

It does not deal with bytes, keys or sockets. Every random choice comes from a seed or a generator
that the caller passes in; nothing here reads or changes the global random state.
"""
