"""A shape's folder: every id has a text, no text has an id of those added, and it is made once."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from shared.errors import ModelError
from shared.model.checkpoint import load_checkpoint
from shared.text.tokenizer import TextTokenizer

DEMO_IDS = 4096
VOCAB = 8192


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    return load_checkpoint("tiny", cache, random_weights=True).path


def test_every_id_has_a_text_of_its_own(folder: Path) -> None:
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.vocab_size == VOCAB
    texts = {tokenizer.token_utf8(token_id) for token_id in range(VOCAB)}
    assert len(texts) == VOCAB
    assert b"" not in texts


def test_text_is_the_demo_models(folder: Path) -> None:
    demo = Tokenizer.from_file(str(load_checkpoint("demo").path / "tokenizer.json"))
    padded = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("Tell me a story", " #5000 #4096", "<|im_start|>user\n"):
        ids = padded.encode(text).ids
        assert ids == demo.encode(text).ids
        assert max(ids) < DEMO_IDS


def test_it_is_made_once_without_weights_or_an_end_id(folder: Path) -> None:
    before = folder.stat().st_mtime_ns
    checkpoint = load_checkpoint("tiny", folder.parent, random_weights=True)
    assert (checkpoint.path, checkpoint.name) == (folder, "tiny")
    assert checkpoint.eos_token_ids == ()
    assert folder.stat().st_mtime_ns == before
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("model", ["demo", "owner/name", "nothing"])
def test_only_a_shape_has_random_weights(model: str, folder: Path) -> None:
    with pytest.raises(ModelError, match=r"shapes are llama-3\.1-8b.*tiny.*leave --random-weights"):
        load_checkpoint(model, folder.parent, random_weights=True)
    with pytest.raises(ModelError, match="not a shape"):
        load_checkpoint(str(folder), random_weights=True)


def test_a_shape_without_the_flag_names_it() -> None:
    with pytest.raises(ModelError, match="add --random-weights"):
        load_checkpoint("tiny")
