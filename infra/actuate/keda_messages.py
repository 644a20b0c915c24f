"""KEDA's messages, built at run time: generated code would tie us to one release of protobuf.

`externalscaler.proto` beside this file is the same as text; a test compiles it and compares.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from infra.console.errors import HarmonyError

PACKAGE = "externalscaler"
SERVICE = "externalscaler.ExternalScaler"
_MAP = "ScalerMetadataEntry"
# Message -> (field, number, type); a capital letter begins a message, + a repeated field.
_FIELDS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "ScaledObjectRef": (("name", 1, "string"), ("namespace", 2, "string"), ("scalerMetadata", 3, "map")),
    "IsActiveResponse": (("result", 1, "bool"),),
    "GetMetricSpecResponse": (("metricSpecs", 1, "+MetricSpec"),),
    "MetricSpec": (("metricName", 1, "string"), ("targetSize", 2, "int64"), ("targetSizeFloat", 3, "double")),
    "GetMetricsRequest": (("scaledObjectRef", 1, "ScaledObjectRef"), ("metricName", 2, "string")),
    "GetMetricsResponse": (("metricValues", 1, "+MetricValue"),),
    "MetricValue": (("metricName", 1, "string"), ("metricValue", 2, "int64"), ("metricValueFloat", 3, "double")),
}
# Method -> (request, response, streamed).
METHODS: dict[str, tuple[str, str, bool]] = {
    "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
    "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
    "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
    "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
}


def needed(module: str) -> ModuleType:
    """A module of the extra `keda`.

    Raises:
        HarmonyError: it is not installed (exit code 2).
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise HarmonyError(
            "The KEDA scaler needs grpcio and protobuf: install them with `pip install 'harmony-scaler[keda]'`, or "
            "serve only Prometheus and JSON with --no-grpc.",
            2,
        ) from error


def file_descriptor() -> Any:
    """The file as protobuf's FileDescriptorProto."""
    pb = needed("google.protobuf.descriptor_pb2")
    kinds = pb.FieldDescriptorProto
    file = pb.FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, json_name=field_name, number=number, label=kinds.LABEL_OPTIONAL)
            if kind == "map":
                entry = message.nested_type.add(name=_MAP)
                entry.options.map_entry = True
                for key, at in (("key", 1), ("value", 2)):
                    entry.field.add(
                        name=key, json_name=key, number=at, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING
                    )
                kind = f"+{name}.{_MAP}"
            if kind.startswith("+"):
                field.label, kind = kinds.LABEL_REPEATED, kind[1:]
            if kind[0].isupper():
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for name, (request, response, streamed) in METHODS.items():
        method = service.method.add(name=name, input_type=f".{PACKAGE}.{request}", output_type=f".{PACKAGE}.{response}")
        if streamed:
            method.server_streaming = True
    return file


def message_classes() -> dict[str, Any]:
    """Message name -> protobuf class."""
    pool = needed("google.protobuf.descriptor_pool").DescriptorPool()
    pool.Add(file_descriptor())
    classes = needed("google.protobuf.message_factory").GetMessageClassesForFiles(["externalscaler.proto"], pool)
    return {name: classes[f"{PACKAGE}.{name}"] for name in _FIELDS}
