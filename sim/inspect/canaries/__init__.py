"""Canaries: a lower bound on ε, measured, beside the accountant's upper bound.

bound    what guesses refute, and how many to make     rounds   a run in which devices are canaries
cli      the command `deltafl audit canaries`
"""
