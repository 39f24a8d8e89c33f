"""Attacks on the whole system, played live: what a server, a peer or the network can do.

Every attack is a function that is played twice against real sessions and rounds: with its defence
off, where it gets what it is after, and with it on, where it ends as the register says. What
succeeds in spite of all defences is in the register too, and says so. A defence is off by what a
device is given (its policy, its randomness, what it computes with), or by a device that has none.

    attack       what an attack is, and how     catalogue    all of them
                 it is played both ways         cli          says what came of it
    evil_server  keeps to nothing               steering     asks what it likes in a round
    own_session  the devices of a session       own_round    the devices of a round

The others are the attacks: on sessions, rounds and tails, by lying devices, and on what sums of
updates say. Nothing here touches a network, a file or a device other than those that it makes for
itself.
"""
