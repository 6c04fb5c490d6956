"""What files of conversations hold: counts, histograms, the worst samples, and how balanced batches will be."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ds_dip.data import SampleMetadata, Sampler
from ds_dip.data.conversations import Conversations
from ds_dip.data.conversations.headers import Facts
from ds_dip.planning import Load, assign
from ds_dip.profiling.data import Histogram, histogram, histograms

_BATCHES = 20
_WIDTH, _HEIGHT, _COLUMNS, _EDGE = 340, 170, 3, 34
_FONT = 'font-family="sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class Balance:
    """How full the fullest microbatch of a step is against the mean, by module: means over sampled steps.

    ``drawn`` as the sampler draws them, ``assigned`` as they are assigned by tokens to replicas and microbatches.
    """

    batch_size: int
    replicas: int
    microbatches: int
    drawn: Mapping[str, float]
    assigned: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Large:
    """A sample of many tokens, and where its record is."""

    place: str
    sample: SampleMetadata


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found.

    ``media`` counts media by kind, ``having`` the samples that have one, ``notes`` what is unusual of them;
    ``worst`` are the samples of most tokens over all modules, the first one the largest.
    """

    samples: int
    problems: int
    media: Mapping[str, int]
    having: Mapping[str, int]
    notes: Mapping[str, int]
    histograms: Mapping[str, Histogram]
    worst: tuple[Large, ...]
    balance: Balance | None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        worst = [{"place": own.place, "id": own.sample.id, "modules": dict(own.sample.modules)} for own in self.worst]
        return found | {"worst": worst}


def inspect(
    dataset: Conversations, *, worst: int = 5, batch_size: int = 0, replicas: int = 1, microbatches: int = 1
) -> tuple[Inspection, list[SampleMetadata]]:
    """Go through a dataset's index; what was found, and the samples' metadata. No balance without a batch size."""
    media: Counter[str] = Counter()
    having: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    measures: dict[str, list[float]] = {}
    samples = []
    for index in range(len(dataset)):
        facts = [Facts.of(brief) for brief in dataset.row(index)["media"]]
        samples.append(dataset.metadata(index))
        kinds = Counter[str](own.kind for own in facts)
        media.update(kinds)
        having.update(set(kinds) or {"text alone"})
        notes.update(f"{own.kind}: {note}" for own in facts for note in own.notes)
        for kind, count in kinds.items():
            measures.setdefault(f"{kind}s of a sample", []).append(count)
        for own in facts:
            name, value = ("image, longer side", max(own.width, own.height)) if own.kind == "image" else (
                f"{own.kind}, seconds", own.seconds
            )  # fmt: skip
            measures.setdefault(name, []).append(value)
    found = {
        f"{module}, {count}": own
        for module, counts in histograms(samples).items()
        for count, own in counts.items()
        # A sequence a sample: its size says it all.
        if module != "language" or count == "size"
    }
    found["learned tokens"] = histogram([sample.loss_tokens for sample in samples])
    found |= {name: histogram(values) for name, values in measures.items()}
    balance = balance_of(samples, batch_size, replicas, microbatches) if batch_size else None
    largest = heapq.nlargest(worst, range(len(samples)), key=lambda n: sum(map(sum, samples[n].modules.values())))
    large = tuple(Large(dataset.place(index), samples[index]) for index in largest)
    return Inspection(
        len(samples), dataset.skipped, dict(media), dict(having), dict(notes), found, large, balance
    ), samples


def balance_of(samples: Sequence[SampleMetadata], batch_size: int, replicas: int, microbatches: int) -> Balance:
    """The balance of sampled steps; ValueError where a batch is larger than the dataset or too small to share out."""
    if batch_size < replicas * microbatches:
        raise ValueError(
            f"a batch of {batch_size} samples gives {replicas} replicas with {microbatches} microbatches each less "
            "than one sample a microbatch; give a larger batch"
        )
    sampler = Sampler(len(samples), batch_size)
    names = sorted({name for sample in samples for name in sample.modules})

    def tokens(sample: SampleMetadata) -> Load:
        return Load(tuple(float(sum(sample.modules.get(name, ()))) for name in names))

    drawn: dict[str, list[float]] = {name: [] for name in names}
    assigned: dict[str, list[float]] = {name: [] for name in names}
    for step in range(min(_BATCHES, sampler.steps_per_epoch)):
        batch = [samples[index] for index in sampler.indices(step)]
        buckets = replicas * microbatches
        plain = [batch[n * batch_size // buckets : (n + 1) * batch_size // buckets] for n in range(buckets)]
        shares = assign(batch, replicas, microbatches, tokens)
        even = [[batch[place] for place in positions] for share in shares for positions in share]
        for name in names:
            for found, groups in ((drawn, plain), (assigned, even)):
                loads = [sum(sum(sample.modules.get(name, ())) for sample in group) for group in groups]
                if sum(loads):
                    found[name].append(max(loads) * len(loads) / sum(loads))
    means = [{name: sum(own) / len(own) for name, own in found.items() if own} for found in (drawn, assigned)]
    return Balance(batch_size, replicas, microbatches, *means)


def svg(inspection: Inspection, title: str) -> str:
    """The histograms as a drawing."""
    drawn = list(inspection.histograms.items())
    height = _HEIGHT * -(-len(drawn) // _COLUMNS) + _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH * _COLUMNS}" height="{height}" {_FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="13">{escape(title)}: {inspection.samples} samples</text>',
    ]
    for number, (name, own) in enumerate(drawn):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT + _EDGE
        parts.append(f'<g transform="translate({x} {y})">{_bars(name, own)}</g>')
    return "".join(parts) + "</svg>\n"


def _bars(name: str, own: Histogram) -> str:
    left, top, width, height = 12, 20, _WIDTH - 24, _HEIGHT - 62
    step, most = width / len(own.counts), max(own.counts)
    parts = [f'<text x="{left}" y="12">{escape(name)}: mean {own.mean:g}, at most {own.quantiles["1"]:g}</text>']
    for number, count in enumerate(own.counts):
        tall = height * count / most
        place = f'x="{left + number * step:.1f}" y="{top + height - tall:.1f}"'
        parts.append(f'<rect {place} width="{max(1.0, step - 1):.1f}" height="{tall:.1f}" fill="#1565c0"/>')
    for at, anchor in ((0, "start"), (-1, "end")):
        x = left + width * (at != 0)
        parts.append(f'<text x="{x}" y="{top + height + 14}" text-anchor="{anchor}">{own.edges[at]:g}</text>')
    return "".join(parts)
