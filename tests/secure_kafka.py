"""A broker that lets nobody in: SASL_SSL with SCRAM-SHA-512, mutual TLS, and rights that are denied unless granted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from infra.kafka.rights import Right
from tests.infra.actuate import certificates
from tests.kafka_nodes import KafkaNode, new_cluster_id, ports

_ANY_ACL = ACLFilter(
    principal=None,
    host=None,
    operation=ACLOperation.ANY,
    permission_type=ACLPermissionType.ANY,
    resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
)
MTLS_PRINCIPAL = "User:CN=client"


class SecureKafka:
    """One node with three ways in: `admin` (loopback, all rights), `scram`, and `mtls`.

    Attributes:
        files: of the certificate authority and what it signed, by name.
    """

    def __init__(self, home: Path) -> None:
        pki = home / "pki"
        pki.mkdir(parents=True)
        self.files = certificates.make(pki)
        chain = pki / "server-chain.pem"
        chain.write_bytes(self.files["server.key"].read_bytes() + self.files["server.pem"].read_bytes())
        admin, scram, mtls, controller = ports(4)
        self.admin, self.scram, self.mtls = (f"127.0.0.1:{port}" for port in (admin, scram, mtls))
        self._node = KafkaNode(
            home / "kafka",
            new_cluster_id(),
            {
                "node.id": "1",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": f"ADMIN://{self.admin},SCRAM://{self.scram},MTLS://{self.mtls},"
                f"CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"ADMIN://{self.admin},SCRAM://{self.scram},MTLS://{self.mtls}",
                "listener.security.protocol.map": "ADMIN:PLAINTEXT,SCRAM:SASL_SSL,MTLS:SSL,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "ADMIN",
                "offsets.topic.replication.factor": "1",
                "min.insync.replicas": "1",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "false",
                "super.users": "User:ANONYMOUS",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.scram.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(chain),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.files["ca.pem"]),
                "listener.name.mtls.ssl.client.auth": "required",
            },
        )
        self._admin: Any = None

    def start(self) -> None:
        self._node.launch()
        self._node.wait_started()
        self._admin = KafkaAdminClient(bootstrap_servers=self.admin)

    def stop(self) -> None:
        if self._admin is not None:
            self._admin.close()
        self._node.stop()

    def add_user(self, name: str, password: str) -> None:
        """A SCRAM user, without any right."""
        self._admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, password.encode(), iterations=4096)]
        )

    def grant_only(self, principal: str, rights: Iterable[Right]) -> None:
        """These rights and no others, to anybody; back when the broker goes by them.

        The controller answers first; what the broker's authorizer knows follows a moment later.
        """
        self._admin.delete_acls([_ANY_ACL])
        acls = [
            ACL(
                principal=principal,
                host="*",
                operation=ACLOperation[operation],
                permission_type=ACLPermissionType.ALLOW,
                resource_pattern=ResourcePattern(ResourceType[right.kind.upper()], right.name),
            )
            for right in rights
            for operation in right.operations
        ]
        made = self._admin.create_acls(acls)
        assert len(made["succeeded"]) == len(acls), made
        deadline = time.monotonic() + 60.0
        while {repr(acl) for acl in self._admin.describe_acls(_ANY_ACL)[0]} != {repr(acl) for acl in acls}:
            assert time.monotonic() < deadline, "the broker does not take over the rights granted"
            time.sleep(0.02)

    def settings(self, way: str, password_file: Path | None = None) -> dict[str, object]:
        """The section `advanced.kafka` for one way in; the SCRAM user is `harmony`."""
        common: dict[str, object] = {"ssl_cafile": str(self.files["ca.pem"])}
        if way == "mtls":
            certificate = {
                "ssl_certfile": str(self.files["client.pem"]),
                "ssl_keyfile": str(self.files["client.key"]),
            }
            return {"security_protocol": "SSL", **common, **certificate}
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "harmony",
            "sasl_password_file": str(password_file),
            **common,
        }
