"""Numbers and quantities as exact values, however they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from .notation import plain_latex
from .units import Unit, read_units

LONGEST = 1000  # characters of an answer that is still read as a number or a formula

_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = rf"(?:{'|'.join(_SCALES)})(?![a-z])"
_PERCENT = r"\s*(?:%|percent(?![a-z])|per\ cent(?![a-z])|pct(?![a-z]))"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{{1,2}})?(?:\s*/\s*\d+)?(?:\s*{_SCALE})?(?:{_PERCENT})?"

# 1.234,56 and 1.234.567; then 1,234.56, 1'234.56, 1 234.56 and 12,34,567; then 1234.56 and .56
_NUMERAL = r"""(?:
    \d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d) | \d{1,3}(?:\.\d{3}){2,}(?!\d)
    | (?:\d{1,3}(?:,\d{3})+ | \d{1,3}(?:'\d{3})+ | \d{1,3}(?:\ \d{3})+ | \d{1,2}(?:,\d\d)+,\d{3})(?!\d)(?:\.\d+)?
    | \d+(?:\.\d+)? | \.\d+
)"""
_CONTINENTAL = re.compile(r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}")
_POWER_OF_TEN = r"10\s*\^\s*\{?\s*(?P<%s>[-+]?\d{1,3})\s*\}?"
_VALUE = re.compile(
    rf"""(?P<sign>[-+]?)\s*
    (?: {_POWER_OF_TEN % "power"}
      | (?: (?P<whole>\d+)\s+(?P<part>\d+)\s*/\s*(?P<parts>\d+)
          | (?P<numeral>{_NUMERAL})(?:e(?P<exponent>[-+]?\d{{1,3}}))?(?:\s*/\s*(?P<over>{_NUMERAL}))? )
        (?:\s*(?:\\times|\\cdot|[×x*·⋅])\s*{_POWER_OF_TEN % "tens"})? )
    (?:\s*(?P<scale>{_SCALE}))?
    (?P<percent>{_PERCENT})?""",
    re.VERBOSE | re.IGNORECASE,
)
_SYMBOL = r"(?:US|A|C)?\$|[€£¥₹₽₩]|(?:USD|EUR|GBP|JPY|CNY|INR|CHF)\b|Rs\.?"
_CURRENCY = re.compile(rf"(?P<before>[-+]?)\s*(?P<symbol>{_SYMBOL})\s*(?P<amount>[-+]?\s*\.?\d.*)", re.DOTALL)
_QUOTED = re.compile(r"^([\"'])(.*)\1$", re.DOTALL)
_SHORT_SCALES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion"}
_SHORT_SCALE = re.compile(r"(?<=\d)\s*(k|mn?|bn?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Quantity:
    """
    A number, perhaps of something.

    Args:
        value (`Fraction`):
            The number.
        units (`tuple[Unit, ...]`):
            What its unit can mean; empty if it has none.
        rounded (`bool`):
            Whether it is written with decimals.
        factor_like (`bool`):
            Whether its unit is a letter right behind the number, which may as well be an unknown: `5m`.
    """

    value: Fraction
    units: tuple[Unit, ...]
    rounded: bool
    factor_like: bool


def read_number(text: str) -> Fraction | None:
    """
    The value of a plain number: integer, decimal, fraction or mixed number, with digit groups, a power of ten, a word
    such as `million`, a currency or percent sign.

    Args:
        text (`str`):
            An answer, such as `"-3"`, `"110,879"`, `"10%"`, `"3\\frac{1}{4}"`, `"1.6\\times10^{-19}"` or `"$5"`.

    Returns:
        `Fraction`, *optional*:
            Its value; `None` if the text is anything else.
    """
    number, _ = _without_currency(_trimmed(text))
    found = _VALUE.fullmatch(number)
    return _value(found) if found else None


def read_quantity(text: str) -> Quantity | None:
    """
    A number with or without a unit.

    Args:
        text (`str`):
            An answer, such as `"5"`, `"5 km"`, `"\\$5"`, `"90^\\circ"` or `"12 km/h"`.

    Returns:
        `Quantity`, *optional*:
            The quantity; `None` if the text is anything else.
    """
    number, currency = _without_currency(_trimmed(text))
    found = _VALUE.match(number)
    value = _value(found) if found else None
    if found is None or value is None:
        return None
    behind = number[found.end() :].strip()
    units = read_units(currency or behind) if currency or behind else ()
    if bool(currency or behind) != bool(units) or (currency and behind):
        return None
    rounded = "." in (found["numeral"] or "")
    return Quantity(value, units, rounded, bool(re.search(r"\d[A-Za-z]$", number)))


def same_quantity(left: str, right: str) -> bool | None:
    """
    Whether two quantities are equal.

    Units are converted where that needs no more than a factor: 1 km is 1000 m. A number without a unit equals the
    same number with any unit, since a question often names it. But a percentage is a number: 10% is 0.1, not 10.

    Args:
        left (`str`):
            An answer.
        right (`str`):
            Another one.

    Returns:
        `bool`, *optional*:
            Whether they are equal; `None` if one of them is no quantity. A decimal equals a value that it rounds to
            six places.
    """
    one, other = read_quantity(left), read_quantity(right)
    if one is None or other is None:
        return None
    rounded = one.rounded or other.rounded
    if one.units and other.units:
        return any(
            mine.powers == its.powers and _close(one.value * mine.factor, other.value * its.factor, rounded)
            for mine in one.units
            for its in other.units
        )
    if one.factor_like or other.factor_like:
        return None
    return _close(one.value, other.value, rounded)


def _close(left: Fraction, right: Fraction, rounded: bool) -> bool:
    # Half a unit of the sixth place, or below 0.1 as much of a number as 0.1 may differ by.
    tolerance = min(Fraction(1), 10 * max(abs(left), abs(right))) / (2 * 10**6) if rounded else 0
    return abs(left - right) <= tolerance


def _trimmed(text: str) -> str:
    if len(text) > LONGEST:
        return ""
    plain = _QUOTED.sub(r"\2", plain_latex(text).strip(" \t\n“”*")).lstrip("≈=~ ").rstrip(".,;: ")
    return re.sub(r"^(?:minus|negative)\s+", "-", plain, flags=re.IGNORECASE)


def _without_currency(text: str) -> tuple[str, str]:
    found = _CURRENCY.fullmatch(text)
    if not found:
        return text, ""
    amount = _SHORT_SCALE.sub(lambda scale: f" {_SHORT_SCALES[scale[1].lower()]}", found["amount"])
    return found["before"] + amount, found["symbol"]


def _value(found: re.Match[str]) -> Fraction | None:
    if found["power"]:
        value = Fraction(10) ** int(found["power"])
    elif found["whole"]:
        if not int(found["part"]) < int(found["parts"]):
            return None
        value = int(found["whole"]) + Fraction(int(found["part"]), int(found["parts"]))
    else:
        over = _decimal(found["over"] or "1")
        if not over:
            return None
        value = _decimal(found["numeral"]) / over * Fraction(10) ** int(found["exponent"] or 0)
    value *= Fraction(10) ** (int(found["tens"] or 0) + _SCALES.get((found["scale"] or "").lower(), 0))
    return (-value if found["sign"] == "-" else value) / (100 if found["percent"] else 1)


def _decimal(numeral: str) -> Fraction:
    if _CONTINENTAL.fullmatch(numeral):
        numeral = numeral.replace(".", "").replace(",", ".")
    return Fraction(re.sub("[,' ]", "", numeral))
