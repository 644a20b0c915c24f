"""How a worker's life ends that must not go on: crash-only, so nothing is caught and nothing is acknowledged."""

from __future__ import annotations

import os
import sys

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

from streams.exhaustion import exhausted
from streams.log import ContractBroken

_REFUSED = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


def end_process(stage: str, error: BaseException) -> None:
    """Say one clear sentence and leave at once: exit code of a `ContractBroken`, else 1 and the trace of the bug."""
    kind = ""
    cause = exhausted()
    if cause is not None:
        error = ContractBroken(f"{cause}. It was noticed by {type(error).__name__}: {error}")
    elif isinstance(error, MemoryError):
        error = ContractBroken(
            f"no memory is left ({str(error) or 'MemoryError'}); raise the limit (of the container, `ulimit -v`, "
            "MemoryMax= of systemd), or spread the partitions over more workers"
        )
    elif isinstance(error, _REFUSED):
        error = ContractBroken(
            f"Kafka refuses this worker's user ({type(error).__name__}: {error}): a right was taken away while it ran; "
            "`harmony topics rights` lists what it needs"
        )
    elif isinstance(error, UnsupportedCodecError):
        error = ContractBroken(
            f"records are compressed, by a publisher or by the brokers, as this installation cannot read ({error}); "
            "install cramjam, which HARMONY depends on, and start again, nothing is lost"
        )
    if not isinstance(error, ContractBroken):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
        kind = f"{type(error).__name__}: "
    sentence = " ".join(f"{kind}{error}".split())
    sys.stderr.write(f"harmony worker stops ({stage}): {sentence}\n")
    sys.stderr.flush()
    os._exit(error.exit_code if isinstance(error, ContractBroken) else 1)
