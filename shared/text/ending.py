"""Why a choice ended, by all the names that clients know."""

import json
from dataclasses import dataclass
from typing import Literal

from shared.protocol import FinishReason

AnswerReason = FinishReason | Literal["tool_calls"]
"""why an answer ended, as the API says it"""


@dataclass(frozen=True)
class Ending:
    """The end of one choice."""

    reason: AnswerReason
    stop_reason: int | str | None = None
    """as vLLM has it: the stop token's id or the stop string; None for EOS"""
    matched_stop: int | str | None = None
    """as SGLang has it: the same, and the id of an EOS"""

    def fields(self) -> dict[str, int | str | None]:
        """As a choice's object has them."""
        return {
            "finish_reason": self.reason,
            "stop_reason": self.stop_reason,
            "matched_stop": self.matched_stop,
        }

    def json(self) -> str:
        """The same without the braces."""
        return json.dumps(self.fields(), separators=(",", ":"))[1:-1]
