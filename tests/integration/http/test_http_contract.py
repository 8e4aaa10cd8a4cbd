"""The contract's table against what pytest really collects.

The failure guarded: a row whose test was renamed away, or that never had one.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.http.contract import REQUIRED, ROWS, main
from tests.integration.http.refusals import check_error

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]


@pytest.fixture(scope="module")
def collected() -> frozenset[str]:
    """Ids of this folder's tests, with and without their case."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    listed = subprocess.run(  # noqa: S603
        [*command, str(FOLDER)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    prefix = f"{FOLDER.relative_to(ROOT)}/"
    ids = {
        line.removeprefix(prefix) for line in listed.stdout.splitlines() if line.startswith(prefix)
    }
    return frozenset(ids | {name.partition("[")[0] for name in ids})


def test_every_required_row_has_a_test() -> None:
    assert [row for row in REQUIRED if not ROWS.get(row)] == []


def test_every_id_is_a_test(collected: frozenset[str]) -> None:
    assert len(collected) > len(ROWS)
    unknown = {row: set(ids) - collected for row, ids in ROWS.items()}
    assert {row: ids for row, ids in unknown.items() if ids} == {}


def test_no_id_is_listed_twice_in_a_row() -> None:
    assert [row for row, ids in ROWS.items() if len(set(ids)) != len(ids)] == []


def test_a_row_that_does_not_exist_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["24", "999"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("no row 999; rows with tests: 1, 2, ")


GOOD = {"message": "n: must be 1", "type": "invalid_request_error", "param": "n", "code": "x"}
HEADERS = {"x-request-id": "0" * 32, "content-type": "application/json"}


def test_the_check_of_errors_passes_a_good_one() -> None:
    check_error(json.dumps({"error": GOOD}), HEADERS, 400, "x", "n")


@pytest.mark.parametrize(
    "change",
    [
        {"message": "KeyError: 'n' in the request"},
        {"message": "no file /srv/models/config.json"},
        {"message": "cannot connect to 127.0.0.1:5000"},
        {"message": 'Traceback File "a.py", line 5'},
        {"message": "raised in services.gateway"},
        {"message": "two\nlines of text"},
        {"message": ""},
        {"type": "server_error"},
        {"param": "m"},
        {"code": None},
        {"stack": []},
    ],
    ids=str,
)
def test_the_check_of_errors_sees(change: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        check_error(json.dumps({"error": GOOD | change}), HEADERS, 400, "x", "n")
