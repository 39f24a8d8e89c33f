"""The papers' algorithms, one file each; `fl.strategies.base` is what they share."""
