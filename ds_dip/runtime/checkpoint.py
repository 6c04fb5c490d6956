"""Checkpoints of a DIPEngine: DeepSpeed's files, complete or not there at all, and loaded only where they fit.

Optimizer state is not keyed by layer, so DeepSpeed's own load under another partition silently
corrupts training. Every checkpoint therefore says what it was saved under (see ``ds_dip.partition.checkpoint``).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import logger

from ds_dip.config import ConfigError
from ds_dip.partition import checkpoint as manifests
from ds_dip.partition.checkpoint import LATEST, LATEST_UNIVERSAL, CheckpointError
from ds_dip.planner.adopted import ADOPTED, Adopted
from ds_dip.planner.wire import CORRECTIONS
from ds_dip.runtime import drafts
from ds_dip.runtime.agreement import Described
from ds_dip.runtime.drafts import RecordingEngine
from ds_dip.runtime.loading import data_only, read, refused_types
from ds_dip.runtime.universal import first_layer, layer_file, load_parameters, tied_sources

#: Our key in a checkpoint's client state.
KEY = "ds_dip"


class Checkpoints(Described):
    """What a DIPEngine saves and loads, and what it refuses."""

    checkpoint_engine: Any

    def _configure_checkpointing(self) -> None:
        """DeepSpeed's checkpoint engine, its files recorded; refuses what finishes after the save returns."""
        settings = self._config.checkpoint_config.get("writer") or {}
        for key, found, why in (
            ("checkpoint.writer.decoupled", settings.get("decoupled"), "its files are not written when a save returns"),
            (
                "datastates_ckpt",
                self._config.datastates_config.enabled,
                "its files are not written when a save returns",
            ),
            ("checkpoint.use_node_local_storage", self.use_node_local_storage(), "a checkpoint is one folder"),
        ):
            if found:
                raise ConfigError(f'"{key}" is on, which ds_dip does not carry: {why}; remove the key')
        super()._configure_checkpointing()
        self.checkpoint_engine = RecordingEngine(self.checkpoint_engine)

    def save_checkpoint(
        self,
        save_dir: str | Path,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save a checkpoint as ``save_dir/tag`` (default ``global_stepN``); every rank calls it.

        The checkpoint is written aside and takes its name when it is complete; then ``latest``
        names it. A save that fails or is stopped leaves earlier checkpoints and ``latest`` as they
        were. Raises CheckpointError, the same sentence on every rank.
        """
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        draft, final = Path(save_dir, f".{tag}.saving"), Path(save_dir, tag)
        client_state = client_state or {}
        with self._with_all_ranks(f"the save of {final}", drafts.KEPT):
            self._agree(_unusable(tag, client_state), str(final))
            self._save(draft, final, client_state, save_latest, exclude_frozen_parameters)
        return True

    def _save(
        self, draft: Path, final: Path, client_state: Mapping[str, Any], latest: bool, exclude_frozen: bool
    ) -> None:
        self._agree(self._first_does(lambda: drafts.begin(draft, final)))
        engine: RecordingEngine = self.checkpoint_engine
        engine.begin(draft)
        state = {**client_state, KEY: self._client_state()}
        super().save_checkpoint(str(final.parent), draft.name, state, False, exclude_frozen)
        engine.save(self._rank_state(), str(draft / _rank_file(self.global_rank)))
        written = self._agree(engine.problem, None, engine.files, lambda: shutil.rmtree(draft, ignore_errors=True))
        document = {
            "format": manifests.FORMAT,
            "version": 1,
            **self._manifest(),
            **_files({name: held for files in written for name, held in files.items()}),
        }
        self._agree(
            self._first_does(lambda: drafts.publish(draft, final, document, latest)),
            undo=lambda: shutil.rmtree(draft, ignore_errors=True),
        )

    def load_checkpoint(
        self,
        load_dir: str | Path,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Load ``load_dir/tag`` (default: what ``latest`` names); every rank calls it.

        Returns the path of what was loaded and the client state, or (None, None) where there is no
        ``latest``. The next batch is the one after the saved step. Raises CheckpointError on every
        rank, before anything is changed, where files are missing or damaged, or the checkpoint is
        of another model or was saved under another partition, number of replicas, optimizer or
        dtype and is not universal.
        """
        with self._with_all_ranks(f"the load of {load_dir}", "the checkpoint is as it was"), data_only():
            return self._load(
                load_dir,
                tag,
                load_module_strict,
                load_optimizer_states,
                load_lr_scheduler_states,
                load_module_only,
                custom_load_fn,
            )

    def _load(
        self,
        load_dir: str | Path,
        tag: str | None,
        load_module_strict: bool,
        load_optimizer_states: bool,
        load_lr_scheduler_states: bool,
        load_module_only: bool,
        custom_load_fn: Any,
    ) -> tuple[str | None, dict[str, Any] | None]:
        self._agree(self._first_does(lambda: drafts.recover(load_dir, tag, self._latest)))
        problem, folder, manifest = self._examine(load_dir, tag)
        found = self._agree(problem, None if folder is None else str(folder))[0]
        if found is None or folder is None or manifest is None:
            logger.warning(f"{Path(load_dir, self._latest)} does not exist: nothing is loaded")
            return None, None
        universal = self.load_universal_checkpoint()
        if universal:
            self._load_layers(folder, load_module_strict)
        # BF16_Optimizer without ZeRO writes ZeRO's files, but DeepSpeed looks for its state elsewhere.
        apart = not self.zero_optimization() and hasattr(self.optimizer, "dp_process_group")
        plain = not self.zero_optimization() and not apart
        states = load_optimizer_states and not load_module_only
        load = self._load_checkpoint if universal and plain else super().load_checkpoint
        path, client_state = load(
            str(load_dir),
            folder.name,
            load_module_strict=load_module_strict,
            load_optimizer_states=load_optimizer_states and not (apart or (universal and plain)),
            load_lr_scheduler_states=load_lr_scheduler_states,
            load_module_only=load_module_only,
            custom_load_fn=custom_load_fn,
        )
        if apart and (states or universal):
            self._load_zero_checkpoint(str(load_dir), folder.name, load_optimizer_states=states)
        if apart and universal:
            self.optimizer.update_lp_params()
        if universal and plain:
            load_parameters(folder, self.optimizer, self.param_names, states=states)
        if not load_module_only:
            self._resume(folder, manifest)
        return path, {key: value for key, value in (client_state or {}).items() if key not in (KEY, "optimizer")}

    @property
    def _latest(self) -> str:
        return LATEST_UNIVERSAL if self.load_universal_checkpoint() else LATEST

    def _examine(self, load_dir: str | Path, tag: str | None) -> tuple[str, Path | None, dict[str, Any] | None]:
        """What speaks against a load on this rank, the checkpoint's folder and its manifest."""
        universal = self.load_universal_checkpoint()
        try:
            folder = manifests.resolve(load_dir, tag, self._latest)
            if folder is None:
                return "", None, None
            manifest = manifests.read_manifest(folder)
            problem = manifests.refusal(folder, manifest, self._manifest(), universal=universal)
            if not problem:
                manifests.check_files(folder, manifest)
                # Every file once in the whole job.
                share = list(manifest["files"])[self.global_rank :: dist.get_world_size()]
                manifests.check_contents(folder, manifest, share)
                refusals = ((name, refused_types(folder / name)) for name in share if name.endswith(".pt"))
                problem = next((f"{folder / name}: {held}" for name, held in refusals if held), "")
        except CheckpointError as error:
            return str(error), None, None
        if universal and not problem:
            groups = [[self.param_names[p] for p in group["params"]] for group in self._trained_groups()]
            lacking = manifests.missing_parameters(manifest, (name for group in groups for name in group))
            if lacking:
                problem = f"{folder}: holds no parameter {lacking[0]!r}; load it into the model it is of"
            elif manifest["parameter_groups"] != len(groups) and self.optimizer is not None:
                problem = (
                    f"{folder}: has {manifest['parameter_groups']} parameter groups, this rank's optimizer has "
                    f"{len(groups)}; give the optimizer groups that every rank has parameters of"
                )
        return problem, folder, manifest

    def _resume(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        corrections, adopted = None, Adopted()
        if not manifest["universal"]:
            state = read(folder / _rank_file(self.global_rank))
            corrections = None if state["corrections"] is None else CORRECTIONS.decode(state["corrections"])
            if "adopted" in state:
                adopted = ADOPTED.decode(state["adopted"])
            torch.set_rng_state(state["torch"])
            if state["device"] is not None:
                get_accelerator().set_rng_state(state["device"])
        ours = self._manifest()["sampler"]
        for key in ("seed", "batch_size"):
            if manifest["sampler"].get(key) != ours[key] and self.global_rank == 0:
                logger.warning(
                    f"{folder}: the sampler's {key} was {manifest['sampler'].get(key)} and is {ours[key]} now, so the "
                    "order of samples is another one from here on"
                )
        self.plans.resume(corrections)
        self.adoption.restore(adopted)
        self.plans.adopt(self.adoption.adopted)

    def module_state_dict(self, exclude_frozen_parameters: bool = False) -> None:
        """Write this rank's layer files, as DeepSpeed does, and those of tied layers that it leaves out."""
        folder = self._curr_ckpt_path
        super().module_state_dict(exclude_frozen_parameters)
        if self.grid.data_parallel_id != 0:
            return
        for key, (layer, written) in tied_sources(self.module).items():
            if not written and self.module.stage_owner(layer) == self.stage_id:
                state = self.module.tied_modules[key].state_dict()
                self.checkpoint_engine.save(state, str(Path(folder, layer_file(layer))))

    def load_module_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True, **_: Any) -> None:
        """Read the layer files of this rank's chunks."""
        self._load_layers(Path(self._curr_ckpt_path), strict)

    def _load_layers(self, folder: Path, strict: bool) -> None:
        """Every layer from its own file, tied ones from that of their first use: no collective is needed."""
        module = self.module
        tied = {key: module.tied_modules[key] for key in module.tied_modules}
        sources = {layer: tied[key] for key, (layer, _) in tied_sources(module).items() if key in tied}
        for chunk in module.local_chunks:
            sources.update(
                (index, layer)
                for index, layer in enumerate(module.layers_of(chunk).values(), first_layer(module, chunk))
                if isinstance(layer, torch.nn.Module) and not any(layer is other for other in tied.values())
            )
        for index, layer in sources.items():
            path = folder / layer_file(index)
            layer.load_state_dict(self.checkpoint_engine.load(str(path), map_location="cpu"), strict=strict)

    def _copy_recovery_script(self, save_path: str) -> None:
        try:
            super()._copy_recovery_script(save_path)
        except OSError as error:
            self.checkpoint_engine.failed(save_path, error)


def _files(held: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """The manifest's part on files: their sizes in bytes and their sums."""
    names = sorted(held)
    return {"files": {name: held[name][0] for name in names}, "sha256": {name: held[name][1] for name in names}}


def _rank_file(rank: int) -> str:
    return f"dip_rank_{rank:05d}_states.pt"


def _unusable(tag: str, client_state: Mapping[str, Any]) -> str:
    if not tag or tag.startswith(".") or "/" in tag or tag in (LATEST, LATEST_UNIVERSAL):
        return f"tag is {tag!r}, expected the name of a folder: no slash, no dot in front, not {LATEST!r}"
    if KEY in client_state:
        return f"client_state has the key {KEY!r}, which is ds_dip's own; take another name"
    return ""
