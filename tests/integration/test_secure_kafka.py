"""A broker that denies by default: the least rights as documented, and nobody gets in without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from infra.console.errors import HarmonyError
from infra.kafka.admin import TopicAdmin
from infra.kafka.rights import PARTS, Right, rights_of
from infra.settings.limits import ROLES
from infra.settings.load import load_settings
from infra.worker.options import WorkerOptions
from infra.worker.process import run_worker
from streams.topics import Topics
from tests.integration.pipeline import Pipeline, stop, workload_names
from tests.secure_kafka import MTLS_PRINCIPAL, SecureKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations" / "kafka-security.md"
ROW = re.compile(r"^\| (\w+) \|" + r" ?([\w., -]*?) \|" * 5 + "$", re.MULTILINE)
# What each column after the part's name grants, and on what.
COLUMNS = (("topic", "READ"), ("topic", "WRITE"), ("topic", "DELETE"), ("group", "READ"), ("group", "DELETE"))
PASSWORD = "correct-horse-battery-staple-9341"
PRINCIPALS = {"scram": "User:harmony", "mtls": MTLS_PRINCIPAL}


def documented(topics: Topics, parts: Sequence[str]) -> list[Right]:
    """The rights as the page of the documentation has them."""
    rights = []
    for part, *cells in ROW.findall(DOCUMENT.read_text(encoding="utf-8")):
        if part not in parts:
            continue
        granted: dict[tuple[str, str], list[str]] = {}
        for (kind, operation), names in zip(COLUMNS, cells, strict=True):
            for name in filter(None, names.split(", ")):
                granted.setdefault((kind, name), []).append(operation)
        rights += [Right(kind, topics.prefix + name, tuple(ops)) for (kind, name), ops in granted.items()]
    return rights


class SecurePipeline(Pipeline):
    """Telemetry by the administrator's way in, workers by another."""

    def __init__(self, kafka: SecureKafka, way: str, prefix: str, home: Path) -> None:
        super().__init__(kafka.admin, prefix, home, workload_names(2))
        self.secure = getattr(kafka, way)
        password = home / "password"
        password.write_text(PASSWORD + "\n", encoding="utf-8")
        content = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        content["advanced"]["kafka"] |= kafka.settings(way, password)
        self.config.write_text(yaml.safe_dump(content), encoding="utf-8")

    def worker_call(
        self, name: str, role: str, fail_points: str, program: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        command, environment = super().worker_call(name, role, fail_points, program)
        command[command.index(self.bootstrap)] = self.secure
        return command, environment

    def refusal(self, role: str = "all") -> str:
        """What a worker of this role says in place of starting."""
        with pytest.raises(HarmonyError) as refused:
            run_worker(load_settings(self.config), WorkerOptions(role=role, brokers=self.secure))
        return refused.value.message


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    made = SecureKafka(tmp_path_factory.mktemp("secure"))
    try:
        made.start()
        made.add_user("harmony", PASSWORD)
        made.add_user("stranger", "stranger")
        yield made
    finally:
        made.stop()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TopicAdmin.__init__.__kwdefaults__ or {}, "timeout_ms", 2_500)


@pytest.fixture
def pipeline(kafka: SecureKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SecurePipeline]:
    made = SecurePipeline(kafka, getattr(request, "param", "scram"), f"s{os.urandom(4).hex()}.", tmp_path)
    yield made
    made.producer.close(1)


@pytest.mark.parametrize("part", PARTS)
def test_the_document_is_what_the_program_says(part: str) -> None:
    topics = Topics()
    assert set(documented(topics, [part])) == {
        Right(r.kind, r.name, tuple(sorted(r.operations, key=("READ WRITE DELETE").index)))
        for r in rights_of(topics, [part])
    }


@pytest.mark.parametrize("pipeline", ["scram", "mtls"], indirect=True)
def test_a_worker_runs_with_the_documented_rights_and_shows_no_secret(
    kafka: SecureKafka, pipeline: SecurePipeline, request: pytest.FixtureRequest
) -> None:
    way = "mtls" if pipeline.secure == kafka.mtls else "scram"
    kafka.grant_only(PRINCIPALS[way], documented(pipeline.topics, [*ROLES, "page"]))
    worker = pipeline.start_worker()
    try:
        pipeline.wait_for_decisions(pipeline.publish_slots(24), 240, worker)
    finally:
        code = stop(worker)
    said = pipeline.log_of()
    assert code == 0, said[-3000:]
    assert PASSWORD not in said
    assert "PRIVATE KEY" not in said
    assert "uthorization" not in said, said[-3000:]


