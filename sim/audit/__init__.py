"""The auditor: what did the server see, and what follows from it?

`seen` decodes the records of a transcript, `rounds` collects what belongs together, the checks each
look for one kind of trouble and report findings (`findings`, `catalogue`), and `report` is the
verdict as one value, which `html` and JSON present.
"""
