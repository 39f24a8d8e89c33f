"""The checks, each for one kind of trouble.

Each takes a round as the server saw it, and what it needs of the rounds before and of the limits
that the run is held to; it yields findings and changes nothing but its own memory of the past.
"""
