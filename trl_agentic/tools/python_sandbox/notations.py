"""Reads code as models write it: indented, in a Markdown fence, after prompts. Standard library only."""

from __future__ import annotations

import ast
import re
import textwrap

_BLOCK = re.compile(
    r"^[ \t]*(?P<fence>(?P<mark>[`~])(?P=mark){2,})[ \t]*(?P<language>[^`\n]*)\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=fence)(?P=mark)*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_LAST_FENCE = re.compile(r"\n[ \t]*(?:`{3,}|~{3,})\s*\Z")
_PROMPT = re.compile(r"[ \t]*(?:>>>|In \[\d+\]:) ?(.*)")
_CONTINUATION = re.compile(r"[ \t]*\.\.\.:?(?: (.*))?")
_MAGIC = re.compile(r"(?:\w+ *= *)?%%?[A-Za-z]")
_INSTALLATION = re.compile(r"[!%]?\s*(?:\S*python\S* -m )?(?:pip3?|conda|mamba|uv|apt|apt-get)\b.*\binstall\b")

_NO_INSTALLATION = "nothing can be installed here; import what is there, or write it in plain Python"
_NO_SHELL = "this is Python and no shell; write it in Python, or call subprocess.run([...])"
_NO_MAGIC = "commands of a notebook do not exist here; leave the line out, or write it in Python"
_NO_AWAIT = "await works in async functions alone; put it in `async def main():` and call `asyncio.run(main())`"


def parse(code: str) -> ast.Module:
    """
    Parse code. Where it is no Python, fences, prompts and a margin are taken off; its lines keep their numbers.

    Args:
        code (`str`):
            The code.

    Returns:
        `ast.Module`:
            Its syntax tree.

    Raises:
        SyntaxError: If it is no Python without them either.
    """
    try:
        return ast.parse(code, "<python>")
    except SyntaxError as error:
        code = code.replace("\r\n", "\n")
        bare = _without_fences(code) or _without_prompts(code) or _without_margin(code, error)
        if bare is None:
            raise
    return parse(bare)


def advice(error: SyntaxError) -> str | None:
    """What to do instead of what a notebook alone understands; `None` for other errors."""
    if "outside" in error.msg and ("async" in error.msg or "await" in error.msg):
        return _NO_AWAIT
    text = error.text or ""
    line, wrong = text.strip(), text[(error.offset or 1) - 1 :][:1]
    if _INSTALLATION.match(line):
        return _NO_INSTALLATION
    if line.startswith("!") or wrong == "!":
        return _NO_SHELL
    return _NO_MAGIC if wrong == "%" and _MAGIC.match(line) else None


def shows_figure(tree: ast.Module) -> bool:
    """Whether code calls `plt.show()`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="show", value=ast.Name(id="plt" | "pyplot" | "fig"))):
                return True
    return False


def _without_fences(code: str) -> str | None:
    """What stands in fences: in those that say Python if there are any, else in those that say nothing."""
    blocks = [block for block in _BLOCK.finditer(code) if block["code"].strip()]
    if not blocks:
        bare = _LAST_FENCE.sub("", code)
        return bare if bare != code else None
    if any(code.count(quotes, 0, blocks[0].start()) % 2 for quotes in ('"""', "'''")):
        return None  # it is inside a text of the program
    rank = min(_rank(block["language"]) for block in blocks)
    bare = ""
    for block in blocks:
        if _rank(block["language"]) == rank:
            bare += "\n" * (code.count("\n", 0, block.start("code")) - bare.count("\n"))
            bare += textwrap.dedent(block["code"])
    return bare


def _rank(language: str) -> int:
    if not language.strip():
        return 1
    return 0 if language.lower().lstrip("{. ").startswith(("py", "ipy")) else 2


def _without_prompts(code: str) -> str | None:
    """What stands after `>>>` and `...`, if the code begins so; all else is output."""
    lines = code.split("\n")
    if not _PROMPT.fullmatch(next((line for line in lines if line.strip()), "")):
        return None
    bare = []
    in_statement = False
    for line in lines:
        prompted = _PROMPT.fullmatch(line) or (_CONTINUATION.fullmatch(line) if in_statement else None)
        in_statement = prompted is not None
        bare.append((prompted[1] or "") if prompted else "")
    return "\n".join(bare)


def _without_margin(code: str, error: SyntaxError) -> str | None:
    """The code moved to the left; its first line may have been moved already, as by `str.strip`."""
    if error.msg != "unexpected indent":
        return None
    first, end, rest = code.partition("\n")
    bare = textwrap.dedent(code)
    if bare == code:
        bare = first + end + textwrap.dedent(rest)
    return bare if bare != code else None
