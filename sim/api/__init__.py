"""The Python interface: your own module and data, any method, in a few lines.

    federation    data, by device            methods    what is trained by
    training      `train` and `compare`      results    what came out

`import deltafl` has all of it. The command line and this interface run the same experiments
(`deltafl.sim.run.experiment`), in the same directories.
"""
