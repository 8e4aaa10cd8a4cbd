"""Copies out of a mapped pool that stand still, are damaged or lose their owner on purpose."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.mover.host_copies import HostCopies
from tests.support.fakes.faulty_transport import Fault, FaultyTerms
from tests.support.fakes.strikes import Strikes


class FaultyCopies(HostCopies):
    """The first block of each copy goes in two halves, with `half_read` between them."""

    def __init__(
        self,
        memory: KVMemory,
        ours: FaultyTerms,
        source: FaultyTerms,
    ) -> None:
        """`ours`: whose plan strikes at `read`; `source`: whose plan strikes at `blocks` and
        `half_read`. Both live on the running event loop; the mover's thread waits for them."""
        super().__init__(memory)
        self._strikes = Strikes(ours, source)

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Any,
    ) -> Words:
        fault = self._strikes.read()
        span = self.share.groups.span(groups)
        half = (span.start + span.stop) // 2
        if (found := self._sources.get(source)) is not None:
            assert found.rows is not None, "of one rank"
            first = found.rows[source_blocks[0], span.start : half]
            self._pool[blocks[0], span.start : half] = first
            del first
        self._strikes.half_read()
        if found is not None and found.rows is not None:
            rest = found.rows[source_blocks[0], half : span.stop]
            self._pool[blocks[0], half : span.stop] = rest
            del rest
        digests = super().fetch(source, source_blocks[1:], blocks[1:], groups, after)
        if fault is Fault.CORRUPT:
            self._pool[blocks[0], span.stop - 1] ^= 1
        return np.concatenate([self._digests.of(blocks[:1], groups), digests])
