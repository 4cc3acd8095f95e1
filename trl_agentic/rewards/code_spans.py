"""
Markdown code in what a model wrote. It is quoted: nothing in it is a call, a tag or a thought.

Whether a place lies in code is decided by what stands before it, since a call runs before the rest is written:

- Three or more backticks or tildes open a fence, which lasts until as many of the same, else to the end of the text.
- One or two backticks open inline code, which lasts until as many, else to the end of the line.
"""

from __future__ import annotations

import re

CODE = r"(?P<code>`+|~{3,})"
"""What opens code, for the patterns of those who look for something else, too."""


def code_end(text: str, opening: re.Match[str]) -> int:
    """
    Where code ends.

    Args:
        text (`str`):
            The text.
        opening (`re.Match`):
            A match of [`CODE`] in it.

    Returns:
        `int`:
            Position behind what closes the code; the end of the text or of the line if nothing does.
    """
    run, start = opening["code"], opening.end()
    if len(run) < 3:
        line_end = text.find("\n", start)
        end = len(text) if line_end < 0 else line_end
        closing = re.compile(f"(?<!`){run}(?!`)").search(text, start, end)
    else:
        end = len(text)
        closing = re.compile(f"{run[0]}{{{len(run)},}}").search(text, start)
    return end if closing is None else closing.end()


def without_code(text: str) -> str:
    """The text without its code."""
    kept, position = [], 0
    while opening := re.compile(CODE).search(text, position):
        kept.append(text[position : opening.start()])
        position = code_end(text, opening)
    return "".join([*kept, text[position:]])
