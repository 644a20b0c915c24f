"""Message classes of a protobuf file, from the descriptor set that protoc wrote.

Generated `_pb2` modules run with one or two major releases of protobuf. A descriptor set is data and runs with all of
them. Each `NAME.proto` has a `NAME.binpb` beside it, which `python -m infra.console.protobuf` writes with grpcio-tools;
the test suite compiles each file again and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_INFRA = Path(__file__).parents[1]
PROTO_FILES = (_INFRA / "actuate/externalscaler.proto", _INFRA / "collect/sources/remote_write.proto")


def message_classes(proto: Path, load: Callable[[str], Any]) -> dict[str, Any]:
    """Full message name -> protobuf class, for every message of a file.

    Args:
        proto: the `.proto` file; its descriptor set lies beside it.
        load: imports a module by name, or raises the caller's error that names the missing package.
    """
    files = load("google.protobuf.descriptor_pb2").FileDescriptorSet.FromString(
        proto.with_suffix(".binpb").read_bytes()
    )
    pool = load("google.protobuf.descriptor_pool").DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = [file.name for file in files.file]
    return dict(load("google.protobuf.message_factory").GetMessageClassesForFiles(names, pool))


def write_descriptor_set(proto: Path, target: Path) -> None:
    """Compile one `.proto` file; needs the development dependency grpcio-tools.

    Raises:
        ValueError: protoc refuses the file.
    """
    from grpc_tools import protoc

    if protoc.main(["protoc", f"-I{proto.parent}", f"--descriptor_set_out={target}", str(proto)]) != 0:
        raise ValueError(f"protoc refuses {proto}")


if __name__ == "__main__":
    for path in PROTO_FILES:
        write_descriptor_set(path, path.with_suffix(".binpb"))
