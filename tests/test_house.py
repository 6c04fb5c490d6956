"""The house: which room may import which, what stays free of torch, and how large a file gets."""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ds_dip

PACKAGE = Path(ds_dip.__file__).parent
ROOT = PACKAGE.parent

#: Each may import only those before it, and itself.
ROOMS = (
    "files", "proving", "ranks", "shipped", "scheduling", "balancing", "models", "data", "costs", "planning",
    "partition", "parallelism", "programs", "config", "unsupported", "planner", "reproduction", "explaining", "runtime",
    "profiling", "reporting", "rehearsal", "benchmarks", "commands", "cli",
)  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"torch", "deepspeed"}
LINES = 400
#: These know nothing of models or torch, and so serve other trainers too.
ALONE = ("scheduling", "balancing")
#: By design one module holds every compiled loop.
LONGER = {"scheduling/kernels.py": 800}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports: at the top, in functions, and for types."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "ds_dip" and len(parts) > 1 else None


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_module_is_in_a_room() -> None:
    assert {room_of(name_of(path)) for path in MODULES} - {None} <= set(ROOMS)


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(name_of(path))], ids=ids)
def test_a_room_imports_only_rooms_above_it(path: Path) -> None:
    own = room_of(name_of(path))
    assert own is not None
    allowed = set(ROOMS[: ROOMS.index(own) + 1])
    if own in ALONE:
        allowed = {"files", "proving", own}
    used = {room for module in imports(path) if (room := room_of(module)) in ROOMS}
    assert used <= allowed, f"{ids(path)} imports {', '.join(sorted(used - allowed))}"


@pytest.mark.parametrize("path", [p for room in ALONE for p in sorted((PACKAGE / room).rglob("*.py"))], ids=ids)
def test_scheduling_and_balancing_know_nothing_of_torch(path: Path) -> None:
    assert {module.partition(".")[0] for module in imports(path)} & HEAVY == set()


@pytest.mark.parametrize(
    "module",
    [
        "ds_dip",
        "ds_dip.scheduling",
        "ds_dip.config",
        "ds_dip.planner",
        "ds_dip.data.digits",
        "ds_dip.reporting.trace",
        "ds_dip.costs.rules",
        "ds_dip.profiling.session",
        "ds_dip.reproduction.dip",
        "ds_dip.explaining",
        "ds_dip.rehearsal.costs",
        "ds_dip.rehearsal.session",
    ],
)
def test_neither_torch_nor_deepspeed_is_imported_with(module: str) -> None:
    code = f"import sys, {module}; found = {HEAVY} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGER.get(ids(path), LINES)
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", [path for path in MODULES if "Console(" in path.read_text()], ids=ids)
def test_names_on_the_screen_are_no_markup(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Console":
            given = {own.arg: ast.unparse(own.value) for own in node.keywords}
            assert given.get("stderr") == "True" or given.get("markup") == "False", ast.unparse(node)


#: What runs code that it reads: from a store, a pipe, another rank or a file.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "multiprocessing"}
#: Collectives of objects, which pickle them.
UNSAFE_CALLS = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
}  # fmt: skip


def unsafe(path: Path) -> Iterator[str]:
    """Every way in which a file could unpickle something."""
    yield from (module for module in imports(path) if set(module.split(".")) & UNSAFE_MODULES)
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in UNSAFE_CALLS:
                yield name
        if isinstance(node, ast.Call):
            called, given = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
            if called.endswith("torch.load") and given.get("weights_only") != "True":
                yield ast.unparse(node)
            if given.get("allow_pickle", "False") != "False":
                yield ast.unparse(node)


@pytest.mark.parametrize("path", [*MODULES, *sorted((ROOT / "launch").glob("*.py"))], ids=lambda path: path.name)
def test_nothing_that_is_read_is_run(path: Path) -> None:
    assert not list(unsafe(path))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from multiprocessing import Queue",
        "import torch\ntorch.distributed.all_gather_object([], 1)",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
    ],
)
def test_what_would_be_run_is_found(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "module.py").write_text(code)
    assert list(unsafe(tmp_path / "module.py"))


def test_no_importable_package_is_called_profiling() -> None:
    assert not (ROOT / "profiling" / "__init__.py").exists()


def test_the_public_names() -> None:
    assert ds_dip.__all__ == [
        "ERRORS",
        "DIPEngine",
        "DIPModule",
        "DatasetReference",
        "StopSignal",
        "initialize",
        "layer_factories",
        "load_config",
        "load_model",
        "partition_for",
        "shutdown",
        "token_cross_entropy",
    ]


@pytest.mark.parametrize("module", sorted({".".join(name_of(path).split(".")[:2]) for path in MODULES}))
def test_public_names_exist_and_have_docstrings(module: str) -> None:
    loaded = importlib.import_module(module)
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{module}.{name} has no docstring"
