"""`python -m deltafl` is the command `deltafl`."""

import sys

from deltafl.sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
