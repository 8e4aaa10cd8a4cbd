"""Trains the model's own tokenizer: byte-level BPE in which every digit is a token."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shared.demo_model.chat import SPECIAL_TOKENS, Document


def train_tokenizer(documents: Iterable[Document], vocab_size: int) -> Tokenizer:
    """Learns `vocab_size` tokens; single digits let sums and sorting generalise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (_without_marks(document) for document in documents), trainer=trainer
    )
    return tokenizer


def _without_marks(document: Document) -> str:
    text = "".join(segment.text for segment in document)
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\n")
    return text
