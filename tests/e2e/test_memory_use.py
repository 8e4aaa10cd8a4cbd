"""What a small cell holds in memory after some work, and that only engines hold torch."""

import asyncio
import itertools
import random
import time
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shared.model.checkpoint import resolve_model
from shared.state.embedded import EmbeddedRedis
from tests.e2e.cluster import Cluster, running
from tests.e2e.sse_load import all_at_once
from tests.e2e.test_soak import make_bodies
from tests.support.fakes.mock_cell import mock_cell
from tests.support.measured import Measured
from tests.support.pairs.worker_tree import engine_of
from tests.support.redis_server import ON_PATH, server_binary

pytestmark = pytest.mark.alone

MIB = 2**20
NUM_REQUESTS = 64
IDLE_S = 5.0
MAX_WORKER_MIB = 700
MAX_GATEWAY_MIB = 150
MAX_GATEWAY_LARGE_VOCABULARY_MIB = 250
LARGE_VOCABULARY = 128 * 1024


def resident_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss / MIB)


def holds_torch(process: psutil.Process) -> bool:
    maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
    return "libtorch" in maps


def worker_processes(cluster: Cluster) -> list[tuple[psutil.Process, psutil.Process]]:
    """(io, engine) of every worker."""
    found = []
    for worker in cluster.workers():
        io = psutil.Process(worker["pid"])
        found.append((io, engine_of(io.pid)))
    return found


def test_five_seconds_after_64_requests(tmp_path: Path, measured: Measured) -> None:
    """Resident memory, shared pages counted in both processes; the sleep is what is measured."""
    with running(tmp_path, "--prefill", "1", "--decode", "1") as cluster:
        bodies = list(itertools.islice(make_bodies(cluster.model()), NUM_REQUESTS))
        report = asyncio.run(all_at_once(cluster.url, bodies))
        assert not report.failed
        time.sleep(IDLE_S)
        for io, engine in worker_processes(cluster):
            worker_mib = resident_mib(io) + resident_mib(engine)
            measured.at_most("memory of a worker", worker_mib, MAX_WORKER_MIB, "MiB")
            assert holds_torch(engine), "the search for torch finds it where it is"
            assert not holds_torch(io)
        gateway = cluster.gateway
        measured.at_most("memory of the gateway", resident_mib(gateway), MAX_GATEWAY_MIB, "MiB")
        assert not holds_torch(gateway)


@pytest.fixture
def large_vocabulary(tmp_path: Path) -> Path:
    """The demo checkpoint with a byte-level BPE tokenizer of 128k entries in place of its own."""
    source = resolve_model("demo")
    folder = tmp_path / "demo"
    folder.mkdir()
    for file in source.iterdir():
        if file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file)
    numbers = random.Random(3)  # noqa: S311
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(alphabet)}
    pieces, merges = list(alphabet), []
    while len(pieces) < LARGE_VOCABULARY:
        merge = (numbers.choice(pieces), numbers.choice(alphabet))
        piece = "".join(merge)
        if piece not in vocabulary:
            vocabulary[piece] = len(pieces)
            pieces.append(piece)
            merges.append(merge)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() >= LARGE_VOCABULARY
    return folder


def test_a_gateway_with_a_large_vocabulary(
    large_vocabulary: Path, tmp_path: Path, measured: Measured
) -> None:
    with (
        EmbeddedRedis(server_binary(ON_PATH)) as redis,
        mock_cell(redis.url, tmp_path, model=str(large_vocabulary)) as cell,
    ):
        bodies = list(itertools.islice(make_bodies("demo"), NUM_REQUESTS))
        report = asyncio.run(all_at_once(cell.url, bodies))
        assert not report.failed
        time.sleep(IDLE_S)
        gateway_mib = resident_mib(cell.gateway)
        measured.at_most(
            "memory of the gateway", gateway_mib, MAX_GATEWAY_LARGE_VOCABULARY_MIB, "MiB"
        )
        assert not holds_torch(cell.gateway)
