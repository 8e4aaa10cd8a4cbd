"""What a caller asks of the answers to a prompt: how tokens are chosen, and where they end."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from services.offline.json_form import as_json
from shared.errors import RequestError
from shared.fields.json_body import check_unicode
from shared.fields.readers import integer, invalid
from shared.protocol import GREEDY_BELOW, Sampling
from shared.text.choice_seed import choice_seed
from shared.text.output_grammar import OUTPUTS
from shared.text.sampling_fields import MAX_LOGPROBS, SAMPLING_READERS

SEED_BITS = 63
READERS = {
    **SAMPLING_READERS,
    "logprobs": integer(0, MAX_LOGPROBS),
    "prompt_logprobs": integer(0, MAX_LOGPROBS),
}


@dataclass(frozen=True)
class SamplingParams:
    """The fields mean what they mean over HTTP and have the same limits; RequestError names one
    that is beyond them. At most one of json_schema, json_object, regex, choice and grammar."""

    n: int = 1
    """choices of each prompt"""
    max_tokens: int | None = None
    """None: as many as the context has room for"""
    temperature: float = 1.0
    """0 is greedy"""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 keeps all"""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """token id -> what is added to its logit"""
    seed: int | None = None
    """None: drawn for each prompt"""
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none; 0: the chosen token's; k: also the k most likely"""
    prompt_logprobs: int | None = None
    """the same of the prompt's tokens, which are all computed then, cached or not"""
    truncate_prompt_tokens: int | None = None
    """how many of the prompt's last tokens are kept; -1: as many as fit next to
    `max_tokens`; None: it must fit"""
    json_schema: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """Lark with a rule `start`, or GBNF with a rule `root`"""

    def __post_init__(self) -> None:
        given = self._given
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid("min_tokens", f"at most max_tokens ({self.max_tokens})")
        wanted = [name for name in _OUTPUT_FIELDS if given.get(name)]
        if len(wanted) > 1:
            raise invalid(wanted[1], f"left out when {wanted[0]} is given")

    @property
    def keep_tokens(self) -> int:
        """As a context wants to know it; 0: the whole prompt."""
        return self.truncate_prompt_tokens or 0

    @property
    def stops(self) -> tuple[str, ...]:
        stops: tuple[str, ...] = self._given["stop"]
        return stops

    @property
    def wanted(self) -> tuple[str, str]:
        """The grammar of an answer, and the field that asks for it; empty where none does."""
        for name in _OUTPUT_FIELDS:
            if grammar := self._given.get(name):
                return grammar, name
        return "", ""

    def samplings(
        self, max_tokens: int, grammar: str, eos_token_ids: tuple[int, ...]
    ) -> tuple[Sampling, ...]:
        """One for each choice, as the engine takes them."""
        given = self._given
        greedy = self.temperature < GREEDY_BELOW
        seed = secrets.randbits(SEED_BITS) if self.seed is None else self.seed
        seed &= 2**SEED_BITS - 1
        return tuple(
            Sampling(
                max_tokens=max_tokens,
                temperature=0.0 if greedy else given["temperature"],
                top_k=max(0, self.top_k),
                top_p=given["top_p"],
                seed=choice_seed(seed, at),
                min_tokens=self.min_tokens,
                ignore_eos=self.ignore_eos,
                stop_token_ids=given["stop_token_ids"],
                eos_token_ids=eos_token_ids,
                logprobs=given.get("logprobs", -1),
                min_p=given["min_p"],
                presence_penalty=given["presence_penalty"],
                frequency_penalty=given["frequency_penalty"],
                repetition_penalty=given["repetition_penalty"],
                logit_bias=given["logit_bias"],
                grammar=grammar,
            )
            for at in range(self.n)
        )

    @cached_property
    def _given(self) -> dict[str, Any]:
        """Each field but those that are None, as its reader made it."""
        readers = {**READERS, **_OUTPUT_FIELDS}
        values = {item.name: as_json(getattr(self, item.name)) for item in fields(self)}
        check_unicode(values)
        return {
            name: readers[name](value, name) for name, value in values.items() if value is not None
        }


_OUTPUT_FIELDS = {("json_schema" if name == "json" else name): OUTPUTS[name] for name in OUTPUTS}


def one_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    """The parameters of each prompt. RequestError where there are more or fewer of them."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if isinstance(params, Mapping) or not all(isinstance(each, SamplingParams) for each in params):
        raise invalid("sampling_params", "SamplingParams(...), or a list of them")
    if len(params) != num_prompts:
        raise RequestError(
            f"sampling_params: {len(params)} for {num_prompts} prompts; give one for all, or one "
            "for each",
            code="invalid_value",
            param="sampling_params",
        )
    return params
