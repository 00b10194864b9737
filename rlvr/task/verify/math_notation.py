r"""Brings the notations of people, programs and Unicode to the LaTeX that math-verify parses as it is meant.

A text is the content of \boxed{...}, of a right answer or a model's. Does not import sympy.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from itertools import groupby

GAP = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z]))"  # white space in LaTeX
WORDS = re.compile(r"\\(?:text|textrm|mathrm|mbox|textbf|operatorname|rm)\s*\{([^{}]*)\}")
FRACTION = re.compile(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
DECIMAL_DIGITS = 1000  # int() refuses texts of more than 4300 digits
DOTS = r"(?:\\[lcd]?dots|\.\.\.)"
# 0.333...; the bounds keep the search for the period short
REPEATING = re.compile(rf"(?<=\.)(?=\d{{3,{DECIMAL_DIGITS}}}{DOTS}(?!\s*\d))(\d*?)(\d{{1,40}}?)\2{{2,}}+{DOTS}")

# --- characters beyond ASCII

GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|mu|nu|xi|pi|rho|sigma|tau|phi|chi|psi|omega"
SIGNS = {
    **dict.fromkeys("−–—‐‑‒―", "-"),
    **dict.fromkeys("×✕✖", r"\times "),
    **dict.fromkeys("·⋅•∙", r"\cdot "),
    **dict.fromkeys("≤⩽≦", r"\le "),
    **dict.fromkeys("≥⩾≧", r"\ge "),
    **dict.fromkeys("⁄∕", "/"),
    **dict.fromkeys("’‘′", "'"),
    **dict.fromkeys("“”", '"'),
    **{"≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "±": r"\pm ", "∓": r"\mp ", "÷": r"\div ", "∗": "*"},
    **{"∞": r"\infty ", "∅": r"\emptyset ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∠": r"\angle "},
    **{"。": ".", "、": ","},
    **{unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"\{name} " for name in GREEK.split("|")},
    **{"λ": r"\lambda ", "°": r"^\circ "},
}
SCRIPTS = {"<super>": "^", "<sub>": "_"}


def typeset(text: str) -> str:
    r"""The text with ASCII or LaTeX for other characters: x^{2} for x², \frac{1}{2} for ½, - for every dash.

    Unicode's own tables (compatibility decompositions) say what a superscript, a fraction or a full-width digit is.
    """
    if text.isascii():
        return text
    text = re.sub("[ℂℕℚℝℤ]", lambda c: rf"\mathbb{{{unicodedata.normalize('NFKC', c[0])}}}", re.sub("[º˚]", "°", text))
    shown = (c for c in text if unicodedata.category(c) != "Cf")
    parts = list[str]()
    for tag, run in groupby(shown, key=lambda c: unicodedata.decomposition(c).partition(" ")[0]):
        characters = [unicodedata.normalize("NFKC", c) for c in run]
        if tag == "<fraction>":
            parts += [re.sub(r"^(\d+)⁄(\d+)$", r"\\frac{\1}{\2}", fraction) for fraction in characters]
        else:
            run_text = "".join(characters)
            parts.append(f"{SCRIPTS[tag]}{{{run_text}}}" if tag in SCRIPTS else run_text)
    return "".join(parts).translate(str.maketrans(SIGNS))


# --- one notation

SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
NUMERAL = r"(?<![\d.])\d[\d,]*+(?:\.\d++)?+"
FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|ln|log|exp"
NAMES = "pi|alpha|beta|gamma|delta|epsilon|theta|lambda|sigma|omega|rho|tau|phi|psi"  # mu, nu, xi may be products
INVERSE = r"a(?:sin|cos|tan)(?=\()"  # asin(x)
CALLED = r"(?:sec|csc)(?=\()"  # sec alone may be a unit


def _named(name: re.Match[str]) -> str:
    """A function or a Greek letter as a command. A text in upright letters, which is matched first, unchanged."""
    if name[0].startswith("\\"):
        return name[0]
    return "\\" + (f"arc{name[0][1:]}" if re.fullmatch(INVERSE.partition("(?=")[0], name[0]) else name[0])


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


def _decimal(number: re.Match[str]) -> str:
    """0xff as 255, 0b101 as 5. One of more than DECIMAL_DIGITS digits unchanged."""
    hexadecimal, binary = number.groups()
    digits = hexadecimal or binary
    return number[0] if len(digits) > DECIMAL_DIGITS else str(int(digits, 16 if hexadecimal else 2))


def _interval(match: re.Match[str]) -> str:
    """]1, 2[ as (1, 2). Any other brackets unchanged."""
    opening, ends, closing = match.groups()
    if opening + closing == "[]":
        return match[0]
    return f"{'[' if opening == '[' else '('}{ends}{']' if closing == ']' else ')'}"


def _time(match: re.Match[str]) -> str:
    """A time of day in one spelling: 12:30 PM."""
    hours, minutes, half = match.groups()
    minutes = re.sub(r"[^\d:]", "", minutes).removesuffix(":00")
    return rf"{hours}{minutes}\text{{ {half.upper()}M}}"


def _remainder(match: re.Match[str]) -> str:
    """2 mod 5 as a residue. 17 mod 5, which is still to be evaluated, unchanged."""
    number, modulus = match.groups()
    return rf"{number} \pmod{{{modulus}}}" if (len(number), number) < (len(modulus), modulus) else match[0]


def _ratio(match: re.Match[str]) -> str:
    """1:2:3 as the list (1, 2, 3), in lowest terms. A parser divides 1 by 2 and by 3."""
    terms = [term.strip() for term in match[0].split(":")]
    if any(term.count("{") != term.count("}") or "text" in term for term in terms):
        return match[0]
    if all(term.isdecimal() and len(term) < DECIMAL_DIGITS for term in terms):
        divisor = math.gcd(*map(int, terms)) or 1
        terms = [str(int(term) // divisor) for term in terms]
    return f"({', '.join(terms)})"


def _matrix(match: re.Match[str]) -> str:
    """[[1, 2], [3, 4]] as a matrix."""
    rows = r" \\ ".join(row.replace(",", " & ") for row in re.findall(r"\[([^][]*)\]", match[1]))
    return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"


NO_SOLUTION = r"(?i)^(?:\\text\s*\{)?\s*(?:(?:there (?:is|are) )?no (?:real )?solutions?|empty set)\s*\}?$"
NESTED = r"^\s*(?:(?:np|numpy|sympy)\.)?(?:(?:array|Matrix)\()?\[\s*((?:\[[^][]*\]\s*(?:,\s*)?)+)\]\)?$"
SET_BUILDER = (
    rf"^(?:\\left\s*)?\\\{{\s*\w\s*(?:\\in\s*\\(?:mathbb\s*\{{?)?R\}}?\s*)?{GAP}*(?::|\||\\[lr]?vert|\\mid"
    r"|\\text\s*\{\s*such that\s*\})(?=.*(?:[<>]|\\[lgn](?:eq?|t)))((?:(?!\\\}).)*?)(?:\\right\s*)?\\\}$"
)
LOGARITHM = r"\\(?:ln|log)\s*(?:\(\s*\w+\s*\)|\{\s*\w+\s*\}|\d+|[a-z](?![a-z]))"
JOINED_INTERVALS = re.compile(r"(?<=[)\]])\s*(?:\\text\s*\{\s*(?:or|and|U)\s*\}|or|U)\s*(?=[(\[]|\\left)")
Replacement = str | Callable[[re.Match[str]], str]
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
BASES["sixteen"] = 16
# (pattern, replacement, why or what), in this order.
REWRITINGS: list[tuple[str, Replacement, str]] = [
    (r"\\(?:text)?color\s*\{\w+\}|\\(?:underline|emph)(?=\s*\{)|\\(?:therefore|because)(?![a-zA-Z])", "", "decoration"),
    (r"\\[hv]?phantom\s*\{[^{}]*\}", "", "empty space"),
    (r"\\(?:displaystyle|textstyle|normalsize|[lL]arge|LARGE|[hH]uge|small|tiny)(?![a-zA-Z])", "", "sizes"),
    (
        r"\\left\s*\.(.*?)\\middle\s*/(.*?)\\right(?![a-z])\s*\.?|(?<![\w)}\]])(?:\{\s*\})?\^\s*\{?(\d+)\}?(?:\\!)*\s*/(?:\\!)*\s*_\s*\{?(\d+)\}?",
        r"\1\3/\2\4",
        r"^3/_4",
    ),
    (r"\s*\\(?:checkmark|blacksquare|square)\s*$", "", r"18\checkmark"),
    (r"\\boxed\s+(?=\S)", "", r"\boxed 3"),
    (r"(?<=[\w})\]])\s*\{\}|:(?==)", "", r"\frac{3}{4}{}, x := 3"),
    (r"\\colon(?![a-zA-Z])|(?:\\text\s*)?\{\s*:\s*\}", ":", r"3{:}4"),
    (r"^\\text\s*\{([\d\s:]+)\}$", r"\1", r"\text{3:4:5}"),
    (r"^\\text(?:bf)?\s*\{\s*(?:[tT]he )?(?:[fF]inal )?[aA]nswer is:? ([^{}]*)\}$", r"\1", r"\text{The answer is 18}"),
    (r"^(?:\\text\s*\{\s*(?:[mM]inus|[nN]egative)\s*\}|(?:[mM]inus|[nN]egative)\s)\s*(?=[\d\\])", "-", "minus 5"),
    (
        r"(?<=\d)\s*\\(?:text|mathrm)\s*\{\s*[eE]\s*\}\s*\{?(?=[-+]?\d+\}?$)([-+]?\d+)\}?",
        r" \\times 10^{\1}",
        r"3\text{e}5",
    ),
    (r"(?<![\w}\]^])\{\s*(\d+)\s*\}(?=\s*\^)", r"\1", r"{10}^3"),
    (r"(?<=\d)\s*\^\s*\{?\s*(?:\\(?:text|mathrm)\s*\{\s*o\s*\}|o(?![a-z]))\s*\}?", r"^\\circ", r"60^{\text{o}}"),
    (r"\\(?:vec|hat)\s*\{\s*(?:\\(?:math|text)bf\s*)?\{?([ijk])\}?\s*\}", r"{\1}", r"\hat{\mathbf{i}}"),
    (r"\\neq(?![a-zA-Z])|\\not\s*=", r"\\ne ", r"x \neq 1"),
    (r"\{smallmatrix\}", "{matrix}", r"\begin{smallmatrix}"),
    (r"\\\\\s*\[-?[\d.]+ *[a-z]{2}\]|\\\\(?:\s*\\\\)+|\\cr(?![a-z])", r"\\\\ ", r"ends of rows: \\[2pt], \\\\"),
    (
        r"^\s*\\text\s*\{\s*(?:(?:[tT]he )?(?:[fF]inal )?[aA]nswer(?: is)?:?|[aA]pproximately|[aA]bout)\s*\}",
        "",
        "Answer: 3",
    ),
    (r"\\[lr]brace(?![a-zA-Z])", lambda brace: "\\{" if brace[0][1] == "l" else "\\}", r"\lbrace 1, 2\rbrace"),
    (r"\\[lr]angle(?![a-zA-Z])", lambda bracket: "(" if bracket[0][1] == "l" else ")", r"\langle 1, 2\rangle"),
    (r"^((?:\\left\s*)?[][(][^][();,]*);([^][();,]*[][)])$", r"\1,\2", "[1; 2["),
    (r"(?:(?<![\w}])|(?<=\\cup))(?:\\left\s*)?([][])([^][()=&]*,[^][()=&]*)(?:\\right\s*)?([][])", _interval, "]1, 2["),
    (r"\s*(?:\\lor|\\vee)(?![a-zA-Z])\s*", r" \\text{ or } ", r"x=1 \lor x=2"),
    (r"\\(?:nice|s)frac(?![a-zA-Z])", r"\\frac", r"\nicefrac34"),
    (r"\{\s*(\d+)\s*\\over\s*(\d+)\s*\}|^\s*(\d+)\s*\\over\s*(\d+)\s*$", r"\\frac{\1\3}{\2\4}", r"{3 \over 4}"),
    (r"\\log\s*_\s*(?:e|\{\s*e\s*\})", r"\\ln", r"\log_e 2"),
    (rf"\\(?:mathrm|operatorname)\s*\{{\s*({FUNCTIONS})\s*\}}", r"\\\1 ", r"\operatorname{arctan} 2"),
    (r"\\lg(?![a-zA-Z])|(?<![a-zA-Z\\])lg(?=[\s(\d])", r"\\log ", r"\lg 2"),
    (rf"({LOGARITHM})\s*/\s*({LOGARITHM})", r"\\frac{\1}{\2}", r"\log 3/\log 2, which would be \log(3/\log 2)"),
    (r"\^\s*\{?\s*\\(?:top|intercal)(?![a-zA-Z])\s*\}?", "^T", r"A^\top"),
    (r"^((?:\\left\s*)?[(\[][^][()]*,[^][()]*[)\]])\s*\^\s*\{?\s*T\s*\}?$", r"\1", "(1, 2)^T"),
    (r"(?<=[\w)}])(?<!matrix\})(?<!\\right[)\]])\s*\^\s*(?:T|\{\s*T\s*\})", "^{{T}}", "A^T would be read as A"),
    (r"\\sqrt\s*\{\s*-\s*1\s*\}|\\imath(?![a-zA-Z])", "{i}", r"\sqrt{-1}"),
    (r"\^\s*\{?\s*((?:\\prime\s*)+)\}?", lambda marks: "'" * marks[1].count("prime"), r"f^{\prime\prime}"),
    (
        r"\\[dt]?frac\s*\{\s*\\(?:text|mathrm)\s*\{(\w+)\}\s*\}\s*\{\s*\\(?:text|mathrm)\s*\{(\w+)\}((?:\^\{?\d\}?)?)\s*\}",
        r"\\text{\1/\2\3}",
        "km/h",
    ),
    (r"\(\s*(\d+)\s*\)\s*(?=_)", r"\1", "(1011)_2"),
    (
        rf"_\s*\{{?\s*\\(?:text|mathrm)\s*\{{\s*({'|'.join(BASES)})\s*\}}\s*\}}?",
        lambda word: f"_{{{BASES[word[1]]}}}",
        "1011_two",
    ),
    (r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|(?<=\s)to(?=\s))\s*(?=\d)", ":", r"5\text{ to }3"),
    (
        rf"^\s*(?:\\text\s*\{{\s*)?(\d\d?)((?:(?:\\!|\{{)*:(?:\\!|\}})*\d\d){{0,2}}){GAP}*(?:\\(?:text|mathrm)\s*\{{\s*)?(?i:([ap])\.?m\b\.?)\s*\}}?$",
        _time,
        "12:30 p.m.",
    ),
    (r"^(\d\d?):00$", r"\1", "6:00"),
    (r"(\\text\s*\{[^{}]*?)[.,;]\s*\}$", r"\1}", r"\text{It converges.}"),
    (r"^(\\text\s*\{)?\s*(?:[aA]n?|[tT]he)\s+(?=[a-zA-Z]{3,}[a-zA-Z ]*\}?$)", r"\1", "a circle"),
    (r"(?i)^(?:\\text\s*\{)?\s*(?:set of )?all (?:real numbers|reals)\s*\}?$", r"\\mathbb{R}", "all real numbers"),
    (NO_SOLUTION, r"\\emptyset", "no solution"),
    (SET_BUILDER, r"\1", r"\{x \mid x > 2\}"),
    (r"^.+$", lambda text: _without_fonts(text[0]), r"\mathbf{42}"),
    (rf"^\s*(?:=|\\(?:approx|sim|simeq)(?![a-zA-Z])|(?:approximately|about)(?![a-zA-Z])){GAP}*", "", "≈ 12, = 12"),
    # As programs write.
    (NESTED, _matrix, "[[1, 2], [3, 4]]"),
    (r"(?<![\w.])0(?:x([\da-fA-F]+)|b([01]+))(?![\w.^])", _decimal, "0xff, which would be 0 times x"),
    (r"\+/-", r"\\pm ", "+/-3"),
    (r"(?<![a-zA-Z\\])(?:np|numpy|math|sympy)\.(?=[a-z])", "", "math.pi"),
    (r"(?:Fraction|Rational)\(\s*(-?\d+)\s*,\s*(\d+)\s*\)", r"\\frac{\1}{\2}", "Fraction(2, 3)"),
    (r"(?<=[\w)}\]])\s*\*\*\s*(?=[\w(-])", "^", "x**2; two asterisks around a number are bold"),
    (r"\^\s*(-\s*(?:\d+|[a-zA-Z](?![a-zA-Z])))", r"^{\1}", "10^-5"),
    (r"(?:(?<=\d)|(?<=pi))\s*x\s*(?=10\s*\^)", r" \\times ", "3x10^8, 4pi x 10^-7"),
    (r"(?<![a-zA-Z\\])log(2|10)(?=\s*\()", r"\\log_{\1}", "log2(5)"),
    (r"√\s*(\\frac\{\d+\}\{\d+\})", r"\\sqrt{\1}", "√½"),
    (r"(?:√|(?<![a-zA-Z\\])sqrt)\s*(?=\{)", r"\\sqrt", "√{2}"),
    (r"(?:√|(?<![a-zA-Z\\])sqrt)\s*(\d+(?:\.\d+)?|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}", "√2, 2sqrt3"),
    (r"(?:∛|(?<![a-zA-Z\\])cbrt)\s*(\d+(?:\.\d+)?|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt[3]{\1}", "∛2"),
    (
        rf"{WORDS.pattern}|(?<![a-zA-Z\\])(?:{INVERSE}|{CALLED}|(?:{FUNCTIONS}|{NAMES})(?![a-zA-Z]))",
        _named,
        "sin(x), 2pi",
    ),
    (r"(?<![a-zA-Z\\])oo(?![a-zA-Z])", r"\\infty ", "(-oo, 2)"),
    # As people write LaTeX.
    (r"\\([dtc]?frac|[dt]?binom)\s*(\d)\s*(\d)(?!\d)", r"\\\1{\2}{\3}", r"\frac 1 2 and \frac12"),
    (rf"_\{{{GAP}*\\(max|min|sup|inf|odot|perp|parallel){GAP}*\}}", r"_{\1}", r"m_{\max} is a name, no maximum"),
    (r"~|(?<!\\)\\ ", " ", "a space"),
    (r"\\varnothing", r"\\emptyset", "the empty set"),
    (r"\\([CNQRZ])(?![a-zA-Z])", r"\\mathbb{\1}", r"\R"),
    (
        r"^.*(?:\\infty|\[[^][()]*\)|\([^][()]*\]).*$",
        lambda text: JOINED_INTERVALS.sub(r"\\cup ", text[0]),
        r"(-\infty, 0)\text{ or }(1, \infty)",
    ),
    (r"(?<=\))\s*U\s*(?=\()", r"\\cup ", "(1, 2) U (3, 4)"),
    (r"(?:\^\s*(?:\{\s*\\degree\s*\}|\\degree)|\\degree)(?![a-zA-Z])", r"^\\circ ", "degrees"),
    (rf"(?<=[^\W_]|[}})\]])({GAP}{{0,3}}\\text\s*\{{)([^{{}}]*)\}}", _without_listed_number, r"5\text{ or 6}"),
    (r"\\(?:mathrm|text)\{([ei])\}", r" \1", r"would be a unit: 3 + 4\mathrm{i} would be 7"),
    (r"(\\[dtc]?frac\s*(?:\{[^{}]*\}\s*|\d\s*)?)(\\pi)(?![a-zA-Z])", r"\1{\2}", r"\frac\pi2, \frac1\pi"),
    (
        rf"([-+=<>(]|\\(?:{FUNCTIONS}|sec|csc)(?:\^(?:\{{\w+\}}|\w))?){GAP}+([a-zA-Z])(?![\w{{^(])",
        r"\1{\2}",
        r"c of x^2 + c, t of \sin t: no units",
    ),
    (
        r"(\\angle)\s*(?:\{\s*)?([A-Z])\s*([A-Z])\s*([A-Z])(?:\s*\})?(?![a-zA-Z]|\s*[_'])",
        _angle_at_vertex,
        "an angle has a vertex",
    ),
    (r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?", r"\\overline{\1\2\3}", r"0.\dot14285\dot7"),
    (r"(?<=\.)(\d*)(?:\((\d+)\)|\\bar\s*(\d))", r"\1\\overline{\2\3}", r"0.(3), 0.\bar3"),
    (r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}(?!\s*\d)", _repeating_as_fraction, r"0.1\overline{6}"),
    (r"(?<=[\d)])(?<!_\d)\s*\((?=\s*\d+(?:\.\d+)?\s*\))", r"\\cdot(", "17(23), which would be read as a mixed number"),
    # Numbers.
    (
        rf"(?<![\d.])\d{{1,3}}(?:(?:,\\!|\\!,|\{{,\}}|'|{GAP})\d{{3}})+(?!\d)",
        lambda number: re.sub(r"\D", "", number[0]),
        r"10\,000",
    ),
    (
        rf"(?P<number>{NUMERAL}|(?<=[}})])){GAP}*"
        rf"(?:\\(?:text|mathrm|mbox)\s*\{{{GAP}*(?P<upright>{'|'.join(SCALES)})(?P<rest>\b[^{{}}]*)\}}"
        rf"|(?P<bare>{'|'.join(SCALES)})(?![a-zA-Z]))"
        rf"|{NUMERAL}",  # one without a scale is passed over: of 1,1,1,1 each digit would begin a search to the end
        _scaled,
        r"5\text{ million}, \$1.5 million, \frac12\text{ million people}",
    ),
    (rf"(?<![\d./])(\d+){GAP}+(\d+)\s*/\s*(\d+)(?![\d.])", r"\1\\frac{\2}{\3}", "1 1/2"),
    (r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d+)(?![\w.])", r"\1 \\times 10^{\2}", "4.5e33"),
    (rf"(?<![\w.])(\d+){GAP}*(?:\\b?mod|(?<![a-zA-Z\\])mod)\s*\{{?(\d+)\}}?$", _remainder, "2 mod 5"),
    (r"(\d)\.(?=\s*[/)}]|$)", r"\1", "1./3"),
    (r"^[^:=(),<>]+(?::[^:=(),<>]+){2,}$", _ratio, "1:2:3"),
]
_COMPILED = [(re.compile(pattern, re.DOTALL), replacement) for pattern, replacement, _ in REWRITINGS]
# Openings of brackets that are an argument, and what stands around it in LaTeX.
CALLS = [
    (re.compile(pattern), before, after)
    for pattern, before, after in (
        (r"\^\s*\(", "^{", "}"),
        (r"(?:√|(?<![a-zA-Z\\])sqrt)\s*\(", r"\sqrt{", "}"),
        (r"(?:∛|(?<![a-zA-Z\\])cbrt)\s*\(", r"\sqrt[3]{", "}"),
        (r"(?<![a-zA-Z\\])abs\s*\(", "|", "|"),
        (r"(?<![a-zA-Z\\])floor\s*\(", r"\lfloor ", r"\rfloor "),
        (r"(?<![a-zA-Z\\])ceil\s*\(", r"\lceil ", r"\rceil "),
    )
]
NESTED_CALLS = 50  # a degenerate answer nests thousands: Python's recursion ends at 1000
# Functions before a quotient: \ln 3/2 may be \ln(3)/2 as well as \ln(3/2), which parsers take it for.
DIVIDED = re.compile(
    rf"(\\(?:{FUNCTIONS})(?![a-zA-Z]))\s*"
    rf"(\{{[^{{}}]*\}}|(?=[\da-zA-Z\\])(?:\d+(?:\.\d+)?\s*)?(?:[a-zA-Z]|\\(?:{NAMES}))?)(?<!\s)\s*(?=/)"
)
# Not of \mathbf{e}_{r}: {e}_{r} could not be parsed.
FONT = re.compile(
    r"\\(?:boldsymbol|bm|pmb|math(?:bf|sf|it|tt)|hbox|text(?:it|tt|sf)|mathbb(?=\{\d+\})|bf|sf)(?![a-zA-Z])\s*(?!\{[^{}]*\}\s*_)"
)
LETTERS = re.compile(r"(?:[A-Z]|\\text\s*\{[A-Z, ]+\})(?:\s*,\s*(?:[A-Z]|\\text\s*\{[A-Z, ]+\}))*")  # \text{A, C}, F


def plain(text: str) -> str:
    r"""The text in a form that math-verify parses as meant: 10\,000 becomes 10000, 4.5e33 a power of ten, 1 1/2 a mixed
    number, 2*pi*r**2 a product, the index of m_{\max} part of a name."""
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    for opening, before, after in CALLS:
        text = _arguments_in_braces(text, opening, before, after)
    return re.sub(r"\\text\s*|[{}]", "", text) if "," in text and LETTERS.fullmatch(text) else text


THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
ARGUMENT = r"\s*\{[^][(){}]*\}"
ARGUMENTS = re.compile(rf"\\[dtc]?frac{ARGUMENT}{ARGUMENT}|\\sqrt\s*(?:\[\d+\])?{ARGUMENT}")


def without_thousands(text: str) -> str:
    r"""The text without the commas of 1,234: x = 1,000 and \frac{1}{1,000}. Those of (1,200) and of 3, 5 separate
    elements, as they may wherever there are brackets or other commas."""
    text = ARGUMENTS.sub(lambda arguments: _joined(arguments[0]), text)
    joined = _joined(text)
    return text if "," in joined or re.search(r"[(\[]|\\\{", text) else joined


def _joined(text: str) -> str:
    return THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)


def divided_outside(text: str) -> str:
    r"""The text with functions divided as a whole: \ln(3)/2 for \ln 3/2. People write it for \ln(3/2) as well."""
    return DIVIDED.sub(r"\1(\2)", text)


def _arguments_in_braces(text: str, opening: re.Pattern[str], before: str, after: str, level: int = 0) -> str:
    """sqrt(2) as \\sqrt{2}: what is in the brackets that `opening` ends with, between `before` and `after`.

    At a level beyond NESTED_CALLS the text is unchanged.
    """
    parts, end = list[str](), 0
    while level < NESTED_CALLS and (call := opening.search(text, end)):
        depth, closing = 1, call.end()
        while depth and closing < len(text):
            depth += {"(": 1, ")": -1}.get(text[closing], 0)
            closing += 1
        if depth:
            break
        argument = _arguments_in_braces(text[call.end() : closing - 1], opening, before, after, level + 1)
        parts += [text[end : call.start()], before, argument, after]
        end = closing
    return "".join(parts) + text[end:]


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
