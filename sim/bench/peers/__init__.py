"""The parties of `deltafl bench sim`: our simulator and its peers, playing the same rounds.

Each party is a program of its own that stays alive and does nothing until it is told to play a
round. Read `tasks` for what is played, `party` for how a party is told, then `plain`, `flower`,
`pfl_research` and `ours`. `flower_sums` is the peer of `deltafl bench secagg`.
"""
