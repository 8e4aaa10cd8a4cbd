"""How many settings there are: `settings` in `[tool.baton.budgets]`, neither more nor fewer.

So adding one is a decision: what a measurement can choose is no setting.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.settings.load import EVERY_SETTING
from tests.rules.sources import Source, Violation, budgets_table


def check(
    files: Iterable[Source] = (),
    num_settings: int = len(EVERY_SETTING),
    limits: Mapping[str, Any] | None = None,
) -> list[Violation]:
    """Violations of the budget; no file is looked at."""
    budget = (budgets_table() if limits is None else limits)["settings"]
    if num_settings == budget:
        return []
    text = f"there are {num_settings}, the budget in pyproject.toml is {budget}: "
    if num_settings > budget:
        text += "raise it where the issue says why no measurement can choose the new one"
    else:
        text += "lower it"
    return [Violation("shared/settings/groups.py", 1, "settings", text)]
