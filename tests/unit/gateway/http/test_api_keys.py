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
        (GOOD + "weight = 2\n", "key 1: needs"),
        (f'[[keys]]\ntenant = ""\nsha256 = "{DIGEST}"\n', "`tenant`"),
        (f'[[keys]]\ntenant = 3\nsha256 = "{DIGEST}"\n', "`tenant`"),
        ('[[keys]]\ntenant = "t"\nsha256 = "sk-secret"\n', "`sha256`"),
        (f'[[keys]]\ntenant = "t"\nsha256 = "{DIGEST.upper()}"\n', "`sha256`"),
        (GOOD + GOOD, "key 2: the same key"),
        (GOOD + "max_live_requests = 0\n", "a number from 1 on"),
        (GOOD + "max_live_requests = true\n", "a number from 1 on"),
        (GOOD + 'max_live_requests = "4"\n', "a number from 1 on"),
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
