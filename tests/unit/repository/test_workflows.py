"""The workflows name what this repository has: make targets, Dockerfiles, jobs, build arguments."""

import re
from typing import Any

import pytest
import yaml

from tests.rules.sources import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
DECLARED = re.compile(r"^ARG (\w+)", re.MULTILINE)


def jobs_of(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return jobs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_are_whole_and_call_targets_that_exist(path: Any) -> None:
    jobs = jobs_of(path.name)
    for job in jobs.values():
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(jobs)
        assert job["steps"]
        for step in job["steps"]:
            assert len(step.keys() & {"uses", "run"}) == 1, step
            assert re.fullmatch(r"[\w./-]+@(v\d+|[0-9a-f]{40})", step.get("uses", "a/b@v1"))
            called = re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))
            assert set(called) <= set(TARGETS)


def test_a_release_builds_each_image_from_a_dockerfile_that_knows_its_arguments() -> None:
    job = jobs_of("release.yaml")["images"]
    (build,) = (each["with"] for each in job["steps"] if "build-push" in each.get("uses", ""))
    assert build["platforms"] == "linux/amd64,linux/arm64"
    assert build["sbom"] and build["provenance"] == "mode=max"
    declared = set[str]()
    for image in job["strategy"]["matrix"]["include"]:
        file = ROOT / "docker" / f"{image['file']}.Dockerfile"
        names = set(DECLARED.findall(file.read_text(encoding="utf-8")))
        assert "extras" not in image or image["extras"].partition("=")[0] in names
        declared |= names
    given = re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE)
    assert given and set(given) <= declared


def test_secrets_and_places_come_from_the_repository_s_settings() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert set(re.findall(r"\bsecrets\.(\w+)", text)) == {"REGISTRY_USER", "REGISTRY_PASSWORD"}
    assert set(re.findall(r"\bvars\.(\w+)", text)) == {
        "REGISTRY",
        "TORCH_INDEX",
        "TORCH_INDEX_CPU",
    }
    assert "://" not in text.replace("oci://$REGISTRY", "")
