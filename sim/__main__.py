"""`python -m sim` is `deltafl`."""

import sys

from sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
