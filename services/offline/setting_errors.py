"""Errors of settings for a caller of `LLM`, which takes arguments and no flags."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import BatonError
from shared.settings.load import EVERY_SETTING
from shared.settings.setting import flag_name

_NAMES = {flag_name(item.name): item.name for item in EVERY_SETTING}
_FLAG = re.compile(r"'[^']*'|(?<![\w-])--[a-z-]+")
"""or what is in quotes, which is a value that was given"""


@contextmanager
def by_keyword() -> Iterator[None]:
    """A BatonError from within names settings as arguments: `threads`, not `--threads`."""
    try:
        yield
    except BatonError as error:
        error.args = tuple(in_keywords(x) if isinstance(x, str) else x for x in error.args)
        raise


def in_keywords(text: str) -> str:
    """The text with each flag of a setting as the argument of `LLM`."""
    return _FLAG.sub(lambda flag: _NAMES.get(flag[0], flag[0]), text)
