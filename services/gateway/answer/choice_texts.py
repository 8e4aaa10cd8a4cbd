"""What the tokens of each choice are pushed into."""

from services.gateway.answer.choice import ChoiceText
from services.gateway.answer.choice_group import ChoiceGroup
from services.gateway.answer.echoed_text import EchoedText
from services.gateway.answer.parted_text import PartedText
from services.gateway.prompt.prepared import PreparedRequest
from shared.text.answer_text import AnswerText
from shared.text.tokenizer import TextTokenizer


def choice_texts(
    tokenizer: TextTokenizer, prepared: PreparedRequest, group: ChoiceGroup
) -> tuple[ChoiceText, ...]:
    """In the order of the choices."""
    if prepared.shows_prompt:
        prompts = [prompt.text for prompt in prepared.prompts for _ in range(prepared.num_choices)]
        return tuple(_echoed(tokenizer, prepared, prompt) for prompt in prompts)
    return tuple(_text(tokenizer, prepared, rid) for rid in group.rids)


def _echoed(tokenizer: TextTokenizer, prepared: PreparedRequest, prompt: str) -> EchoedText:
    return EchoedText(
        tokenizer,
        prepared.sampling,
        prepared.stop,
        prompt,
        answers=prepared.answers,
        with_ids=prepared.return_token_ids,
    )


def _text(tokenizer: TextTokenizer, prepared: PreparedRequest, rid: str) -> ChoiceText:
    form = prepared.form
    text = AnswerText(
        tokenizer,
        prepared.sampling,
        prepared.stop,
        form.visible_ids,
        with_ids=prepared.return_token_ids,
    )
    return text if form.plain else PartedText(text, form, rid)
