"""The simulated cohort: devices in one process, over a network where some of them drop out.

simulated   what a strategy asks: losses, updates, secure rounds
devices     who does the devices' work           work    what they do in a secure round
masked      rounds by the real protocol          ideal   the same by a trusted party
survivors   strategies in clear with drop-outs   shared  what is computed once for many devices
"""
