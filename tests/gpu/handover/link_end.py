"""The giving end of NCCL links, in a process of its own; says each thing that it has done.

link        a new link: its card
meet CARD   with the other end
send N SEED
close
"""

import sys

import torch

from shared.mover.copies import CopyError
from shared.mover.links.nccl import NcclLink


def content(num_bytes: int, seed: int, device: torch.device) -> torch.Tensor:
    """What `send` sends."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(256, (num_bytes,), dtype=torch.uint8, device=device, generator=generator)


def main() -> None:
    device = torch.device(sys.argv[1])
    torch.cuda.set_device(device)
    link: NcclLink | None = None
    for line in sys.stdin:
        verb, *words = line.split()
        said = "done"
        try:
            if verb == "link":
                link = NcclLink("gives", "127.0.0.1", device)
                said = link.card().hex()
            assert link is not None
            match verb:
                case "meet":
                    link.meet(bytes.fromhex(words[0]))
                case "send":
                    rows = content(int(words[0]), int(words[1]), device)
                    torch.cuda.synchronize()
                    link.send(rows)
                case "close":
                    link.close()
        except CopyError as error:
            said = f"failed {error}"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
