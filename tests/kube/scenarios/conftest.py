"""The cluster that all scenarios share, with the chart installed: two nodes, two pods of a role.

KUBE_TEST_PODS says what its pods are: processes, unless it is `containers` or `kind`.
"""

import compileall
import os
from collections.abc import Iterator

import pytest

from tests.kube.chart_cluster import ChartCluster, bed_values
from tests.kube.kind_cluster import running_kind
from tests.kube.load import SHORT, answers_in_peace
from tests.kube.process_cluster import running_cluster
from tests.rules.sources import ROOT

CODE = ("services", "shared", "kernels")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartCluster]:
    if os.environ.get("KUBE_TEST_PODS") == "kind":
        with running_kind() as kind:
            kind.install(bed_values())
            yield kind
        return
    for folder in CODE:  # a container writes nothing
        compileall.compile_dir(ROOT / folder, quiet=2)
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.install(bed_values())
        yield running


@pytest.fixture(scope="session")
def texts(cluster: ChartCluster) -> list[str]:
    """Of SHORT, in peace."""
    return answers_in_peace(cluster.url, SHORT)
