"""Reading what others have written: files, numbers, JSON and arrays, each within bounds.

What is read says itself how large it is. Here nothing is believed: every length, depth and exponent
is compared with a bound before it decides what is allocated or computed.
"""
