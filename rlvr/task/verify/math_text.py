r"""Reads from the text of a mathematical answer what is not part of its value: percent, units, brackets, operators.

A text in this module is the content of \boxed{...}, of a right answer or a model's. Does not import sympy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
GAP = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z]))"  # white space in LaTeX
# Not the white space behind a backslash: "\\ " at an end is a control space, which strip() would cut in two.
END = re.compile(r"(?:(?<!\\)(?:\s|~|\\[,;:! ]|\\q?quad)|(?<=\\\\)\s|(?<!\\)[.,;:])$")
END_LENGTH = 8  # characters in which a match of END begins
PERCENT = re.compile(rf"{GAP}*(?:\\?%|\\(?:text|mathrm)\{{\s*(?:\\?%|percent)\s*\}}|percent){GAP}*$")
THOUSANDS = re.compile(rf"(?<![\d.])\d{{1,3}}(?:(?:,\\!|\\!,|\{{,\}}|{GAP})\d{{3}})+(?!\d)")
SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d+)(?![\w.])")
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
NUMERAL = r"(?<![\d.])\d[\d,]*+(?:\.\d++)?+"
SCALE = re.compile(  # 5\text{ million}, \$1.5 million, \frac12\text{ million people}
    rf"(?P<number>{NUMERAL}|(?<=[}})])){GAP}*"
    rf"(?:\\(?:text|mathrm|mbox)\s*\{{{GAP}*(?P<upright>{'|'.join(SCALES)})(?P<rest>\b[^{{}}]*)\}}"
    rf"|(?P<bare>{'|'.join(SCALES)})(?![a-zA-Z]))"
    rf"|{NUMERAL}"  # one without a scale is passed over: of 1,1,1,1 each digit would begin a search to the end
)
SHORT_FRACTION = re.compile(r"\\([dtc]?frac|[dt]?binom)\s*(\d)\s*(\d)(?!\d)")  # \frac 1 2 and \frac12
MIXED = re.compile(rf"(?<![\d./])(\d+){GAP}+(\d+)\s*/\s*(\d+)(?![\d.])")  # 1 1/2
COMMAND_FRACTION = re.compile(r"(\\[dtc]?frac\s*(?:\{[^{}]*\}\s*|\d\s*)?)(\\pi)(?![a-zA-Z])")  # \frac\pi2, \frac1\pi
# Not of \mathbf{e}_{r}: {e}_{r} could not be parsed.
FONT = re.compile(r"\\(?:boldsymbol|bm|pmb|math(?:bf|sf|it)|bf|sf)(?![a-zA-Z])\s*(?!\{[^{}]*\}\s*_)")
ROOT = re.compile(r"√\s*(?:(\d+|[a-zA-Z])|\(([^()]*)\)|(?={))")  # √2, √(x+1), √{2}
UPRIGHT = re.compile(r"\\(?:mathrm|text)\{([ei])\}")  # taken for a unit, 3 + 4\mathrm{i} is 7
# \text{ or 6} behind a number or a bracket
LISTED = re.compile(rf"(?<=[^\W_]|[}})\]])({GAP}{{0,3}}\\text\s*\{{)([^{{}}]*)\}}")
DEGREE = re.compile(r"(?:\^\s*(?:\{\s*\\degree\s*\}|\\degree)|\\degree)(?![a-zA-Z])")
# \max of m_{\max}: part of a name
SUBSCRIPT = re.compile(rf"_\{{{GAP}*\\(max|min|sup|inf|odot|perp|parallel){GAP}*\}}")
SHORT_SCRIPT = re.compile(r"([_^])\{(\w)\}(?!\w)")  # x_{1} is x_1
FUNCTIONS = r"\\(?:sin|cos|tan|cot|sec|csc|sinh|cosh|tanh|arcsin|arccos|arctan|ln|log|exp)(?:\^(?:\{\w+\}|\w))?"
LETTER = re.compile(rf"([-+=<>(]|{FUNCTIONS}){GAP}+([a-zA-Z])(?![\w{{^(])")  # c of x^2 + c, t of \sin t: no units
ANGLE = re.compile(r"(\\angle)\s*(?:\{\s*)?([A-Z])\s*([A-Z])\s*([A-Z])(?:\s*\})?(?![a-zA-Z]|\s*[_'])")
REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}(?!\s*\d)")  # 0.1\overline{6}
DECIMAL_DIGITS = 1000  # int() refuses texts of more than 4300 digits
LETTERS = re.compile(r"(?:[A-Z]|\\text\s*\{[A-Z, ]+\})(?:\s*,\s*(?:[A-Z]|\\text\s*\{[A-Z, ]+\}))*")  # \text{A, C}, F
MODULUS = re.compile(
    rf"{GAP}*(?:\\pmod(?:{GAP}*\{{([^{{}}]*)\}}|{GAP}*(\w))|\({GAP}*\\b?mod(?![a-zA-Z]){GAP}*([^()]*)\)){GAP}*$"
)
# The base of 1011_2, -2516_{8} or \text{A5}_{11}
BASE = re.compile(r"(?<![\w.\\])(?:[A-Z\d.]+|\\(?:text|mathrm)\s*\{[A-Z\d]+\})\s*_\s*(?:\{\s*(\d+)\s*\}|(\d))\s*$")
MONEY = r"\\?\$|[€£]|USD|EUR|GBP|\\(?:text|mathrm)\{\s*(?:USD|EUR|GBP)\s*\}"
AMOUNT = re.compile(
    rf"(?:\*\*)?{GAP}*(?:\\approx(?![a-zA-Z])|≈)?{GAP}*([-+]?)(?:{MONEY})?{GAP}*([-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+))"
    rf"{GAP}*(?:{MONEY}|[°¢])?{GAP}*(?:\*\*)?"
)
ADJACENT = re.compile(rf"\d(?:{GAP}+|{GAP}*\{{{GAP}*)[\d.]")


def inside(text: str) -> str:
    r"""The content of a text's box, or the text if there is none, without math delimiters and final punctuation."""
    text = re.sub(r"(?<=[,;])(\s*)\.\.\.", r"\1\\ldots ", text)  # its last dots would be taken for final punctuation
    text = _without_end(text).lstrip()
    if text.startswith(r"\boxed{") and text.endswith("}"):
        text = text[len(r"\boxed{") : -1]
    previous = ""
    while text != previous:
        previous = text
        text = _without_end(text).lstrip()
        for opening, closing in WRAPPERS:
            content = text[len(opening) : len(text) - len(closing)]
            wrapped = len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            if wrapped and opening not in content and closing not in content and not content.endswith("\\"):
                text = content
                break
    return text


