"""The receipt of a request that has just ended."""

import time
from typing import Any

from services.cli.gateway_client import GatewayClient

WAIT_S = 2.0
POLL_S = 0.05


def finished_receipt(client: GatewayClient, request_id: str) -> dict[str, Any]:
    """The receipt with all its stages; workers report their last one a moment after the answer.
    What has not come within two seconds is missing."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        receipt = client.receipt(request_id)
        names = {stage.get("name") for stage in receipt.get("stages", ())}
        complete = {"decode", "kv_held"} <= names or (names and "kv_transfer" not in names)
        if complete or time.monotonic() > deadline_s:
            return receipt
        time.sleep(POLL_S)
