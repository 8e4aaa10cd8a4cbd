#!/bin/sh
# Builds kube-apiserver, kube-controller-manager and kube-scheduler 1.20.2 from Debian's source
# package `kubernetes` and puts them where `make kube-test` looks: $KUBE_TEST_CACHE, default
# ~/.cache/baton. About 8 minutes of CPU, 34 MB to download, 2 GB of scratch that is removed.
# Binaries already there are kept. `providerless` leaves the clouds' libraries out.
#
# Debian's Go is newer than this source: the vendored reflect2 crashes on Go 1.18 and later and is
# replaced by Debian's own package of it, and the OpenAPI definitions are generated, because the
# source package leaves them out.
set -eu

PACKAGES="golang-go etcd-server golang-github-modern-go-reflect2-dev"
CACHE="${KUBE_TEST_CACHE:-$HOME/.cache/baton}"
PARTS="kube-apiserver kube-controller-manager kube-scheduler"

missing=""
for package in $PACKAGES; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null |
        grep -q '^installed$' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "baton: error: missing packages: apt-get install$missing" >&2
        exit 3
    fi
    apt-get install --yes --no-install-recommends $missing
fi
wanted=""
for part in $PARTS; do
    [ -x "$CACHE/$part" ] || wanted="$wanted $part"
done
[ -n "$wanted" ] || exit 0

mkdir -p "$CACHE"
scratch="$(mktemp -d)"
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
cd "$scratch"

# The machine's own Debian sources, as source lists of this folder only.
mkdir -p lists/partial sources
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [ -f "$file" ] || continue
    sed -e 's/^Types: .*/Types: deb-src/' -e 's/^deb /deb-src /' "$file" >"sources/${file##*/}"
done
touch sources/sources.list
apt="-o Dir::Etc::SourceList=$scratch/sources/sources.list -o Dir::Etc::SourceParts=$scratch/sources
    -o Dir::State::Lists=$scratch/lists -o Dir::Cache=$scratch -o APT::Sandbox::User=root"
apt-get $apt --quiet update
apt-get $apt --quiet source --download-only kubernetes

export GOPATH="$scratch/go" GOCACHE="$scratch/cache" GO111MODULE=off CGO_ENABLED=0 GOFLAGS=
source="$GOPATH/src/k8s.io/kubernetes"
mkdir -p "$source"
tar --extract --file kubernetes_*.orig.tar.* --directory "$source" --strip-components 1
rm -rf "$source/vendor/github.com/modern-go/reflect2"
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 "$source/vendor/github.com/modern-go/"
cd "$source"

directories="$(grep --recursive --files-with-matches --include='*.go' '^// +k8s:openapi-gen=' \
    pkg staging/src/k8s.io vendor/k8s.io 2>/dev/null | xargs -n 1 dirname |
    sed -e 's|^staging/src/||' -e 's|^vendor/||' -e 's|^pkg/|k8s.io/kubernetes/pkg/|' |
    sort -u | grep -v -e '/testdata' -e '/examples\?/' -e 'sample-' -e 'code-generator' |
    paste -s -d ,)"
go build -o "$scratch/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
"$scratch/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt \
    --input-dirs "$directories" --output-base "$GOPATH/src" \
    --output-package k8s.io/kubernetes/pkg/generated/openapi \
    --output-file-base zz_generated.openapi --report-filename /dev/null

version="k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version"
component="k8s.io/kubernetes/vendor/k8s.io/component-base/version"
flags="-s -w"
for package in "$version" "$component"; do
    flags="$flags -X $package.gitVersion=v1.20.2 -X $package.gitMajor=1 -X $package.gitMinor=20"
done
for part in $wanted; do
    go build -p 2 -tags providerless -ldflags "$flags" -o "$scratch/$part" "./cmd/$part"
    mv "$scratch/$part" "$CACHE/$part"
    echo "baton: built $CACHE/$part"
done
