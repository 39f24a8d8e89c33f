"""The auditor: what did the server see, and what follows from it?

    auditor     one pass over a transcript, for every check: read this first
    check       the interface of a check            checks/      one kind of trouble each
    catalogue   the table of checks, and all rules  rules        what a rule is; findings, collected
    seen        a record as the message that it is  views        what the server saw in a round
    prefixes    what first bytes tell               replay       a sum again, from the messages
    round_replay    a round again, from its sums (search_start, server_step)
    facts       figures of checks for the report    coverage     on how much a check was made
    options     what a person may set               report       the verdict; html/, cli

Statistics: `false_alarms` is the budget, `tails` the p-values, `randomness` tests strings, words
and polynomials, and has the secrets that are guessed. What follows from sums: of one round
`given_away`, of many `differencing` and `participation`. `searches` hands recorded ones to
`deltafl.sim.inspect.leakage`.
"""