def test_each_right_that_is_missing_is_named(kafka: SecureKafka, pipeline: SecurePipeline) -> None:
    """Each operation of the list, alone, for the whole worker and for the role that needs it."""
    granted = documented(pipeline.topics, ROLES)
    held: dict[tuple[str, str], set[str]] = {}
    for right in granted:
        held.setdefault((right.kind, right.name), set()).update(right.operations)
    named = 0
    for (kind, name), operations in held.items():
        for missing in operations:
            rest = [
                Right(k, n, tuple(o for o in ops if (k, n, o) != (kind, name, missing)))  # type: ignore[arg-type]
                for (k, n), ops in held.items()
            ]
            kafka.grant_only("User:harmony", rest)
            said = pipeline.refusal()
            assert f"lacks {missing} on {kind} {name}. Grant it" in said, said
            named += 1
    assert named == 19
    kafka.grant_only("User:harmony", documented(pipeline.topics, ["ingest"]))
    said = pipeline.refusal("decide")
    assert f"lacks READ on topic {pipeline.topics.controls}, READ and WRITE on topic" in said
    assert "topics rights --for decide" in said


def test_a_worker_process_ends_with_that_sentence(kafka: SecureKafka, pipeline: SecurePipeline) -> None:
    kafka.grant_only("User:harmony", documented(pipeline.topics, ["ingest", "forecast"]))
    worker = pipeline.start_worker()
    assert worker.wait(120) == 1
    said = pipeline.log_of()
    assert "Traceback" not in said
    assert f"WRITE on topic {pipeline.topics.commands}" in said.strip().splitlines()[-1]
    assert PASSWORD not in said


@pytest.mark.faults
def test_a_right_taken_away_ends_the_worker_in_one_sentence(kafka: SecureKafka, pipeline: SecurePipeline) -> None:
    rights = documented(pipeline.topics, [*ROLES, "page"])
    kafka.grant_only("User:harmony", rights)
    worker = pipeline.start_worker()
    try:
        pipeline.wait_for_decisions(pipeline.publish_slots(20), 240, worker)
        kafka.grant_only("User:harmony", [r for r in rights if r.name != pipeline.topics.pages])
        pipeline.publish_slots(4)
        assert worker.wait(120) == 1
    finally:
        stop(worker)
    said = pipeline.log_of()
    # What the Kafka client logs of a task that lost its right may come before; the last word is ours.
    assert "Kafka refuses this worker's user" in said.strip().splitlines()[-1]
    assert PASSWORD not in said


NO_USER = {"security_protocol": "SSL", "sasl_mechanism": None, "sasl_username": None, "sasl_password_file": None}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sasl_username": "nobody"}, "user 'nobody'"),
        ({"sasl_username": "stranger"}, "user 'stranger'"),
        ({"ssl_cafile": None}, "is not trusted (certificate verify failed"),
        (NO_USER, "ends every connection that we begin as SSL"),
    ],
    ids=["unknown user", "another's password", "unknown authority", "no user"],
)
@pytest.mark.usefixtures("_impatient")
def test_who_does_not_prove_who_he_is_does_not_get_in(
    pipeline: SecurePipeline, capfd: pytest.CaptureFixture[str], change: dict[str, str | None], told: str
) -> None:
    content = yaml.safe_load(pipeline.config.read_text(encoding="utf-8"))
    content["advanced"]["kafka"] |= change
    pipeline.config.write_text(yaml.safe_dump(content), encoding="utf-8")
    said = pipeline.refusal()
    assert PASSWORD not in said
    assert told in said, said
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("_impatient")
def test_a_client_without_a_certificate_is_turned_away(kafka: SecureKafka, pipeline: SecurePipeline) -> None:
    content = yaml.safe_load(pipeline.config.read_text(encoding="utf-8"))
    content["advanced"]["kafka"] = kafka.settings("mtls") | {"ssl_certfile": None, "ssl_keyfile": None}
    pipeline.config.write_text(yaml.safe_dump(content), encoding="utf-8")
    pipeline.secure = kafka.mtls
    assert "want a certificate from us" in pipeline.refusal()


def test_a_known_user_without_rights_sees_nothing(kafka: SecureKafka, pipeline: SecurePipeline) -> None:
    kafka.grant_only("User:harmony", [])
    security = load_settings(pipeline.config).kafka_client_options()
    with (
        TopicAdmin(pipeline.secure, security) as admin,
        pytest.raises(HarmonyError, match=r"may not describe .*commands"),
    ):
        admin.describe([pipeline.topics.commands])
