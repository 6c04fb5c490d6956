"""The dataset of docs/data.md trains: what it loads agrees with its metadata, and the quickstart's model takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ds_dip.data import DatasetReference, collate
from ds_dip.models import layer_factories, load_model, token_cross_entropy
from ds_dip.models.context import Context
from ds_dip.planning.cut import sizes_of

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_gives_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "documented_captions.py").write_text(code.group(1))
    monkeypatch.syspath_prepend(tmp_path)
    dataset = DatasetReference("documented_captions:Captions", {"samples": 100}).open()
    model = load_model(ROOT / "model_configs" / "quickstart.json")
    samples = [dataset.metadata(index) for index in range(9)]
    sizes, outputs = sizes_of(samples, model), {}
    for module in model.modules:
        fields = [name for layer in module.layers for name in layer.fields]
        arrays = collate(dataset, samples, module.name, fields, 0, len(sizes[module.name]))
        context = Context(sizes[module.name], {name: torch.from_numpy(array) for name, array in arrays.items()})
        x = {name: outputs[name] for name in model.upstream(module.name)}
        for factory in layer_factories(model)[module.name]:
            x = factory()(x, context)
        outputs[module.name] = x
    supervised = sum(sample.loss_tokens for sample in samples)
    assert int((context.fields["labels"] != -100).sum()) == supervised
    loss = token_cross_entropy(outputs["language"], context).item() / supervised
    assert 0.0 < loss < 20.0