def _without_end(text: str) -> str:
    """The text without what matches END at its end: in steps from the end, since a search tries every place."""
    end = len(text)
    while match := END.search(text, max(0, end - END_LENGTH), end):
        end = match.start()
    return text[:end]


def squeezed(text: str) -> str:
    """The text without the braces of a short index and without white space, except between digits.

    Answers with the same result are equal, whatever they mean.
    """
    text = re.sub(rf"(?<=\d){GAP}+(?=\.?\d)", "\0", text)
    return SHORT_SCRIPT.sub(r"\1\2", re.sub(GAP, "", text)).replace("\0", " ")


def spelled(text: str) -> str:
    r"""The text squeezed, and its words outside of \text{...}."""
    return squeezed(WORDS.sub(r"\1", text))


def without_percent(text: str) -> tuple[str, bool]:
    r"""(the text before a percent sign at its end, whether there was one). A list of percentages is left as it is."""
    sign = PERCENT.search(text)
    if not sign or re.search(r",\s|;|\\%.*\\%", text):
        return text, False
    return text[: sign.start()], True


def plain(text: str) -> str:
    r"""The text in a form that math-verify parses as meant: 10\,000 becomes 10000, 4.5e33 a power of ten, 1 1/2 a mixed
    number, the index of m_{\max} part of a name."""
    text = text.replace("np.", "\\") if re.match(r"-?np\.[a-z]+\(", text) else text
    text = SUBSCRIPT.sub(r"_{\1}", SHORT_FRACTION.sub(r"\\\1{\2}{\3}", text))
    text = text.replace("~", " ").replace(r"\varnothing", r"\emptyset").replace("∞", r"\infty ")
    text = _without_fonts(re.sub(r"^\s*=", "", ROOT.sub(_root, text)))
    text = DEGREE.sub(r"^\\circ ", text)
    text = COMMAND_FRACTION.sub(r"\1{\2}", UPRIGHT.sub(r" \1", LISTED.sub(_without_listed_number, text)))
    text = ANGLE.sub(_angle_at_vertex, LETTER.sub(r"\1{\2}", text))
    text = REPEATING.sub(_repeating_as_fraction, text)
    text = re.sub(r"\\text\s*|[{}]", "", text) if "," in text and LETTERS.fullmatch(text) else text
    text = THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = SCALE.sub(_scaled, text)
    text = MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)
    return re.sub(r"(\d)\.(?=\s*[/)}]|$)", r"\1", text)  # 1./3


