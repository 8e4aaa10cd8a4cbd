"""The flags of `baton bench handover`, and the two cells they mean."""

import argparse

import pytest

from services.cli.bench.handover import command
from services.cli.cluster.plan import Machine
from shared.errors import SettingsError


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "this_machine", lambda: Machine(num_cores=8, num_gpus=0))


def test_both_cells_have_the_same_engine() -> None:
    pd, agg = command.make_plans(parsed("--device", "cpu", "--block-size", "32"))
    assert (pd.worker_names, agg.worker_names) == (("prefill-0", "decode-0"), ("decode-0",))
    assert pd.settings.model.name == "tiny"
    assert pd.settings.model.random_weights
    for plan in (pd, agg):
        assert plan.settings.kv.block_size == 32
        assert plan.settings.engine.threads == 4  # the pair's, though one worker could have eight
        assert plan.settings.network.port == 0
    assert pd.settings.handover.transport == "auto"


def test_a_named_checkpoint_keeps_its_weights() -> None:
    pd, _ = command.make_plans(parsed("--model", "demo"))
    assert (pd.settings.model.name, pd.settings.model.random_weights) == ("demo", False)


def test_one_gpu_holds_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "this_machine", lambda: Machine(num_cores=8, num_gpus=1))
    with pytest.raises(SettingsError, match="2 workers on 1 GPU"):
        command.make_plans(parsed())
    command.make_plans(parsed("--device", "cpu"))


def test_prompts_are_the_same_for_both_cells_and_must_fit() -> None:
    pd, _ = command.make_plans(parsed("--max-model-len", "512"))
    amounts = command.read_amounts(parsed("--lengths", "64,256"), on_gpus=False)
    make = command.prompts_for(pd, amounts)
    first, second = make(), make()
    drawn = [first.cold(64), first.cold(64)]
    assert drawn == [second.cold(64), second.cold(64)]
    assert drawn[0] != drawn[1]
    too_long = command.read_amounts(parsed("--lengths", "500"), on_gpus=False)
    with pytest.raises(SettingsError, match="do not fit into the 512"):
        command.prompts_for(pd, too_long)


@pytest.mark.parametrize(
    ("text", "lengths"), [("256,1k", (256, 1024)), ("8K,64", (64, 8192)), ("7,7", (7,))]
)
def test_lengths(text: str, lengths: tuple[int, ...]) -> None:
    assert command.read_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "x", "1m", "0", "-1", "1.5k"])
def test_impossible_lengths_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--lengths"):
        command.read_lengths(text)


def test_how_much_is_asked() -> None:
    assert command.read_amounts(parsed(), on_gpus=False).lengths == (256, 1024)
    assert command.read_amounts(parsed(), on_gpus=True).lengths == (1024, 8192)
    quick = command.read_amounts(parsed("--quick", "--lengths", "32"), on_gpus=True)
    assert (quick.lengths, quick.num_requests) == ((32,), 3)
    with pytest.raises(SettingsError, match="--requests"):
        command.read_amounts(parsed("--requests", "1"), on_gpus=False)
