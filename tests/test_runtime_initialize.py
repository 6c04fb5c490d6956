"""What is refused before an engine is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ds_dip.config import ConfigError, read_config
from ds_dip.runtime.initialize import _refuse_interval


@pytest.mark.parametrize(("of_config", "of_module"), [(2, 0), (0, 2)])
def test_an_interval_beside_strategies_is_refused(of_config: int, of_module: int) -> None:
    settings: Any = SimpleNamespace(pipeline={"activation_checkpoint_interval": of_config})
    module: Any = SimpleNamespace(activation_checkpoint_interval=of_module)
    for block in ({"memory_gb": 1.0}, {"memory_strategies": ["full"]}):
        with pytest.raises(ConfigError, match='"activation_checkpoint_interval" is 2, and plans choose among'):
            _refuse_interval(read_config({"dip": block}), settings, module)
    for block in ({}, {"memory_gb": 1.0, "memory_strategies": ["none"]}):
        _refuse_interval(read_config({"dip": block}), settings, module)
