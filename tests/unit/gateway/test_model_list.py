"""`--more-models`: which models a gateway serves, and by which settings."""

from pathlib import Path

import pytest

from services.gateway.model_list import each_model
from shared.errors import SettingsError
from shared.settings.load import load_settings


def names(more: str, **flags: object) -> list[tuple[str, str]]:
    settings = load_settings({"more_models": more, **flags}, {})
    return [(each.model.name, each.model.served_name) for each in each_model(settings)]


def test_the_models_in_order() -> None:
    assert names("") == [("demo", "")]
    assert names("a=/models/x, org/b") == [("demo", ""), ("/models/x", "a"), ("org/b", "")]


def test_what_is_set_for_the_first_model_alone_is_not_for_the_others() -> None:
    flags = {"tool_parser": "hermes", "max_model_len": 512, "thinking": "off", "max_backlog": 7}
    first, second = each_model(load_settings({"more_models": "a=x", **flags}, {}))
    assert (first.model.tool_parser, second.model.tool_parser) == ("hermes", "auto")
    assert (first.compute.max_model_len, second.compute.max_model_len) == (512, 0)
    assert (first.model.thinking, second.model.thinking) == ("off", "auto")
    assert (first.limits, first.cell) == (second.limits, second.cell)
    assert first.model.more_models == second.model.more_models == ""


@pytest.mark.parametrize("more", ["=x", "a=", "demo", "a=x,a=y", "b,b", "demo=x"])
def test_names_that_are_missing_or_twice_are_refused(more: str) -> None:
    with pytest.raises(SettingsError, match="--more-models: "):
        names(more)


def test_a_folder_goes_by_its_last_name(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with pytest.raises(SettingsError, match="'demo' is there twice"):
        names(str(tmp_path / "demo"))
    assert names(f"other={tmp_path / 'demo'}")[1] == (str(tmp_path / "demo"), "other")
