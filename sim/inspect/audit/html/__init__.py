"""The report of an audit as one HTML file, which loads nothing and runs nothing.

Others wrote the transcript, so any text in a report may contain markup. The template escapes
everything that it prints, and the page's own policy forbids scripts and requests.
"""

from deltafl.sim.inspect.audit.html.render import render

__all__ = ["render"]
