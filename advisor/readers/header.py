"""What a trace says about its recording, before and after its events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.readers.loose import read_count, read_rank
from advisor.tables import Recording

_FLAGS = ("record_shapes", "with_stack", "profile_memory")
_VERSIONS = (
    "schemaVersion", "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
    "hip_driver_version", "roctracer_version",
)  # fmt: skip
_KEYS = ("distributedInfo", "host_name", "baseTimeNanoseconds", "deviceProperties", *_FLAGS, *_VERSIONS)

_scan = json.JSONDecoder(strict=False).raw_decode


@dataclass(frozen=True)
class Header:
    """The used fields, with None or "" for what is missing or of the wrong type."""

    rank: int | None
    world_size: int | None
    backend: str
    host: str | None
    devices: tuple[str, ...]
    base_ns: int
    flags: Mapping[str, bool]
    versions: Mapping[str, str]

    def describe(self, num_bytes: int, num_events: int) -> Recording:
        """How the recording was made, with the size of its text and the number of events in it."""
        return Recording(
            num_bytes=num_bytes,
            num_events=num_events,
            base_ns=self.base_ns,
            devices=self.devices,
            versions=self.versions,
            record_shapes=self.flags.get("record_shapes"),
            with_stack=self.flags.get("with_stack"),
            profile_memory=self.flags.get("profile_memory"),
        )


def build_header(fields: Mapping[str, Any]) -> Header:
    """Takes from a document what is used of it; nothing in it has to be as it should."""
    info = _mapping(fields.get("distributedInfo"))
    devices = fields.get("deviceProperties")
    versions = {name: fields[name] for name in _VERSIONS if name in fields}
    if "nccl_version" in info:
        versions["nccl_version"] = info["nccl_version"]
    return Header(
        rank=read_rank(info.get("rank")),
        world_size=read_rank(info.get("world_size")),
        backend=_word(info.get("backend")) or "",
        host=_word(fields.get("host_name")),
        devices=tuple(str(_mapping(device).get("name", "")) for device in devices if device)
        if isinstance(devices, list)
        else (),
        base_ns=read_count(fields.get("baseTimeNanoseconds")) or 0,
        flags={flag: bool(fields[flag]) for flag in _FLAGS if isinstance(fields.get(flag), int)},
        versions={name: str(version) for name, version in versions.items()},
    )


def find_fields(text: bytes) -> dict[str, Any]:
    """The used fields that are whole in the damaged text around the events."""
    characters = text.decode(errors="replace")
    fields = {}
    for key in _KEYS:
        match = re.search(rf'"{key}"\s*:\s*', characters)
        if match:
            try:
                fields[key] = _scan(characters, match.end())[0]
            except (ValueError, RecursionError):
                continue
    return fields


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: object) -> str | None:
    return value.encode(errors="replace").decode() if isinstance(value, str) else None
