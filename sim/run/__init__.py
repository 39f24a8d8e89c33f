"""A run from its settings to its summary: the strategy, the rounds, the plots."""
