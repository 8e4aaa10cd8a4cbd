"""Values the chart is rendered with: each a way it is meant to be used."""

from pathlib import Path
from typing import Any

import yaml

from tests.rules.sources import ROOT

Values = dict[str, Any]

DEFAULT: Values = {}

CPU_MINIMAL: Values = {
    "prefill": {"enabled": False},
    "settings": {"topology": "agg", "maxModelLen": 1024, "kvMemoryMib": 64},
    "networkPolicy": {"enabled": False},
    "gateway": {"pdb": {"enabled": False}, "topologySpread": {"enabled": False}},
    "decode": {"pdb": {"enabled": False}, "resources": {"requests": {"cpu": "500m"}}},
}

PD_RDMA: Values = {
    "settings": {"model": "/models/llama", "dtype": "bfloat16", "maxBodyBytes": 8388608},
    "modelVolume": {"existingClaim": "checkpoints"},
    "prefill": {
        "replicas": 2,
        "settings": {"maxNumBatchedTokens": 8192, "prefixCache": False, "transferPort": 9100},
        "gpu": {"count": 1},
        "rdma": {
            "enabled": True,
            "count": 4,
            "annotations": {"k8s.v1.cni.cncf.io/networks": "roce"},
            "env": [{"name": "UCX_TLS", "value": "rc,cuda_copy"}],
        },
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "runtimeClassName": "nvidia",
        "priorityClassName": "serving",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h200"},
    },
    "decode": {
        "replicas": 4,
        "gpu": {"count": 1},
        "rdma": {"enabled": True, "resource": "rdma/roce_gdr", "ipcLock": False},
        "extraArgs": ["--max-pulls=8"],
        "affinity": {"podAntiAffinity": {}},
    },
}

RANKS: Values = {
    "settings": {"model": "/models/llama", "dtype": "bfloat16"},
    "modelVolume": {"existingClaim": "checkpoints"},
    "prefill": {"replicas": 2, "gpu": {"count": 4}, "shmSize": "8Gi"},
    "decode": {"replicas": 4, "gpu": {"count": 2}},
}

KEDA: Values = {
    "gateway": {
        "autoscaling": {
            "mode": "keda",
            "fallbackReplicas": 3,
            "prometheus": {"serverAddress": "http://prometheus:9090"},
        }
    },
    "prefill": {
        "autoscaling": {
            "mode": "keda",
            "maxReplicas": 8,
            "prometheus": {"serverAddress": "http://prometheus:9090", "threshold": "30000"},
        }
    },
    "decode": {
        "autoscaling": {"mode": "keda", "prometheus": {"serverAddress": "http://prometheus:9090"}}
    },
}

HPA: Values = {
    "gateway": {"autoscaling": {"mode": "hpa", "minReplicas": 2}},
    "decode": {
        "autoscaling": {
            "mode": "hpa",
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "baton_kv_cache_usage_perc"},
                        "target": {"type": "AverageValue", "averageValue": "800m"},
                    },
                }
            ],
        }
    },
}

