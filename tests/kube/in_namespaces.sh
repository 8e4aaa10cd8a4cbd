#!/bin/sh
# Runs a command with a network, mounts and process ids of its own, as root. Every address of a pod
# or a Service is local there, and no packet leaves; what it mounts nobody sees; all it started ends
# with it.
set -eu
if [ "$(id -u)" -ne 0 ]; then
    echo "baton: error: pods as processes need root: mounts, users and networks of their own" >&2
    exit 3
fi
exec unshare --net --mount --pid --fork --kill-child --mount-proc sh -euc '
    ip link set lo up
    ip route add local 10.244.0.0/16 dev lo # pods
    ip route add local 10.0.0.0/24 dev lo # Services
    export KUBE_TESTS_APART=1
    exec "$@"' sh "$@"
