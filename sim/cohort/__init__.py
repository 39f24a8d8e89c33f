"""The simulated cohort: devices in one process, over a network where some of them drop out.

simulated    what a strategy asks: losses, updates, secure rounds
work         who does the devices' work, and what they do in a secure round
masked       rounds by the real protocol         ideal      the same by a trusted party
dropouts     who drops out, and when             shared     what is computed once for many devices
attackers    devices that lie, and what they train on
"""
