"""`python -m tests.rules`: every rule; 1 when one is broken."""

import sys

from tests.rules import (
    budgets,
    loops,
    phrases,
    read_settings,
    sent_words,
    settings_budget,
    words,
)
from tests.rules.sources import sources

RULES = (
    budgets.check,
    words.check,
    phrases.check,
    loops.check,
    read_settings.check,
    sent_words.check,
)


def main() -> int:
    files = list(sources())
    problems = [problem for check in RULES for problem in check(files)]
    problems += phrases.check(phrases.texts())
    problems += settings_budget.check_all()
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
