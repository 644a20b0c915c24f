"""A control plane without nodes: etcd and a real API server, and the controllers that scale, as plain processes.

Pods stay pending, which neither the scale subresource nor an HPA on external metrics minds.
"""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from infra.console.host import free_port
from tests.infra.actuate.certificates import make
from tests.programs import found

START_S = 120.0  # on a machine that does much else
PLURALS = {"networkpolicy": "networkpolicies"}


class Refused(Exception):
    """The API server's no. Attributes: code, message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"HTTP {code}: {message}")
        self.code, self.message = code, message


class Cluster:
    """Attributes: url, ca_file, admin (a token file), directory."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url, self.directory = url, directory
        self.ca_file, self.admin = directory / "ca.pem", directory / "admin.token"
        self._tls = ssl.create_default_context(cafile=self.ca_file)

    def call(self, method: str, path: str, body: Any = None, *, token: Path | None = None, **query: str) -> Any:
        """One request; merge patches for PATCH. Raises Refused."""
        headers = {"Authorization": f"Bearer {(token or self.admin).read_text()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - always our own https
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            with suppress(ValueError, KeyError, TypeError):
                said = json.loads(said)["message"]
            raise Refused(error.code, said) from None
        try:
            return json.loads(text)
        except ValueError:
            return text.decode()

    def create(self, document: dict[str, Any], namespace: str | None = None, **query: str) -> Any:
        """Post an object where its kind belongs, unknown fields refused."""
        version, kind = document["apiVersion"], document["kind"]
        plural = self._plural(version, kind)
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        where = document["metadata"].get("namespace", namespace)
        inside = f"/namespaces/{where}" if where and kind not in ("Namespace", "CustomResourceDefinition") else ""
        return self.call("POST", f"{root}{inside}/{plural}", document, **{"fieldValidation": "Strict", **query})

    def namespace(self, name: str) -> None:
        """Make it, unless it is there."""
        try:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except Refused as refusal:
            if refusal.code != 409:
                raise

    def token_of(self, namespace: str, account: str) -> Path:
        """A file with a token of a service account, as a pod would have it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        file = self.directory / f"{namespace}-{account}.token"
        file.write_text(self.call("POST", path, body)["status"]["token"])
        return file

    def await_that(self, what: str, true: Callable[[], Any]) -> Any:
        """The first answer that is not false.

        Raises:
            TimeoutError: there was none in a minute and a half; with the last one's error, if it raised.
        """
        deadline, problem = time.monotonic() + 90.0, ""
        while time.monotonic() < deadline:
            try:
                if answer := true():
                    return answer
            except (Refused, urllib.error.URLError, OSError) as error:
                problem = f" ({error})"
            time.sleep(0.2)
        raise TimeoutError(f"not within 90 s: {what}{problem}")

    def _plural(self, version: str, kind: str) -> str:
        name = kind.lower()
        return PLURALS.get(name, name + ("es" if name.endswith("s") else "s"))


@contextmanager
def control_plane(directory: Path) -> Iterator[Cluster]:
    """etcd and kube-apiserver, with RBAC and without admission by ServiceAccount (there is no kubelet)."""
    make(directory)  # ca.pem, server.pem, server.key
    (directory / "admin.token").write_text(admin := secrets.token_hex(16))
    (directory / "tokens.csv").write_text(f'{admin},admin,admin,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=directory, check=True, capture_output=True)
    ports = [free_port(), free_port(), free_port()]
    client, peer = (f"http://127.0.0.1:{port}" for port in ports[:2])
    etcd = ["etcd", "--data-dir", "etcd", "--listen-client-urls", client, "--advertise-client-urls", client]
    etcd += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    server = ["kube-apiserver", "--etcd-servers", client, "--secure-port", str(ports[2]), "--bind-address", "127.0.0.1"]
    server += ["--tls-cert-file", "server.pem", "--tls-private-key-file", "server.key", "--cert-dir", "certificates"]
    server += ["--service-account-issuer", "https://127.0.0.1", "--service-account-key-file", "sa.key"]
    server += ["--service-account-signing-key-file", "sa.key", "--token-auth-file", "tokens.csv"]
    server += ["--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"]
    server += ["--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none"]
    server += ["--disable-admission-plugins", "ServiceAccount"]
    # By this certificate an aggregated API knows the API server, and believes what it says of who asks.
    server += ["--proxy-client-cert-file", "client.pem", "--proxy-client-key-file", "client.key"]
    server += ["--requestheader-client-ca-file", "ca.pem", "--requestheader-allowed-names", "client"]
    for header in (
        "extra-headers-prefix=X-Remote-Extra-",
        "group-headers=X-Remote-Group",
        "username-headers=X-Remote-User",
    ):
        server.append(f"--requestheader-{header}")
    cluster = Cluster(f"https://127.0.0.1:{ports[2]}", directory)
    with running(etcd, directory), running(server, directory) as process:
        _await_ready(cluster, process, directory)
        yield cluster


@contextmanager
def controllers(cluster: Cluster) -> Iterator[None]:
    """The HPA controller, and those that make pods of a Deployment and of a StatefulSet."""
    made = "deployment-controller,replicaset-controller,statefulset-controller"
    manager = ["kube-controller-manager", "--kubeconfig", "kubeconfig", "--leader-elect=false", "--secure-port=0"]
    manager += ["--controllers", f"horizontal-pod-autoscaler-controller,{made}"]
    manager += ["--horizontal-pod-autoscaler-sync-period", "1s"]
    write_kubeconfig(cluster)
    with running(manager, cluster.directory):
        yield


def write_kubeconfig(cluster: Cluster) -> Path:
    """Of the administrator."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": cluster.url, "certificate-authority": str(cluster.ca_file)}}],
        "users": [{"name": "u", "user": {"tokenFile": str(cluster.admin)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = cluster.directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def running(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of ours, found where the tools are; what it says goes to `<name>.log` there."""
    program = found(command[0])
    assert program is not None
    with (directory / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen([program, *command[1:]], cwd=directory, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(cluster: Cluster, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline, said = time.monotonic() + START_S, ""
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if cluster.call("GET", "/readyz") == "ok":
                return
        except (Refused, urllib.error.URLError, OSError) as error:
            said = str(error)
        time.sleep(0.2)
    log = (directory / "kube-apiserver.log").read_text(errors="replace")[-1500:]
    raise RuntimeError(f"kube-apiserver is not ready: {said}\n{log}")
