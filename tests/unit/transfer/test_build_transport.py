"""A worker's transport is the one its settings name, and what it cannot follow stops the start."""

import os
from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.mover import agent
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.rank_movers import RankMovers
from shared.settings.load import EVERY_SETTING
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.build import build_transport, check_transport
from shared.transfer.ways.auto import auto_transport
from shared.transfer.ways.folder import transfer_folder
from tests.support.fakes.manual_clock import ManualClock
from tests.support.settings import settings_with

pytestmark = pytest.mark.anyio

CHOICES = {item.name: item.choices for item in EVERY_SETTING}["transport"]


@pytest.mark.parametrize("name", CHOICES)
async def test_the_transport_goes_the_ways_it_is_chosen_by(name: str, tmp_path: Path) -> None:
    memory = KVMemory.create(KVLayout("m", "float32", 1, 2, 1, 4, 4), 2)
    ours, theirs = data_socket_pair()
    mover = MoverClient(ours)
    settings = settings_with(transport=name, transfer_dir=str(tmp_path))
    transport = build_transport(settings, "p.1", memory, (), mover, ManualClock())
    assert tuple(transport.ways) == (("mapped", "nixl", "tcp") if name == "auto" else (name,))
    await transport.close()
    mover.close()
    theirs.close()


async def test_pools_of_several_ranks_are_mapped_too(tmp_path: Path) -> None:
    layout = KVLayout("m", "float32", 1, 2, 2, 4, 4)
    memory = KVMemory.create(layout, 2, 2 * layout.block_bytes)
    pairs = [data_socket_pair() for _ in range(2)]
    clients = [MoverClient(ours) for ours, _ in pairs]
    movers = RankMovers(clients, [KVShare(layout, rank, 2) for rank in range(2)])
    pools = [KVMemory.create(share, 2).fd for share in [KVShare(layout, 0, 2).layout] * 2]
    settings = settings_with(tp=2, transport="auto", transfer_dir=str(tmp_path))
    transport = build_transport(settings, "p.1", memory, pools, movers, ManualClock())
    await transport.start()
    assert transport.address.socket and transport.address.port
    await transport.close()
    movers.close()
    for _, theirs in pairs:
        theirs.close()


def test_ranks_are_not_linked_by_nccl() -> None:
    with pytest.raises(SettingsError, match=r"--transport nccl with 2 ranks .*nixl or tcp"):
        check_transport(settings_with(tp=2, transport="nccl"))


def test_nixl_by_name_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PACKAGE", "nixl_of_nobody")
    with pytest.raises(SettingsError, match=f"--transport nixl: {agent.MISSING}"):
        check_transport(settings_with(transport="nixl"))


async def test_auto_goes_without_nixl_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(agent, "PACKAGE", "nixl_of_nobody")
    memory = KVMemory.create(KVLayout("m", "float32", 1, 2, 1, 4, 4), 2)
    ours, theirs = data_socket_pair()
    mover = MoverClient(ours)
    transport = auto_transport(ShownPool(memory), "p.1", mover, folder=tmp_path)
    assert tuple(transport.ways) == ("mapped", "tcp")
    await transport.close()
    mover.close()
    theirs.close()


@pytest.mark.parametrize("given", [{"transfer_port": 9001}, {"transfer_advertise": "h:1"}])
def test_what_only_a_port_has_is_refused_where_there_is_none(
    given: dict[str, object], tmp_path: Path
) -> None:
    check_transport(settings_with(**given))
    flag = "--" + next(iter(given)).replace("_", "-")
    with pytest.raises(SettingsError, match=f"{flag} has no meaning with --transport mapped"):
        check_transport(settings_with(transport="mapped", transfer_dir=str(tmp_path), **given))


def test_the_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = transfer_folder(str(tmp_path / "a" / "b"))
    assert folder == tmp_path / "a" / "b"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert transfer_folder(str(folder)) == folder


def test_without_a_name_it_is_in_the_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert transfer_folder("") == tmp_path / "baton" / "kv"


def test_a_folder_that_cannot_be_made_is_a_setting_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match="--transfer-dir: cannot make"):
            transfer_folder(str(path))


def test_a_folder_that_others_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(SettingsError, match="other users may write"):
        transfer_folder(str(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(SettingsError, match="belongs to another user"):
        transfer_folder(str(tmp_path))
