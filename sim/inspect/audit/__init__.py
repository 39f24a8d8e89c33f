"""The auditor: what did the server see, and what follows from it?

    auditor     one pass over a transcript, with every check in its place: read this first
    seen        a record as the message that it is      views      what the server saw in a round
    replay      a sum again, from the messages          checks/    one kind of trouble each
    catalogue   the rules by id; findings, collected    coverage   the checks by name
    report      the verdict as one value; html/, cli    options    what a person may set

Statistics: `false_alarms` is the budget, `tails` the p-values, `uniformity`, `relations`,
`independence` and `weak_seeds` the tests. Sums together: `differencing`, `participation`.
`searches` hands recorded searches to `deltafl.sim.inspect.leakage`.
"""
