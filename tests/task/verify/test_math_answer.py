"""Verdicts on answers: hostile ones earn nothing, honest ones what they earned. Pairs are (right answer, answer)."""

from __future__ import annotations

import pytest

from rlvr.task.verify.math_answer import judge


def outcome(gold: str, answer: str) -> str:
    return judge({"gold": gold, "answer": f"\\boxed{{{answer}}}"})["outcome"]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5050", r"\sum_{k=1}^{100} k"),
        ("120", "5!"),
        ("120", r"\binom{10}{3}"),
        ("120", r"{10 \choose 3}"),
        (r"\frac{1}{3}", r"\int_0^1 x^2 dx"),
        ("1", r"\lim_{x\to 0} \frac{\sin x}{x}"),
        ("6", r"\prod_{k=1}^3 k"),
        ("6", r"\gcd(12, 18)"),
        ("3", r"\max(1,2,3)"),
        ("3", r"\lfloor 3.7 \rfloor"),
        ("2x", r"\frac{d}{dx} x^2"),
    ],
)
def test_a_restated_problem_is_counted_apart(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "unevaluated"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\binom{10}{3}", "120"),
        (r"\binom{10}{3}", r"\frac{10!}{3!7!}"),
        ("5!", "120"),
        ("5!", r"5 \cdot 4!"),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    ],
)
def test_operators_that_the_right_answer_has_are_no_evasion(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"$m_{\max }=n^{2}-n-1$", r"n^2-n-1"),  # OlympiadBench
        (r"$m_{\max }=n^{2}-n-1$", r"m_{\max} = n(n-1)-1"),
        ("E_{1},E_{2}", "E_1, E_2"),  # Minerva
        ("5", r"v_{\max} = 5"),
    ],
)
def test_an_index_is_part_of_a_name(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("a + b + c", "c+b+a", "a + b + d"),  # MATH
        (r"\sin^2 t", r"1-\cos^2 t", r"\sin^2 m"),  # MATH
        ("x^2 + c", "c + x^2", "x^2 + m"),
        (r"\ln s", r"\ln{s}", r"\ln t"),
        ("x = t", "t", "x = m"),
    ],
)
def test_a_letter_after_an_operator_or_a_function_is_no_unit(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("4t", r"t \cdot 4", "4"),  # MATH
        ("2s", "2 s", "2t"),  # MATH
        ("$6m$", "m6", "6"),  # OlympiadBench
        (r"\frac{37}{4} m", r"\frac{37m}{4}", r"\frac{37}{4}"),  # Minerva
        (r"\frac{1}{\sqrt{2}}c", r"\frac{c}{\sqrt{2}}", r"\frac{1}{\sqrt{2}}"),  # Minerva
        ("$-9.8 t$", "-9.8t", "-9.8"),  # College Math
        (r"$2 \pi a b$", r"2b\pi a", r"2\pi a"),  # College Math
        ("5+3t", "3t+5", "8"),
        ("8", "5+3", "5+3t"),
        ("5", "5.0", "5t"),
        ("y=2t", "2t", "y=2"),
        ("v t", "tv", "v"),
        ("6ab", "6ba", "6"),
        ("1+3am", "3ma+1", "4"),
        ("a, b, c", "c, a, b", "a, b"),
        ("2t, 3t", "3t, 2t", "2t, 3"),
        (r"40+3t\text{ dollars}", "40+3t", "43"),
    ],
)
def test_a_letter_at_the_end_is_a_variable(gold: str, right: str, wrong: str) -> None:
    verdicts = [outcome(gold, answer) for answer in (gold, right, wrong)]
    assert verdicts == ["correct", "correct", "wrong"]


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("5", "5 m", "correct"),
        ("5", "x = 5 m", "correct"),
        ("5 m", r"5\,\mathrm{m}", "correct"),
        ("5,000 m", "5000 m", "correct"),
        (r"5\text{ m}", "5m", "correct"),
        (r"5\text{ m}", "5 s", "wrong"),
        ("5 cm", "5 m", "wrong"),
        ("5 m", "5", "wrong"),  # m may be a variable
        ("21st", "21", "correct"),
        ("10", "10 am", "correct"),
    ],
)
def test_a_letter_behind_a_number_may_be_its_unit(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("C", r"\text{C}"),  # MATH
        (r"\text{(C)}", r"\text{C}"),
        ("30", r"30^{\circ} \mathrm{C}"),
        ("30", r"30\,\text{C}"),
    ],
)
def test_the_choice_c_and_celsius_are_no_combinations(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


def test_a_wrong_value_is_wrong_however_it_is_written() -> None:
    assert outcome("5051", r"\sum_{k=1}^{100} k") == "wrong"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2^{100}}", r"\frac{1}{3^{100}}"),
        (r"\frac{1}{2^{100}}", "0"),
        ("0.0000001", "0.0000002"),
        (r"6.02 \times 10^{-23}", r"7 \times 10^{-23}"),
        ("0", "0.000000001"),
        (r"(\frac{1}{2^{100}}, 1)", r"(\frac{1}{3^{100}}, 1)"),
        (r"\{\frac{1}{2^{100}}, 1\}", r"\{\frac{1}{3^{100}}, 1\}"),
        ("x = 10^{-20}", "x = 10^{-21}"),
    ],
)
def test_small_numbers_are_compared_by_their_ratio(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "wrong"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"2^{-100}", r"\frac{1}{2^{100}}"),
        (r"6.02 \times 10^{-23}", r"6.02 \times 10^{-23}"),
        (r"6.62607 \times 10^{-34}", r"6.626 \times 10^{-34}"),
        (r"\frac13", "0.333333"),
        (r"10^{-6}", "0.000001"),
        ("4.5e33", r"4.5 \times 10^{33}"),
        ("0", r"\sin(\pi)"),
        ("0", "0.0"),
        (r"\pi", "3.14159265"),
    ],
)
def test_equal_numbers_stay_equal(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("5 cm", "5 km", "wrong"),
        (r"5 \text{ cm}", r"5 \text{ km}", "wrong"),
        (r"25\text{ cm}^2", r"25\text{ cm}", "wrong"),
        (r"\$5", r"5\text{ cents}", "wrong"),
        (r"5\text{ cm}", "5", "correct"),
        ("5", r"5 \text{ cm}", "correct"),
        (r"5\text{ cm}", r"5\text{ centimeters}", "correct"),
        (r"5\text{ cm}", r"5 \mathrm{~cm}", "correct"),
        (r"25\text{ cm}^2", r"25 \text{ square centimeters}", "correct"),
        (r"5\text{ apples}", r"5\text{ pears}", "correct"),  # no units that are known here
        (r"60\text{ mph}", r"60\text{ miles per hour}", "correct"),
        (r"30^\circ", r"30\text{ degrees}", "correct"),
    ],
)
def test_units_that_differ_are_wrong_and_missing_ones_are_not(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("(3,4)", r"\{3,4\}", "wrong"),
        ("(3,4)", r"\{4,3\}", "wrong"),
        ("(1,2,3)", r"\{1,2,3\}", "wrong"),
        ("(3,4)", "(4,3)", "wrong"),
        ("(3,4)", "3,4", "correct"),
        ("(3,4)", r"\left( 3, 4 \right)", "correct"),
        (r"\{3,4\}", r"\{4,3\}", "correct"),
        ("3,4", "4,3", "correct"),
        ("3,4", r"\{4,3\}", "correct"),
    ],
)
def test_a_set_is_no_tuple(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("1011_2", "1011_3", "wrong"),
        ("2516_8", "2516_{10}", "wrong"),
        (r"\text{A5}_{11}", r"\text{A5}_{12}", "wrong"),  # MATH
        ("-221_3", "x = -221_4", "wrong"),
        ("2516_8", "2516_{8}", "correct"),
        ("2516_8", "2516", "correct"),
        ("E_1", "E_{1}", "correct"),
    ],
)
def test_numerals_of_another_base_are_wrong(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("5=6", "wrong"),
        ("1=5=6", "wrong"),
        ("1+1=6", "wrong"),
        ("x=5=6", "wrong"),
        ("x=6", "correct"),
        ("2+4=6", "correct"),
        ("x=2+4=6", "correct"),
        ("f(2)=6", "correct"),
    ],
)
def test_a_false_equation_is_wrong(answer: str, expected: str) -> None:
    assert outcome("6", answer) == expected


