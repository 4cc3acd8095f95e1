"""Units of measurement: which names mean the same, and which convert into each other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

# Names that mean the same, and the unit in terms of the ones that all others of its kind are counted in. What stands
# for itself converts into nothing else: a month has no fixed number of days, a pint depends on the country.
_DEFINITIONS = {
    "m meter": "1 m",
    "in inch inches": "0.0254 m",
    "ft foot feet": "0.3048 m",
    "yd yard": "0.9144 m",
    "mi mile": "1609.344 m",
    "nmi": "1852 m",
    "Å angstrom ångström ångstrom": "1e-10 m",
    "ly light-year lightyear": "1 ly",
    "ha hectare": "10000 m2",
    "acre ac": "4046.8564224 m2",
    "sqm": "1 m2",
    "sqkm": "1000000 m2",
    "sqft": "0.09290304 m2",
    "sqmi": "2589988.110336 m2",
    "l L liter": "0.001 m3",
    "cc": "0.000001 m3",
    "gal gallon": "1 gal",
    "pt pint": "1 pt",
    "g gram gramme": "1 g",
    "t tonne": "1000000 g",
    "ton": "1 ton",
    "lb lbs": "453.59237 g",
    "oz ounce": "28.349523125 g",
    "s sec second": "1 s",
    "min minute": "60 s",
    "h hr hour": "3600 s",
    "day": "86400 s",
    "week wk": "604800 s",
    "month": "1 month",
    "year yr": "1 year",
    "decade": "10 year",
    "century centuries": "100 year",
    "kph kmh kmph": "1/3.6 m/s",
    "mph": "0.44704 m/s",
    "kn knot": "1852/3600 m/s",
    "N newton": "1 N",
    "Pa pascal": "1 Pa",
    "bar": "100000 Pa",
    "atm": "101325 Pa",
    "J joule": "1 J",
    "cal calorie": "4.184 J",
    "Wh watt-hour": "3600 J",
    "eV electronvolt": "1 eV",
    "W watt": "1 W",
    "hp horsepower": "1 hp",
    "V volt": "1 V",
    "A ampere amp": "1 A",
    "ohm Ω": "1 ohm",
    "C coulomb": "1 C",
    "F farad": "1 F",
    "T tesla": "1 T",
    "Wb weber": "1 Wb",
    "Hz hertz": "1 Hz",
    "mol mole": "1 mol",
    "B byte": "8 bit",
    "bit": "1 bit",
    "kb Kb": "1000 bit",
    "Mb": "1000000 bit",
    "Gb": "1000000000 bit",
    "Tb": "1000000000000 bit",
    "dB decibel": "1 dB",
    "° deg degree": "1 °",
    "arcmin arcminute": "1/60 °",
    "arcsec arcsecond": "1/3600 °",
    "rad radian": "1 rad",
    "°C celsius": "1 °C",
    "°F fahrenheit": "1 °F",
    "K kelvin": "1 K",
    "$ US$ USD dollar": "1 USD",
    "¢ cent": "0.01 USD",
    "€ EUR euro": "1 EUR",
    "£ GBP": "1 GBP",
    "JPY yen": "1 JPY",
    "CNY RMB yuan": "1 CNY",
    "₹ INR Rs rupee": "1 INR",
    "CHF franc": "1 CHF",
    "A$ AUD": "1 AUD",
    "C$ CAD": "1 CAD",
    "₽ RUB ruble": "1 RUB",
    "₩ KRW won": "1 KRW",
}
_PREFIXED = frozenset(
    (
        "m g l L t s N Pa J cal Wh eV W V A ohm Ω C F T Wb K Hz mol B bit "
        "meter gram liter tonne second newton pascal joule calorie watt-hour watt volt ampere hertz byte"
    ).split()
)
_PREFIXES = {
    "n": "1e-9",
    "nano": "1e-9",
    "μ": "1e-6",
    "u": "1e-6",
    "micro": "1e-6",
    "m": "1e-3",
    "milli": "1e-3",
    "c": "1e-2",
    "centi": "1e-2",
    "d": "1e-1",
    "deci": "1e-1",
    "h": "1e2",
    "hecto": "1e2",
    "k": "1e3",
    "K": "1e3",
    "kilo": "1e3",
    "M": "1e6",
    "mega": "1e6",
    "G": "1e9",
    "giga": "1e9",
    "T": "1e12",
    "tera": "1e12",
}
_AMBIGUOUS = {
    re.compile("pounds?", re.IGNORECASE): ("lb", "GBP"),
    re.compile("[¥￥]"): ("JPY", "CNY"),
    re.compile("^C$"): ("coulomb", "celsius"),
    re.compile("^F$"): ("farad", "fahrenheit"),
    re.compile("^'$"): ("ft", "arcmin"),
    re.compile('^"$'): ("in", "arcsec"),
}
_PHRASES = [
    (re.compile(r"(?:square|sq\.?)\s+([^\s/]+)", re.IGNORECASE), r"\1^2"),
    (re.compile(r"(?:cubic|cu\.?)\s+([^\s/]+)", re.IGNORECASE), r"\1^3"),
    (re.compile(r"([^\s/]+)\s+squared", re.IGNORECASE), r"\1^2"),
    (re.compile(r"([^\s/]+)\s+cubed", re.IGNORECASE), r"\1^3"),
    (re.compile(r"\s+per\s+|\s*/\s*", re.IGNORECASE), "/"),
    (re.compile(r"(?:degrees?|°)\s*(?=[CF]\b|celsius\b|fahrenheit\b)", re.IGNORECASE), "°"),
    (re.compile(r"°(celsius|fahrenheit)", re.IGNORECASE), r"\1"),
    (re.compile(r"\bnautical miles?", re.IGNORECASE), "nmi"),
    (re.compile(r"\blight years?", re.IGNORECASE), "ly"),
    (re.compile(r"\b(?:U\.?S\.?|American) dollars?", re.IGNORECASE), "USD"),
    (re.compile(r"(met|lit)re(?=s?\b|\^)", re.IGNORECASE), r"\1er"),
]
_FACTOR = re.compile(r"([^\d^{}\s]+?)\^?\{?(-?\d)?\}?")


@dataclass(frozen=True)
class Unit:
    """
    A unit of measurement.

    Args:
        factor (`Fraction`):
            How many of the base units it is.
        powers (`frozenset[tuple[str, int]]`):
            The base units and their powers: `{("m", 1), ("s", -1)}` for a speed.
    """

    factor: Fraction
    powers: frozenset[tuple[str, int]]


def read_units(text: str) -> tuple[Unit, ...]:
    """
    What a name of a unit can mean.

    Args:
        text (`str`):
            A unit and nothing else, such as `"km"`, `"square miles"`, `"m/s^2"`, `"°C"`, `"dollars"` or
            `"kg m^{-3}"`; or the base of a number, `"_4"`.

    Returns:
        `tuple[Unit, ...]`:
            Its meanings: one, two for `"pounds"`, none if the text is no known unit.
    """
    if base := re.fullmatch(r"_\{?(\d+)\}?", text):
        return (Unit(Fraction(1), frozenset({(f"base {base[1]}", 1)})),)
    for pattern, written in _PHRASES:
        text = pattern.sub(written, text)
    for pattern, meanings in _AMBIGUOUS.items():
        if pattern.search(text):
            return tuple(unit for name in meanings for unit in read_units(pattern.sub(name, text)))
    factor, powers = Fraction(1), Counter[str]()
    for position, side in enumerate(text.strip().rstrip(".").split("/")):
        for word in re.split(r"\s*\\cdot\s*|[·⋅*\s]+", side.strip()):
            found = _FACTOR.fullmatch(word)
            unit = _look_up(found[1]) if found else None
            if found is None or unit is None:
                return ()
            power = int(found[2] or 1) * (-1 if position else 1)
            factor *= unit.factor**power
            powers.update({base: exponent * power for base, exponent in unit.powers})
    return (Unit(factor, frozenset((base, power) for base, power in powers.items() if power)),)


def _look_up(name: str) -> Unit | None:
    spellings = [name] if len(name) == 1 else [name, name.lower(), name.lower().removesuffix("s")]
    for spelling in spellings:
        if spelling in _UNITS:
            return _UNITS[spelling]
        for prefix, size in _PREFIXES.items():
            stem = spelling.removeprefix(prefix)
            if stem != spelling and stem in _PREFIXED:
                return Unit(_UNITS[stem].factor * Fraction(size), _UNITS[stem].powers)
    return None


def _defined() -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for names, definition in _DEFINITIONS.items():
        amount, bases = definition.split(" ")
        over, _, under = amount.partition("/")
        powers = {
            (re.sub(r"\d", "", base), int(re.sub(r"\D", "", base) or 1) * (-1 if position else 1))
            for position, base in enumerate(bases.split("/"))
        }
        unit = Unit(Fraction(over) / Fraction(under or 1), frozenset(powers))
        units |= dict.fromkeys(names.split(" "), unit)
    return units


_UNITS = _defined()