def _scaled(match: re.Match[str]) -> str:
    """5 million as 5000000, and behind brackets as a factor. A number without a scale unchanged."""
    scale = match["upright"] or match["bare"]
    if not scale:
        return match[0]
    zeros = SCALES[scale]
    rest = (match["rest"] or "").strip()
    unit_text = rf"\text{{ {rest}}}" if rest else ""
    if not match["number"]:
        return rf" \cdot 10^{{{zeros}}}{unit_text}"
    whole, _, decimals = match["number"].replace(",", "").partition(".")
    shifted = whole + decimals[:zeros].ljust(zeros, "0")
    remaining = f".{decimals[zeros:]}" if decimals[zeros:] else ""
    return (shifted.lstrip("0") or "0") + remaining + unit_text


def _without_listed_number(match: re.Match[str]) -> str:
    r"""A text such as \text{ or 6} with the number outside. math-verify drops a text behind a number as its unit."""
    before, words = match.groups()
    number = re.search(r"-?\.?\d", words)
    listed = number is not None and re.fullmatch(r"\s*|.*(?:\b(?:or|and)\b|[,;]).*", words[: number.start()], re.DOTALL)
    return f"{before}{words[: number.start()]}}}{words[number.start() :]}" if number and listed else match[0]


def _without_fonts(text: str) -> str:
    r"""The text without \mathbf and the like, and without the braces around all of it, which would make it a set."""
    if not FONT.search(text):
        return text
    text, depth = FONT.sub("", text).strip(), 0
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth <= 0:
            whole = brace[0] == "}" and text.startswith("{") and brace.end() == len(text)
            return text[1:-1] if whole else text
    return text


def _root(sign: re.Match[str]) -> str:
    content = sign[1] or sign[2]
    return rf"\sqrt{{{content}}}" if content else r"\sqrt"


def _angle_at_vertex(angle: re.Match[str]) -> str:
    r"""\angle ABC, which is \angle CBA, as \angle B_{AC}. Products of letters would have no vertex."""
    command, first, vertex, last = angle.groups()
    return rf"{command} {vertex}_{{{min(first, last)}{max(first, last)}}}"


def _repeating_as_fraction(decimal: re.Match[str]) -> str:
    """A repeating decimal as a fraction: 0.1666... is (16 - 1)/90. One of more than DECIMAL_DIGITS digits unchanged."""
    before, after, repeated = decimal.groups()
    if len(before + after + repeated) > DECIMAL_DIGITS:
        return decimal[0]
    numerator = int(before + after + repeated) - int(before + after or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(repeated)}{'0' * len(after)}}}"


def bare(text: str) -> str:
    r"""The part of the text that is compared: 5 of 5 \pmod{7}, and 12 of \approx 12, €12, USD 12 or **12**."""
    text = MODULUS.sub("", text)
    amount = AMOUNT.fullmatch(text)
    return amount[1] + amount[2] if amount else text


def modulus(text: str) -> str | None:
    r"""The modulus at the end of a text: 7 of 5 \pmod{7}; None if there is none."""
    match = MODULUS.search(text)
    return squeezed(next(group for group in match.groups() if group is not None)) if match else None


def base(text: str) -> str | None:
    """The base of the numeral at the end of a text: 2 of 1011_2; None if there is none, as in E_1, which is a name."""
    match = BASE.search(text)
    return match[1] or match[2] if match and re.search(r"\d.*_", match[0]) else None


def sides(text: str) -> list[str]:
    r"""The sides of a chain of equations. An = inside brackets does not count, such as that of \sum_{k=1}."""
    return split(text, "=")


