"""The Δ-FL round over secure sums: encoding, private quantile, self-filter and what is bound.

This package takes a loss and a vector, never a model; it knows no learning, no sockets, no clock.
"Spec: §x.y" is a section of docs/spec.md.
"""
