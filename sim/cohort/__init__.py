"""The simulated cohort: devices in one process, over a network where some of them drop out.

simulated    what a strategy asks: losses, updates, secure rounds
devices      who does the devices' work          work       what they do in a secure round
masked       rounds by the real protocol         ideal      the same by a trusted party
dropouts     who drops out, and when             shared     what is computed once for many devices
lost_rounds  who may have answered in rounds     attackers  devices that lie
             that left the model as it was       poisoned   what they train on
"""
