#!/bin/sh
# Builds, from their Go modules, tools that only some tests need; nothing runs it by itself, since Go builds take long.
#   sh tests/build_go_tools.sh lint DIRECTORY        helm, kubeconform (the chart)
#   sh tests/build_go_tools.sh cluster DIRECTORY     kube-apiserver, kube-controller-manager, etcd, KEDA's CRDs
# Binaries go to DIRECTORY/usr/bin. The tests look in .cache/tools and in ~/.cache/harmony/tools, and skip without them.
set -eu
what=${1:?lint or cluster}
tools=$(mkdir -p "${2:?a directory}/usr/bin" && cd "$2" && pwd)
export CGO_ENABLED=0 GOFLAGS="-p=${GO_JOBS:-1}" GOBIN="$tools/usr/bin"
kubernetes=v1.36.3
keda=v2.21.0

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
    source=$(go mod download -json "k8s.io/kubernetes@$kubernetes" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
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
    crds=$(go mod download -json "github.com/kedacore/keda/v2@$keda" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    mkdir -p "$tools/keda-crds" && cp "$crds"/config/crd/bases/*.yaml "$tools/keda-crds/" && chmod -R u+w "$tools/keda-crds"
}

case $what in
lint | cluster) "$what" ;;
*) echo "lint or cluster, not $what" >&2 && exit 2 ;;
esac
