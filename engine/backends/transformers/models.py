"""The models of a suite in transformers, and the arms over them."""

import copy
from collections.abc import Mapping
from typing import Any

from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.local_target import LocalTarget, facts_of
from engine.backends.transformers.backend import AssistantModel, TransformersEngine
from engine.backends.transformers.networks import is_drafter, network_of, open_drafter, open_network
from engine.backends.transformers.settings import LAYERS, TransformersSettings, settings_of
from engine.core.errors import InvalidRequest, ModelError
from engine.models.loading import LoadedModel, check_same_tokenizer, open_source


class TransformersBackend:
    """Models loaded from folders, the hub or the bundle.

    Raises:
        ModelError: a model that cannot be loaded; a target without a tokenizer.
    """

    def __init__(self, sources: Mapping[str, ModelSource]) -> None:
        self._sources = dict(sources)
        self._local_target = LocalTarget(sources["target"])
        self._local_target.tokens  # noqa: B018 - raises if there are none
        drafters = [name for name in sources if name != "target" and is_drafter(sources[name])]
        self._models = {name: open_network(item) for name, item in sources.items() if name not in drafters}
        self._drafters = {name: open_drafter(sources[name]) for name in drafters}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return tuple(
            facts_of(name, open_source(item.source, item.revision, item.base)) for name, item in self._sources.items()
        )

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend over the loaded models.

        Raises:
            InvalidRequest: a combination that assisted generation cannot run.
        """
        if plan.draft is not None and plan.draft not in self._sources:
            raise InvalidRequest(f"no model named {plan.draft!r}; there are: {', '.join(self._sources)}")
        settings = settings_of(plan)
        target = self._models["target"]
        _require_target(settings, target)
        return TransformersEngine(target, self._assistance(settings, plan), self._local_target, plan, settings)

    def _assistance(self, settings: TransformersSettings, plan: EngineSpec) -> AssistantModel:
        if settings.kind == "dflash":
            return AssistantModel(_require_drafter(self._drafters, plan))
        if plan.draft is None:
            return AssistantModel()
        if plan.draft in self._drafters:
            raise InvalidRequest(f"model {plan.draft} is a DFlash drafter; use proposer dflash")
        draft, target = self._models[plan.draft], self._models["target"]
        if settings.kind == "universal":
            if draft.tokenizer is None:
                raise ModelError(f"{draft.source}: no tokenizer; proposer universal translates by it")
            if draft.model.vocabulary == target.model.vocabulary:
                raise InvalidRequest(
                    f"{draft.source}: as many tokens as the target, which transformers takes for the same tokens; "
                    "use proposer draft_model, or a draft of another size"
                )
            # transformers caches the pruned state by tokenizer, which is wrong for another arm's draft
            return AssistantModel(network_of(draft), draft.model.facts, copy.deepcopy(draft.tokenizer))
        check_same_tokenizer(target, draft)
        if draft.model.vocabulary != target.model.vocabulary:
            raise ModelError(
                f"{draft.source}: {draft.model.vocabulary} logits, but the target has {target.model.vocabulary}; "
                "use proposer universal"
            )
        return AssistantModel(network_of(draft), draft.model.facts)


def _require_target(settings: TransformersSettings, target: LoadedModel) -> None:
    config = network_of(target).config.get_text_config()
    layers, heads = config.num_hidden_layers, getattr(config, "num_mtp_layers", None)
    if settings.kind == "early_exit" and settings.options[LAYERS] >= layers:
        raise InvalidRequest(f"proposer early_exit: {LAYERS} must be below the target's {layers} layers")
    if settings.kind == "mtp":
        if not heads:
            raise InvalidRequest(f"{target.source}: the config has no num_mtp_layers; proposer mtp needs such a model")
        if settings.gamma != heads:
            raise InvalidRequest(f"proposer mtp: the target drafts {heads} tokens; set gamma to {heads}")


def _require_drafter(drafters: Mapping[str, Any], plan: EngineSpec) -> Any:
    if plan.draft is None or plan.draft not in drafters:
        raise InvalidRequest(
            f"model {plan.draft} is no DFlash drafter of transformers (config.json with block_size, mask_token_id "
            "and target_layer_ids); name one, or use proposer draft_model"
        )
    network = drafters[plan.draft]
    block = network.config.block_size
    if plan.gamma != block - 1:
        raise InvalidRequest(f"proposer dflash: the drafter's block is {block}; set gamma to {block - 1}")
    return network
