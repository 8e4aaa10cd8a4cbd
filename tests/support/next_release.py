"""The release after this one, as a second checkout that speaks one version more.

It says more than this release knows: `Work`, and so ASSIGN and RECEIVE, has one more member; both
ends of a link say NOTICE once they are linked, and of a pull HINT before each frame. This release
is to read what it knows and to skip the rest.
"""

import shutil
from pathlib import Path

from shared.challenge import Versions
from shared.protocol import SPOKEN
from tests.support.pairs.worker_process import ROOT

NEXT = Versions(SPOKEN.newest, SPOKEN.newest + 1)
LAST_OF_WORK = "    accepted: bool = True\n"
"""where a new member goes: each has its place"""

_CHANGES: dict[str, tuple[tuple[str, str], ...]] = {
    "shared/protocol.py": (
        (
            f"SPOKEN = Versions(oldest={SPOKEN.oldest}, newest={SPOKEN.newest})",
            f"SPOKEN = Versions(oldest={NEXT.oldest}, newest={NEXT.newest})",
        ),
        (LAST_OF_WORK, LAST_OF_WORK + '    adapter: str = "base"\n'),
        (
            "Message = (\n",
            "@dataclass(frozen=True)\nclass Notice:\n    load: Load\n\n\n"
            "Message = (\n    Notice |\n",
        ),
        ("Codec((Hello,", "Codec((Notice, Hello,"),
    ),
    "shared/link/connection.py": (
        (
            "                self._on_message(self, message)\n",
            '                if type(message).__name__ != "Notice":\n'
            "                    self._on_message(self, message)\n",
        ),
    ),
    "shared/link/link.py": (
        (
            "        connection.send(self._hello)\n",
            "        connection.send(self._hello)\n        connection.send(Notice(message.load))\n",
        ),
        ("import MAX_FRAME_BYTES", "import Notice, MAX_FRAME_BYTES"),
    ),
    "shared/link/server.py": (
        (
            "        self._peers[connection] = peer\n",
            "        self._peers[connection] = peer\n"
            "        connection.send(Notice(self._hello().load))\n",
        ),
        ("import MAX_HELLO_BYTES", "import Notice, MAX_HELLO_BYTES"),
    ),
    "shared/transfer/frames.py": (
        (
            "Frame = (\n",
            '@dataclass(frozen=True)\nclass Hint:\n    text: str = "?"\n\n\n'
            "Frame = (\n    Hint |\n",
        ),
    ),
    "shared/transfer/frame_stream.py": (
        (
            "                return decode_header(prefix, header), prefix.payload_bytes\n",
            "                frame = decode_header(prefix, header)\n"
            "                if not isinstance(frame, Hint):\n"
            "                    return frame, prefix.payload_bytes\n",
        ),
        (
            "            head = self._head(frame, sum(map(len, payload)))\n",
            "            await self._send_views([self._head(Hint(), 0)])\n"
            "            head = self._head(frame, sum(map(len, payload)))\n",
        ),
        ("    MAX_HEADER_BYTES,\n", "    MAX_HEADER_BYTES,\n    Hint,\n"),
    ),
}
"""file -> what stands there, and what stands there in the next release"""


def build_next_release(folder: Path) -> Path:
    """The root of a checkout, where `python -m services.cli` is the next release."""
    for name in ("services", "shared", "kernels"):
        ignored = shutil.ignore_patterns("__pycache__", "corpus", "recipe")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path, changes in _CHANGES.items():
        text = (folder / path).read_text()
        for before, after in changes:
            assert text.count(before) == 1, f"{path} has no longer one {before!r}"
            text = text.replace(before, after)
        (folder / path).write_text(text)
    return folder
