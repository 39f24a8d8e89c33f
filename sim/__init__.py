"""What people run: configurations, the engine, run directories, resume, faults, plots.

The command is `deltafl`, also `python -m deltafl`. Everything random comes from
`deltafl.sim.seeds`.
"""
