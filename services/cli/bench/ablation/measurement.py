"""One engine after the other, each with what the one before lacked; one way after the other."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.cli.bench.ablation.load import Load
from services.cli.bench.ablation.row import Row
from services.cli.bench.ablation.ways import Answers, Way, continued, recomputed
from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.placed_model import PlacedModel
from services.cli.bench.measure import progress_line
from shared.settings.groups import Settings
from shared.settings.load import changed

GRAPHS = "+ CUDA graphs"


@dataclass(frozen=True)
class Stage:
    """An engine, and the ways that it is asked in."""

    settings: Settings
    ways: tuple[tuple[str, Way, int], ...]
    """name, way, sequences at once"""


def stages(settings: Settings, width: int, device_type: str) -> list[Stage]:
    """`settings`: of the engine, but for what the stages differ in."""
    plain = changed(settings, prefix_cache=False, eager=True)
    cached = changed(plain, prefix_cache=True)
    found = [
        Stage(
            plain,
            (
                ("none", recomputed, 1),
                ("batch", recomputed, width),
                ("KV", continued, 1),
                ("both", continued, width),
            ),
        ),
        Stage(cached, (("+ prefix cache", continued, width),)),
    ]
    if device_type == "cuda":
        found.append(Stage(changed(cached, eager=False), ((GRAPHS, continued, width),)))
    return found


def measure(placed: PlacedModel, settings: Settings, load: Load) -> Iterator[Row]:
    """In the order of the table. BatonError if a sequence fails."""
    block_bytes = int(placed.size.kv_read_bytes(1)) * settings.kv.block_size
    for stage in stages(settings, load.width, placed.device.type):
        subject = BatonSubject(placed.choice, *stage.settings.of_engine)
        workload = load.workload(subject.vocab_size)
        try:
            for name, way, width in stage.ways:
                progress_line.announce(f"{name}: {workload.num_output_tokens} tokens")
                way(subject, load.warm_up(subject.vocab_size), width)
                answers = way(subject, workload, width)
                yield _row(name, answers, workload.num_prompt_tokens, block_bytes)
        finally:
            subject.close()


def _row(name: str, answers: Answers, num_prompt_tokens: int, block_bytes: int) -> Row:
    return Row(
        name=name,
        token_ids=answers.token_ids,
        elapsed_s=answers.elapsed_s,
        gap_s=answers.gap_s,
        kept_bytes=answers.kept.most * block_bytes,
        hit_share=answers.num_prefix_hits / num_prompt_tokens,
        filled_share=answers.kept.filled_share,
    )
