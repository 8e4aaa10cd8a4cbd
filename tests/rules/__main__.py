"""`python -m tests.rules`: every rule; 1 when one is broken."""

import sys

from tests.rules import budgets, loops, words


def main() -> int:
    return max(budgets.main(), words.main(), loops.main())


if __name__ == "__main__":
    sys.exit(main())
