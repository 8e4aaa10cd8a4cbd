"""How long the ends of a link wait for each other."""

MEET_S = 8.0
"""for both ends to meet; a pull that may go another way waits for it"""
MOVE_S = 20.0
"""for one room of bytes, or twice as long if it is long in coming. A link that takes longer is
given up: a peer that neither answers nor ends must not hold blocks for good"""