def split(text: str, separators: str) -> list[str]:
    """The parts of a text between separators (one character each) that are not inside brackets."""
    depth, parts = 0, [""]
    for token in re.findall(r"\\.|[<>!:]=|.", text, re.DOTALL):
        depth += token in ("(", "[", "{", r"\{")
        depth -= token in (")", "]", "}", r"\}")
        if token in separators and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def adjacent_numbers(text: str) -> bool:
    r"""Whether two numbers are next to each other, as in `10 20`: not one answer. Parsers add or multiply.

    The numbers in rows of matrices and cases have & and \\ between them, and are not adjacent.
    """
    text = re.sub(r"\\\\", "&", text)
    text = re.sub(r"\\[dtc]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}", "F", text)
    text = re.sub(r"(?:[\^_]|\\(?!q?quad)[a-zA-Z]+)\s*(?:\{[^{}]*\}|\[[^\[\]]*\]|\d)", "C", text)
    return bool(ADJACENT.search(text))


# --- brackets


def brackets(text: str) -> str:
    r"""The opening bracket of a list of several entries: "(" (tuple, open interval) or "{" (set); else ""."""
    text = re.sub(r"\\(?:left|right|big|Big|bigl|bigr)(?![a-zA-Z])", "", text).strip()
    for opening, closing, kind in (("(", ")", "("), (r"\{", r"\}", "{")):
        if not (text.startswith(opening) and text.endswith(closing)):
            continue
        depth, commas = 0, 0
        tokens = re.findall(r"\\[{}]|[()\[\],]|[{}]", text)
        for place, token in enumerate(tokens):
            depth += token in ("(", "[", "{", r"\{")
            depth -= token in (")", "]", "}", r"\}")
            commas += token == "," and depth == 1
            if depth == 0 and place < len(tokens) - 1:
                return ""  # (1, 2) and (3, 4)
        return kind if commas else ""
    return ""


# --- operators that state a problem rather than solve it

OPERATORS = {
    "sum": r"\\sum(?![a-z])",
    "product or combination": (
        r"\\prod(?![a-z])|\\[dt]?binom(?![a-z])|\\choose(?![a-z])|(?<!\\)!(?!=)"
        r"|\\(?:text|mathrm|operatorname)\{[CP]\}(?=\s*[\d_^({])"  # not the choice C, nor 30^\circ\text{C}
    ),
    "integral": r"\\i{1,3}nt(?![a-z])|\\oint(?![a-z])",
    "limit": r"\\lim(?![a-z])|\\lim(?:sup|inf)(?![a-z])",
    "derivative": r"\\frac\s*\{\s*(?:d|\\partial|\\mathrm\{d\})[^{}]*\}\s*\{\s*(?:d|\\partial|\\mathrm\{d\})\s*[a-z]",
    "extremum": r"\\(?:max|min|sup|inf)(?![a-z])|\\operatorname\{(?:arg)?(?:max|min)\}",
    "divisor": r"\\(?:gcd|lcm)(?![a-z])|\\(?:operatorname|text|mathrm)\{(?:gcd|lcm)\}",
    "remainder": r"\\[bp]?mod(?![a-z])",
    "rounding": r"\\[lr](?:floor|ceil)(?![a-z])",
    "determinant": r"\\det(?![a-z])|\\begin\{vmatrix\}",
}


def operators(text: str) -> frozenset[str]:
    r"""The kinds of operators (keys of OPERATORS) that a text leaves to be evaluated: sums, limits, \binom, 5! etc."""
    return frozenset(name for name, pattern in OPERATORS.items() if re.search(pattern, text))


# --- units

