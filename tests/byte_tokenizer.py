"""A byte-level tokenizer with the traps of real ones: tags in several tokens, and tokens that run past a tag's end."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MERGES = ["< /", "s e", "se a", "sea r", "sear c", "searc h", "> .", "> Ċ", "a >"]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """All 256 bytes, the results of `MERGES`, and `<pad>` and `<eos>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(left, right) for left, right in (merge.split() for merge in MERGES)]
    words = ["<pad>", "<eos>", *alphabet, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )
