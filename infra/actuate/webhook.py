"""Commands as signed HTTP requests: CloudEvents in binary mode, signed as Standard Webhooks say.

A receiver verifies with any Standard Webhooks library, remembers `Idempotency-Key`, and answers 2xx when the change is
made or on its way, 409 when it will not make it. The body is a command (docs/formats/command.schema.json).

Source: https://github.com/standard-webhooks/standard-webhooks, CloudEvents 1.0 HTTP protocol binding.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import msgspec

from agents.actuation.guard import PIN
from agents.decide.records import encode_command
from agents.records import Command, Target
from infra.actuate.actuator import NotApplied, ReplicaChange
from infra.console.errors import HarmonyError
from infra.console.text import printable
from infra.console.web import read_beginning, split_url
from infra.observability.probes import names_loopback
from streams.log import UNREADABLE

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_ANSWER_BYTES = 64 << 10
_LEAST_SECRET_BYTES = 16


class _ReceiverAnswer(msgspec.Struct):
    """What a receiver may say in the body of its 2xx."""

    replicas: int | None = None


def secret_bytes(text: str) -> bytes:
    """The key of a secret: `whsec_` and base64, or any text.

    Raises:
        HarmonyError: shorter than 16 bytes, or no base64 (exit code 2).
    """
    text = text.strip()
    try:
        key = base64.b64decode(text[6:], validate=True) if text.startswith("whsec_") else text.encode()
    except binascii.Error:
        raise HarmonyError("The webhook's secret begins with whsec_ but is no base64 after that.", 2) from None
    if len(key) < _LEAST_SECRET_BYTES:
        raise HarmonyError(
            f"The webhook's secret has {len(key)} bytes, at least {_LEAST_SECRET_BYTES} are needed; make one with "
            "`openssl rand -base64 32` and write whsec_ before it.",
            2,
        )
    return key


def sign(key: bytes, message_id: str, ts_s: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    digest = hmac.new(key, f"{message_id}.{ts_s}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


class Webhook:
    """POSTs each change to one URL, again and again until answered, the lease runs out, or a newer command comes.

    Args:
        url: https, or http on this machine.
        key: of the signature.
        fleet: CloudEvents source.
        clock: milliseconds now.
        settle_ms: for so long after a confirmed change its count is taken as the target's; later what the commands say
            of the fleet is.
        insecure: allow http to another machine.

    Raises:
        HarmonyError: the URL (exit code 2).
    """

    name = "webhook"
    done: Literal["applied"] = "applied"

    def __init__(
        self,
        url: str,
        key: bytes,
        fleet: str,
        clock: Callable[[], int],
        *,
        timeout_s: float = 10.0,
        settle_ms: int = 30_000,
        insecure: bool = False,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        parts = split_url(url, "address of a webhook: write https://host/path")
        if parts.scheme == "http" and not insecure and not names_loopback(parts.netloc):
            raise HarmonyError(
                f"The webhook at {parts.hostname} would get its commands in the clear, where they can be held back. "
                "Use https, or say --insecure.",
                2,
            )
        self._url, self._key, self._fleet, self._clock = url, key, fleet, clock
        self._settle_ms = settle_ms
        self._sleep, self._jitter = sleep, jitter
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._confirmed: dict[str, tuple[int, int]] = {}

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()

    async def observe(
        self,
        workload: str,
        target: Target,  # noqa: ARG002
        expected: int | None,
        in_force: int | None,  # noqa: ARG002
    ) -> int | None:
        replicas, at_ms = self._confirmed.get(workload, (0, -self._settle_ms))
        return replicas if self._clock() < at_ms + self._settle_ms else expected

    async def apply(self, change: ReplicaChange) -> str:
        body, message_id = _message(change, self._clock())
        pause_s, attempts = FIRST_PAUSE_S, 0
        while True:
            attempts += 1
            outcome = await self._post(change, message_id, body)
            if isinstance(outcome, int):
                self._confirmed[change.workload] = outcome, self._clock()
                return f"answered after {attempts} attempts" if attempts > 1 else ""
            problem, wait_s = outcome
            # The full pause is drawn, so that many actuators do not come back together.
            await self._sleep(max(wait_s, self._jitter(0.0, pause_s)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if not change.still_wanted():
                raise NotApplied(f"given up after {attempts} attempts: {problem}")

    async def _post(self, change: ReplicaChange, message_id: str, body: bytes) -> int | tuple[str, float]:
        """The receiver's count, or what went wrong and how long to wait at least."""
        ts_s = self._clock() // 1000
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "harmony-actuate",
            "Idempotency-Key": message_id,
            "webhook-id": message_id,
            "webhook-timestamp": str(ts_s),
            "webhook-signature": sign(self._key, message_id, ts_s, body),
            "ce-specversion": "1.0",
            "ce-type": "harmony.command.v1",
            "ce-id": message_id,
            "ce-source": quote(self._fleet, safe="/:"),
            "ce-subject": quote(change.workload, safe="/:"),
        }
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            # A redirect could carry the command anywhere, so it is an error.
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                answer = await read_beginning(response.content, _MOST_ANSWER_BYTES)
                status, wait_s = response.status, _seconds(response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{type(error).__name__}: {printable(str(error), 120)}", 0.0
        if 200 <= status < 300:
            return _count(answer, change.replicas)
        if status in _TRY_AGAIN:
            return f"HTTP {status}", wait_s
        body_text = printable(answer[:200].decode("utf-8", "replace"))
        raise NotApplied(f"HTTP {status} {body_text}".rstrip(), sure=True, refused=True)


def _message(change: ReplicaChange, now_ms: int) -> tuple[bytes, str]:
    """Body and id; the id is the same for every attempt at one command, and for a command that comes twice."""
    command = change.command
    if command is None:
        # A local pin has no command in the log; receivers get one of the same shape, in the place of the newest one.
        pin_id = secrets.token_hex(12)  # none like another: a count pinned again is no repetition
        command = Command(
            command_id=pin_id,
            decision_id=pin_id,
            workload=change.workload,
            target=change.target,
            replicas=change.replicas,
            expected_current=change.replicas if change.observed is None else change.observed,
            epoch=change.place[0],
            sequence=change.place[1],
            issued_ts_ms=now_ms,
            valid_until_ts_ms=now_ms + 60_000,
            reason=PIN,
            p_miss=None,
            epsilon=0.0,
        )
    # With the count: after a rate cap the same command may be sent again with more of what it wants.
    message_id = f"{command.command_id}-{command.epoch}-{command.sequence}-{change.replicas}"
    return encode_command(msgspec.structs.replace(command, replicas=change.replicas)), message_id


def _count(answer: bytes, ordered: int) -> int:
    try:
        replicas = msgspec.json.decode(answer, type=_ReceiverAnswer).replicas
    except UNREADABLE:
        return ordered
    return ordered if replicas is None or replicas < 0 else replicas


def _seconds(text: str | None) -> float:
    return min(float(text), LONGEST_PAUSE_S) if text and text.isascii() and text.isdecimal() else 0.0
