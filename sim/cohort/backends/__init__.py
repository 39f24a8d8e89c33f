"""Backends: who does the devices' work, from one device at a time to all cores or a GPU.

`base` has the interface, `choice` takes one and opens it.
`reference` is the slow plain twin; all others give the same numbers up to the rounding of float32,
and "processes" gives the same bits where its workers train one device at a time: each works on one
thread, so they are the bits of `reference` on one thread.
"""
