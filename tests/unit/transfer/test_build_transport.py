"""A worker's transport is the one its settings name."""

import pytest

from shared.clock import ManualClock
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.settings.groups import HandoverSettings, NetworkSettings
from shared.settings.load import EVERY_SETTING
from shared.transfer.build import TRANSPORTS, build_transport

pytestmark = pytest.mark.anyio

CHOICES = {item.name: item.choices for item in EVERY_SETTING}["transport"]


def test_every_choice_can_be_built_and_nothing_else() -> None:
    assert set(TRANSPORTS) == set(CHOICES)


@pytest.mark.parametrize("name", CHOICES)
async def test_the_transport_has_the_name_it_is_chosen_by(name: str) -> None:
    memory = KVMemory.create(KVLayout("m", "float32", 1, 2, 1, 4, 4), 2)
    settings, network = HandoverSettings(transport=name), NetworkSettings()
    transport = build_transport(settings, network, 0, memory, "p.1", ManualClock())
    assert transport.name == name
    await transport.close()
