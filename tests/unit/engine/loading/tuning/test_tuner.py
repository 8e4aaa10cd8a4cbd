"""--tune on a runner whose steps take a known time: what it finds, and what it keeps."""

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shared.engine.loading.tuning.tuned_file import MAX_BYTES, TunedFile, tuning_folder
from shared.engine.loading.tuning.tuner import Tuner
from shared.engine.parallel.ranks import Ranks, SingleRank
from shared.engine.running.model_runner import Runner
from shared.errors import SettingsError
from shared.settings.groups import EngineSettings
from shared.settings.profiles import PROFILES, StepSize
from tests.support.fakes.thread_ranks import Shelf, ThreadRanks

BLOCK_SIZE, LONGEST = 16, 4096
KEY = {"device": "D", "profile": "balanced"}
CLOCK = "shared.engine.loading.tuning.tuner.time"


class Device:
    """A clock, and a runner of which a step takes `step_ms`, a row `row_ms` and a prompt's token
    `token_ms`; steps of more than `most_tokens` find no memory."""

    def __init__(
        self, step_ms: float, row_ms: float, token_ms: float, most_tokens: int = 10**9
    ) -> None:
        self.costs = step_ms, row_ms, token_ms
        self.most_tokens = most_tokens
        self.now_s = 0.0
        self.largest = 0
        """tokens of any step so far"""
        self.num_trials = 0

    def perf_counter(self) -> float:
        return self.now_s

    def run(self, batch: Any) -> torch.Tensor:
        if batch.shape.num_tokens > self.most_tokens:
            raise torch.OutOfMemoryError("none left")
        self.largest = max(self.largest, batch.shape.num_tokens)
        step_ms, row_ms, token_ms = self.costs
        decoding = int((batch.query_lens == 1).sum())
        prompt = batch.shape.num_tokens - decoding
        self.now_s += (step_ms + row_ms * decoding + token_ms * prompt) / 1e3
        return torch.zeros(batch.shape.num_logits_rows, 2)

    def trial(self) -> tuple[Runner, int]:
        self.num_trials += 1
        return cast(Runner, self), 64


MakeDevice = Callable[..., Device]


@pytest.fixture
def make_device(monkeypatch: pytest.MonkeyPatch) -> MakeDevice:
    def make(step_ms: float, row_ms: float, token_ms: float, most_tokens: int = 10**9) -> Device:
        device = Device(step_ms, row_ms, token_ms, most_tokens)
        monkeypatch.setattr(CLOCK, SimpleNamespace(perf_counter=device.perf_counter))
        return device

    return make


def tuner_of(file: TunedFile | None = None, ranks: Ranks | None = None, **settings: Any) -> Tuner:
    engine = EngineSettings(**{"tune": True, **settings})
    return Tuner(engine, "cuda", BLOCK_SIZE, LONGEST, ranks or SingleRank(), file)


def found(device: Device, file: TunedFile | None = None, **settings: Any) -> StepSize:
    tuner = tuner_of(file, **settings)
    size = tuner.find(device.trial)
    assert size.num_tokens <= tuner.largest.num_tokens
    assert size.num_seqs <= tuner.largest.num_seqs
    return size


def test_sizes_follow_the_device_and_the_aim(make_device: MakeDevice) -> None:
    """A step of 5 ms, 0.05 ms a row, 0.02 ms a prompt's token, gaps of 50 ms."""
    sizes = {name: found(make_device(5.0, 0.05, 0.02), profile=name) for name in PROFILES}
    assert sizes["low_latency"] == (512, 128)  # 5 + 6.4 of 12.5 ms; 5 + 6.4 + 7.7 of 25 ms
    assert sizes["balanced"] == (1024, 256)  # 5 + 12.8 of 25 ms; 5 + 12.8 + 15.4 of 50 ms
    assert sizes["high_throughput"] == (8192, 512)  # 5 + 25.6 of 250 ms; 184 of 500 ms
    assert found(make_device(5.0, 0.05, 0.02), slo_gap_ms=25.0) == sizes["low_latency"]


