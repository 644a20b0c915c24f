"""Create HARMONY's topics on a cluster, and say in what a cluster differs from what HARMONY needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import Any, Literal, Self, TypeVar

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import (
    AuthorizationError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
)
from kafka.structs import OffsetAndMetadata

from infra.console.errors import HarmonyError
from infra.kafka.clients import LoginWatch
from infra.kafka.rights import Kind, Right, lacking
from infra.settings.brokers import OR_START_ONE, bootstrap_servers, unreachable_error
from streams.runtime.transactions import LogEnd, Place
from streams.topics import TopicSpec

BOOTSTRAP_TIMEOUT_MS = 10_000
READY_TIMEOUT_MS = 30_000
_COORDINATOR_WITHIN_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ActualTopic:
    """A topic as the cluster has it; `config` holds every setting, defaults included."""

    name: str
    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicDifference:
    """One point in which the cluster differs from a specification.

    Attributes:
        kind: `missing`, `partitions` or `config`.
        key: the topic setting for `config`, else the kind again.
        wanted, actual: as text; `actual` is None for a missing topic.
    """

    topic: str
    kind: Literal["missing", "partitions", "config"]
    key: str
    wanted: str
    actual: str | None

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.topic}: missing (wanted {self.wanted} partitions)"
        return f"{self.topic}: {self.key} is {self.actual}, wanted {self.wanted}"


def compare(specs: Sequence[TopicSpec], actual: Mapping[str, ActualTopic]) -> tuple[TopicDifference, ...]:
    """Every difference, in the order of `specs`. Settings that a specification does not name are the operator's."""
    return tuple(difference for spec in specs for difference in _compare_topic(spec, actual.get(spec.name)))


def _compare_topic(spec: TopicSpec, actual: ActualTopic | None) -> Iterator[TopicDifference]:
    if actual is None:
        yield TopicDifference(spec.name, "missing", "missing", str(spec.partitions), None)
        return
    if actual.partitions != spec.partitions:
        yield TopicDifference(spec.name, "partitions", "partitions", str(spec.partitions), str(actual.partitions))
    for key, spec_value in spec.config.items():
        actual_value = actual.config.get(key)
        if actual_value is None or _normal(actual_value) != _normal(spec_value):
            yield TopicDifference(spec.name, "config", key, spec_value, actual_value)


def _normal(value: str) -> tuple[str, ...]:
    # `compact,delete` and `delete,compact` are the same policy.
    return tuple(sorted(part.strip() for part in value.split(",")))


