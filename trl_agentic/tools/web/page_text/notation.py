"""What a page says by raised, lowered and mathematical signs, in plain characters: `10^8`, `H2O`, `E=mc^2`."""

from __future__ import annotations

import re

from lxml.html import HtmlElement

_LONGEST_SCRIPT = 40  # characters; what is longer is small print, or was never closed
_BRACKETED = re.compile(r"[\[(【].+[\])】]", re.DOTALL)
_MARK = re.compile(r"\[?\d{1,3}\]?|[*†‡§]+")
_TEXT_END = re.compile(r"""[\w.,;:!?)"'”’»]$""")
_NOTE_TARGET = re.compile(r"#.*(?:note|cite|fn|ref)", re.IGNORECASE)
_NUMBERS = re.compile(r"\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*")
_WORD_END = re.compile(r"""[^\W\d_]{4,}$|[.,;:!?"'”’»]$""")  # most units and variables are shorter
_POWERED = re.compile(
    r"\b(?:(?:kilo|centi|milli)?met(?:er|re)s?|inch(?:es)?|foot|feet|miles?|yards?|(?:sin|cos|tan)h)$", re.IGNORECASE
)
_SUFFIXES = frozenset("st nd rd th er re ère ème me lle".split())  # of ordinals, and of abbreviations such as Mme
_ONE_TOKEN = re.compile(r"[+\-−–]?\w+[+\-−–]?|[+\-−–]")
_SYMBOL = re.compile(r"[A-Z][a-z]?$|[)\]]$")  # of a chemical element, or the end of a group
_STYLE = re.compile(r"\{\\(?:display|text)style\s(.*)\}", re.DOTALL)
_MATH_SCRIPTS = {"msup": ["sup"], "mover": ["sup"], "msub": ["sub"], "munder": ["sub"]}
_MATH_SCRIPTS |= dict.fromkeys(("msubsup", "munderover"), ["sub", "sup"])
_INLINE_PARENTS = ("a", "b", "em", "i", "span", "strong")


def write_formulas(tree: HtmlElement) -> None:
    """
    Replace each formula in MathML by its LaTeX source, `\\(E=mc^2\\)`, or by its signs where the page has none.

    Args:
        tree (`lxml.html.HtmlElement`):
            The page, changed in place.
    """
    for element in tree.xpath("//*[contains(name(), ':')]"):
        element.tag = element.tag.rpartition(":")[2]
    for picture in tree.find_class("katex-html"):
        picture.clear(keep_tail=True)
    for formula in [each for each in tree.iter("math") if next(each.iterancestors("math"), None) is None]:
        _show(formula)
        latex = _latex(formula)
        if latex:
            _become_text(formula, f"\\({latex}\\)")
        else:
            _spell(formula)


def write_scripts(tree: HtmlElement) -> None:
    """
    Replace raised and lowered text by plain text, and leave out the marks of footnotes.

    `10<sup>8</sup>` becomes `10^8`, `e<sup>x+1</sup>` `e^(x+1)`, `21<sup>st</sup>` `21st`. A number behind a chemical
    symbol or a bracket stays as it is, `H2O`; any other subscript becomes `x_1`. A link to a note and what stands in
    brackets, `<sup>[1]</sup>`, are left out; a bare number behind a word or a full stop is shown as `[1]`.

    Args:
        tree (`lxml.html.HtmlElement`):
            The page, changed in place.
    """
    for link in list(tree.iter("a")):
        if _is_note(link) and _MARK.fullmatch(_plain(link)) and _TEXT_END.search(_text_before(link)):
            _become_text(link, "")
    for lowered in list(tree.iter("sub")):
        raised = lowered.getprevious()
        if raised is not None and raised.tag == "sup" and (raised.tail or "").strip() in ("/", "⁄"):
            _become_text(raised, f" {_plain(raised)}")  # 5<sup>1</sup>/<sub>2</sub>
            _become_text(lowered, _plain(lowered))
    # From the innermost outwards, so that the exponent of an exponent is a token of it
    for script in reversed(list(tree.iter("sup", "sub"))):
        text = _plain(script)
        if len(text) > _LONGEST_SCRIPT:
            script.tag = "span"
        else:
            _become_text(script, _lowered(script, text) if script.tag == "sub" else _raised(script, text))


