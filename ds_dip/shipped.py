"""Files that come along: models, devices, latency tables, scripts and their settings. Imports nothing of ours.

In the repository they lie beside the package. An installed wheel puts them into ``share/ds_dip`` of its environment,
in the same folders, so that a name such as ``model_configs/quickstart.json`` means the same in both.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from pathlib import Path

#: Folders that come along.
FOLDERS = ("launch", "model_configs", "profiling")
_SHARE = ("share", "ds_dip")


@cache
def root() -> Path | None:
    """The folder that holds ``FOLDERS``, None where they were left out of the installation."""
    repository = Path(__file__).resolve().parents[1]
    if (repository / "setup.cfg").exists() and all((repository / name).is_dir() for name in FOLDERS):
        return repository
    try:
        recorded = importlib.metadata.files("ds_dip") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in recorded:
        for parent in Path(str(file.locate())).resolve().parents:
            if (parent.parent.name, parent.name) == _SHARE:
                return parent
    return None


def find(path: Path, folder: str = "") -> Path:
    """``path`` where it is there, or is absolute; else what comes along under that name, if anything does.

    A plain name is also looked for in ``folder``, with and without the suffix of JSON.
    """
    own = root()
    if own is None or path.is_absolute() or path.exists():
        return path
    names = [path] if path.parts[:1] and path.parts[0] in FOLDERS else []
    if folder and len(path.parts) == 1:
        names += [Path(folder, path), Path(folder, f"{path}.json")]
    return next((own / name for name in names if (own / name).exists()), path)


def files() -> list[Path]:
    """What comes along, by its name below ``root()``."""
    own = root()
    if own is None:
        return []
    found = [path for name in FOLDERS for path in (own / name).rglob("*")]
    return sorted(path.relative_to(own) for path in found if path.is_file() and "__pycache__" not in path.parts)
