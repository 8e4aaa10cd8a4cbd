"""The link for a device."""

import torch

from shared.mover.links.link import End, Link


def make_link(end: End, host: str, device: torch.device) -> Link:
    """CopyError if there can be none."""
    if device.type == "cuda":
        from shared.mover.links.nccl import NcclLink  # noqa: PLC0415  (as the engine's GPU parts)

        return NcclLink(end, host, device)
    from shared.mover.links.gloo import GlooLink  # noqa: PLC0415  (importing it takes 0.1 s)

    return GlooLink(end, host, device)
