"""Attacks on the whole system, played live: what a server, a peer or the network can do.

Every attack is a function that is played twice against real sessions and rounds: with its defence
off, where it gets what it is after, and with it on, where it ends as the register says. What
succeeds in spite of all defences is in the register too, and says so.

    attack       what an attack is            catalogue   all of them
    play         plays one both ways          report      says what came of it
    evil_server  keeps to nothing             replaced    how a defence is taken away
    own_session  the devices of a session     own_round   the devices of a round

The others are the attacks, by what they abuse. Nothing here touches a network, a file or a device
other than those that it makes for itself.
"""
