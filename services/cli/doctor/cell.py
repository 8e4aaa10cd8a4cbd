"""The checks of a running cell: its gateway, its Redis, and the workers registered there."""

import importlib
from dataclasses import dataclass

from services.cli.cluster.run_file import RunRecord
from services.cli.doctor.finding import Finding, ok, warn
from services.cli.doctor.gateway import (
    GatewayFacts,
    gather_gateway,
    judge_gateway,
    judge_no_gateway,
)
from shared.errors import NoGatewayError
from shared.settings.groups import Settings


@dataclass(frozen=True)
class WaysIn:
    """How a cell is reached; each may be empty."""

    url: str
    admin_url: str
    redis: str
    cell_secret: str

    @classmethod
    def of_record(cls, record: RunRecord) -> "WaysIn":
        return cls(record.url, record.admin_url, record.redis, record.cell_secret)

    @classmethod
    def given(cls, url: str, settings: Settings, records: list[RunRecord]) -> "WaysIn":
        """As flags and variables say; what they leave open is taken from the record of a cell
        that runs here at that URL."""
        redis = "" if settings.cell.embedded_redis else settings.cell.redis
        secret = settings.network.cell_secret
        for record in records:
            if url and url in (record.url, record.admin_url):
                redis, secret = redis or record.redis, secret or record.cell_secret
                return cls(url, record.admin_url, redis, secret)
        return cls(url, "", redis, secret)


def check_cell(ways: WaysIn) -> list[Finding]:
    """Reads only, and leaves no trace but a line in the log of a worker of another cell."""
    found: list[Finding] = []
    gateway: GatewayFacts | None = None
    if ways.url:
        try:
            gateway = gather_gateway(ways.url, ways.admin_url)
            found += judge_gateway(gateway)
        except NoGatewayError as error:
            found.append(judge_no_gateway(error))
    if ways.redis:
        return found + _check_store(ways, gateway)
    if gateway is not None and gateway.redis:
        seen = f"{gateway.redis}, says the gateway; --redis U looks closer, and at the workers"
        found.append(ok("Redis", seen))
    return found


def _check_store(ways: WaysIn, gateway: GatewayFacts | None) -> list[Finding]:
    """Where the client of Redis is not installed, that is all that is said."""
    try:
        store = importlib.import_module("services.cli.doctor.store")
    except ModuleNotFoundError as error:
        missing = f"not looked at: {error.name} is not installed"
        return [warn("Redis", missing, f"`pip install {error.name}`")]
    found: list[Finding] = store.check_store(ways.redis, ways.cell_secret, gateway)
    return found