def _is_note(link: HtmlElement) -> bool:
    """Whether a link is the mark of a note, and no number of a figure: by target, brackets, or as it is raised."""
    target, text = link.get("href", ""), _plain(link)
    is_raised = next(link.iter("sup"), None) is not None or next(link.iterancestors("sup"), None) is not None
    return "#" in target and (is_raised or not text.isdigit() or _NOTE_TARGET.search(target) is not None)


def _raised(script: HtmlElement, text: str) -> str:
    if _BRACKETED.fullmatch(text) or any("#" in link.get("href", "") for link in script.iter("a")):
        return ""
    is_sign = not any(map(str.isalnum, text)) and text not in ("+", "-", "−", "–")  # *, °, ™; but Na^+
    if is_sign or text.casefold() in _SUFFIXES:
        return text
    touching = _text_before(script)
    before = touching.rstrip()
    is_isotope = not touching[-1:].strip() and (script.tail or "")[:1].isalpha()  # <sup>14</sup>C
    is_mark = not is_isotope and not _POWERED.search(before) and (not before or _WORD_END.search(before))
    return f"[{text}]" if is_mark and _NUMBERS.fullmatch(text) else f"^{_one_token(text)}"


def _lowered(script: HtmlElement, text: str) -> str:
    is_plain = not text or (text.isdigit() and _SYMBOL.search(_text_before(script)))
    return text if is_plain else f"_{_one_token(text)}"


def _one_token(text: str) -> str:
    return text if _ONE_TOKEN.fullmatch(text) else f"({text})"


def _text_before(element: HtmlElement) -> str:
    """The text that touches an element from the left; empty at the start of its block."""
    previous, parent = element.getprevious(), element.getparent()
    while previous is None and parent is not None and not parent.text and parent.tag in _INLINE_PARENTS:
        previous, parent = parent.getprevious(), parent.getparent()
    if previous is None:
        return "" if parent is None else parent.text or ""
    while not previous.tail and len(previous):
        previous = previous[-1]
    return previous.tail or previous.text or ""


def _plain(element: HtmlElement) -> str:
    return " ".join("".join(element.itertext()).split())


def _become_text(element: HtmlElement, text: str) -> None:
    # The element stays in its place: joining many of them to the text before would take quadratic time.
    element.clear(keep_tail=True)
    element.tag, element.text = "span", text


def _show(formula: HtmlElement) -> None:
    # A formula beside a picture of itself is hidden from the eye alone: by an element that holds nothing else.
    parent = formula.getparent()
    is_alone = formula.getprevious() is None and formula.getnext() is None
    if parent is not None and is_alone and not f"{parent.text or ''}{formula.tail or ''}".strip():
        parent.attrib.pop("style", None)


def _latex(formula: HtmlElement) -> str:
    notes = [note for note in formula.iter("annotation") if "tex" in note.get("encoding", "").lower()]
    source = _plain(notes[0]) if notes else " ".join(formula.get("alttext", "").split())
    styled = _STYLE.fullmatch(source)
    return styled[1] if styled else source


def _spell(formula: HtmlElement) -> None:
    """Turn what MathML says by its structure into elements and signs of text."""
    for note in list(formula.iter("annotation", "annotation-xml")):
        _become_text(note, "")
    for root in formula.iter("msqrt"):
        _enclose(root, "√(")
    for root in formula.iter("mroot"):
        if len(root) == 2:
            root.text, root[0].tail, root[1].tail = "root(", ")", ", "
            root.insert(0, root[1])
    for fraction in formula.iter("mfrac"):
        number = fraction.getprevious()
        if number is not None and number.tag == "mn":  # 2 1/2 is no 21/2
            number.tail = " "
        for side in fraction:
            if len(side) > 1:
                _enclose(side, "(")
        if len(fraction) == 2:
            fraction[0].tail = "/"
    for end, sign in (("mtd", " "), ("mtr", "; "), ("mspace", " ")):
        for part in formula.iter(end):
            part.tail = sign
    for part in formula.xpath(".//mmultiscripts/*"):
        part.tail = " "
    scripts = [(part, _MATH_SCRIPTS[part.tag]) for part in formula.iter(*_MATH_SCRIPTS)]
    for part in formula.iter():
        part.tag = "span"
    for part, tags in scripts:
        for script, tag in zip(part[1:], tags, strict=False):
            script.tag = tag


def _enclose(element: HtmlElement, opening: str) -> None:
    element.text = opening + (element.text or "")
    if len(element):
        element[-1].tail = (element[-1].tail or "") + ")"
    else:
        element.text += ")"
