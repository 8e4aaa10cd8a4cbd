"""An installed vLLM under the same requests, through its `LLM` class."""

import gc
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

from services.cli.bench_model.model_choice import ModelChoice
from services.cli.bench_model.subject import Run
from services.cli.bench_model.workload import Workload
from shared.errors import BatonError, MissingError
from shared.settings import Settings


class VllmSubject:
    """One `LLM`. Prompts are token ids; no tokenizer is loaded and nothing is turned into text."""

    def __init__(self, choice: ModelChoice, settings: Settings, tp_size: int = 1) -> None:
        """Takes from `settings` what decides whether a cell fits; all else is vLLM's own choice."""
        try:
            self._vllm = importlib.import_module("vllm")
        except ImportError as error:
            raise MissingError(f"--engine vllm needs an installed vLLM: {error}") from None
        self._folder = tempfile.TemporaryDirectory()
        self._llm: Any = self._vllm.LLM(
            model=str(choice.config_folder(Path(self._folder.name))),
            load_format="dummy" if choice.random_weights else "auto",
            skip_tokenizer_init=True,
            enable_prefix_caching=settings.prefix_cache,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len or None,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            max_num_seqs=settings.max_num_seqs,
            block_size=settings.block_size,
            enforce_eager=settings.eager,
            tensor_parallel_size=tp_size,
        )
        self._vocab_size = choice.config.vocab_size

    @property
    def name(self) -> str:
        return f"vllm {getattr(self._vllm, '__version__', 'of unknown version')}"

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_kv_tokens(self) -> None:
        return None

    def run(self, workload: Workload) -> Run:
        prompts = [{"prompt_token_ids": list(one.token_ids)} for one in workload.requests]
        sampling = [
            self._vllm.SamplingParams(
                temperature=workload.temperature,
                max_tokens=one.num_output,
                ignore_eos=True,
                detokenize=False,
            )
            for one in workload.requests
        ]
        start_s = time.perf_counter()
        answers = self._llm.generate(prompts, sampling, use_tqdm=False)
        elapsed_s = time.perf_counter() - start_s
        if len(answers) != len(prompts):
            raise BatonError(f"vLLM answered {len(answers)} of {len(prompts)} requests")
        token_ids = tuple(tuple(answer.outputs[0].token_ids) for answer in answers)
        return Run(elapsed_s, token_ids)

    def close(self) -> None:
        self._llm = None
        gc.collect()
        self._folder.cleanup()
