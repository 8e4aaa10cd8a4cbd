"""A way that is named by --transport is told to the log once per source, when it leads there."""

import logging
from typing import Any, cast

import pytest

from shared.errors import PeerLostError
from shared.protocol import Attempt
from shared.transfer.transport import PullRequest
from shared.transfer.ways import way as way_module
from shared.transfer.ways.way import OneWay, Way
from shared.transfer_address import TransferAddress


class Nixl:
    name = "nixl"


def request(source: str) -> PullRequest:
    address = TransferAddress("127.0.0.1:1")
    return PullRequest(Attempt("r", 0), address, source, "ticket", (), 0)


def test_a_source_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(way_module, "MOST_TOLD", 2)
    way = cast(Any, Nixl())
    ways = OneWay(cast(Way, way))
    ways.note(request("p.1"), way, PeerLostError("gone"))
    assert not caplog.messages
    for _ in range(3):
        ways.note(request("p.1"), way, None)
    assert caplog.messages == ["KV of p.1 (127.0.0.1:1) comes by nixl: named by --transport"]
    for number in range(2, 9):
        ways.note(request(f"p.{number}"), way, None)
    assert len(ways._told) <= 2
