"""Token ids on their way from a device to the host, in buffers that take turns.

Two steps are in flight: while the host reads the ids of one, the next one's kernels write theirs.
"""

import numpy as np
import torch

from shared.engine.sampling.raw_logprobs import LogprobTensors
from shared.engine.sampling.sampled_tokens import SampledToken

IN_FLIGHT = 4
"""calls of the sampler until a buffer is used again: two steps run, two more are to spare"""
MIN_ROWS = 64


class DeviceTokens:
    """The tokens of one call; see SampledTokens."""

    def __init__(
        self,
        device_ids: torch.Tensor,
        host_ids: torch.Tensor,
        logprobs: tuple[LogprobTensors, LogprobTensors] | None,
        copied: torch.cuda.Event | None,
    ) -> None:
        self.device_ids = device_ids
        self._host_ids = host_ids
        self._logprobs = logprobs
        self._copied = copied
        self._tokens: list[SampledToken] | None = None

    def ready(self) -> bool:
        return self._tokens is not None or self._copied is None or self._copied.query()

    def wait(self) -> list[SampledToken]:
        if self._tokens is None:
            if self._copied is not None:
                self._copied.synchronize()
            by_row = {} if self._logprobs is None else self._logprobs[1].by_row()
            self._tokens = [
                SampledToken(token_id, by_row.get(index))
                for index, token_id in enumerate(self._host_ids.tolist())
            ]
            self._logprobs = None
        return self._tokens


class Turn:
    """The buffers of every IN_FLIGHT-th call, on the device and pinned on the host."""

    def __init__(self, device: torch.device, copies: torch.cuda.Stream | None) -> None:
        """`copies`: the stream ids go to the host on; None on a CPU."""
        self._device = device
        self._copies = copies
        self._ids = self._on_device(MIN_ROWS)
        self._ids_host = self._on_host(MIN_ROWS)
        self._packed = self._on_device(0)
        self._packed_host = self._on_host(0)
        self._chosen = torch.cuda.Event() if copies is not None else None
        self._copied = torch.cuda.Event() if copies is not None else None
        self._tokens: DeviceTokens | None = None
        self._num_rows = 0

    def begin(self, num_rows: int) -> torch.Tensor:
        """i64[num_rows] on the device, for the ids. Waits for the copy of the call before, which
        has long ended."""
        if self._tokens is not None:
            self._tokens.wait()
        self._num_rows = num_rows
        if num_rows > len(self._ids):
            self._ids, self._ids_host = self._on_device(2 * num_rows), self._on_host(2 * num_rows)
        return self._ids[:num_rows]

    def upload(self, packed: np.ndarray) -> torch.Tensor:
        """i64[size] on the device."""
        size = len(packed)
        if size > len(self._packed):
            self._packed, self._packed_host = self._on_device(2 * size), self._on_host(2 * size)
        self._packed_host[:size].numpy()[:] = packed
        return self._packed[:size].copy_(self._packed_host[:size], non_blocking=True)

    def send(self, logprobs: LogprobTensors | None) -> DeviceTokens:
        """Start the copy of the ids, and of logprobs, behind what is on the current stream."""
        ids, host = self._ids[: self._num_rows], self._ids_host[: self._num_rows]
        both = None
        if self._copies is None or self._chosen is None or self._copied is None:
            if not ids.is_meta:  # a step that is only listed chooses none
                host.copy_(ids)
            both = None if logprobs is None else (logprobs, logprobs)
        else:
            self._chosen.record()
            self._copies.wait_event(self._chosen)
            with torch.cuda.stream(self._copies):
                host.copy_(ids, non_blocking=True)
                both = None if logprobs is None else (logprobs, logprobs.on_host())
                self._copied.record()
        self._tokens = DeviceTokens(ids, host, both, self._copied)
        return self._tokens

    def _on_device(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int64, device=self._device)

    def _on_host(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int64, pin_memory=self._copies is not None)
