"""The file of API keys: a gateway that would refuse or admit the wrong ones does not start."""

from pathlib import Path

import pytest

from services.gateway.http.api_keys import ApiKeys
from shared.errors import SettingsError

DIGEST = "a" * 64
GOOD = f'[[keys]]\ntenant = "t"\nsha256 = "{DIGEST}"\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "needs tables"),
        ("keys = []", "needs tables"),
        ("keys = 3", "needs tables"),
        (GOOD + "[limits]\n", "nothing else"),
        ("[[keys]]\n", "key 1: needs"),
        (GOOD + '[[keys]]\ntenant = "u"\n', "key 2: needs"),
        (GOOD + "price = 2\n", "key 1: needs"),
        (GOOD + "weight = 0\n", "`weight` is a whole number from 1 to 1000"),
        (GOOD + "weight = 1.5\n", "`weight` is a whole number"),
        (GOOD + "highest_priority = 8\n", "`highest_priority` is a whole number from 0 to 7"),
        (GOOD + "highest_priority = -1\n", "`highest_priority` is a whole number"),
        (f'[[keys]]\ntenant = ""\nsha256 = "{DIGEST}"\n', "`tenant`"),
        (f'[[keys]]\ntenant = 3\nsha256 = "{DIGEST}"\n', "`tenant`"),
        ('[[keys]]\ntenant = "t"\nsha256 = "sk-secret"\n', "`sha256`"),
        (f'[[keys]]\ntenant = "t"\nsha256 = "{DIGEST.upper()}"\n', "`sha256`"),
        (GOOD + GOOD, "key 2: the same key"),
        (GOOD + "max_live_requests = 0\n", "`max_live_requests` is a whole number from 1 "),
        (GOOD + "max_live_requests = true\n", "`max_live_requests` is a whole number from 1 "),
        (GOOD + 'max_live_requests = "4"\n', "`max_live_requests` is a whole number from 1 "),
        (
            GOOD + GOOD.replace(DIGEST, "b" * 64) + "max_live_requests = 4\n",
            "key 2: .* other limits",
        ),
        ("[[keys", "api-keys-file"),
        ("\xff", "api-keys-file"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError, match=says) as refused:
        ApiKeys.read(str(path))
    assert "sk-secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_no_open_door(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        ApiKeys.read(str(tmp_path / "gone"))
