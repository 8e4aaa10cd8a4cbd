"""Triton's interpreter, without what it does again for each function that a kernel calls: to look
through triton.language for what has been put in place already. It takes a fifth of its time.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any


def patch_once() -> None:
    """Nothing, if no kernel was imported, or if this Triton has no such step."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    patch: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    if patch is None or patch.__module__ == __name__:
        return
    languages, scope = (interpreter.tl, interpreter.tl.core), interpreter._LangPatchScope
    is_builtin = interpreter.tl.core.is_builtin

    def patch_lang(function: Any) -> Any:
        seen = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        if any(value in languages and is_builtin(value.load) for value in seen):
            return patch(function)
        return scope()

    interpreter._patch_lang = patch_lang
