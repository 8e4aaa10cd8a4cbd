"""A cell that the benchmark starts, asks and stops."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from services.cli.bench.serve.client.load_client import LoadClient
from services.cli.bench.serve.endpoint import Endpoint, EndpointFacts, look_up
from services.cli.bench.serve.request_template import RequestTemplate
from services.cli.bench.serve.sample import RequestSample
from services.cli.bench.serve.workload import PlannedRequest
from services.cli.cluster.local_cell import running
from services.cli.cluster.output import Output
from services.cli.cluster.plan import Plan
from services.cli.gateway_client import GatewayClient
from services.cli.trace.finished_receipt import finished_receipt
from shared.errors import BatonError

TIMEOUT_S = 120.0
"""of one request"""


class AskedCell:
    """Sends requests to a running cell and reads their receipts."""

    def __init__(self, endpoint: Endpoint, facts: EndpointFacts) -> None:
        fields = {
            "model": facts.model,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "temperature": 0.0,
            "ignore_eos": True,
        }
        self._client = LoadClient(endpoint, RequestTemplate(endpoint, fields), TIMEOUT_S)
        self._gateway = GatewayClient(endpoint.url)

    async def ask(self, prompt: bytes, num_input: int, num_output: int) -> RequestSample:
        """One whole answer to a prompt in JSON; BatonError when it fails."""
        planned = PlannedRequest(0, 0.0, num_input, num_output, prompt)
        sample = await self._client.send(planned, time.monotonic())
        if not sample.ok:
            raise BatonError(f"a request failed: {sample.error}: {sample.error_text}")
        return sample

    async def receipt(self, sample: RequestSample) -> dict[str, Any]:
        """What the cell itself measured of an answered request."""
        return await asyncio.to_thread(finished_receipt, self._gateway, sample.request_id)

    def close(self) -> None:
        self._client.close()


@asynccontextmanager
async def asked_cell(plan: Plan) -> AsyncIterator[AskedCell]:
    """Starts a cell as `baton up` does, and stops it; progress goes to the error output."""
    output = Output(quiet=True, stream=sys.stderr)
    output.say(f"starting {plan.summary}")
    async with running(plan, output, restart=False) as cell:
        await cell.wait_ready()
        output.flush()
        endpoint = Endpoint(cell.url)
        asked = AskedCell(endpoint, await asyncio.to_thread(look_up, endpoint))
        try:
            yield asked
        finally:
            asked.close()
