"""An installed vLLM under the same requests, through its `LLM` class."""

import gc
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.subject import Run
from services.cli.bench.engine.workload import Workload
from shared.errors import BatonError, MissingError
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings


class VllmSubject:
    """One `LLM`. Prompts are token ids; no tokenizer is loaded and nothing is turned into text."""

    def __init__(
        self,
        choice: ModelChoice,
        compute: ComputeSettings,
        kv: KVSettings,
        engine: EngineSettings,
    ) -> None:
        """Given is what decides whether a cell fits; all else is vLLM's own choice."""
        try:
            self._vllm = importlib.import_module("vllm")
        except ImportError as error:
            raise MissingError(f"--engine vllm needs an installed vLLM: {error}") from None
        self._folder = tempfile.TemporaryDirectory()
        self._llm: Any = self._vllm.LLM(
            model=str(choice.config_folder(Path(self._folder.name))),
            load_format="dummy" if choice.random_weights else "auto",
            skip_tokenizer_init=True,
            enable_prefix_caching=engine.prefix_cache,
            dtype=compute.dtype,
            max_model_len=compute.max_model_len or None,
            gpu_memory_utilization=kv.gpu_memory_utilization,
            max_num_seqs=engine.max_num_seqs,
            block_size=kv.block_size,
            enforce_eager=engine.eager,
            tensor_parallel_size=compute.tp,
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
