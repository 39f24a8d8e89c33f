"""The Δ-FL round over secure sums: private quantile, self-filter, bindings of the masks.

This package takes a loss and a vector, never a model. It does no training, and has no sockets and
no clock. "Spec: §x.y" refers to a section of docs/spec.md.
"""
