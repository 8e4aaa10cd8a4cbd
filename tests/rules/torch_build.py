"""Exit status 0 when the installed torch names its own triton, as builds with CUDA do.

The build without CUDA names none, and then constraints.txt decides.
"""

import sys
from importlib.metadata import requires


def main() -> int:
    return 0 if any(item.startswith("triton") for item in requires("torch") or []) else 1


if __name__ == "__main__":
    sys.exit(main())
