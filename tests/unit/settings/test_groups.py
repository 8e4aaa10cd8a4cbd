"""Settings in groups: one name each, checked where one is made, and back to an environment."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from shared.kv.block_hash import BlockHashing
from shared.settings.groups import EngineSettings, KVSettings
from shared.settings.load import (
    EVERY_SETTING,
    changed,
    load_settings,
    to_environment,
    values_of,
)
from shared.settings.setting import SECRETS, environment_name, flag_name, helm_name
from tests.support.settings import settings_with


def test_no_two_settings_share_a_name_anywhere() -> None:
    for naming in (flag_name, environment_name, helm_name):
        names = Counter(naming(item.name) for item in EVERY_SETTING)
        assert set(names.values()) == {1}


@pytest.mark.parametrize("device", ["xyz", "cuda0", "cuda:", "cuda:-1", "CPU", "", "cuda:\u0663"])
def test_a_device_is_named_as_torch_names_it(device: str) -> None:
    with pytest.raises(SettingsError, match=f"--device: '{device}' is not auto, cpu"):
        settings_with(device=device)
    for right in ("auto", "cpu", "cuda", "cuda:12"):
        assert settings_with(device=right).compute.device == right


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http:///v1"])
def test_an_endpoint_for_traces_has_a_scheme_and_a_host(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=f"--otlp-endpoint: '{endpoint}' does not begin with"):
        settings_with(otlp_endpoint=endpoint)
    for right in ("", "http://collector:4318", "https://collector/otlp"):
        assert settings_with(otlp_endpoint=right).telemetry.otlp_endpoint == right


def test_a_group_is_checked_when_it_is_made() -> None:
    with pytest.raises(SettingsError, match=r"^--kv-blocks: -1 is below 0$"):
        KVSettings(blocks=-1)
    with pytest.raises(SettingsError, match=r"^--engine-silence-s: '8' is not a number$"):
        EngineSettings(silence_s="8")  # type: ignore[arg-type]


def test_a_change_names_settings_as_a_command_line_does() -> None:
    settings = settings_with(tp=2, port=1)
    other = changed(settings, kv_blocks=64, threads=3)
    assert (other.kv.blocks, other.engine.threads) == (64, 3)
    assert other.compute is not settings.compute and other.compute == settings.compute
    assert changed(other, kv_blocks=0, threads=1) == settings
    with pytest.raises(SettingsError, match="--tp: 9 is above 8"):
        changed(settings, tp=9)


@given(
    model=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    kv_blocks=st.integers(0, 10**6),
    engine_silence_s=st.floats(0.0, 86400),
    eager=st.booleans(),
)
def test_a_child_loads_the_same_but_for_the_secrets(**values: object) -> None:
    settings = settings_with(**values, **dict.fromkeys(SECRETS, "unix:///hidden"))
    environ = to_environment(*settings.groups)
    assert "hidden" not in str(environ)
    assert load_settings({}, environ) == settings_with(**values)


def test_a_child_is_told_the_groups_it_needs() -> None:
    settings = settings_with(block_size=32, threads=2, port=1)
    environ = to_environment(settings.kv, settings.engine)
    assert environ == {"BATON_BLOCK_SIZE": "32", "BATON_THREADS": "2"}
    assert {item.name for item, _ in values_of(settings.kv)} >= {"kv_blocks", "block_size"}


def test_an_empty_kv_secret_is_made_from_the_cell_s() -> None:
    one, other = KVSettings().hashing("a"), KVSettings().hashing("b")
    assert one == KVSettings().hashing("a") != other
    assert len(one.secret) == 32 and one.secret != b"a"
    assert KVSettings(secret="k").hashing("a").secret == b"k"  # noqa: S106
    assert KVSettings(block_size=8).hashing("") == BlockHashing(b"", 8)


def test_a_secret_is_not_shown_with_what_holds_it() -> None:
    assert "hidden" not in repr(BlockHashing(b"hidden", 16))
