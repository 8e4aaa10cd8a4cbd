"""The challenge by hand, for tests that speak to a link or a pull port with bytes of their own."""

import asyncio

from shared.challenge import GREETING_BYTES, PROOF_BYTES, Challenge, Channel
from shared.protocol import SPOKEN

INTRODUCTION_BYTES = GREETING_BYTES + PROOF_BYTES
"""in each direction"""


async def introduce(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    channel: Channel,
    *,
    dials: bool = True,
    cell_secret: str = "",
) -> None:
    """Returns when this end is done; ChallengeError when the other is a stranger."""
    challenge = Challenge(cell_secret, channel, SPOKEN, dials=dials)
    writer.write(challenge.greeting)
    while not challenge.done:
        step = await reader.readexactly(challenge.num_expected)
        writer.write(challenge.receive(step))
