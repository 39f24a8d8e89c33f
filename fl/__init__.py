"""The learning side: models, data, local training, strategies, metrics, the superquantile.

Knows nothing of bytes, keys or sockets. Every random choice comes from a seed or a generator that
the caller passes in; nothing here reads or moves the global random state.
"""
