"""Looking at runs: a live page of a run in progress, a page of results, figures for a paper.

    look        what a run directory holds at a moment, whether the run is in progress or over
    wire        bytes by kind of message, and the steps of single searches, from the transcript
    series      curves, distributions over devices, and pairs of methods, as numbers
    charts      the same as coordinates, which templates draw as SVG
    device_charts  likewise, of single devices: distributions by round, and pairs
    sections    what each section of a page shows; `shown` has the types
    page        whole pages: live, of a moment, of results
    server      the live page for a browser, on this machine
    figures     figures for a paper, by matplotlib

Everything is read only. Names in a run directory are text of others: templates escape them.
"""
