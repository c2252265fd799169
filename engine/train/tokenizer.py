"""The byte-level BPE of the reference family, with its chat template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.train import chat


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a BPE of exactly `vocabulary` tokens; digits are never merged.

    Single digits keep numbers and codes copyable and arithmetic regular.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False) for token in chat.SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(chat.MARKUP_TOKENS),
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in chat.MARKUP_TOKENS])
    return wrap(tokenizer)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The transformers tokenizer around a trained BPE."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=chat.BOS,
        eos_token=chat.EOS,
        pad_token=chat.PAD,
        additional_special_tokens=[f"<|{role}|>" for role in chat.ROLES],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = chat.TEMPLATE
    return fast
