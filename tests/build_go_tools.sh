#!/bin/sh
# Builds, from their Go modules, tools that only some tests need; nothing runs it by itself, since Go builds take long.
#   sh tests/build_go_tools.sh lint DIRECTORY        helm, kubeconform (the chart)
#   sh tests/build_go_tools.sh cluster DIRECTORY     kube-apiserver, kube-controller-manager, etcd, prometheus-adapter,
#                                                    the resource definitions of KEDA and of the LeaderWorkerSet
# Binaries go to DIRECTORY/usr/bin. The tests look in .cache/tools and in ~/.cache/harmony/tools, and skip without them.
set -eu
what=${1:?lint or cluster}
tools=$(mkdir -p "${2:?a directory}/usr/bin" && cd "$2" && pwd)
export CGO_ENABLED=0 GOFLAGS="-p=${GO_JOBS:-1}" GOBIN="$tools/usr/bin"
kubernetes=v1.36.3
keda=v2.21.0
adapter=v0.12.0
lws=v0.7.0

lint() {
    go install helm.sh/helm/v3/cmd/helm@v3.22.0
    go install github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
}

cluster() {
    module=$(mktemp -d)
    trap 'rm -rf "$module"' EXIT
    cd "$module"
    # Kubernetes replaces its own libraries by directories, so that it can only be built inside a module that names them.
    go mod init harmony.test/cluster
    go mod download "k8s.io/kubernetes@$kubernetes"
    source=$(directory_of "k8s.io/kubernetes@$kubernetes")
    go mod edit -require "k8s.io/kubernetes@$kubernetes"
    sed -n 's/^\t*\(k8s.io\/[a-z0-9-]*\) => \.\/staging.*/\1/p' "$source/go.mod" | while read -r library; do
        go mod edit -replace "$library=$library@v0${kubernetes#v1}"
    done
    for program in kube-apiserver kube-controller-manager; do
        mkdir -p "$program"
        cp "$source/cmd/$program/${program#kube-}.go" "$program/main.go"
    done
    GOFLAGS="$GOFLAGS -mod=mod" go mod tidy
    for program in kube-apiserver kube-controller-manager; do
        [ -x "$GOBIN/$program" ] || go build -ldflags '-s -w' -o "$GOBIN/$program" "./$program"
    done
    [ -x "$GOBIN/etcd" ] || (cd "$tools" && apt-get -qq download etcd-server && dpkg -x etcd-server_*.deb . &&
        rm -f etcd-server_*.deb)
    resource_definitions "github.com/kedacore/keda/v2@$keda" "$tools/keda-crds"
    resource_definitions "sigs.k8s.io/lws@$lws" "$tools/lws-crds"
    # Built in a copy of its module, whose own go.sum then counts.
    cp -r "$(directory_of "sigs.k8s.io/prometheus-adapter@$adapter")" adapter && chmod -R u+w adapter && cd adapter
    [ -x "$GOBIN/prometheus-adapter" ] || go build -ldflags '-s -w' -o "$GOBIN/prometheus-adapter" ./cmd/adapter
}

directory_of() {
    go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'
}

resource_definitions() {
    mkdir -p "$2" && cp "$(directory_of "$1")"/config/crd/bases/*.yaml "$2/" && chmod -R u+w "$2"
}

case $what in
lint | cluster) "$what" ;;
*) echo "lint or cluster, not $what" >&2 && exit 2 ;;
esac
