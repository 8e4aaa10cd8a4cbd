"""In a cell whose KV arrives damaged the decode worker is listed, linked and not ready; once KV
arrives whole it is ready, and so are the answers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from shared.state.embedded import EmbeddedRedis
from tests.e2e.cluster import Cell
from tests.e2e.wire import ProxyThread, free_port
from tests.support.fakes.proxy import DamagingProxy
from tests.support.pairs.worker_process import wait_for

BODY = {"prompt": list(range(100, 160)), "max_tokens": 8, "ignore_eos": True, "temperature": 0.0}
HOST = "127.0.0.1"


@pytest.fixture
def threads() -> Iterator[ProxyThread]:
    thread = ProxyThread()
    yield thread
    thread.close()


@pytest.mark.redis
def test_a_decode_worker_is_ready_only_when_kv_arrives_whole(
    tmp_path: Path, threads: ProxyThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CELL_SECRET", "of this cell alone")
    with (
        free_port() as transfer,
        free_port() as prefill_probe,
        free_port() as decode_probe,
        EmbeddedRedis() as server,
        closing(Cell(tmp_path, server)) as cell,
    ):
        proxy = DamagingProxy(f"{HOST}:{transfer}")
        address = threads.run(proxy.start())
        common = ("--transport", "tcp", "--kv-blocks", "256", "--probe-port")
        at_proxy = ("--transfer-port", str(transfer), "--transfer-advertise", address)
        cell.serve("prefill", *common, str(prefill_probe), *at_proxy, "--worker-id", "prefill-0")
        wait_for(lambda: ready(prefill_probe) == "" or None, 60)
        cell.serve("decode", *common, str(decode_probe))
        with cell.gateway("gateway", "--topology", "pd", num_workers=2) as cluster:
            cluster.wait(lambda: "do not match their digests" in ready(decode_probe), 30)
            assert "by tcp with prefill-0: " in ready(decode_probe)
            proxy.damages = False
            cluster.wait(lambda: ready(decode_probe) == "", 30)
            answer = cluster.answer(BODY)
            assert answer.complete
            (handed_over,) = cluster.status()["hand_overs"]
            assert handed_over["transport"] == "tcp"
        threads.run(proxy.close())


def ready(port: int) -> str:
    """Why the worker is not; empty when it is."""
    try:
        answer = httpx.get(f"http://{HOST}:{port}/ready")
    except httpx.TransportError:
        return "it does not listen"
    assert (answer.status_code == 200) == (answer.text == "")
    return answer.text
