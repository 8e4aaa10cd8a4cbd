"""Chat templates in the form that families of models have them, written here, and tokenizers
with the families' tags."""

from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.support.models.text_models import byte_level_tokenizer

HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Functions, one JSON object a line:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nCall one so:\\n<tool_call>\\n{"name": ..., "arguments": ...}' }}
    {{- '\\n</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {%- set arguments = function.arguments %}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""as Qwen3 has it, with reasoning that the model opens itself"""
_PROMPT = "{{- '<|im_start|>assistant\\n' }}{%- endif %}"
THINKING = HERMES.replace(_PROMPT, "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}")
"""the same, opening the reasoning in the prompt"""
LLAMA = """\
{{- bos_token }}
{%- set custom_tools = tools %}
{{- '<|im_start|>system\\n\\n' }}
{%- if custom_tools %}
    {{- 'Answer {"name": function, "parameters": arguments}.\\n\\n' }}
    {%- for tool in custom_tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- '<|im_end|>' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>ipython\\n\\n' + (message.content | tojson) + '<|im_end|>' }}
    {%- elif 'tool_calls' in message and message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}
            {{- raise_exception('one call at a time') }}
        {%- endif %}
        {%- set function = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\\n\\n<|python_tag|>{"name": "' + function.name }}
        {{- '", "parameters": ' }}{{- function.arguments | tojson }}{{- '}<|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n\\n' + message.content | trim + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}
            {{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}
                {{- raise_exception('ids have nine characters') }}
            {%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
TEMPLATES = {"hermes": HERMES, "thinking": THINKING, "llama": LLAMA, "mistral": MISTRAL}
TAGS = {
    "hermes": ("<tool_call>", "</tool_call>", "</think>"),
    "llama": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
}


def tagged_tokenizer(*, special: bool) -> Tokenizer:
    """Every family's tags as added tokens, special (then they leave the text) or not."""
    tokenizer = byte_level_tokenizer()
    tags = [tag for family in TAGS.values() for tag in family]
    tokens = [AddedToken(tag, special=special, normalized=False) for tag in tags]
    if special:
        tokenizer.add_special_tokens(tokens)
    else:
        tokenizer.add_tokens(tokens)
    return tokenizer


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CALL_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "How is the weather in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "user", "content": "And in Oslo?"},
]
