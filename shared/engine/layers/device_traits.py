"""What the choice of a kernel's form and size asks of a device."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceTraits:
    """A GPU, or what an interpreted kernel takes for one."""

    capability: tuple[int, int]
    num_multiprocessors: int

    @property
    def overlaps(self) -> bool:
        """A kernel may begin while the one before it ends (programmatic dependent launch)."""
        return self.capability >= (9, 0)


def traits_of(device: torch.device) -> DeviceTraits:
    """Of a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    return DeviceTraits((properties.major, properties.minor), properties.multi_processor_count)
