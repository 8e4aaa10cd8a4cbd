"""Grammars by the names other servers have for them: vLLM's `structured_outputs` and `guided_*`,
SGLang's `regex` and `ebnf`. Readers give the grammar that an answer must match."""

from typing import Any

from shared.fields.client_text import shown
from shared.fields.readers import Reader, invalid, same, unsupported
from shared.text.output_grammar import OUTPUTS, choice, grammar, json_schema, regex

NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "disable_fallback": (False, True),
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
}
"""options of structured_outputs -> values that change nothing; null never does"""


def structured_outputs(value: Any, param: str) -> str:
    """vLLM's object, with one of `OUTPUTS`."""
    if type(value) is not dict:
        raise invalid(param, f"an object with one of {', '.join(OUTPUTS)}")
    given = {name: item for name, item in value.items() if item is not None}
    for name, item in given.items():
        neutral = NEUTRAL_OPTIONS.get(name, ())
        if name not in OUTPUTS and not any(same(item, each) for each in neutral):
            raise unsupported(f"{param}.{shown(name)}", neutral)
    wanted = [name for name in OUTPUTS if name in given]
    if len(wanted) != 1:
        raise invalid(param, f"an object with exactly one of {', '.join(OUTPUTS)}")
    return str(OUTPUTS[wanted[0]](given[wanted[0]], f"{param}.{wanted[0]}"))


READERS: dict[str, Reader] = {
    "structured_outputs": structured_outputs,
    "guided_json": json_schema,
    "guided_regex": regex,
    "guided_choice": choice,
    "guided_grammar": grammar,
    "regex": regex,
    "ebnf": grammar,
}