BUILTIN: Values = {
    "autoscaler": {"maxGpus": 12, "slo": {"ttftMs": 500}, "nodeSelector": {"pool": "cpu"}},
    "networkPolicy": {"scrapers": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
    "prefill": {"gpu": {"count": 1}, "autoscaling": {"mode": "builtin", "maxReplicas": 8}},
    "decode": {"gpu": {"count": 1}, "autoscaling": {"mode": "builtin", "minReplicas": 2}},
}

BUILTIN_AGG: Values = {
    "prefill": {"enabled": False},
    "decode": {"gpu": {"count": 2}, "autoscaling": {"mode": "builtin", "maxReplicas": 8}},
}

ADVISED: Values = {
    "autoscaler": {"advise": True},
    "prefill": {"autoscaling": {"mode": "advised", "maxReplicas": 8}},
    "decode": {"autoscaling": {"mode": "advised", "fallbackReplicas": 2}},
    "redis": {"enabled": False, "existingUrl": "redis://redis.example:6379/0"},
}

COLOCATED: Values = {
    "settings": {
        "model": "/models/llama",
        "dtype": "bfloat16",
        "otlpEndpoint": "http://collector.tracing:4318",
    },
    "modelVolume": {"existingClaim": "checkpoints"},
    "colocated": {
        "enabled": True,
        "replicas": 3,
        "nodeSelector": {"gpu": "h200"},
        "podAnnotations": {"note": "x"},
        "podLabels": {"team": "llm"},
        "extraVolumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
    },
    "prefill": {
        "gpu": {"count": 1},
        "rdma": {"enabled": True, "annotations": {"k8s.v1.cni.cncf.io/networks": "roce"}},
        "settings": {"drainS": 45},
        "preStopS": 5,
        "shmSize": "2Gi",
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    },
    "decode": {
        "gpu": {"count": 1},
        "rdma": {"enabled": True, "ipcLock": False},
        "probes": {"startup": {"failureThreshold": 900}},
        "resources": {"limits": {"memory": "64Gi"}},
    },
}

EXTERNAL_REDIS: Values = {
    "redis": {"enabled": False, "existingUrl": "rediss://redis.example:6380/0"},
    "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
}

EXISTING_SECRET: Values = {
    "redis": {"existingSecret": "our-redis"},
    "cellSecret": {"existingSecret": "our-cell", "key": "secret"},
    "kvSecret": {"existingSecret": "our-salt", "key": "salt"},
    "apiKeys": {"existingSecret": "our-keys"},
    "hub": {"tokenSecret": "our-hub", "tokenKey": "hub-token", "cache": {"claim": True}},
    "settings": {"model": "owner/name"},
    "fullnameOverride": "llm",
}

EXTERNAL_REDIS_SECRET: Values = {
    "redis": {"enabled": False, "existingSecret": "our-redis", "caSecret": "our-ca"},
    "doctor": {"job": {"enabled": True}},
    "autoscaler": {"advise": True},
    "networkPolicy": {"redisPort": 6390},
    "decode": {"strategy": {"type": "Recreate"}},
}

EXTENDED: Values = {
    "settings": {"model": "/mnt/llama", "dtype": "bfloat16"},
    "lostNodeS": 5,
    "gateway": {
        "replicas": 3,
        "resources": {"requests": {"cpu": 2, "memory": "1Gi"}},
        "extraVolumes": [{"name": "texts", "emptyDir": {"sizeLimit": "1Gi"}}],
        "extraVolumeMounts": [{"name": "texts", "mountPath": "/mnt", "readOnly": True}],
    },
    "prefill": {
        "gpu": {"count": 1},
        "readOnlyRootFilesystem": True,
        "schedulerName": "batch",
        "initContainers": [
            {
                "name": "warm",
                "image": "busybox:1",
                "command": ["true"],
                "resources": {"limits": {"memory": "16Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "extraVolumes": [{"name": "weights", "emptyDir": {"sizeLimit": "20Gi"}}],
        "extraVolumeMounts": [{"name": "weights", "mountPath": "/mnt", "readOnly": True}],
    },
    "decode": {
        "gpu": {"count": 1},
        "serviceAccountName": "ours",
        "extraVolumes": [{"name": "weights", "emptyDir": {"sizeLimit": "20Gi"}}],
        "extraVolumeMounts": [{"name": "weights", "mountPath": "/mnt", "readOnly": True}],
    },
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "name": "ours",
                "labels": {"app.kubernetes.io/component": "{{ .Release.Name }}"},
            },
            "automountServiceAccountToken": False,
        }
    ],
}

EVERYTHING: Values = {
    "image": {
        "control": {"digest": "sha256:" + "a" * 64},
        "engine": {"repository": "mirror/baton-engine", "tag": "dev"},
        "pullSecrets": ["pull"],
    },
    "settings": {
        "servedModelName": "m",
        "drainS": 12.5,
        "otlpEndpoint": "http://collector.tracing:4318",
        "port": 8080,
        "logLevel": "warning",
    },
    "gateway": {
        "preStopS": 20,
        "terminationGracePeriodSeconds": 120,
        "settings": {"maxLiveRequests": 2000000, "drainS": 60},
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"lb": "internal"}},
        "podAnnotations": {"note": "x"},
        "podLabels": {"team": "llm"},
        "serviceAccountAnnotations": {"role": "none"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "autoscaling": {"mode": "hpa"},
    },
    "prefill": {"preStopS": 5, "gpu": {"count": 1}, "settings": {"workerPort": 9500}},
    "decode": {
        "gpu": {"count": 1},
        "autoscaling": {"mode": "keda", "prometheus": {"serverAddress": "https://p"}},
    },
    "hub": {"cache": {"claim": True, "storageClass": "fast"}},
    "transfer": {"hostPath": "/var/lib/baton-kv"},
    "apiKeys": {"existingSecret": "keys", "key": "file", "testKey": "key"},
    "networkPolicy": {
        "clients": [{"podSelector": {"matchLabels": {"app": "web"}}}],
        "scrapers": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "apiServer": {"ports": [443], "peers": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
        "extraEgress": [{"ports": [{"port": 5353, "protocol": "UDP"}]}],
        "releases": ["another"],
    },
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "llm.example",
        "tlsSecret": "tls",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
    },
    "httpRoute": {
        "enabled": True,
        "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
        "hostnames": ["llm.example"],
        "timeouts": {"request": "0s"},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True},
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "redis": {"port": 6400, "priorityClassName": "serving"},
}

DOCTOR: Values = {
    "doctor": {"initContainer": True, "job": {"enabled": True, "waitS": 30}},
    "settings": {"model": "owner/name"},
    "hub": {"tokenSecret": "our-hub"},
    "kvSecret": {"existingSecret": "our-salt"},
    "decode": {"extraArgs": ["--max-pulls=8"]},
}

DOCTOR_COLOCATED: Values = {
    **COLOCATED,
    "doctor": {"initContainer": True, "job": {"enabled": True}},
    "redis": {"enabled": False, "existingUrl": "redis://redis.example:6379/0"},
    "networkPolicy": {"scrapers": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
}

VERDICT: Values = {
    "verdict": {
        "enabled": True,
        "otherUrl": "http://baton-agg-gateway.llm:8080",
        "extraArgs": ["--input=512-2048", "--seeds=5"],
    },
    "apiKeys": {"existingSecret": "keys", "testKey": "key"},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
}

DASHBOARD: Values = {
    **BUILTIN,
    "networkPolicy": {},
    "monitoring": {
        "podMonitor": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "LLM"}},
    },
}


