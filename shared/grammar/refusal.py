"""What a client is told whose grammar cannot be followed."""

from shared.errors import RequestError
from shared.grammar.source import MAX_GRAMMAR_BYTES


def grammar_refusal(problem: str, param: str) -> RequestError:
    """`param`: the client's field that asks for the grammar."""
    return RequestError(f"{param}: {problem}", code="invalid_schema", param=param)


def check_size(grammar: str, param: str) -> None:
    """RequestError if it is larger than workers take."""
    size_bytes = len(grammar.encode())
    if size_bytes > MAX_GRAMMAR_BYTES:
        raise grammar_refusal(f"{size_bytes} bytes; at most {MAX_GRAMMAR_BYTES} are taken", param)
