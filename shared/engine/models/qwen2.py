"""Qwen2 and Qwen2.5 (dense): Llama with biases on queries, keys and values, and only there."""

from shared.engine.models import llama


class Model(llama.Model):
    """Llama but for its biases, which the file has whatever config.json says."""

    @property
    def _attention_biases(self) -> tuple[bool, bool]:
        return True, False
