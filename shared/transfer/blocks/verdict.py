"""Asks the source whether its blocks are fresh: it alone sees its generations."""

import asyncio

from shared.errors import ProtocolError
from shared.transfer.blocks.manifest import Tags
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Frame, Verified, Verify, pack_tags


class Verdict:
    """Of one pull; asked for once."""

    def __init__(self, stream: FrameStream, first_block: int) -> None:
        """`first_block`: the first one that is not present."""
        self._stream = stream
        self._first_block = first_block
        self._answer: asyncio.Future[bool] | None = None

    async def ask(self, tags: Tags) -> bool:
        """After the last read (R13)."""
        self._answer = asyncio.get_running_loop().create_future()
        await self._stream.send(Verify(self._first_block, *pack_tags(tags)))
        return await self._answer

    def take(self, frame: Frame) -> None:
        """ProtocolError for anything else than the answer to the question."""
        if not isinstance(frame, Verified) or self._answer is None or self._answer.done():
            raise ProtocolError(f"a source sends no {type(frame).__name__} here")
        self._answer.set_result(frame.fresh)
