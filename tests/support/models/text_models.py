"""Checkpoint directories with nothing but text: tokenizers and chat templates made here.

Two kinds, as Llama and Qwen checkpoints have them: byte-level BPE, and SentencePiece-like BPE
with byte fallback.
"""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import processors as post_processors

from services.gateway.prompt.served_model import ServedModel

BOS, START, END = "<s>", "<|im_start|>", "<|im_end|>"
THINK = "<think>"
"""an added token that is not special: it stays in the text"""
MODEL_NAME = "tiny-chat"
MAX_MODEL_LEN = 512

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and the dog runs home again",
    "hello world, hello user: what is the weather like in the city today?",
    "system user assistant message content answer question number one two three",
    "im_start im_end |im_ <| |> < > plain text of a special token",
]


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[BOS, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(THINK, special=False, normalized=False)])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """Shaped like Llama 2's: a space mark, byte fallback, BOS added in front."""
    pieces = ["<unk>", BOS, "</s>", *(f"<0x{code:02X}>" for code in range(256))]
    letters = sorted({char for line in CORPUS for char in line.replace(" ", "\u2581")})
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he"), ("l", "l"), ("o", "r")]
    pieces += letters + ["".join(pair) for pair in merges]
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=merges,
        unk_token="<unk>",  # noqa: S106
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in pieces[:3]])
    tokenizer.post_processor = post_processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 1)]
    )
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """As `sentencepiece_tokenizer`, with the newer Metaspace pre-tokenizer and decoder."""
    tokenizer = sentencepiece_tokenizer()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def write_text_model(
    directory: Path, tokenizer: Tokenizer | None = None, template: str | None = CHATML
) -> Path:
    """tokenizer.json and tokenizer_config.json of a model; no weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level_tokenizer()).save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "chat_template": template,
    }
    kept = {name: value for name, value in config.items() if value is not None}
    (directory / "tokenizer_config.json").write_text(json.dumps(kept), encoding="utf-8")
    return directory


def served_text_model(tokenizer: Tokenizer, max_model_len: int = MAX_MODEL_LEN) -> ServedModel:
    eos = tokenizer.token_to_id(END)
    return ServedModel(
        name=MODEL_NAME,
        max_model_len=max_model_len,
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_ids=() if eos is None else (eos,),
        created_s=1_700_000_000,
    )
