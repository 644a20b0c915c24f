"""Why the embedded Kafka did not start, read from what it said, in one sentence with the remedy."""

from __future__ import annotations

import re
from pathlib import Path

_PORT = re.compile(r"Address already in use|Failed to bind|BindException", re.IGNORECASE)
_ERROR_LINE = re.compile(r"(?:ERROR|FATAL|Exception|Error:)")


def port_taken(port: int) -> str:
    return (
        f"Port {port} on 127.0.0.1 is in use by another program. Choose another port, or use the broker that runs "
        f"there with --brokers 127.0.0.1:{port}."
    )


def is_port_race(text: str) -> bool:
    """True when the broker could not bind a port that was free a moment before."""
    return _PORT.search(text) is not None


def explain(text: str, data_dir: Path, log: Path, port: int | None) -> str:
    """One sentence for the user from the broker's output; the full text stays in `log`."""
    if "No space left on device" in text:
        return f"The disk of {data_dir} is full. Free some space or choose another directory with --data-dir."
    if is_port_race(text) and port is not None:
        return port_taken(port)
    if "OutOfMemoryError" in text or "Could not reserve enough space" in text or "insufficient memory" in text:
        return f"Java got too little memory for Kafka, which needs about 350 MB. Free some and start again; see {log}."
    if "UnsupportedClassVersionError" in text:
        return "The Java on PATH is too old for Kafka. Put Java 17 or newer on PATH, or take it off PATH."
    if "Permission denied" in text or "AccessDeniedException" in text:
        return f"Kafka may not write to {data_dir}. Give this user the right to, or choose another with --data-dir."
    if re.search(r"meta\.properties|InconsistentClusterId|metadata\.version|corrupt", text, re.IGNORECASE):
        return (
            f"Kafka cannot use the data in {data_dir}: {_last_error(text)}. Move that directory away to start afresh, "
            f"or choose another with --data-dir; the full text is in {log}."
        )
    return f"Kafka stopped before it was ready: {_last_error(text)}. The full text is in {log}."


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [line for line in lines if _ERROR_LINE.search(line) and not line.startswith("at ")]
    chosen = (found or lines or ["it said nothing"])[-1]
    return chosen.rstrip(".")[:240]
