"""A preset fills what is left open, gives way to what is given, and says both."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.cluster.plan import Machine, Plan, make_plan
from shared.settings.load import (
    EVERY_SETTING,
    load_settings,
    said_of_preset,
    to_environment,
    values_of,
)
from shared.settings.presets import NO_PRESET, PRESETS, preset_values
from shared.settings.setting import Setting, environment_name
from tests.support.settings import settings_with

BY_NAME = {item.name: item for item in EVERY_SETTING}
MACHINE = Machine(num_cores=8, num_gpus=0)


def value_of(name: str, **values: Any) -> Any:
    settings = settings_with(**values)
    return next(value for item, value in values_of(*settings.groups) if item.name == name)


def another(item: Setting, value: Any) -> Any:
    """Than that, which the setting may be."""
    if item.kind is bool:
        return not value
    if item.choices:
        return next(choice for choice in item.choices if choice != value)
    return value + 1


PRESET_VALUES = [(preset, name) for preset in PRESETS for name in PRESETS[preset].values]


@pytest.mark.parametrize(("preset", "name"), PRESET_VALUES)
def test_an_open_setting_is_the_preset_s(preset: str, name: str) -> None:
    value, why = PRESETS[preset].values[name]
    assert value_of(name, preset=preset) == value
    (line,) = (each for each in said_of_preset(settings_with(preset=preset)) if why in each)
    assert line.startswith(f"preset {preset}: --{name.replace('_', '-')} ")


@pytest.mark.parametrize(("preset", "name"), PRESET_VALUES)
def test_what_is_given_beats_the_preset_and_that_is_said(preset: str, name: str) -> None:
    value, _ = PRESETS[preset].values[name]
    given = another(BY_NAME[name], value)
    environ = {"BATON_PRESET": preset, environment_name(name): str(given).lower()}
    for settings in (settings_with(preset=preset, **{name: given}), load_settings({}, environ)):
        values = {item.name: each for item, each in values_of(*settings.groups)}
        assert values[name] == given
        (line,) = (each for each in said_of_preset(settings) if "gives way to" in each)
        assert f"--{name.replace('_', '-')} " in line


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_changes_what_it_names_or_advises(preset: str) -> None:
    """A preset that repeats a default changes nothing, but for threads: `up` has one of its own."""
    for name, (value, why) in PRESETS[preset].values.items():
        assert value != BY_NAME[name].default or name == "threads"
        assert why
    for name, (unchosen, _) in PRESETS[preset].advice.items():
        assert unchosen == BY_NAME[name].default
        assert name not in PRESETS[preset].values


def test_advice_ends_once_it_was_followed() -> None:
    said = "\n".join(said_of_preset(settings_with(preset="prod")))
    assert "--api-keys-file is yours to choose" in said
    followed = settings_with(preset="prod", api_keys_file="keys.toml")
    assert "--api-keys-file" not in "\n".join(said_of_preset(followed))


def test_no_preset_sets_and_says_nothing() -> None:
    assert settings_with(preset=NO_PRESET) == settings_with()
    assert said_of_preset(settings_with()) == []
    assert preset_values(NO_PRESET) == {}


@given(preset=st.sampled_from(sorted(PRESETS)), eager=st.booleans(), debug=st.booleans())
def test_another_process_has_the_values_and_says_nothing(
    preset: str, eager: bool, debug: bool
) -> None:
    """Also a value that was given and is the default: the preset must not come back."""
    settings = settings_with(preset=preset, eager=eager, debug=debug)
    told = load_settings({}, to_environment(*settings.groups))
    assert said_of_preset(told) == []
    wanted = {item.name: value for item, value in values_of(*settings.groups)}
    found = {item.name: value for item, value in values_of(*told.groups)}
    assert found == {**wanted, "preset": NO_PRESET}


def threads_of(plan: Plan) -> int:
    return plan.settings.engine.threads


def test_up_shares_out_the_cores_unless_the_preset_says_how_many_threads() -> None:
    assert threads_of(make_plan({}, {}, MACHINE)) == 4
    assert threads_of(make_plan({"preset": "dev"}, {}, MACHINE)) == 4
    assert threads_of(make_plan({"preset": "quality"}, {}, MACHINE)) == 1
    assert threads_of(make_plan({"threads": 3}, {"BATON_PRESET": "quality"}, MACHINE)) == 3
    flags = make_plan({"preset": "dev", "eager": False}, {}, MACHINE).processes("r", 1)[-1].flags
    assert "--preset" not in flags
    assert "--eager" not in flags
    assert flags[flags.index("--unknown-fields") + 1] == "refuse"
