"""A character tokenizer for toy language models: made on the spot, no files and no network."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TOY_VOCABULARY", "toy_tokenizer"]

TOY_VOCABULARY = ("<pad>", "<end>", "<unk>", *string.ascii_lowercase, *string.digits, *" .,!?'\"-:")
"""The 48 tokens of `toy_tokenizer`, in the order of their ids; as many as `toy_lm` has by default."""


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each lower-cased character; characters outside `TOY_VOCABULARY` become `<unk>`.

    Token 0 pads and token 1 ends a text. There is no beginning-of-sequence token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: index for index, token in enumerate(TOY_VOCABULARY)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
