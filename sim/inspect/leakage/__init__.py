"""What a search for the quantile gives away, measured.

The server of a private round learns exact sums over the whole cohort, one after the other, and each
says something about every loss in it. `observations` holds what the server saw, `consequences` and
`labels` what follows from it with certainty, `reconstruction` what an attack makes of it, `measure`
how much that is in bits and in nats; `experiment` plays it over cohorts, methods and mitigations.
"""
