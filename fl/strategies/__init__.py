"""The papers' algorithms, one file each; `deltafl.fl.strategies.base` is their interface."""
