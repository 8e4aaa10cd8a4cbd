"""Values that the schema takes and the chart refuses: each with a sentence that says what to do."""

from typing import Any

import helm_python
import pytest

from tests.chart.release import render
from tests.chart.value_sets import COLOCATED, VALUE_SETS, put

SCALED = {"mode": "keda", "prometheus": {"serverAddress": "http://p"}}
GPU_LIMIT = {"nvidia.com/gpu": 1}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (put("gateway.terminationGracePeriodSeconds", 30), "stopping takes up to 620 s"),
    (
        put("decode", {"settings": {"drainS": 0.5}, "terminationGracePeriodSeconds": 5}),
        "stopping takes up to 11 s",
    ),
    (put("prefill.gpu.count", 1), "prefill and decode would use other KV types"),
    (put("settings.transport", "mapped"), "pods of two nodes could not hand over"),
    (put("prefill", {"settings": {"transport": "mapped"}}), "auto maps what is on one node"),
    (put("decode", {"gpu": {"count": 8}, "settings": {"tp": 1}}), "is 8 and settings.tp 1"),
    ({"settings": {"tp": 2}, "prefill": {"gpu": {"count": 1}}}, "is 1 and settings.tp 2"),
    (
        {"settings": {"transport": "nccl"}, "prefill": {"settings": {"tp": 2}}},
        "prefill: transport nccl: workers with tp 2 hand over mapped, by nixl or by tcp",
    ),
    (put("decode.autoscaling.mode", "hpa"), "needs metrics here"),
    (put("decode.autoscaling.mode", "builtin"), "both must be builtin"),
    (put("gateway.autoscaling.mode", "builtin"), "builtin is for workers"),
    (put("gateway.autoscaling.mode", "advised"), "advised is for workers"),
    (put("decode.autoscaling.mode", "advised"), "set autoscaler.advise"),
    (put("settings.model", "s3://bucket/llama"), "settings.model is s3://bucket/llama"),
    (put("settings", {"model": "/x", "randomWeights": False}), "nor a path below a mounted volume"),
    (put("settings.model", "/models/llama"), "nor a path below a mounted volume"),
    (
        put("modelVolume", {"existingClaim": "c", "image": {"reference": "llama:1"}}),
        "checkpoints come from one of them",
    ),
    (
        put("decode", {"replicas": 2, "autoscaling": SCALED}),
        "decode.replicas and decode.autoscaling.mode keda are both set: remove replicas",
    ),
    (
        put("gateway", {"replicas": 2, "autoscaling": {"mode": "hpa"}}),
        "gateway.replicas and gateway.autoscaling.mode hpa are both set: remove replicas",
    ),
    (
        put("decode.autoscaling", {**SCALED, "minReplicas": 5}),
        "decode.autoscaling.minReplicas is 5 and maxReplicas 4: raise maxReplicas",
    ),
    (
        put("redis.maxmemory", "400mb"),
        "redis.maxmemory is 400mb and redis.resources.limits.memory 320Mi: raise the limit",
    ),
    (
        put("redis", {"maxmemory": "2gb", "resources": {"limits": {"memory": "1.5G"}}}),
        "2gb and redis.resources.limits.memory 1.5G",
    ),
    (put("redis.enabled", False), "name another Redis by redis.existingUrl"),
    (put("redis.existingUrl", "redis://r"), "set redis.enabled to false to use another Redis"),
    (
        put("redis", {"enabled": False, "existingUrl": "redis://r", "existingSecret": "s"}),
        "redis.existingUrl and redis.existingSecret are both set: leave one out",
    ),
    (
        put("redis", {"enabled": False, "existingUrl": "redis://:hunter2@r"}),
        "put the URL into a Secret, with the key url, and name it as redis.existingSecret",
    ),
    (
        put("redis", {"enabled": False, "existingUrl": "redis://r?password=hunter2"}),
        "redis.existingUrl has a password in it",
    ),
    (
        put("redis", {"enabled": False, "existingUrl": "r:6379"}),
        "redis.existingUrl: it begins with redis://HOST or, with TLS, rediss://HOST",
    ),
    (
        put("decode.extraEnv", [{"name": "BATON_MODEL", "value": "x"}]),
        "decode.extraEnv: BATON_MODEL: settings go under decode.settings",
    ),
    (
        put("prefill.rdma", {"enabled": True, "env": [{"name": "BATON_TP", "value": "2"}]}),
        "BATON_TP: settings go under prefill.settings",
    ),
    (
        put("decode.resources.limits", GPU_LIMIT),
        "decode.resources.limits: nvidia.com/gpu is none of cpu, memory and ephemeral-storage; "
        "ask for GPUs by decode.gpu.count",
    ),
    (put("gateway.resources.requests", {"memori": "1Gi"}), "memori is none of cpu"),
    (put("redis.resources.limits", GPU_LIMIT), "redis.resources.limits: nvidia.com/gpu"),
    (put("autoscaler.resources.limits", GPU_LIMIT), "autoscaler.resources.limits: nvidia.com/gpu"),
    (
        put("image.control.repository", "REGISTRY/baton-control"),
        "image.control.repository is REGISTRY/baton-control: names of images have no capital "
        "letters; put your registry in the place of REGISTRY",
    ),
    (
        put("image.engine.repository", "r.example:5000/baton-engine:1"),
        "put the tag into image.engine.tag",
    ),
    (put("redis.image.repository", "r/redis@sha256:0"), "into redis.image.digest"),
    (
        put("prefill.settings", {"blockSize": 32}),
        "settings.blockSize is 16 of gateway, 32 of prefill, 16 of decode, and they would not find "
        "each other: say it once, under settings",
    ),
    (
        put("gateway.settings", {"servedModelName": "x"}),
        "settings.servedModelName is x of gateway, the model's own of prefill",
    ),
    (put("decode.settings", {"maxModelLen": 512}), "512 of decode, and the shortest would count"),
    (put("decode.settings", {"model": "owner/name"}), "settings.model is demo of gateway"),
    (
        {**COLOCATED, "prefill": {**COLOCATED["prefill"], "settings": {"blockSize": 8}}},
        "settings.blockSize is 16 of gateway, 8 of prefill",
    ),
    (put("settings.topology", "agg"), "set prefill.enabled to false, and leave settings.topology"),
    (put("gateway.settings", {"topology": "agg"}), "settings.topology: agg has no use for prefill"),
    (
        put("settings.otlpEndpoint", "collector:4318"),
        "settings.otlpEndpoint of gateway is collector:4318: write the scheme too, as "
        "http://collector:4318",
    ),
    (put("settings.workerPort", 9001), "each port of a pod is one of its own"),
    (put("settings.adminPort", 8000), "are both 8000: give the admin port another number"),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_a_schema_cannot_say_is_refused_too(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as refused:
        render(values)
    assert reason in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        put("settings", {"blockSize": 32, "servedModelName": "m", "maxModelLen": 512}),
        put("decode.settings", {"blockSize": 16, "maxModelLen": 0, "model": "demo"}),
        {"prefill": {"enabled": False, "settings": {"blockSize": 32}}},
        put("image.control.repository", "r.example:5000/a/baton-control"),
        put("settings.otlpEndpoint", "https://collector"),
        put("redis", {"maxmemory": "2gb", "resources": {"limits": {"memory": 3221225472}}}),
        put("redis", {"maxmemory": "512mb", "resources": {"limits": {"memory": "1Gi"}}}),
        put("decode.autoscaling", {"minReplicas": 5}),
        put("redis", {"enabled": False, "existingUrl": "rediss://r?ssl_ca_certs=/ca/ca.crt"}),
    ],
)
def test_what_only_looks_alike_is_taken(values: dict[str, Any]) -> None:
    render(values)


def test_no_set_of_values_is_refused() -> None:
    assert all(render(values).objects for values in VALUE_SETS.values())
