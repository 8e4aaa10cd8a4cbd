"""From texts, token ids and conversations to prompts: all that can be refused is refused here."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

from services.offline.json_form import as_json
from services.offline.prompt import Prompt
from services.offline.sampling_params import SamplingParams
from shared.errors import GrammarError, MissingError, RequestError
from shared.fields.json_body import check_unicode
from shared.fields.readers import invalid, token_ids
from shared.grammar.checker import check_grammar
from shared.grammar.matcher import LIBRARY, GrammarVocabulary
from shared.grammar.refusal import check_size, grammar_refusal
from shared.model.checkpoint import Checkpoint
from shared.text.chat_prompt import ChatPrompt
from shared.text.chat_template import ChatTemplate
from shared.text.context import Context
from shared.text.messages import check_usable, read_messages
from shared.text.reasoning import (
    CLOSE,
    OPEN,
    ReasoningStart,
    choose_reasoning,
    reasoning_start,
)
from shared.text.reasoning_grammar import ReasoningGrammar, single_tokens
from shared.text.template_values import Values, read_template_kwargs, template_values
from shared.text.tokenizer import TextTokenizer

TextOrIds = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]
BYTES = (bytes, bytearray, memoryview)
"""sequences of integers that are no token ids, but most likely a text that was not decoded"""
TOOL_WORD = "tool"
REASONING_FIELD = "reasoning_content"


class PromptReader:
    """Reads for one model. Every refusal is a RequestError that names `param`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        own_length: int,
        length: int,
        vocabulary: GrammarVocabulary | None,
        *,
        thinking: str,
    ) -> None:
        """`own_length`: positions of the model's longest sequence; `length`: of the engine's, which
        may hold no more. `vocabulary`: None where this machine follows no grammars. `thinking`: the
        setting of this name. ModelError if the checkpoint's text files are unusable."""
        self.tokenizer = TextTokenizer.load(checkpoint.path)
        self._checkpoint = checkpoint
        self._template = ChatTemplate.load(checkpoint.path)
        template = self._template
        self._chat = None if template is None else ChatPrompt(template, self.tokenizer)
        self._context = Context(length, own_length, self.tokenizer)
        special = self.tokenizer.special_tokens
        self._tag_ids = tuple(special[tag] for tag in (OPEN, CLOSE) if tag in special)
        added = self.tokenizer.added_tokens
        self._tags = ReasoningGrammar(single_tokens(added, frozenset(special)))
        source = "" if template is None else template.source
        self._reasons = choose_reasoning("auto", source, frozenset(added)) == "think"
        self._vocabulary = vocabulary
        self._thinking = thinking
        self._sound: set[str] = set()
        """grammars that compiled"""

    def read(self, given: TextOrIds, params: SamplingParams, param: str) -> Prompt:
        """A text, to which the tokenizer adds what it adds (BOS), or token ids as they are."""
        if isinstance(given, str):
            if not given:
                raise invalid(param, "a non-empty string or a non-empty list of token ids")
            check_unicode(given, param)
            self._context.check_prompt(given, params, param)
            return self._prompt(given, self.tokenizer.encode_prompt(given), params, param)
        if isinstance(given, BYTES):
            raise invalid(param, "a string or a list of token ids; decode bytes")
        try:  # booleans stay what they are, and are none
            whole = [item if isinstance(item, bool) else index(item) for item in given]
        except TypeError:
            raise invalid(param, "a string or a list of token ids") from None
        ids = token_ids(whole, param)
        self._check_ids(ids, param)
        return self._prompt(None, list(ids), params, param)

    def read_chat(
        self,
        messages: Conversation,
        params: SamplingParams,
        param: str,
        template_kwargs: Mapping[str, Any],
    ) -> Prompt:
        """Messages as a chat request has them; `template_kwargs`: what else the template sees."""
        if self._chat is None or self._template is None:
            raise RequestError(
                "this model has no chat template; use generate",
                code="no_chat_template",
                param=param,
            )
        listed, kwargs = as_json(messages), as_json(template_kwargs)
        check_unicode(listed, param)
        check_unicode(kwargs, "template_kwargs")
        read = read_messages(listed, param)
        tools = self._template.mentions(TOOL_WORD)
        check_usable(read, param, tools=tools, reasoning=self._template.mentions(REASONING_FIELD))
        values: Values = read_template_kwargs(kwargs, "template_kwargs")
        values = template_values(self._thinking, None, values)
        chat = self._chat.render(read, values=values, param=param)
        self._context.check_prompt(chat.text, params, param)
        ids = self._chat.encode(chat)
        start = reasoning_start(chat.text) if self._reasons else None
        return self._prompt(chat.text, ids, params, param, start)

    def _prompt(
        self,
        text: str | None,
        ids: list[int],
        params: SamplingParams,
        param: str,
        start: ReasoningStart | None = None,
    ) -> Prompt:
        """`start`: of the answer, where it may hold reasoning, of which its grammar says nothing
        and whose tags stay in its text."""
        ids = self._context.shortened(params, ids)
        max_tokens = self._context.max_tokens(params, len(ids), param)
        wanted, asked_by = params.wanted
        grammar = self._tags.around(start or "none", wanted)
        self._check_grammar(grammar, asked_by)
        samplings = params.samplings(max_tokens, grammar, self._checkpoint.eos_token_ids)
        self._check_ids(samplings[0].stop_token_ids, "stop_token_ids")
        self._check_ids((token_id for token_id, _ in samplings[0].logit_bias), "logit_bias")
        visible_ids = () if start is None else self._tag_ids
        scored = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        return Prompt(text, tuple(ids), samplings, params.stops, scored, visible_ids)

    def _check_ids(self, ids: Iterable[int], param: str) -> None:
        size, largest = self._checkpoint.config.vocab_size, max(ids, default=0)
        if largest >= size:
            raise invalid(param, f"made of token ids below {size}, and {largest} is not")

    def _check_grammar(self, grammar: str, param: str) -> None:
        """Compiles it once, so that no answer is begun that nothing can match."""
        if not grammar or grammar in self._sound:
            return
        check_size(grammar, param)
        if self._vocabulary is None:
            raise MissingError(f"{param}: grammars need `pip install {LIBRARY}`")
        try:
            check_grammar(self._vocabulary, grammar)
        except (GrammarError, RecursionError) as error:
            raise grammar_refusal(str(error), param) from None
        self._sound.add(grammar)
