"""What people run: simulations, their audit, the papers' tables, benchmarks.

The command is `deltafl`, also `python -m deltafl`. Everything random comes from
`deltafl.sim.cohort.seeds`. Rooms, each of which may use those below it:

    cli                         the command
    api                         the Python interface: `import deltafl`
    bench, inspect, reproduce   what is done with runs: time, audit and attack, compare
    net                         devices on machines of their own
    run                         one run, from its settings to its summary
    cohort                      the devices, what works for them, and the network that loses some
    data                        whose data
    record                      what a run leaves on disk
    settings                    what can be set
"""
