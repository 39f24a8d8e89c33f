"""`python -m deltafl` is the command `deltafl`."""

import sys


def main() -> int:
    """Run the command line; the exit code. An interruption while it is loaded is no error."""
    try:
        from deltafl.sim.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("deltafl: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
