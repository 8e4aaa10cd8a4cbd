"""values.schema.json: what it takes, what it refuses, and that each is refused for its reason."""

import json
from typing import Any

import helm_python
import pytest
import yaml

from shared.settings.groups import KVSettings
from shared.settings.load import EVERY_SETTING
from shared.settings.setting import SECRETS, helm_name
from tests.chart.generate import readme_with_table, schema_with_settings
from tests.chart.release import CHART, render
from tests.chart.value_sets import VALUE_SETS, put

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
README = (CHART / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", VALUE_SETS)
def test_lint_is_clean(name: str) -> None:
    for version in ("1.20.0", "1.29.0", "1.37.0"):
        report = helm_python.lint(CHART, VALUE_SETS[name], strict=True, kube_version=version)
        found = [item["error"] for item in report["messages"] if item["severity"] > 1]
        assert (found, report["errors"]) == ([], [])


def test_checkpoints_in_an_image_need_a_cluster_that_mounts_images(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Lint shows what a template fails with, and goes on."""
    values = put("modelVolume.image.reference", "llama:1")
    for version, refused in (("1.30.9", True), ("1.31.0", False), ("1.37.0", False)):
        helm_python.lint(CHART, values, strict=True, kube_version=version)
        said = capfd.readouterr().err
        assert ("need Kubernetes 1.31 or later" in said) == refused, said


SCALED = {"mode": "keda", "prometheus": {"serverAddress": "http://p"}}
BAD = [
    (put("gatway", {}), "'gatway'"),
    (put("prefill.replica", 2), "'replica'"),
    (put("settings.maxModelLength", 4), "'maxModelLength'"),
    (put("decode.settings.kvblocks", 4), "'kvblocks'"),
    (put("settings.redis", "redis://x"), "'redis'"),
    (put("settings.kvSecret", "s"), "'kvSecret'"),
    (put("settings.cellSecret", "s"), "'cellSecret'"),
    (put("cellSecret.secret", "s"), "'secret'"),
    (put("settings.adminPort", 0), "/settings/adminPort"),
    (put("ingress.paths", []), "/ingress/paths"),
    (put("settings.blockSize", 512), "/settings/blockSize"),
    (put("settings.dtype", "int8"), "/settings/dtype"),
    (put("settings.port", 80), "/settings/port"),
    (put("settings.maxModelLen", "4096"), "/settings/maxModelLen"),
    (put("settings.port", None), "missing property 'port'"),
    (put("prefill.gpu.count", "1"), "/prefill/gpu/count"),
    (put("prefill.gpu.count", -1), "/prefill/gpu/count"),
    (put("prefill.gpu.count", 9), "/prefill/gpu/count"),
    (put("decode.settings.tp", 0), "/decode/settings/tp"),
    (put("prefill.settings.tp", 9), "/prefill/settings/tp"),
    (put("decode.autoscaling.mode", "auto"), "/decode/autoscaling/mode"),
    (put("autoscaler.slo", {"target": 1.5}), "/autoscaler/slo/target"),
    (put("decode.autoscaling.mode", "keda"), "/decode/autoscaling/prometheus/serverAddress"),
    (put("redis.existingUrl", 6379), "/redis/existingUrl"),
    (put("redis.maxmemory", "lots"), "/redis/maxmemory"),
    (put("image.engine.digest", "latest"), "/image/engine/digest"),
    (put("image.engine.pullPolicy", "always"), "/image/engine/pullPolicy"),
    (put("ingress.enabled", True), "/ingress/host"),
    (put("httpRoute.enabled", True), "/httpRoute/parentRefs"),
    (put("httpRoute.timeouts", {"request": "long"}), "/httpRoute/timeouts/request"),
    (put("decode.extraEnv", [{"name": "A B", "value": "x"}]), "/decode/extraEnv/0/name"),
    (put("decode.resources.limits", {"cpu": True}), "/decode/resources/limits/cpu"),
    (put("security.runAsUser", 0), "/security/runAsUser"),
    (put("hub.cache.size", "big"), "/hub/cache/size"),
    (put("modelVolume.image", {"reference": "a b"}), "/modelVolume/image/reference"),
    (put("transfer.hostPath", "kv"), "/transfer/hostPath"),
    (put("transfer.hostPath", "/"), "/transfer/hostPath"),
    (put("decode.resources.requests.cpu", -1), "/decode/resources/requests/cpu"),
    (put("decode.extraVolumes", [{"name": "cache"}]), "/decode/extraVolumes/0/name"),
    (put("decode.extraVolumes", [{"name": "transfer"}]), "/decode/extraVolumes/0/name"),
]


@pytest.mark.parametrize(("values", "reason"), BAD, ids=[str(bad[0]) for bad in BAD])
def test_bad_values_are_refused_for_their_reason(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refused:
        render(values)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        put("global", {"anything": 1}),
        put("decode.replicas", 0),
        put("settings", {"transport": "nixl"}),
        put("settings", {"transport": "nixl", "tp": 2}),
        put("settings", {"tp": 2}),
        put("decode.autoscaling", SCALED),
        put("security.runAsUser", None),
        put("decode.resources.requests.cpu", 0.5),
        put("settings", {"model": "llama-3.1-8b", "randomWeights": True}),
        put("gateway.pdb.maxUnavailable", "50%"),
    ],
)
def test_good_values_are_taken(values: dict[str, Any]) -> None:
    render(values)


def test_every_setting_is_a_value_with_its_own_limits() -> None:
    assert schema_with_settings(SCHEMA) == SCHEMA, "run `python -m tests.chart.generate`"
    known = {helm_name(item.name) for item in EVERY_SETTING if item.name not in SECRETS}
    assert set(SCHEMA["definitions"]["settings"]["properties"]) == known
    assert {helm_name(name) for name in SECRETS} <= set(SCHEMA["properties"])
    assert KVSettings.block_size == 16


def test_readme_tells_every_value() -> None:
    assert readme_with_table(README, SCHEMA, VALUES) == README, (
        "run `python -m tests.chart.generate`"
    )


def test_every_value_has_a_default_and_a_place_in_the_schema() -> None:
    assert set(VALUES) == set(SCHEMA["properties"]) - {"global"}
    for role in ("gateway", "prefill", "decode"):
        assert set(VALUES[role]) == set(SCHEMA["properties"][role]["properties"]) - {"replicas"}
