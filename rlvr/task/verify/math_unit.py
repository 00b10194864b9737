r"""The units of mathematical answers: 25 cm^2, 40 miles per hour, \$18, 18 dollars, 30^\circ. Does not import sympy."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from rlvr.task.verify.math_notation import GAP, WORDS

MONEY = r"\\?\$|[€£]|USD|EUR|GBP|\\(?:text|mathrm)\{\s*(?:USD|EUR|GBP)\s*\}"


def _table(text: str) -> dict[str, str]:
    """{unit: names} of a text such as "cm centimeter; m meter metre"."""
    return {entry.split()[0]: entry for entry in text.split(";")}


_UNITS = _table(
    "mm millimeter millimetre; cm centimeter centimetre; m meter metre; km kilometer kilometre; in inch inches;"
    "ft foot feet; yd yard; mi mile; s sec secs second; min mins minute; h hr hrs hour; day; week; month; year yr yrs;"
    "mg milligram; g gram; kg kilogram; lb lbs pound; oz ounce; ton tonne; ml milliliter millilitre; l liter litre;"
    "gal gallon; cup; unit"
) | {"$": "dollar usd", "cent": "cent ¢", "€": "euro eur €", "£": "gbp £", "deg": "degree deg", "rad": "radian rad"}
_SI = _table(
    "m meter metre; g gram; s second; l liter litre; A ampere amp; mol mole; N newton; J joule; W watt; Hz hertz;"
    "Pa pascal; V volt; C coulomb; F farad; T tesla; H henry; eV electronvolt; K kelvin; Wh; cal calorie; B byte; b bit"
)
_PREFIXES = _table("p pico; n nano; u micro; m milli; c centi; d deci; k kilo; M mega; G giga; T tera")
# Symbols are case-sensitive, as mN is not MN. C and F alone may be degrees. Only upright ones count: mN is a product.
SYMBOLS = {unit: unit for unit in _SI if unit not in "CFBb"} | {"L": "l"}
SYMBOLS |= {prefix + unit: prefix + unit for prefix in _PREFIXES for unit in _SI}
SYMBOLS |= {prefix + "L": prefix + "l" for prefix in _PREFIXES}
_NAMES = {name: unit for unit, names in _SI.items() for name in names.split()[1:]}
_PREFIXED = {
    words.split()[1] + name: prefix + unit for prefix, words in _PREFIXES.items() for name, unit in _NAMES.items()
}
UNITS = {alias: unit for unit, aliases in _UNITS.items() for alias in aliases.split()}
UNITS = _NAMES | _PREFIXED | UNITS | {"celsius": "°C", "fahrenheit": "°F", "hz": "Hz"}
UNITS |= {f"{alias}s": unit for alias, unit in UNITS.items() if len(alias) > 2 and not alias.endswith("s")}
SPEEDS = {"mph": "mi", "kph": "km", "kmph": "km"}
POWERS = {"square": 2, "sq": 2, "cubic": 3, "squared": 2, "cubed": 3}
UPRIGHT_END = re.compile(WORDS.pattern + r"\s*(?:\^\s*\{?[23]\}?)?$")
TEMPERATURE = re.compile(rf"(?:\^\s*\{{?\s*\\circ\s*\}}?|°){GAP}*(?:\\(?:text|mathrm|rm)\s*\{{)?{GAP}*([CF])\s*\}}?$")
TRAILING = re.compile(r"(?:(?<=[\d}\])])|\s)\s*([a-zA-Z¢€£][a-zA-Z¢€£. /]*(?:\^\{?[23]\}?)?)$")


def unit(text: str) -> tuple[tuple[str, int], ...] | None:
    r"""The unit at the end of a text as ((unit, power), ...), with negative powers after "per".

    None if there is no unit, or an unknown one.
    """
    text = re.sub(r"\\(?=\$)", "", text).strip()
    if money := re.match(rf"-?({MONEY}){GAP}*[\d.]", text):
        return _factors(re.sub(r"\\(?:text|mathrm)|[{}\s]", "", money[1]).replace("$", "usd"))
    if re.search(r"\^\s*\{?\s*\\circ\s*\}?$", text):
        return (("deg", 1),)
    if temperature := TEMPERATURE.search(text):
        return ((f"°{temperature[1]}", 1),)
    text = re.sub(r"(?:~|\\[,;: ])", " ", text)
    upright = UPRIGHT_END.search(text) is not None
    text = WORDS.sub(lambda command: f" {command[1]} ", text).strip()
    trailing = TRAILING.search(re.sub(r"\s*\^", "^", text))
    return _factors(trailing[1], SYMBOLS if upright else {}) if trailing else None


def other_unit(text: str, other: str) -> bool:
    """Whether both texts end in units, but not in the same one. 25° may be 25 °C."""
    units = [unit(text), unit(other)]
    degrees = (("deg", 1),) in units and all(u in ((("°C", 1),), (("°F", 1),), (("deg", 1),)) for u in units)
    return None not in units and units[0] != units[1] and not degrees


def _factors(words: str, symbols: Mapping[str, str] = MappingProxyType({})) -> tuple[tuple[str, int], ...] | None:
    """((unit, power), ...), sorted, from words such as "meters per second squared"; None if a word is unknown."""
    factors: list[tuple[str, int]] = []
    sign, power = 1, 1
    words = re.sub(r"(?i)degrees?\s+(celsius|fahrenheit)", r"\1", words).replace(".", " ")
    for written in re.findall(r"[a-zA-Z¢€£]+|\^\{?[23]\}?|/", words):
        word = written.lower()
        if word in ("per", "/"):
            sign, power = -1, 1
        elif word in ("square", "sq", "cubic"):
            power = POWERS[word]
        elif (word in POWERS or word[0] == "^") and factors:
            exponent = POWERS.get(word) or int(re.sub(r"\D", "", word))
            factors[-1] = (factors[-1][0], sign * exponent)
        elif word in SPEEDS:
            factors += [(SPEEDS[word], 1), ("h", -1)]
        elif known := UNITS.get(written) or symbols.get(written) or UNITS.get(word):
            factors.append((known, sign * power))
            power = 1
        else:
            return None
    return tuple(sorted(factors)) or None


# --- units in plain words

# An element of a list that ends in words or in a known unit: 18 dollars, 25 cm^2, 9.8 m/s^2.
WORD = r"[a-zA-Z]+(?:\^\{?[23]\}?)?"
ELEMENT = re.compile(rf"([^,;]*?(?:[\d}}.]|\\pi))({GAP}*)({WORD}(?:[ /.]+{WORD})*)(?=\s*(?:[,;]|$))")
ATTRIBUTES = "a|an|at|for|in|of|on|per|the"  # short words between those of a unit: pieces of cake
LETTERS_OF_PRODUCT = r"a?[b-df-hj-np-tv-z]+"  # xyz, abc


def with_upright_words(text: str) -> str:
    r"""The text with \text{} around the plain words behind a number, which math-verify takes for variables.

    Not around a single letter, nor around letters without a space unless they are a known unit: 5ab is a product.
    """
    return ELEMENT.sub(_with_upright_words, text)


def _with_upright_words(element: re.Match[str]) -> str:
    quantity, gap, words = element.groups()
    letters = re.sub(r"\\[a-zA-Z]+", "", quantity.rpartition("=")[2])
    if re.search("[a-zA-Z]", letters) or len(re.sub("[^a-zA-Z]", "", words)) == 1:
        return element[0]
    spoken = gap and all(re.fullmatch(rf"{ATTRIBUTES}|[a-zA-Z][a-z]{{2,}}", word) for word in re.split("[ /.]+", words))
    if _factors(words) or (spoken and not re.fullmatch(LETTERS_OF_PRODUCT, words)):
        return rf"{quantity}\text{{ {words}}}"
    return element[0]
