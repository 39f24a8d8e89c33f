"""The papers' algorithms, one file each; `deltafl.fl.strategies.base` is what they share."""
