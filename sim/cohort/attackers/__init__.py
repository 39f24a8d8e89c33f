"""Devices that lie, in simulations.

An attacker is a device of the population that does what the protocol allows: it sends a vector of
the right size, a loss and a number of samples. What it does stands between the device's work and
whoever asks for it (`devices.AttackingDevices`), so it is the same for every strategy, in clear and
under masks, and for every backend. Who attacks is drawn in `drawn`; what they train on is in
`data`, what they send in `updates`, what they claim in `claims`.

Attackers know the model as it is announced, the last η and the last change of the model, which
every device is told, and their own data and updates. Those that collude (a-little-is-enough,
inner-product manipulation) also know the updates of the other attackers of the cohort, and nothing
of honest devices.
"""
