"""Which pool this gateway serves: what its workers register for the model's name, and nothing that
follows from the gateway's own machine, which may have no GPU."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from shared.state.registry import WorkerEntry

logger = logging.getLogger(__name__)


MAX_NAMED = 8


class ServedPool:
    """Empty until a worker has registered."""

    def __init__(
        self,
        model: str,
        name: str = "",
        block_size: int = 0,
        on_change: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.model = model
        self.name = name
        self.block_size = block_size
        self.others: tuple[str, ...] = ()
        """more pools of this model that have workers; a gateway serves one"""
        self._other_models: tuple[str, ...] = ()
        """that have workers, while this one has none"""
        self._on_change = on_change

    def note(self, listed: Mapping[str, Sequence[WorkerEntry]], *, may_change: bool) -> None:
        """What the registry lists, by pool, of pools of this model alone. The pool that is served
        stays as long as it has a worker; then comes the one with most."""
        live = {pool: entries for pool, entries in listed.items() if entries}
        if live and self.name not in live and (may_change or not self.name):
            self._serve(max(sorted(live), key=lambda pool: len(live[pool])), live)
        others = tuple(sorted(pool for pool in live if pool != self.name))
        if others and others != self.others:
            logger.warning(
                "%s has workers in other pools too, which this gateway does not use: %s",
                self.model,
                ", ".join(others),
            )
        self.others = others

    def note_others(self, models: Collection[str]) -> None:
        """Those that have workers, where this one has none."""
        self._other_models = tuple(sorted(models))

    def trouble(self) -> str:
        """Workers that are there and of another model, where this one has none; or nothing."""
        if not self._other_models:
            return ""
        named = ", ".join(self._other_models[:MAX_NAMED])
        return (
            f"the workers that are registered serve {named}, this gateway serves {self.model}: "
            "give both the same --model, and --served-model-name if one has it"
        )

    def has(self, pool: str) -> bool:
        """Whether a pool is one of this model."""
        return pool.rpartition("@")[0] == self.model

    def _serve(self, name: str, live: Mapping[str, Sequence[WorkerEntry]]) -> None:
        logger.info("serving pool %s with %d workers", name, len(live[name]))
        self.name, self.block_size = name, live[name][0].block_size
        self._on_change(name)
