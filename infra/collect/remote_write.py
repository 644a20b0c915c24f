"""Prometheus remote-write requests, version 1: snappy blocks of protobuf."""

from __future__ import annotations

from functools import cache
from typing import Any

import cramjam

from infra.collect.extras import need
from infra.collect.formats.exposition import UnreadableError
from infra.collect.points import Point

MOST_COMPRESSED_BYTES = 16 << 20
MOST_BYTES = 64 << 20
_PURPOSE = "Remote write"
# Field types and labels of descriptor.proto.
_DOUBLE, _INT64, _STRING, _MESSAGE = 1, 3, 9, 11
_OPTIONAL, _REPEATED = 1, 3


def read_remote_write(body: bytes) -> list[Point]:
    """The samples of one request.

    Raises:
        UnreadableError: no snappy, longer than may be, no such message, or a series without a name.
        HarmonyError: the packages for it are not installed.
    """
    request = _message_class()()
    try:
        request.ParseFromString(_uncompressed(body))
    except Exception as error:
        if isinstance(error, UnreadableError) or type(error).__name__ != "DecodeError":
            raise
        raise UnreadableError("not a remote-write request of version 1") from None
    points = []
    for series in request.timeseries:
        labels = {label.name: label.value for label in series.labels}
        name = labels.pop("__name__", "")
        if not name:
            raise UnreadableError("a series has no __name__")
        points += [Point(name, labels, sample.timestamp, sample.value) for sample in series.samples]
    return points


def check_installed() -> None:
    """Say at the start, not at the first request, what is missing.

    Raises:
        HarmonyError: a package is not installed.
    """
    _message_class()


def _uncompressed(body: bytes) -> bytes:
    if len(body) > MOST_COMPRESSED_BYTES:
        raise UnreadableError(f"longer than {MOST_COMPRESSED_BYTES >> 20} MiB")
    size = _announced_size(body)
    if size > MOST_BYTES:
        raise UnreadableError(f"would be {size} bytes uncompressed, the limit is {MOST_BYTES}")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise UnreadableError("not compressed with snappy") from None


def _announced_size(body: bytes) -> int:
    """A snappy block begins with its uncompressed length as a varint."""
    size = 0
    for position, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return size
    raise UnreadableError("not compressed with snappy")


@cache
def _message_class() -> Any:
    """`prometheus.WriteRequest` as far as it is read: metadata, exemplars and native histograms are passed over."""
    descriptor_pb2 = need("google.protobuf.descriptor_pb2", _PURPOSE)
    pool = need("google.protobuf.descriptor_pool", _PURPOSE).DescriptorPool()
    factory = need("google.protobuf.message_factory", _PURPOSE)
    package = "harmony.remote_write"
    file = descriptor_pb2.FileDescriptorProto(name="remote_write.proto", package=package, syntax="proto3")
    layout: dict[str, list[tuple[str, int, int, str]]] = {
        "Label": [("name", 1, _STRING, ""), ("value", 2, _STRING, "")],
        "Sample": [("value", 1, _DOUBLE, ""), ("timestamp", 2, _INT64, "")],
        "TimeSeries": [("labels", 1, _MESSAGE, "Label"), ("samples", 2, _MESSAGE, "Sample")],
        "WriteRequest": [("timeseries", 1, _MESSAGE, "TimeSeries")],
    }
    for message, fields in layout.items():
        described = file.message_type.add(name=message)
        for name, number, kind, of in fields:
            label = _REPEATED if of else _OPTIONAL
            described.field.add(
                name=name, number=number, type=kind, label=label, type_name=f".{package}.{of}" if of else None
            )
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.WriteRequest"))
