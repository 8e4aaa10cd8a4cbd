"""The cluster that all scenarios share, with the chart installed: two nodes, two pods of a role."""

import compileall
from collections.abc import Iterator

import pytest

from tests.kube.load import SHORT, answers_in_peace
from tests.kube.process_cluster import ProcessCluster, bed_values, running_cluster
from tests.rules.sources import ROOT

CODE = ("services", "shared", "kernels")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    for folder in CODE:  # a container writes nothing
        compileall.compile_dir(ROOT / folder, quiet=2)
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.install(bed_values())
        yield running


@pytest.fixture(scope="session")
def texts(cluster: ProcessCluster) -> list[str]:
    """Of SHORT, in peace."""
    return answers_in_peace(cluster.url, SHORT)
