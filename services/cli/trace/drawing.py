"""A receipt as a picture for the terminal that a command writes to."""

import sys
from collections.abc import Mapping
from typing import Any

from services.cli.terminal import terminal_width
from services.cli.trace.waterfall import ASCII, Ink, render_waterfall


def drawn(receipt: Mapping[str, Any]) -> str:
    """In blocks where the output takes them; '' of a receipt without a measured stage."""
    ink = Ink() if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    return render_waterfall(receipt, ink, terminal_width())
