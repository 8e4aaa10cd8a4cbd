#!/bin/sh
# Runs a command against a cluster of kind, made for it and removed after it, with the images of docker/
# loaded under every tag that the scenarios name. KIND_IMAGE names another Kubernetes than kind's own.
set -eu
NAME=baton-test

missing=""
for program in docker kind; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
    echo "baton: error: kind-test needs Docker and kind; missing:$missing" >&2
    exit 3
fi
if ! docker version >/dev/null 2>&1; then
    echo "baton: error: kind-test needs Docker, and no Docker daemon answers" >&2
    exit 3
fi

tag="$(sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' helm/Chart.yaml)"
docker build --file docker/control.Dockerfile --tag "baton-control:$tag" .
docker build --file docker/engine.Dockerfile --build-arg TORCH_INDEX="${TORCH_INDEX:-}" \
    --tag "baton-engine:$tag" .
images="baton-control:$tag baton-engine:$tag"
for image in baton-control baton-engine; do
    for other in one two; do
        docker tag "$image:$tag" "$image:$other"
        images="$images $image:$other"
    done
done

trap 'kind delete cluster --name "$NAME"' EXIT
kind create cluster --name "$NAME" --wait 120s ${KIND_IMAGE:+--image "$KIND_IMAGE"} \
    --config tests/kube/kind_nodes.yaml
kind load docker-image --name "$NAME" $images
KUBE_TEST_CONFIG="$(kind get kubeconfig --name "$NAME")" KUBE_TEST_PODS=kind "$@"