def test_a_slow_device_gets_more_than_one_sequence(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of 100 ms miss 50 ms however small they are: 200 ms may then be."""
    caplog.set_level(logging.INFO)
    assert found(make_device(100.0, 1.0, 0.5)).num_seqs == 64
    assert "25 ms are out of reach here" in caplog.text


def test_no_step_far_beyond_the_limit_is_timed(make_device: MakeDevice) -> None:
    """64 tokens take 321 ms, and twice that may be; 256 are the first beyond it, and 128 bring
    nothing."""
    device = make_device(1.0, 5.0, 5.0)
    assert found(device) == (64, 2)
    assert device.largest == 256


def test_a_machine_that_stands_still_delays_no_start_for_long(make_device: MakeDevice) -> None:
    """Two steps of 4 s, then no more of that size or of any larger."""
    device = make_device(4000.0, 0.0, 0.0)
    assert found(device) == (64, 1)
    assert device.now_s == pytest.approx(2 * 2 * 4.0)


def test_what_is_set_by_hand_is_neither_changed_nor_timed(make_device: MakeDevice) -> None:
    assert found(make_device(5.0, 0.05, 0.02), max_num_seqs=7).num_seqs == 7
    assert found(make_device(5.0, 0.05, 0.02), max_num_batched_tokens=300).num_tokens == 300
    for settings in ({"max_num_seqs": 7, "max_num_batched_tokens": 300}, {"tune": False}):
        device = make_device(5.0, 0.05, 0.02)
        size = found(device, **settings)
        assert device.num_trials == 0
        assert size == EngineSettings(**settings).step_size("cuda", BLOCK_SIZE)


def test_sizes_without_memory_are_not_chosen(make_device: MakeDevice) -> None:
    aim = "high_throughput"
    assert found(make_device(5.0, 0.05, 0.02), profile=aim).num_tokens == 8192
    tight = make_device(5.0, 0.05, 0.02, most_tokens=700)
    assert found(tight, profile=aim, max_num_seqs=64).num_tokens == 512
    none = make_device(5.0, 0.05, 0.02, most_tokens=0)
    with pytest.raises(SettingsError, match=r"a step of 1 sequences finds no .*--max-num-seqs"):
        found(none)


def test_a_device_without_memory_for_a_trial_is_told_what_makes_room() -> None:
    def trial() -> tuple[Runner, int]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(SettingsError, match=r"finds no memory .*--max-num-batched-tokens"):
        tuner_of().find(trial)


def found_by_ranks(
    devices: list[Device], monkeypatch: pytest.MonkeyPatch, file: TunedFile | None = None
) -> list[StepSize]:
    """What the ranks of these devices find, of which the first has the file."""
    clocks, shelf = threading.local(), Shelf(len(devices))

    def perf_counter() -> float:
        now_s: float = clocks.device.perf_counter()
        return now_s

    monkeypatch.setattr(CLOCK, SimpleNamespace(perf_counter=perf_counter))

    def find(rank: int) -> StepSize:
        clocks.device = devices[rank]
        with shelf.broken_by_errors():
            ranks = ThreadRanks(rank, shelf)
            return tuner_of(None if rank else file, ranks).find(devices[rank].trial)

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(find, range(len(devices))))


def test_the_slowest_rank_decides_for_all(
    make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    costs = (5.0, 0.05, 0.02), (5.0, 0.1, 0.02), (9.0, 0.05, 0.03)
    alone = [found(make_device(*each)) for each in costs]
    assert len(set(alone)) > 1
    file = TunedFile(tmp_path, KEY)
    together = found_by_ranks([Device(*each) for each in costs], monkeypatch, file)
    assert together == [together[0]] * 3
    assert all(together[0] <= each for each in alone)
    again = [Device(*each) for each in costs]
    assert found_by_ranks(again, monkeypatch, file) == together
    assert [device.num_trials for device in again] == [0, 0, 0]


def test_a_rank_without_memory_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device(5.0, 0.05, 0.02), Device(5.0, 0.05, 0.02, most_tokens=100)]
    with pytest.raises((SettingsError, RuntimeError)):
        found_by_ranks(devices, monkeypatch)
    assert devices[0].largest <= 256


def test_what_was_found_is_read_at_the_next_start(
    make_device: MakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = found(make_device(5.0, 0.05, 0.02), TunedFile(tmp_path / "new", KEY))
    other = make_device(50.0, 5.0, 2.0)
    caplog.set_level(logging.INFO)
    assert found(other, TunedFile(tmp_path / "new", KEY)) == size
    what = f"{size.num_tokens} tokens and {size.num_seqs} sequences"
    assert f"tune: {what}, found at an earlier start; remove {tmp_path}" in caplog.text
    assert other.num_trials == 0
    elsewhere = {**KEY, "device": "E"}
    assert found(other, TunedFile(tmp_path / "new", elsewhere)) != size
    assert other.num_trials == 1
    assert len(list((tmp_path / "new").iterdir())) == 2


def spoilt(written: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({**written, **fields}).encode()


SPOILS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "empty": lambda written: b"",
    "cut": lambda written: json.dumps(written).encode()[:-9],
    "bytes": lambda written: b"\xff\xfe\x00",
    "nested": lambda written: b"[" * (MAX_BYTES - 1),
    "long": lambda written: json.dumps(written).encode() + b" " * MAX_BYTES,
    "list": lambda written: b"[1, 2]",
    "of another device": lambda written: spoilt(written, key={**KEY, "device": "E"}),
    "no size": lambda written: spoilt(written, num_seqs=None),
    "a fraction": lambda written: spoilt(written, num_seqs=2.0),
    "true": lambda written: spoilt(written, num_seqs=True),
    "odd": lambda written: spoilt(written, num_seqs=37),
    "huge": lambda written: spoilt(written, num_tokens=10**9),
    "negative": lambda written: spoilt(written, num_tokens=-1),
    "too few tokens": lambda written: spoilt(written, num_tokens=64),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_a_file_that_is_not_ours_is_said_and_timed_again(
    spoil: Callable[[dict[str, Any]], bytes],
    make_device: MakeDevice,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = TunedFile(tmp_path, KEY)
    size = found(make_device(5.0, 0.05, 0.02), file)
    file.path.write_bytes(spoil(json.loads(file.path.read_text())))
    again = make_device(5.0, 0.05, 0.02)
    assert found(again, file) == size
    assert again.num_trials == 1
    assert f"{file.path} is not believed" in caplog.text
    caplog.clear()
    assert found(again, file) == size
    assert (again.num_trials, caplog.text) == (1, "")  # it was written again


def test_a_folder_in_its_place_is_no_crash(
    make_device: MakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TunedFile(tmp_path, KEY)
    file.path.mkdir()
    assert found(make_device(5.0, 0.05, 0.02), file) == (1024, 256)
    assert "is not believed" in caplog.text
    assert "cannot be kept" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]


def test_a_folder_that_cannot_be_written_is_no_crash(
    make_device: MakeDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    file = TunedFile(tmp_path / "file" / "folder", KEY)
    assert found(make_device(5.0, 0.05, 0.02), file) == (1024, 256)
    assert "cannot be kept, the next start times again" in caplog.text


def test_another_user_s_file_is_not_believed(
    make_device: MakeDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = TunedFile(tmp_path, KEY)
    found(make_device(5.0, 0.05, 0.02), file)
    owner = file.path.stat().st_uid
    monkeypatch.setattr("shared.engine.loading.tuning.tuned_file.os.geteuid", lambda: owner + 1)
    again = make_device(5.0, 0.05, 0.02)
    found(again, file)
    assert again.num_trials == 1
    assert f"it is user {owner}'s" in caplog.text


def test_files_are_in_the_user_s_cache(tmp_path: Path) -> None:
    assert tuning_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/baton/tuning")
    assert tuning_folder({}) == Path.home() / ".cache/baton/tuning"
    one, other = TunedFile(tmp_path, {"a": 1, "b": 2}), TunedFile(tmp_path, {"b": 2, "a": 1})
    assert one.path == other.path


@pytest.mark.parametrize("profile", PROFILES)
def test_a_prompt_has_half_of_a_gap_at_least(make_device: MakeDevice, profile: str) -> None:
    size = found(make_device(1.0, 0.2, 0.02), profile=profile)
    gap_ms = 50.0 * PROFILES[profile].gaps
    assert 1.0 + 0.2 * size.num_seqs <= gap_ms / 2
    assert 1.0 + 0.2 * (size.num_seqs - 1) + 0.02 * (size.num_tokens - size.num_seqs + 1) <= gap_ms
