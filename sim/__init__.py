"""What people run: configurations, the engine, run directories, resume, faults, plots.

The command is `deltafl` (also `python -m sim`). Everything random comes from `sim.seeds`.
"""
