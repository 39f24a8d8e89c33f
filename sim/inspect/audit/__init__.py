"""The auditor: what did the server see, and what follows from it?

    auditor     one pass over a record, for every check: read this first
    check       the interface of a check            checks/      one kind of trouble each
    catalogue   the table of checks, and all rules  rules        what a rule is; findings, collected
    seen        a record as the message that it is  views        what the server saw in a round
    server_replay, device_replay, run_replay    the honest parties again; what departs from them
    invariants, over_sessions   what the specification demands     second_opinion   a plain twin
    replay      a sum again, with the secrets that are rebuilt for it
    facts       figures of checks for the report    coverage     on how much a check was made
    options     what a person may set               report       the verdict; html/, cli

Statistics: `false_alarms` is the budget, `tails` the p-values, `randomness` tests strings, words
and polynomials, and has the secrets that are guessed. What follows from sums: of one round
`given_away`, of many `participation`. `searches` hands recorded ones to
`deltafl.sim.inspect.leakage`.
"""