def put(path: str, value: Any) -> Values:
    """Values with one entry, at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    result: Values = value
    return result


EXAMPLES = sorted((ROOT / "helm" / "examples").glob("*.yaml"))


def example(path: Path) -> Values:
    """With a registry in place of the one that its reader names."""
    text = path.read_text(encoding="utf-8").replace("REGISTRY", "registry.example")
    values: Values = yaml.safe_load(text)
    return values


VALUE_SETS = {
    "default": DEFAULT,
    "cpu-minimal": CPU_MINIMAL,
    "pd-rdma": PD_RDMA,
    "ranks": RANKS,
    "keda": KEDA,
    "hpa": HPA,
    "builtin": BUILTIN,
    "builtin-agg": BUILTIN_AGG,
    "advised": ADVISED,
    "colocated": COLOCATED,
    "dashboard": DASHBOARD,
    "doctor": DOCTOR,
    "doctor-colocated": DOCTOR_COLOCATED,
    "external-redis": EXTERNAL_REDIS,
    "external-redis-secret": EXTERNAL_REDIS_SECRET,
    "existing-secret": EXISTING_SECRET,
    "extended": EXTENDED,
    "verdict": VERDICT,
    "everything": EVERYTHING,
    **{f"example-{path.stem}": example(path) for path in EXAMPLES},
}
