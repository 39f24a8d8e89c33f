"""Canaries: a lower bound on ε, measured, beside the accountant's upper bound.

experiment   a run in which devices are canaries, and what guesses of their coins refute
cli          the command `deltafl audit canaries`
"""
