"""Devices by their data sheets: peak rates and what of them is reached, as the rates of a roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_dip.costs.parallel import TensorParallel
from ds_dip.costs.roofline import OPERATORS_A_LAYER, Rates
from ds_dip.files import FileError, read_json
from ds_dip.models.spec import ELEMENT_BYTES

FORMAT = "ds-dip/device"
LINKS = ("node", "network")
_FIELDS = ("format", "version", "name", "flops", "memory_bytes", "memory_bandwidth", "links", "launch_seconds",
           "efficiency", "sources")  # fmt: skip
_SHARES = ("flops", "memory", "link")


@dataclass(frozen=True, slots=True)
class Device:
    """A device: peaks per second (``flops`` by data type), bytes of memory, seconds to start an operator.

    ``links`` are (bytes a second each way, seconds of latency) inside a node and over the network; ``efficiency`` is
    the share of each peak that large operators reach; ``sources`` say where the figures are from.
    """

    name: str
    flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    links: Mapping[str, tuple[float, float]]
    launch_seconds: float
    efficiency: Mapping[str, float]
    sources: tuple[str, ...]

    def rates(self, dtype: str, link: str = "node") -> Rates:
        """Rates of a roofline in a data type, over one of the links.

        Raises ValueError for a data type or a link that the device does not have.
        """
        if dtype not in self.flops:
            raise ValueError(f"{self.name} has no rate for {dtype}: it has {', '.join(self.flops)}")
        if link not in self.links:
            raise ValueError(f"link is {link!r}: use one of {', '.join(self.links)}")
        bandwidth, latency = self.links[link]
        return Rates(
            flops=self.flops[dtype] * self.efficiency["flops"],
            memory=self.memory_bandwidth * self.efficiency["memory"],
            layer_overhead=self.launch_seconds * OPERATORS_A_LAYER,
            link=bandwidth * self.efficiency["link"],
            link_latency=latency,
            compute=dtype,
        )

    def tensor_parallel(self, degree: int, *, sequence: bool = True) -> TensorParallel:
        """Groups of ``degree`` of these devices inside a node.

        Raises ValueError for a degree below 1.
        """
        bandwidth, latency = self.links["node"]
        return TensorParallel(degree, sequence, bandwidth * self.efficiency["link"], latency)


def read_device(path: str | Path) -> Device:
    """Read a device's description (``ds-dip/device`` 1).

    Raises FileError, one sentence with the field, the value found and what was expected.
    """
    document = read_json(path, FORMAT)
    for name in document:
        if name not in _FIELDS:
            raise FileError(f"{path}: the file has the unknown field {name!r}; known are {', '.join(_FIELDS)}")
    own_name, sources = document.get("name"), document.get("sources")
    if not isinstance(own_name, str) or not own_name:
        raise _wrong(path, "name", own_name, "the device's name")
    if not isinstance(sources, list) or not sources or not all(isinstance(source, str) for source in sources):
        raise _wrong(path, "sources", sources, "a list of sentences that name the sources")
    flops, links = _object(path, document, "flops"), _object(path, document, "links")
    if unknown := sorted(set(flops) - set(ELEMENT_BYTES)):
        raise _wrong(path, "flops", unknown[0], f"data types, of {', '.join(ELEMENT_BYTES)}")
    if sorted(links) != sorted(LINKS):
        raise _wrong(path, "links", sorted(links), " and ".join(LINKS))
    efficiency = _object(path, document, "efficiency")
    shares = {key: _number(path, f"efficiency.{key}", efficiency.get(key)) for key in _SHARES}
    for key, share in shares.items():
        if share > 1:
            raise _wrong(path, f"efficiency.{key}", share, "a share of at most 1")
    return Device(
        name=own_name,
        flops={dtype: _number(path, f"flops.{dtype}", value) for dtype, value in flops.items()},
        memory_bytes=_number(path, "memory_bytes", document.get("memory_bytes")),
        memory_bandwidth=_number(path, "memory_bandwidth", document.get("memory_bandwidth")),
        links={link: _link(path, f"links.{link}", value) for link, value in links.items()},
        launch_seconds=_number(path, "launch_seconds", document.get("launch_seconds")),
        efficiency=shares,
        sources=tuple(sources),
    )


def _link(path: str | Path, place: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, dict) or sorted(value) != ["bandwidth", "latency"]:
        raise _wrong(path, place, value, "an object with bandwidth and latency")
    return _number(path, f"{place}.bandwidth", value["bandwidth"]), _number(path, f"{place}.latency", value["latency"])


def _object(path: str | Path, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict) or not value:
        raise _wrong(path, name, value, "an object of numbers")
    return value


def _number(path: str | Path, place: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise _wrong(path, place, value, "a finite number above 0")
    return float(value)


def _wrong(path: str | Path, place: str, value: object, expected: str) -> FileError:
    return FileError(f"{path}: field {place!r} is {repr(value)[:80]}, expected {expected}")
