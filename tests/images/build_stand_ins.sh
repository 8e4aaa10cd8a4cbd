#!/bin/sh
# Makes what `make image-test` has instead of a registry: an image of Debian with its Python, under
# the name of the Dockerfiles' base, and Debian's Redis, under the name that the chart gives. They are
# kept in $KUBE_TEST_CACHE/images, default ~/.cache/baton/images: 0.5 GB, 2 minutes, once. Packages come
# from the machine's own Debian mirror.
set -eu

PACKAGES="buildah podman runc debootstrap"
BASE=localhost/python:3.12-slim
REDIS=localhost/redis:7.2
STORE="${KUBE_TEST_CACHE:-$HOME/.cache/baton}/images"

missing=""
for package in $PACKAGES; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null |
        grep -q '^installed$' || missing="$missing $package"
done
if [ "$(id -u)" -ne 0 ]; then
    echo "baton: error: images are built as root here: mounts and users of their own" >&2
    exit 3
fi
if [ -n "$missing" ]; then
    apt-get update --quiet
    apt-get install --yes --no-install-recommends $missing
fi

mkdir -p "$STORE"
cat >"$STORE/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$STORE/graph"
runroot = "$STORE/run"
CONF
export CONTAINERS_STORAGE_CONF="$STORE/storage.conf" BUILDAH_ISOLATION=chroot

if ! buildah inspect --type image "$BASE" >/dev/null 2>&1; then
    release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
    mirror="$(apt-get indextargets --format '$(SITE) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == release && $3 == "main" { print $1; exit }')"
    root="$(mktemp -d "$STORE/root.XXXXXX")"
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
        "$release" "$root" "$mirror"
    ln -s /usr/bin/python3 "$root/usr/local/bin/python"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        if [ -f "$file" ]; then cp "$file" "$root$file"; fi
    done
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    container="$(buildah from scratch)"
    buildah add --quiet "$container" "$root" /
    buildah config --cmd python3 "$container"
    buildah commit --quiet --rm "$container" "$BASE"
fi
if ! buildah inspect --type image "$REDIS" >/dev/null 2>&1; then
    container="$(buildah from --pull-never "$BASE")"
    buildah run "$container" sh -euc 'apt-get update --quiet
        apt-get install --yes --quiet --no-install-recommends redis-server
        rm -rf /var/lib/apt/lists/*'
    buildah commit --quiet --rm "$container" "$REDIS"
fi
