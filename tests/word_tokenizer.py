"""A tokenizer whose tokens are words, so that tests can be read."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = (
    "<pad> <eos> <unk> <think> </think> <search> </search> <python> </python> <result> </result> <answer> </answer> "
    "\\boxed{ } a b c d e f g h what is got need found nothing 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"
).split()

CHAT_TEMPLATE = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} {% endif %}{% endfor %}"


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Each word of `WORDS` is a token; anything else is `<unk>`."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def ids(text: str) -> tuple[int, ...]:
    """Tokens of a text."""
    return tuple(WORDS.index(word) for word in text.split())


def words(token_ids) -> str:
    """Text of some tokens."""
    return " ".join(WORDS[token] for token in token_ids)
