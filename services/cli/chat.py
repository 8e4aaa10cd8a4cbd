"""`baton chat`: one question, or a conversation, with a running gateway."""

import argparse
import contextlib
import sys
from typing import Any

from services.cli.gateway_client import GatewayClient, gateway_url

Messages = list[dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="a question; without one, a conversation")
    parser.add_argument("--url", metavar="U", help="default: $BATON_URL, else 127.0.0.1:8000")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="S", help="same seed, same answer")


def run(arguments: argparse.Namespace) -> int:
    client = GatewayClient(gateway_url(arguments.url))
    names = ("max_tokens", "temperature", "seed")
    options = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.prompt:
        _ask(client, [{"role": "user", "content": " ".join(arguments.prompt)}], options, [])
        return 0
    client.status()  # fails now rather than after the first question
    _converse(client, options)
    return 0


def _converse(client: GatewayClient, options: dict[str, Any]) -> None:
    """Reads questions until the end of the input, or Ctrl-C where a question is awaited; one
    during an answer ends that answer. The model sees all turns, as far as they came."""
    messages: Messages = []
    interactive = sys.stdin.isatty()
    if interactive:
        sys.stdout.write(f"{client.url}; Ctrl-C ends an answer, Ctrl-D the conversation\n")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 importing it gives input lines an editor
    while (question := _read_question(interactive)) is not None:
        if question:
            asked = [*messages, {"role": "user", "content": question}]
            if text := _ask_patiently(client, asked, options):
                messages = [*asked, {"role": "assistant", "content": text}]


def _ask_patiently(client: GatewayClient, messages: Messages, options: dict[str, Any]) -> str:
    """The answer, or what came of it before Ctrl-C."""
    pieces: list[str] = []
    try:
        _ask(client, messages, options, pieces)
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return "".join(pieces)


def _read_question(interactive: bool) -> str | None:
    if interactive:
        sys.stdout.write("> ")
        sys.stdout.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def _ask(
    client: GatewayClient, messages: Messages, options: dict[str, Any], pieces: list[str]
) -> None:
    """Shows an answer as it comes and adds it to `pieces`; left early, it is cancelled."""
    with client.chat(messages, **options) as answer:
        for piece in answer:
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
