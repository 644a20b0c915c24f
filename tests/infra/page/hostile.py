"""Names, reasons and bytes that telemetry of ill will may hold."""

from __future__ import annotations

from infra.kafka.tail import TailRecord

EVIL = {
    "html": "<img src=x onerror=document.body.dataset.owned=1>",
    "script": "</td><script>document.body.dataset.owned=1</script>",
    "quotes": "\"'`&<>\\ ${document.body.dataset.owned=1} %3Cb%3E #/?&=%",
    "newlines": "one\ntwo\r\nthree\tfour\x00five",
    "long": "n" * 10_000,
    "wide": "ﷺ𒐫" * 200,
    "rtl": "\u202eevil\u202c \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "tilde": "~0123456789abcdef",
    "dots": "../../etc/passwd",
}

LETTER = TailRecord(
    0, 7, 1_760_000_000_000, b"k", b"{", (("topic", b"harmony.telemetry.gpu"), ("reason", EVIL["html"].encode()))
)
