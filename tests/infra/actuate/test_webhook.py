"""The webhook against a real HTTP receiver that verifies every signature and is ill in many ways."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from agents.decide.records import decode_command
from infra.actuate.actuator import NotApplied, ReplicaChange
from infra.actuate.webhook import LONGEST_PAUSE_S, Webhook, secret_bytes, sign
from infra.console.errors import HarmonyError
from tests.agents.actuation.test_apply_guard import TARGET, command
from tests.infra.actuate.loopback import started
from tests.infra.actuate.receiver import Receiver

KEY = b"a secret of more than sixteen bytes"
NOW_MS = 1_763_636_400_000


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver(KEY, {"w": 3})
    await made.start()
    yield made
    await made.stop()


class Sender:
    """A webhook without real pauses; `slept` has them, and `on_pause` runs in each."""

    def __init__(self, url: str, key: bytes = KEY, **options: Any) -> None:
        self.slept: list[float] = []
        self.on_pause: Callable[[], None] = lambda: None
        self.now_ms = NOW_MS

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.on_pause()
            await asyncio.sleep(0)

        self.webhook = Webhook(
            url, key, "fleet 1", lambda: self.now_ms, sleep=sleep, jitter=lambda _low, high: high, **options
        )

    async def send(self, sequence: int = 1, replicas: int = 5, wanted: Callable[[], bool] = lambda: True) -> str:
        c = command(sequence, replicas=replicas)
        try:
            return await self.webhook.apply(ReplicaChange("w", TARGET, replicas, 3, c, (1, sequence), wanted))
        finally:
            await self.webhook.close()
            self.webhook._session = None


async def test_a_change_is_posted_once_signed_and_as_a_cloudevent(receiver: Receiver) -> None:
    assert await Sender(receiver.url).send() == ""
    ((headers, body),) = receiver.requests
    assert receiver.counts == {"w": 5}
    assert receiver.bad_signatures == 0
    assert headers["ce-specversion"] == "1.0"
    assert (headers["ce-type"], headers["ce-source"], headers["ce-subject"]) == ("harmony.command.v1", "fleet%201", "w")
    assert headers["ce-id"] == headers["webhook-id"] == headers["idempotency-key"] == "c5-1-1-5"
    assert headers["content-type"] == "application/json"
    assert int(headers["webhook-timestamp"]) == NOW_MS // 1000
    assert body["replicas"] == 5
    assert body["target"] == {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "prod", "name": "w"}


def test_the_signature_is_that_of_the_standard() -> None:
    """The published example of the Standard Webhooks libraries."""
    key = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    said = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert said == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_ills_that_pass_are_waited_for_with_growing_pauses(receiver: Receiver) -> None:
    receiver.ills.extend([500, 503, "drop", 429, 408])
    sender = Sender(receiver.url)
    assert await sender.send() == "answered after 6 attempts"
    assert sender.slept == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert receiver.counts == {"w": 5}
    assert len({h["idempotency-key"] for h, _ in receiver.requests}) == 1, "one id for all attempts"


async def test_an_answer_that_was_lost_makes_no_second_change(receiver: Receiver) -> None:
    receiver.ills.append("deaf")
    sender = Sender(receiver.url)
    sender.on_pause = lambda: receiver.counts.update(w=9)  # by somebody else, after ours was done
    await sender.send()
    assert len(receiver.requests) == 2
    assert receiver.counts == {"w": 9}, "the idempotency key says that it was done"


async def test_pauses_are_bounded_and_it_gives_up_when_no_longer_wanted(receiver: Receiver) -> None:
    receiver.ills.extend([500] * 20)
    sender = Sender(receiver.url)
    with pytest.raises(NotApplied, match="given up after 12 attempts: HTTP 500") as failed:
        await sender.send(wanted=lambda: len(sender.slept) < 12)
    assert max(sender.slept) == LONGEST_PAUSE_S
    assert not failed.value.sure
    assert receiver.counts == {"w": 3}


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 422])
async def test_a_no_is_not_asked_again_and_nobody_is_followed_elsewhere(receiver: Receiver, status: int) -> None:
    receiver.ills.append(status)
    with pytest.raises(NotApplied, match=f"HTTP {status}") as failed:
        await Sender(receiver.url).send()
    assert failed.value.sure
    assert failed.value.refused
    assert len(receiver.requests) == 1


async def test_a_wrong_key_is_refused_by_the_receiver(receiver: Receiver) -> None:
    with pytest.raises(NotApplied, match="401"):
        await Sender(receiver.url, key=b"another key of sixteen").send()
    assert receiver.bad_signatures == 1


async def test_a_receiver_that_is_not_there_is_tried_until_the_lease_ends() -> None:
    sender = Sender("http://127.0.0.1:9/scale")
    with pytest.raises(NotApplied, match="given up after 3 attempts: ClientConnectorError"):
        await sender.send(wanted=lambda: len(sender.slept) < 3)


async def test_what_was_confirmed_counts_until_the_fleet_tells_otherwise(receiver: Receiver) -> None:
    sender = Sender(receiver.url)

    async def look(expected: int | None) -> int | None:
        return await sender.webhook.observe("w", TARGET, expected, None)

    assert await look(3) == 3
    assert await look(None) is None, "nobody knows"
    await sender.send()
    assert await look(3) == 5, "facts lag behind what was just confirmed"
    sender.now_ms += 30_000
    assert await look(8) == 8, "facts have had their time"


async def test_an_answer_that_comes_in_pieces_is_read_whole() -> None:
    async def post(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"repli', b'cas": 4}'):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.router.add_post("/", post)
    runner, url = await started(app)
    sender = Sender(url)
    await sender.send(1, replicas=5)
    assert await sender.webhook.observe("w", TARGET, 3, None) == 4
    await runner.cleanup()


async def test_a_local_pin_is_posted_as_a_command_of_the_newest_place(receiver: Receiver) -> None:
    sender = Sender(receiver.url)
    await sender.webhook.apply(ReplicaChange("w", TARGET, 9, None, None, (2, 70), lambda: True))
    await sender.webhook.close()
    ((headers, body),) = receiver.requests
    posted = decode_command(__import__("json").dumps(body).encode())
    assert (posted.replicas, posted.reason, posted.epoch, posted.sequence) == (9, "pin", 2, 70)
    assert headers["idempotency-key"].startswith(posted.command_id)


async def test_a_count_that_is_pinned_again_at_the_same_instant_is_no_repetition(receiver: Receiver) -> None:
    sender = Sender(receiver.url)
    for observed, replicas in ((3, 1), (1, 0), (0, 1)):
        await sender.webhook.apply(ReplicaChange("w", TARGET, replicas, observed, None, (1, 1), lambda: True))
        assert receiver.counts == {"w": replicas}
    await sender.webhook.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://x/y", "no address"),
        ("https://", "no address"),
        ("not a url", "no address"),
        ("http://scaler.example/scale", "in the clear"),
        ("http://127.0.0.1.evil.example/", "in the clear"),
    ],
)
def test_an_address_that_cannot_be_meant_is_one_sentence(url: str, told: str) -> None:
    with pytest.raises(HarmonyError, match=told) as refused:
        Webhook(url, KEY, "f", lambda: 0)
    assert refused.value.exit_code == 2


def test_secrets_have_sixteen_bytes_at_least() -> None:
    assert secret_bytes("whsec_" + base64.b64encode(b"x" * 32).decode() + "\n") == b"x" * 32
    for text in ("short", "whsec_!!!", "whsec_eA=="):
        with pytest.raises(HarmonyError, match="secret"):
            secret_bytes(text)
