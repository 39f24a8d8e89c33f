"""The checks, each for one kind of trouble, with the rules that it holds a run to.

All have one shape (`deltafl.sim.inspect.audit.check.Check`) and stand in one table
(`catalogue.CHECKS`).
"""
