"""Where a worker says it is: its own link port, or the address it was told to advertise."""

import pytest

from shared.engine.scheduling.load import EngineLoad
from shared.errors import SettingsError
from shared.kv.layout import KVLayout
from shared.settings.groups import WorkerSettings
from shared.worker.channel import Ready
from shared.worker.identity import Identity

LAYOUT = KVLayout("m", "float32", 1, 2, 1, 16, 16)
READY = Ready(1, LAYOUT, 8, None, 64, 512, EngineLoad(0, 0, 8, 8, 0, 0), 512)


def address(advertise: str) -> tuple[str, int]:
    worker = WorkerSettings(advertise=advertise)
    entry = Identity.of_process("decode", worker, "m", "127.0.0.1").entry(READY, "pool", 4000)
    return entry.host, entry.port


def test_the_advertised_address_is_the_one_gateways_dial() -> None:
    assert address("") == ("127.0.0.1", 4000)
    assert address("worker.example:5000") == ("worker.example", 5000)
    assert address("[::1]:5000") == ("::1", 5000)


@pytest.mark.parametrize("text", ["host", "host:", ":5000", "host:http"])
def test_half_an_address_stops_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="--worker-advertise"):
        address(text)
