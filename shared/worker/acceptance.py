"""What a worker takes from a gateway: every field of ASSIGN and RECEIVE within its limits.

The engine computes what it is told without a second look, so what it cannot compute must not
reach it. The limits are of what is possible, not of what clients may ask: that is the gateway's.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from shared.grammar.source import MAX_GRAMMAR_BYTES
from shared.kv.block_hash import HASH_BYTES
from shared.protocol import Assign, Receive, Sampling, Work
from shared.queue.backlog import MAX_PRIORITY
from shared.telemetry.tracing import parse_traceparent

MAX_RID_CHARS = 128
MAX_NAME_CHARS = 256
"""of an incarnation, an address, a ticket"""
MAX_INT = 2**31 - 1
MAX_TOP_LOGPROBS = 128
MAX_BIAS = 1000.0
OTHER_FIELDS_BYTES = 256 * 2**10
"""of a frame, besides its token ids: a grammar, 1,024 biases, names"""

_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, MAX_INT),
    "min_tokens": (0, MAX_INT),
    "temperature": (0.0, 100.0),
    "top_k": (0, MAX_INT),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (-(2**63), 2**63 - 1),
    "logprobs": (-1, MAX_TOP_LOGPROBS),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "repetition_penalty": (1e-3, 1e3),
}


class Rejection(NamedTuple):
    """Why a message is not taken; as REFUSE says it."""

    reason: Literal["invalid", "too_long"]
    text: str


@dataclass(frozen=True)
class Acceptance:
    """The limits of one worker."""

    vocab_size: int
    max_model_len: int

    @property
    def max_frame_bytes(self) -> int:
        """Of a message from a gateway."""
        return 4 * self.max_model_len + OTHER_FIELDS_BYTES

    def rejection(self, message: Assign | Receive) -> Rejection | None:
        """None to take the message."""
        work, limit = message.work, self.max_model_len
        if len(work.token_ids) > limit:
            return Rejection("too_long", f"{len(work.token_ids)} tokens; at most {limit} fit")
        wrong = (
            self._wrong_tokens(work)
            or self._wrong_sampling(work.sampling)
            or _wrong_identity(work)
            or _wrong_names(message)
        )
        return Rejection("invalid", wrong) if wrong else None

    def _wrong_tokens(self, work: Work) -> str:
        num_tokens = len(work.token_ids)
        if not num_tokens or not self._known(work.token_ids):
            return f"token_ids: not one or more ids from 0 to {self.vocab_size - 1}"
        if not 1 <= work.num_prompt_tokens <= num_tokens:
            return f"num_prompt_tokens: {work.num_prompt_tokens} of {num_tokens} tokens"
        if len(work.hash_root) != HASH_BYTES:
            return f"hash_root: not {HASH_BYTES} bytes"
        return ""

    def _wrong_sampling(self, sampling: Sampling) -> str:
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(sampling, name) <= high:  # true of NaN as well
                return f"sampling.{name}: not from {low:g} to {high:g}"
        for name in ("stop_token_ids", "eos_token_ids"):
            if not self._known(getattr(sampling, name)):
                return f"sampling.{name}: not in the vocabulary"
        biases = [bias for _, bias in sampling.logit_bias]
        if not self._known(tuple(token_id for token_id, _ in sampling.logit_bias)):
            return "sampling.logit_bias: not in the vocabulary"
        if not all(-MAX_BIAS <= bias <= MAX_BIAS for bias in biases):
            return f"sampling.logit_bias: not from {-MAX_BIAS:g} to {MAX_BIAS:g}"
        if len(sampling.grammar.encode()) > MAX_GRAMMAR_BYTES:
            return f"sampling.grammar: over {MAX_GRAMMAR_BYTES} bytes"
        return ""

    def _known(self, token_ids: tuple[int, ...]) -> bool:
        return not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.vocab_size)


def _wrong_identity(work: Work) -> str:
    rid, epoch = work.attempt
    if not 0 < len(rid) <= MAX_RID_CHARS or not rid.isprintable():
        return f"rid: not 1 to {MAX_RID_CHARS} printable characters"
    if not 0 <= epoch <= MAX_INT:
        return f"epoch: not from 0 to {MAX_INT}"
    if not -1 <= work.prompt_logprobs <= MAX_TOP_LOGPROBS:
        return f"prompt_logprobs: not from -1 to {MAX_TOP_LOGPROBS}"
    if not 0 <= work.priority <= MAX_PRIORITY:
        return f"priority: not from 0 to {MAX_PRIORITY}"
    if work.traceparent and parse_traceparent(work.traceparent) is None:
        return "traceparent: malformed"
    return ""


def _wrong_names(message: Assign | Receive) -> str:
    names = [message.incarnation, message.ticket]
    if isinstance(message, Receive):
        source = message.source
        names += [message.prefill_incarnation, source.port, source.socket]
        if not source or not _is_port(source.port) or not _is_path(source.socket):
            return "source: neither host:port nor the path of a socket"
    if max(map(len, names)) > MAX_NAME_CHARS:
        return (
            f"incarnation, ticket, prefill_incarnation or source: over {MAX_NAME_CHARS} characters"
        )
    return ""


def _is_path(text: str) -> bool:
    return not text or (text.startswith("/") and "\0" not in text)


def _is_port(text: str) -> bool:
    if not text:
        return True
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 2**16 - 1
