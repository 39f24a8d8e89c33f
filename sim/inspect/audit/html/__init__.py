"""The report of an audit as one HTML file, which loads nothing and runs nothing.

A transcript is written by others, so every text in a report may be markup. The template escapes
whatever it prints, and the page's own policy forbids scripts and requests.
"""

from deltafl.sim.inspect.audit.html.render import render

__all__ = ["render"]
