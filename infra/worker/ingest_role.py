"""The ingest role of a worker: its compiled loops, and a kernel of stage 1 for each partition of telemetry."""

from __future__ import annotations

from agents.ingest import IngestStage, register_ingest_agents
from infra.observability.metrics import PrometheusMeter
from infra.observability.stage_metrics import IngestMetrics
from infra.settings.load import Settings
from streams.catalogue import DEFAULT_CATALOGUE
from streams.ingest.warm_up import warm_up
from streams.runtime.app import StageHost


class IngestRole:
    """Everything of a worker that only this role needs.

    Attributes:
        stage: stage 1.
    """

    def __init__(self, settings: Settings, meter: PrometheusMeter) -> None:
        warm_up()
        declared = [workload.id for workload in settings.policy.workloads]
        self.stage = IngestStage(settings.stream, DEFAULT_CATALOGUE, settings.topics, IngestMetrics(meter), declared)

    def register(self, host: StageHost) -> None:
        """Declare the agents of the stage."""
        register_ingest_agents(host, self.stage)