_UNITS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "s": "s sec secs second",
    "min": "min mins minute",
    "h": "h hr hrs hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr yrs",
    "mg": "mg milligram",
    "g": "g gram",
    "kg": "kg kilogram",
    "lb": "lb lbs pound",
    "oz": "oz ounce",
    "ton": "ton tonne",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "gal": "gal gallon",
    "cup": "cup",
    "$": "dollar usd",
    "cent": "cent ¢",
    "€": "euro eur €",
    "£": "gbp £",
    "deg": "degree deg",
    "rad": "radian rad",
    "N": "newton",
    "J": "joule",
    "W": "watt",
    "Hz": "hertz hz",
    "K": "kelvin",
}
_PREFIXES = {
    "p": "pico",
    "n": "nano",
    "u": "micro",
    "m": "milli",
    "c": "centi",
    "d": "deci",
    "k": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
}
_SI = {
    "m": "meter metre",
    "g": "gram",
    "s": "second",
    "l": "liter litre",
    "A": "ampere amp",
    "mol": "mole",
    "N": "newton",
    "J": "joule",
    "W": "watt",
    "Hz": "hertz",
    "Pa": "pascal",
    "V": "volt",
    "C": "coulomb",
    "F": "farad",
    "T": "tesla",
    "H": "henry",
    "eV": "electronvolt",
    "K": "kelvin",
    "Wh": "",
    "cal": "calorie",
}
# Symbols are case-sensitive, as mN is not MN. C and F alone may be degrees. Only upright ones count: mN is a product.
SYMBOLS = {unit: unit for unit in _SI if unit not in "CF"} | {"L": "l"}
SYMBOLS |= {prefix + unit: prefix + unit for prefix in _PREFIXES for unit in _SI}
SYMBOLS |= {prefix + "L": prefix + "l" for prefix in _PREFIXES}
_NAMES = {name: unit for unit, names in _SI.items() for name in names.split()}
_PREFIXED = {word + name: prefix + unit for prefix, word in _PREFIXES.items() for name, unit in _NAMES.items()}
UNITS = {alias: unit for unit, aliases in _UNITS.items() for alias in aliases.split()}
UNITS = _NAMES | _PREFIXED | UNITS | {"celsius": "°C", "fahrenheit": "°F"}
UNITS |= {f"{alias}s": unit for alias, unit in UNITS.items() if len(alias) > 2 and not alias.endswith("s")}
POWERS = {"square": 2, "sq": 2, "cubic": 3, "squared": 2, "cubed": 3}
WORDS = re.compile(r"\\(?:text|textrm|mathrm|mbox|textbf|operatorname|rm)\s*\{([^{}]*)\}")
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
        elif word == "mph":
            factors += [("mi", 1), ("h", -1)]
        elif known := UNITS.get(written) or symbols.get(written) or UNITS.get(word):
            factors.append((known, sign * power))
            power = 1
        else:
            return None
    return tuple(sorted(factors)) or None


# --- letters that are taken for units

# What math-verify drops at the end of an expression as a unit, but may be a variable or a product: t of 5 + 3t, 2 a b.
# The rest of its list (cm, kg, hours) is always a unit.
_PRODUCT = r"(?<=[\d}\s])([abcefghqs] [a-zA-Z]|[cdghlmost]s?|ab|bc|by|mp|lt|mt|cc|[ap]m|rs|st|rd|th)"
DROPPED = re.compile(rf"{_PRODUCT}(?=\s*(?:\\(?:text|mathrm)\s*\{{[^{{}}]*\}})?$)")
DROPPED_WITHIN = re.compile(rf"{_PRODUCT}(?=\s*(?:[$}}]|\\[)\]]|$))")  # at the end of any expression in a text
AFTER_COMMA = re.compile(r"([,;])\s+([a-zA-Z])$")  # {c} would be a set in a list
QUANTITY = re.compile(
    rf"((?:.*(?:=|\\approx|≈))?\s?[-+]?)((?:{GAP}|[\d.,/^{{}}]|\\(?:[dtc]?frac|sqrt|pi|times|cdot)(?![a-zA-Z]))+)"
    r"(?<=[\d}\s])(?:([mshgl])|ms|cc|[ap]m|rs|st|rd|th)",
    re.DOTALL,
)


def variables(text: str) -> str:
    """The text with the last letter in braces if it is a variable that math-verify would drop as a unit."""
    quantity = QUANTITY.fullmatch(text)
    if quantity and not quantity[3]:
        return text  # 21st, 10 am
    return DROPPED.sub(_last_in_braces, AFTER_COMMA.sub(r"\1\2", text))


def variables_within(text: str) -> str:
    """The same at the end of every expression in a text of words and expressions."""
    return DROPPED_WITHIN.sub(_last_in_braces, text)


def _last_in_braces(letters: re.Match[str]) -> str:
    return f"{letters[1][:-1]}{{{letters[1][-1]}}}"


def measured(text: str) -> str:
    """The text before its last letter if that may be a unit as well as a variable: x = 5 of x = 5 m. Else ""."""
    quantity = QUANTITY.fullmatch(text)
    return quantity[1] + quantity[2] if quantity and quantity[3] and re.search(r"\d", quantity[2]) else ""
