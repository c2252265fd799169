"""Models of transformers in memory, as a suite names them.

Targets and draft models are loaded as for `loader: hf`; a DFlash drafter runs only beside its target and has no head of
its own. A model's own generation configuration is ignored, so that a request has the same p in every engine.
"""

from typing import Any

from transformers import AutoConfig, AutoModel, GenerationConfig

from engine.backends.engine_spec import ModelSource
from engine.core.errors import ModelError
from engine.models.files.transformers_loader import require_sizes
from engine.models.files.verified_files import pinned
from engine.models.loading import DTYPES, LoadedModel, load_model, open_source

BLOCKS = ("block_size", "mask_token_id", "target_layer_ids")
"""The architecture in the configuration of a DFlash drafter."""


def open_network(source: ModelSource) -> LoadedModel:
    """A whole model, by transformers' own loading. Raises ModelError: it cannot be loaded whole."""
    loaded = load_model(
        source.source,
        dtype=source.dtype,
        loader="hf",
        revision=source.revision,
        base=source.base,
        device=source.device,
        placed=False,
    )
    network_of(loaded).generation_config = GenerationConfig()
    return loaded


def network_of(loaded: LoadedModel) -> Any:
    """The module itself."""
    return getattr(loaded.model, "network")  # noqa: B009 - the protocol of models has no network


def is_drafter(source: ModelSource) -> bool:
    """Whether the source is a DFlash drafter of transformers."""
    config = open_source(source.source, source.revision, source.base).folder.config
    return all(key in config for key in BLOCKS)


def open_drafter(source: ModelSource) -> Any:
    """The module of a DFlash drafter. Raises ModelError: the installed transformers cannot load it."""
    opened = open_source(source.source, source.revision, source.base)
    dtype = DTYPES[source.dtype]
    try:
        with pinned(opened.folder) as folder:
            require_sizes(folder)
            config = AutoConfig.from_pretrained(folder.path, local_files_only=True)
            network = AutoModel.from_pretrained(folder.path, config=config, dtype=dtype, local_files_only=True)
    except ModelError:
        raise
    except Exception as error:  # transformers passes on its parsers' exceptions
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{source.source}: the installed transformers has no such drafter ({reason})") from error
    network.name_or_path = network.config._name_or_path = str(opened.folder.path)
    return network.eval()