@pytest.mark.parametrize("answer", ["10 20", r"10\ 20", r"10\,20", r"10 \quad 20", "1 29", "10{20}", "10~20"])
def test_numbers_side_by_side_are_not_added(answer: str) -> None:
    assert outcome("30", answer) == "unparsable"
    assert outcome("200", answer) == "unparsable"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("10000", "10 000"),
        ("10000", r"10\,000"),
        ("1024", r"1{,}024"),
        (r"\frac32", "1 1/2"),
        (r"\frac32", r"1\frac{1}{2}"),
        (r"\frac{12}{5,\!525}", r"\frac{12}{5525}"),
        (r"\frac12", r"\frac 1 2"),
        (r"-1./3", r"-\frac13"),
        ("30^\\circ.", "30"),
        (".273.", "0.273"),
        ("np.arcsin(10/13)", r"\arcsin(10/13)"),
    ],
)
def test_numbers_are_read_as_people_write_them(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"\text{June 20}", "June 20", "June 21"),  # MATH
        (r"\text{1:03 PM}", "1:03 PM", "1:04 PM"),
        (r"\text{Softball, Kickball, Picnic}", "Softball, Kickball, Picnic", "Softball, Kickball"),
        ("42", r"\mathbf{42}", r"\mathbf{43}"),
        ("42", r"\boldsymbol{42}", r"\boldsymbol{43}"),
        ("42", r"\bm{42}", r"\bm{43}"),
        ("42", r"{\bf 42}", r"\bf 43"),
        (r"\frac34", r"\mathsf{\frac{3}{4}}", r"\mathbf{\frac{4}{3}}"),
        (r"\frac34", r"\frac{\mathbf{3}}{\mathbf{4}}", r"\frac{\mathbf{4}}{\mathbf{3}}"),
        ("(1,2)", r"\mathbf{(1,2)}", r"\mathbf{(2,1)}"),
        (r"3\mathbf{i}+4\mathbf{j}", r"4\mathbf{j}+3\mathbf{i}", r"3\mathbf{i}+4\mathbf{k}"),
        ("42", "=42", "=43"),
        (r"(0,\infty)", "(0,∞)", "[0,∞)"),
        (r"2\sqrt{3}", "2√3", "2√2"),
        (r"\sqrt{x+1}", "√(x+1)", "√x+1"),
    ],
)
def test_words_fonts_and_signs_may_be_written_otherwise(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


def test_bold_names_with_an_index_are_read() -> None:
    gold = r"$-\frac{2 z}{r^{3}} \mathbf{e}_{r}+\frac{1}{r^{2}} \mathbf{e}_{z}$"  # College Math
    assert judge({"gold": gold, "answer": f"\\boxed{{{gold}}}"}) == {"outcome": "correct"}


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("50", r"50\%", "correct"),
        (r"50\%", "50", "correct"),
        (r"50\%", "0.5", "correct"),
        (r"50\%", r"\frac12", "correct"),
        (r"\frac12", r"50\%", "correct"),
        (r"12.5\%", "12.5", "correct"),
        (r"12.5\%", "0.125", "correct"),
        ("0.125", r"12.5\%", "correct"),
        (r"44\%", r"44 \%", "correct"),
        ("62.5%", "62.5", "correct"),
        ("33", "33 percent", "correct"),
        (r"50\%", "51", "wrong"),
        (r"50\%", r"5000\%", "wrong"),
        ("0.5", "50", "wrong"),
        ("50", "0.5", "wrong"),
    ],
)
def test_percent_signs(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize("answer", ["3,4", r"1 \le x \le 100", "[1,100]", r"\{1,2,3\}", r"3\text{ or }4", "nan", "1/0"])
def test_answers_that_name_several_numbers_are_not_one(answer: str) -> None:
    assert outcome("3", answer) != "correct"


def test_a_right_answer_that_cannot_be_read_says_so() -> None:
    series = r"R=\infty, I=(-\infty, \infty)"
    assert judge({"gold": series, "answer": r"\boxed{1}"})["unreadable"] is True
    assert outcome(series, series.replace(" ", "")) == "correct"
    assert judge({"gold": "5", "answer": r"\boxed{1}"}) == {"outcome": "wrong"}
    assert outcome("", "1") == "error"


def test_an_answer_of_thousands_of_digits_is_no_error() -> None:
    assert outcome(r"\frac17", rf"0.\overline{{{'142857' * 1000}}}") == "unparsable"


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
@pytest.mark.parametrize(
    "answer",
    [
        r"\sum_{k=0}^{\infty}(-1)^k=42",
        r"\int_0^\infty \frac{1}{0}dx=42",
        r"\prod_{k=\Gamma(0)}^{(1)}k=42",
        r"\prod_{k=1}^{\infty}k\cdot\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ],
)
def test_an_answer_that_cannot_be_evaluated_is_no_error(answer: str, tolerance: float) -> None:
    request = {"gold": "42", "answer": f"\\boxed{{{answer}}}", "tolerance": tolerance}
    assert judge(request)["outcome"] in ("wrong", "unparsable")


def test_free_text_is_searched_as_before() -> None:
    assert judge({"gold": "144", "answer": "The answer is 144."})["outcome"] == "correct"
    assert judge({"gold": "144", "answer": "The answer is $12 \\cdot 12$."})["outcome"] == "correct"
    assert judge({"gold": "120", "answer": "The answer is $5!$."})["outcome"] == "unevaluated"
    assert judge({"gold": "144", "answer": "I do not know."})["outcome"] == "unparsable"
    assert judge({"gold": "4t", "answer": "The answer is $4t$."})["outcome"] == "correct"
    assert judge({"gold": "4t", "answer": "The answer is $4$."})["outcome"] == "wrong"
    assert judge({"gold": "5", "answer": "The answer is $5 m$."})["outcome"] == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"x\neq\pm5", "5"),  # College Math
        (r"x=0, x=\pm2\sqrt2", "2"),
        (r"-2\leqslant n\leqslant4:[-2,4]", "4"),
        ("4", "3 @ 4"),
        (r"\frac12", r"5 @ \frac{1}{2}"),
        ("10 20", "1020"),
        (r"1\quad 2", "12"),
    ],
)
def test_a_part_of_a_text_that_cannot_be_read_is_not_the_answer(gold: str, answer: str) -> None:
    assert outcome(gold, answer) in ("wrong", "unparsable")
    assert outcome(gold, gold) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("120", r"\binom{10}{3}=120"),
        ("120", "5! = 120"),
        ("12", r"\gcd(24,36)=12"),
        ("2", r"\lim_{x\to0}\frac{\sin 2x}{x}=2"),
        (r"\frac12", r"\int_0^1 x\,dx=\frac12"),
        ("3", r"\lfloor\pi\rfloor=3"),
        ("5050", r"\sum_{k=1}^{100}k=5050"),
        ("55", "S_{n=10}=55"),
        ("12", "f(x)|_{x=2}=12"),
        (r"\frac12", r"P(X=3)=\frac12"),
        ("5", r"5 \pmod{7}"),
        (r"5 \pmod 7", r"5 (\bmod 7)"),
        (r"\frac13", r"0.\overline{3}"),
        (r"0.1\overline{6}", r"\frac16"),
        (r"\text{A,C,F}", "A, C, F"),
        (r"\text{A,C,F}", r"\text{A}, \text{C}, \text{F}"),
        *(("12", text) for text in (r"\approx 12", "€12", "12 €", "£12", "USD 12", "**12**", r"\$12")),
    ],
)
def test_an_evaluated_answer_is_right_with_what_stands_around_it(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("121", r"\binom{10}{3}=121"),
        (r"5 \pmod{7}", r"5 \pmod{8}"),
        ("2", r"17 \bmod 5"),
        ("0.3", r"0.\overline{3}"),
        (r"\text{A,C,F}", "A, C"),
        ("€12", r"\$12"),
    ],
)
def test_what_stands_around_an_answer_does_not_make_it_right(gold: str, answer: str) -> None:
    assert outcome(gold, answer) != "correct"


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("5", r"5\text{ or 6}", "wrong"),
        ("5", r"5\text{ and 6}", "wrong"),
        ("5", r"5\text{, 6}", "unparsable"),
        ("5", r"5\text{ (or maybe 6)}", "unparsable"),
        ("5", r"5\text{6}", "wrong"),
        ("5, 6", r"5\text{ or 6}", "correct"),
        ("5", r"5\text{ (mod 7)}", "correct"),
        (r"\text{3 and 4}", r"\text{3 and 4}", "correct"),
    ],
)
def test_a_second_number_in_words_is_no_unit_of_the_first(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("7", r"3+4\mathrm{i}", "wrong"),
        ("2", r"2\mathrm{e}", "wrong"),
        ("3+4i", r"3+4\mathrm{i}", "correct"),
        ("2e", r"2\cdot\mathrm{e}", "correct"),
        ("e^2", r"\mathrm{e}^2", "correct"),
    ],
)
def test_upright_e_and_i_are_numbers_and_no_units(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "other"),
    [
        (r"\frac{\pi}{2}", r"\frac\pi2", r"\frac\pi3"),
        (r"\frac{1}{\pi}", r"\frac1\pi", r"\frac2\pi"),
        (r"2007+\frac\pi 2", r"2007+\frac{\pi}{2}", r"2007+\frac{\pi}{3}"),  # MATH
        ("5", r"5~\text{cm}", r"6~\text{cm}"),
        (r"\emptyset", r"\varnothing", "0"),
        (r"90^\circ", r"90\degree", r"91\degree"),
        (r"90^\circ", r"90^\degree", r"91^\degree"),
        (r"90^\circ", r"90^{\degree}", r"91^{\degree}"),
    ],
)
def test_commands_are_read_as_latex_reads_them(gold: str, answer: str, other: str) -> None:
    assert (outcome(gold, answer), outcome(gold, other)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"\frac{R}{r}", "R/r", "1"),
        ("R-r", "-r+R", "0"),
        (r"\frac{mM}{m+M}", r"\frac{Mm}{M+m}", r"\frac{m}{2}"),
        ("2a", r"a\cdot 2", "2A"),
        ("x^2+y^2=R^2", "y^2+x^2=R^2", "x^2+y^2=r^2"),
        ("R_1", "R_{1}", "r_1"),
        (r"\lambda", r"{\lambda}", r"\Lambda"),
        ("R, r", "r, R", "r, r"),
        ("2e", r"2\exp(1)", "2E"),
        ("I^2R", "RI^2", "-R"),  # a current, not the imaginary unit
        ("E", r"\text{E}", "2.718281828"),
    ],
)
def test_upper_and_lower_case_are_different_letters(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("A", "a", "correct"),
        ("b", r"\text{(B)}", "correct"),
        ("A, C", "c, a", "correct"),
        ("A, C", "c, b", "wrong"),
        ("(A,B)", "(b,a)", "wrong"),
        ("i", "I", "wrong"),
        (r"\sin x + C", r"c+\sin x", "correct"),  # a constant of integration
        ("C_1e^t", "e^t c_1", "correct"),
        ("C-c", "0", "wrong"),
        ("e", "2.718281828", "correct"),
        (r"\ln e", "1", "correct"),
        (r"\log_{10} 100", "2", "correct"),
        ("3+4i", "4i+3", "correct"),
        ("e^x", r"\exp(x)", "correct"),
    ],
)
def test_case_is_ignored_in_choices_and_constants_of_integration(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("listen", r"\text{Listen}", "silent"),
        ("BADC", "B A D C", "ABCD"),
        ("x = BADC", "BADC", "x = ABCD"),
        ("5, listen", "listen, 5", "5, silent"),
        ("TTH", "tth", "HTT"),
        ("DNE", r"\text{DNE}", "END"),
        ("No", "no", "on"),
        ("Yes, No", "no, yes", "yes, on"),
        ("no solution", r"\text{No solution}", "solution no"),
        ("cab", "Cab", "abc"),
        (r"\angle ABC", r"\angle CBA", r"\angle ACB"),
        (r"\angle ABC = 30", r"\angle{CBA} = 30", r"\angle ACB = 30"),
        (r"\angle B E A_{1}=90", r"\angle BEA_1 = 90", r"\angle BEA_1 = 80"),  # OlympiadBench
        ("ab", "ba", "ac"),
        ("xyz", "zyx", "xyy"),
        ("abc", r"c\cdot a\cdot b", "abd"),
        ("mgh", r"m\cdot g\cdot h", "mgr"),
        ("AB = CD", "BA = DC", "AB = CE"),  # segments
    ],
)
def test_letters_of_a_word_do_not_commute(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("a=3,b=7", "b=7, a=3", "b=3, a=7"),
        ("a=3,b=7", "(3,7)", "(7,3)"),
        ("a=3,b=7", "3,7", "7,3"),
        ("a=3,b=7", r"a=3 \text{ and } b=7", r"\{7,3\}"),
        ("x=1,y=2", "(x,y)=(1,2)", "(x,y)=(2,1)"),
        ("(x,y)=(1,2)", "x=1, y=2", "(2,1)"),
        ("(1,2)", "x=1, y=2", "y=1, x=2"),
        ("1,2", "x=1, y=2", "x=2, y=1"),
        (r"x=\frac12=0.5, y=3", "(0.5, 3)", "(3, 0.5)"),
    ],
)
def test_values_of_named_unknowns_are_not_swapped(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "answer"), [("x=1,x=2", "x=2,x=1"), ("x=1,x=2", "2,1"), ("2,1", "x=1,x=2"), ("2,5", "x_1=5,x_2=2")]
)
def test_values_of_one_unknown_are_a_set(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer", "other"),
    [
        ("3", "3\\ ", "4\\ "),
        ("3\\ ", "3", "4"),
        ("(1,2)", "(1,2)\\ ", "(2,1)\\ "),
        (r"5\text{ cm}", "5\\text{ cm}\\ ", "5\\text{ km}\\ "),
    ],
)
def test_a_control_space_at_the_end_is_white_space(gold: str, answer: str, other: str) -> None:
    assert (outcome(gold, answer), outcome(gold, other)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("5", r"5\text{ or more}", "wrong"),
        ("5", r"5\text{ or less}", "wrong"),
        ("5", r"5\text{ or six}", "wrong"),
        ("5", r"5\text{ is wrong}", "wrong"),
        ("5", r"5\text{ and a half}", "wrong"),
        ("5", r"5\text{ apples} \text{ or }\text{more}", "wrong"),
        (r"5\text{ or more}", r"5\text{ or less}", "wrong"),
        (r"5\text{ or more}", r"5 \text{ or more}", "correct"),
        ("5", r"5\text{ more apples}", "correct"),
        ("1, 2", r"1\text{ or }2", "correct"),
        ("5", r"5,\ldots", "wrong"),
        ("1,2", r"1,2,\ldots", "wrong"),
        (r"1, 2, \ldots", "1, 2", "wrong"),
        (r"1, 2, \ldots", "1, 2, ...", "correct"),
    ],
)
def test_what_is_said_of_a_value_belongs_to_the_answer(gold: str, answer: str, expected: str) -> None:
    assert outcome(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"5\text{ J}", r"5\text{ joules}", r"5\text{ kJ}"),
        (r"5\text{ J}", "5", r"5\text{ N}"),
        (r"5\text{ mA}", r"5\,\mathrm{mA}", r"5\text{ A}"),
        (r"5\text{ GHz}", r"5\text{ gigahertz}", r"5\text{ MHz}"),
        (r"5\text{ kPa}", r"5\text{ kilopascals}", r"5\text{ Pa}"),
        (r"5\text{ eV}", "5", r"5\text{ keV}"),
        (r"5\text{ nm}", r"5\text{ nanometers}", r"5\text{ km}"),
        (r"5\text{ mN}", r"5\text{ millinewtons}", r"5\text{ MN}"),
        (r"5\text{ mL}", r"5\text{ ml}", r"5\text{ L}"),
        (r"5\text{ kilojoules}", r"5\text{ kJ}", r"5\text{ joules}"),
        (r"25^\circ\text{C}", r"25\text{ degrees Celsius}", r"25^\circ\text{F}"),
        (r"25^\circ\text{C}", r"25^\circ", r"25\text{ K}"),
    ],
)
def test_symbols_of_units_and_their_prefixes_differ(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("5000000", r"5\text{ million}", r"5\text{ billion}"),
        (r"1.5\text{ million}", "1500000", "1.5"),
        ("5", "5", r"5\text{ million}"),
        (r"\$1500000", r"\$1.5\text{ million dollars}", r"\$1.5\text{ thousand}"),
        ("500000", r"\frac12\text{ million}", r"\frac12"),
        ("1200000", r"1{,}200\text{ thousand}", r"200\text{ thousand}"),
    ],
)
def test_a_million_is_a_factor(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"\frac{3+\sqrt5}{2},\frac{3-\sqrt5}{2}", r"\frac{3\pm\sqrt5}{2}", r"\frac{3\pm\sqrt7}{2}"),
        (r"\frac{3\pm\sqrt5}{2}", r"\frac{3-\sqrt5}{2}, \frac{3+\sqrt5}{2}", r"\frac{3+\sqrt5}{2}"),
        (r"\frac{3\pm\sqrt5}{2}", r"\frac{3 \pm \sqrt{5}}{2}", r"\frac{\sqrt5\pm3}{2}"),
        # College Math
        (
            r"x=0, \frac{5 \pm \sqrt{61}}{18}",
            r"0, \frac{5+\sqrt{61}}{18}, \frac{5-\sqrt{61}}{18}",
            r"\frac{5\pm\sqrt{61}}{18}",
        ),
    ],
)
def test_plus_minus_is_two_values(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("(-1,3]", r"-1<x\le3", "-1<x<3"),
        (r"[0,\infty)", r"x\ge0", "x>0"),
        (r"-1<x\le3", "(-1,3]", "(-1,3)"),
        ("(-2,2)", "-2<x<2", "x^2<4"),  # still to be solved
        ("(-1,3]", r"3\ge x>-1", r"-2<2x\le6"),
    ],
)
def test_an_interval_may_be_written_as_an_inequality(gold: str, right: str, wrong: str) -> None:
    assert (outcome(gold, right), outcome(gold, wrong)) == ("correct", "wrong")
