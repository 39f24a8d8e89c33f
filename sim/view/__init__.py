"""Pages of runs: a live one of a run in progress, and one of results that can be sent to somebody.

    pairs       distributions over devices, and methods compared in pairs
    costs       seconds, bytes and drop-outs by method, and seconds by stage
    sections    what each section of a page shows
    page        whole pages: live, and of results
    watch       the live page for a browser, on this machine

Everything is read only. Names in a run directory are text of others: templates escape them.
"""
