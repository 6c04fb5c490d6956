import sys
from types import ModuleType

import pytest
import torch

from ds_dip.models import norms


@pytest.fixture(autouse=True)
def fresh():
    norms.fused_norms.cache_clear()
    yield
    norms.fused_norms.cache_clear()


def install(monkeypatch, **modules):
    for name in ("apex", "apex.normalization", "fused_layer_norm_cuda"):
        monkeypatch.setitem(sys.modules, name, modules.get(name.replace(".", "_")))


class Fused(torch.nn.LayerNorm):
    pass


def nvidia():
    normalization = ModuleType("apex.normalization")
    normalization.FusedLayerNorm = Fused
    normalization.FusedRMSNorm = Fused
    return {
        "apex": ModuleType("apex"),
        "apex_normalization": normalization,
        "fused_layer_norm_cuda": ModuleType("fused_layer_norm_cuda"),
    }


def test_without_apex_norms_are_torchs(monkeypatch):
    install(monkeypatch)
    status = norms.fused_norms()
    assert not status.fused
    assert "not installed" in status.reason
    assert type(norms.layer_norm(4)) is torch.nn.LayerNorm
    assert type(norms.rms_norm(4)) is torch.nn.RMSNorm


def test_the_other_apex_is_told_apart(monkeypatch):
    install(monkeypatch, apex=ModuleType("apex"))
    status = norms.fused_norms()
    assert not status.fused
    assert "NVIDIA" in status.reason


def test_nvidias_apex_without_its_extension_is_not_used(monkeypatch):
    install(monkeypatch, **{**nvidia(), "fused_layer_norm_cuda": None})
    assert not norms.fused_norms().fused


def test_nvidias_apex_needs_a_device(monkeypatch):
    install(monkeypatch, **nvidia())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status = norms.fused_norms()
    assert not status.fused
    assert "no CUDA device" in status.reason


def test_nvidias_apex_on_a_device_is_used(monkeypatch):
    install(monkeypatch, **nvidia())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert norms.fused_norms().fused
    assert type(norms.layer_norm(4)) is Fused
    assert type(norms.rms_norm(4)) is Fused
