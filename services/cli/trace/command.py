"""`baton trace ID`: where the time of one request went, stage by stage."""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from services.cli.gateway_client import GatewayClient, told_url
from services.cli.terminal import terminal_width, wrapped
from services.cli.trace.drawing import drawn
from services.cli.trace.finished_receipt import finished_receipt
from shared.errors import SettingsError

EPILOG = (
    "Each gateway keeps the receipts of its last requests, but none of those that it refused. Exit "
    "code 1: it has none of this one; 4: no gateway answers"
)
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "id", metavar="ID", help="the x-request-id of an answer, or the id in its body"
    )
    parser.add_argument("--json", action="store_true", help="the receipt, as the gateway says it")
    parser.add_argument(
        "--url",
        metavar="U",
        help="default: $BATON_URL, else of the only `baton up` here, else 127.0.0.1:8000",
    )


def run(arguments: argparse.Namespace) -> int:
    if not REQUEST_ID.fullmatch(arguments.id):
        raise SettingsError("ID: give the x-request-id of an answer, or the id in its body")
    client = GatewayClient(told_url(arguments.url), TIMEOUT_S)
    receipt = client.receipt(arguments.id)
    if "choices" not in receipt:
        receipt = finished_receipt(client, arguments.id)
    if arguments.json:
        sys.stdout.write(json.dumps(receipt, indent=2) + "\n")
        return 0
    choices = [finished_receipt(client, each["id"]) for each in receipt.get("choices", ())]
    sys.stdout.write("\n".join(map(render_request, choices or [receipt])))
    return 0


def render_request(receipt: Mapping[str, Any]) -> str:
    """What became of it in a line, then the picture."""
    told = [str(receipt.get("state", "?"))]
    if receipt.get("group"):
        told.append(f"choice {receipt.get('choice')} of {receipt['group']}")
    told.append(f"{receipt.get('prompt_tokens', '?')} tokens of the prompt")
    told.append(f"{receipt.get('completion_tokens', '?')} of the answer")
    if receipt.get("slow_because"):
        told.append(f"slow by {receipt['slow_because']}")
    picture = drawn(receipt) or "no stage of it was measured\n"
    head = wrapped(f"request {receipt.get('id', '?')}: {', '.join(told)}", terminal_width())
    return f"{head}\n{picture}"