class TopicAdmin:
    """A connection to a cluster for topic administration; use as a context manager.

    Args:
        brokers: `host:port`, several separated by commas.
        security: keyword arguments of kafka-python's clients (security_protocol, sasl_..., ssl_...).
        timeout_ms: until the cluster must have answered.

    Raises:
        HarmonyError: no broker answers.
    """

    def __init__(
        self, brokers: str, security: Mapping[str, Any] | None = None, *, timeout_ms: int = BOOTSTRAP_TIMEOUT_MS
    ) -> None:
        self._brokers = brokers
        servers = bootstrap_servers(brokers, security, OR_START_ONE)
        with LoginWatch(brokers, security) as login, self._explained(login):
            self._client = KafkaAdminClient(
                bootstrap_servers=servers,
                client_id="harmony-topics",
                bootstrap_timeout_ms=timeout_ms,
                request_timeout_ms=READY_TIMEOUT_MS,
                **(security or {}),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def cluster_id(self) -> str:
        """The identity that the cluster was formatted with. Raises HarmonyError."""
        with self._explained():
            return str(self._client.describe_cluster()["cluster_id"])

    def describe(self, names: Sequence[str], *, configs: bool = True) -> dict[str, ActualTopic]:
        """The topics of these names that exist; their settings only with `configs`, which takes a right of its own.

        Raises:
            HarmonyError: a topic may not be described.
        """
        with self._explained():
            answers: list[dict[str, Any]] = self._client.describe_topics(list(names))
            hidden = sorted(t["name"] for t in answers if t["error_code"] == TopicAuthorizationFailedError.errno)
            if hidden:
                raise HarmonyError(
                    f"The Kafka user may not describe {', '.join(hidden)} at {self._brokers}. Grant it the right; "
                    "`harmony topics rights` lists what each part needs."
                )
            topics = {t["name"]: t for t in answers if not t["error_code"]}
            if not configs:
                return {name: ActualTopic(name, len(topic["partitions"]), {}) for name, topic in topics.items()}
            if not topics:
                return {}
            resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
            values = self._client.describe_configs(resources, config_filter="all")["topic"]
        return {
            name: ActualTopic(
                name,
                len(topic["partitions"]),
                {key: entry["value"] for key, entry in values.get(name, {}).items() if entry["value"] is not None},
            )
            for name, topic in topics.items()
        }

    def differences(self, specs: Sequence[TopicSpec]) -> tuple[TopicDifference, ...]:
        """What the cluster lacks or has otherwise."""
        return compare(specs, self.describe([spec.name for spec in specs]))

    def missing_rights(self, needed: Sequence[Right]) -> tuple[Right, ...]:
        """What of these rights the connected user lacks; topics that do not exist count as granted."""
        granted: dict[tuple[Kind, str], Sequence[str]] = {}
        with self._explained():
            topics = [right.name for right in needed if right.kind == "topic"]
            for topic in self._client.describe_topics(topics) if topics else ():
                if topic["error_code"] == TopicAuthorizationFailedError.errno:
                    continue
                operations = [op for right in needed if right.name == topic["name"] for op in right.operations]
                granted["topic", topic["name"]] = operations if topic["error_code"] else topic["authorized_operations"]
            for right in needed:
                if right.kind == "group":
                    granted["group", right.name] = self._group_operations(right)
        return lacking(needed, granted)

    def group(self, name: str) -> tuple[list[str], dict[tuple[str, int], int]]:
        """Members of a consumer group, and its committed offsets by topic and partition; both empty for none."""
        with self._explained():
            described = patiently(lambda: self._client.describe_groups([name]))[name]
            members = [m.get("group_instance_id") or m["member_id"] for m in described["members"]]
            try:
                offsets = self._client.list_group_offsets({name: None}).get(name, {})
            except GroupIdNotFoundError:
                offsets = {}
        return sorted(members), {(tp.topic, tp.partition): at.offset for tp, at in offsets.items()}

    def log_ends(self, names: Sequence[str]) -> dict[Place, LogEnd]:
        """Both ends of every partition of these topics; without those that do not exist or may not be described."""
        with self._explained():
            return log_ends(self._client, names)

    def _group_operations(self, right: Right) -> Sequence[str]:
        try:
            group = patiently(partial(self._client.describe_groups, [right.name]))[right.name]
        except GroupAuthorizationFailedError:
            return ()
        if group["authorized_operations"] is not None:
            return tuple(group["authorized_operations"])
        # Of a group without a member so far brokers do not say: a commit for a topic that there is not changes nothing.
        nowhere = TopicPartition(right.name, 0)
        answer = self._client.alter_group_offsets(right.name, {nowhere: OffsetAndMetadata(0, "", -1)})
        refused = answer[nowhere] is GroupAuthorizationFailedError
        return tuple(op for op in right.operations if op != "READ" or not refused)

    def create_missing(
        self, specs: Sequence[TopicSpec], *, replication_factor: int | None = None, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Create the topics that do not exist, wait until each partition has a leader, and return their names.

        Existing topics are left as they are. With `dry_run` the brokers only validate the request.

        Args:
            replication_factor: None = the cluster's default.
        """
        existing = self.describe([spec.name for spec in specs])
        missing = [spec for spec in specs if spec.name not in existing]
        if not missing:
            return ()
        request = {
            spec.name: {
                "num_partitions": spec.partitions,
                "replication_factor": replication_factor or -1,
                "configs": dict(spec.config),
            }
            for spec in missing
        }
        with self._explained():
            try:
                self._client.create_topics(request, validate_only=dry_run)
            except TopicAlreadyExistsError:
                # Somebody else creates the same topics at the same moment.
                return self.create_missing(specs, replication_factor=replication_factor, dry_run=dry_run)
            if not dry_run:
                self._client.wait_for_topics(list(request), timeout_ms=READY_TIMEOUT_MS)
        return tuple(request)

    @contextmanager
    def _explained(self, login: LoginWatch | None = None) -> Iterator[None]:
        try:
            yield
        except AuthorizationError as error:
            raise HarmonyError(
                f"The brokers at {self._brokers} refuse: {error}. Ask for the right to describe and create topics."
            ) from error
        except (KafkaTimeoutError, KafkaConnectionError) as error:
            reason = login.reason() if login else None
            raise (HarmonyError(reason) if reason else unreachable_error(self._brokers, OR_START_ONE)) from error
        except (KafkaError, ValueError, OSError) as error:
            raise HarmonyError(f"The brokers at {self._brokers} refuse: {str(error).rstrip('.')}.") from error


def log_ends(client: KafkaAdminClient, names: Sequence[str]) -> dict[Place, LogEnd]:
    """As of `TopicAdmin`, of a client of the library."""
    topics = [topic for topic in client.describe_topics(list(names)) if not topic["error_code"]]
    latest = {
        TopicPartition(topic["name"], partition["partition_index"]): OffsetSpec.LATEST
        for topic in topics
        for partition in topic["partitions"]
    }
    if not latest:
        return {}
    # In this order, so that records that come between the two answers do not look held up.
    high_watermarks = client.list_partition_offsets(latest)
    last_stable = client.list_partition_offsets(latest, isolation_level="read_committed")
    return {(tp.topic, tp.partition): LogEnd(last_stable[tp].offset, high_watermarks[tp].offset) for tp in latest}


def patiently(call: Callable[[], T]) -> T:
    """The answer of a call about a group: a cluster that has had none makes itself a coordinator when first asked."""
    deadline_s = monotonic() + _COORDINATOR_WITHIN_S
    while True:
        try:
            return call()
        except CoordinatorNotAvailableError:
            if monotonic() > deadline_s:
                raise
            sleep(0.5)


def create_topics(
    brokers: str,
    specs: Sequence[TopicSpec],
    *,
    replication_factor: int | None = None,
    dry_run: bool = False,
    security: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Create what is missing; see `TopicAdmin.create_missing`."""
    with TopicAdmin(brokers, security) as admin:
        return admin.create_missing(specs, replication_factor=replication_factor, dry_run=dry_run)


def check_topics(
    brokers: str, specs: Sequence[TopicSpec], *, security: Mapping[str, Any] | None = None
) -> tuple[TopicDifference, ...]:
    """Differences between the cluster and the specifications; empty = as needed."""
    with TopicAdmin(brokers, security) as admin:
        return admin.differences(specs)
