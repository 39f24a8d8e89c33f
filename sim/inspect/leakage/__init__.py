"""What a search for the quantile gives away, measured.

The server of a private round learns exact sums over the whole cohort, one after the other, and each
sum says something about every loss in the cohort. `observations` holds what the server saw.
`consequences`, `labels` and `counts` compute what follows from it, and `reconstruction` is an
attack on it, which solves `equations`. `measure` computes the leakage in bits and in nats.
`experiment` does this for many cohorts, methods and mitigations.
"""
