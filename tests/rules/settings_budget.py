"""How many settings there are: `settings` in `[tool.baton.budgets]`, neither more nor fewer.

So adding one is a decision: what a measurement can choose is no setting.
"""

from shared.settings.load import EVERY_SETTING
from tests.rules.sources import Violation, budgets_table


def check(num_settings: int, budget: int) -> list[Violation]:
    """Violations of the budget."""
    if num_settings == budget:
        return []
    text = f"there are {num_settings}, the budget in pyproject.toml is {budget}: "
    if num_settings > budget:
        text += "raise it where the issue says why no measurement can choose the new one"
    else:
        text += "lower it"
    return [Violation("shared/settings/groups.py", 1, "settings", text)]


def check_all() -> list[Violation]:
    """Of the settings there are."""
    return check(len(EVERY_SETTING), budgets_table()["settings"])
