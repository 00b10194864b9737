"""Pay a sum with given coins: every problem has many right answers, so that training can lose or keep diversity.

The prompt `pay 23 with 2 5 9 :` is answered by any sequence of these coins that sums to 23, such as `9 9 5 end` or
`5 9 9 end`; a coin may be used several times. A base policy taught on right answers drawn uniformly gives each about
the same probability; pass@k and the number of distinct right answers show how training changes that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, count
from math import comb

from rlvr.records import Outcome, Problem, Reward, binary, hash64
from rlvr.task.procedural import Dice, Procedural, Share

HELD_OUT = 3  # of every 8 problems
COUNTED = 1000  # largest number of sets of coins that are examined to count or estimate the problems
Sum = tuple[int, tuple[int, ...]]  # the sum to be paid, and the coins for it, ascending


@dataclass(kw_only=True, eq=False)
class Coins(Procedural[Sum]):
    """Sums of `smallest` to `largest`, paid with `num_coins` different coins of 1 to `largest_coin`.

    longest: the most coins of an answer. least: the fewest right answers of a problem. A hash of the problem assigns
    three in eight to the held-out side. The other knobs: `rlvr.task.procedural.Procedural`.
    """

    num_coins: int
    largest_coin: int
    smallest: int
    largest: int
    longest: int
    least: int
    mistakes: Share

    name = "coins"
    source = "coins"
    end_word = "end"
    several_answers = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_coins <= self.largest_coin <= 99:
            raise ValueError(
                f"task.num_coins={self.num_coins}, task.largest_coin={self.largest_coin}: different coins of 1 to at "
                "most 99, such as task.num_coins=3 task.largest_coin=9."
            )
        if not 1 <= self.smallest <= self.largest <= 999 or self.longest < 1 or self.least < 1:
            raise ValueError(
                f"task.smallest={self.smallest}, task.largest={self.largest}, task.longest={self.longest}, "
                f"task.least={self.least}: sums are 1 to 999, smallest first; an answer has at least one coin and a "
                "problem at least one answer."
            )
        num_items = self._num_problems()
        if not num_items:
            raise ValueError(
                f"No sum of {self.smallest} to {self.largest} can be paid with at most task.longest={self.longest} "
                f"coins of 1 to {self.largest_coin} in task.least={self.least} ways. Pass a smaller task.least or "
                "task.smallest."
            )
        self.set_sizes(num_items=num_items, share=HELD_OUT / 8, fill=0.9, kind="of these problems")
        self.max_tokens = self.longest + 1
        numbers = map(str, range(1, max(self.largest, self.largest_coin) + 1))
        self.vocabulary = ("PAD", self.end_word, "pay", "with", ":", *numbers)

    def draws(self, stream: str, index: int) -> Iterator[Sum]:
        for attempt in count():
            dice = Dice(f"coins {self.seed} {stream} {index} {attempt}")
            coins = tuple(sorted(dice.sample(range(1, self.largest_coin + 1), self.num_coins)))
            total = self.smallest + dice.below(self.largest - self.smallest + 1)
            if self.num_answers(total, coins) >= self.least:
                yield total, coins

    def held_out(self, item: Sum) -> bool:
        total, coins = item
        return hash64(f"{total} {coins}") % 8 < HELD_OUT

    def posed(self, item: Sum) -> tuple[str, list[int]]:
        """The answer is [the sum, coin, coin, ...]."""
        total, coins = item
        return prompt(total, coins), [total, *coins]

    def num_answers(self, total: int, coins: tuple[int, ...]) -> int:
        """Number of right answers: sequences of these coins, at most `longest` of them, with the sum `total`."""
        return ways(coins, self.largest, self.longest)[self.longest][total]

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right answer) `index` of a separate stream, all right answers to the problem equally likely."""
        shown, (left, coins) = self.demonstrated(index)
        dice, table = Dice(f"coins {self.seed} answer {index}"), ways(coins, self.largest, self.longest)
        paid = list[str]()
        for room in reversed(range(self.longest)):
            if not left:
                break
            weights = [table[room][left - coin] if coin <= left else 0 for coin in coins]
            coin = dice.choose(coins, weights)
            paid.append(str(coin))
            left -= coin
        return prompt(*shown), " ".join([*paid, self.end_word])

    def canonical(self, problem: Problem, response: str) -> str | None:
        """The coins of a right answer in their order (another order is another answer); None for other responses."""
        return " ".join(response.split()[:-1]) if self._judged(problem, response) == "correct" else None

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for at most `longest` coins of the problem that sum to its total. Unparsable: words that are no numbers, or
        no end word."""
        return [binary(self._judged(problem, text)) for problem, text in answers]

    def _judged(self, problem: Problem, text: str) -> Outcome:
        *paid, end = text.split() or [""]
        if end != self.end_word or not all(word in self.vocabulary[5:] for word in paid):
            return "unparsable"
        total, *coins = problem.answer
        values = [int(word) for word in paid]
        right = len(values) <= self.longest and set(values) <= set(coins) and sum(values) == total
        return "correct" if right else "wrong"

    def _num_problems(self) -> float:
        """The number of problems: exact for up to COUNTED sets of coins, else estimated from COUNTED random sets."""
        num_sets = comb(self.largest_coin, self.num_coins)
        options = range(1, self.largest_coin + 1)
        sets: Iterator[tuple[int, ...]] = combinations(options, self.num_coins)
        if num_sets > COUNTED:
            dice = Dice("coins")
            sets = (tuple(sorted(dice.sample(options, self.num_coins))) for _ in range(COUNTED))
        num_posed = sum(
            self.num_answers(total, coins) >= self.least
            for coins in sets
            for total in range(self.smallest, self.largest + 1)
        )
        return num_posed * num_sets / min(num_sets, COUNTED)


@lru_cache(maxsize=4096)
def ways(coins: tuple[int, ...], largest: int, longest: int) -> tuple[tuple[int, ...], ...]:
    """[m][s]: how many sequences of at most m coins have the sum s; m is 0 to `longest`, s is 0 to `largest`."""
    table = [(1, *[0] * largest)]
    for _ in range(longest):
        before = table[-1]
        table.append((1, *(sum(before[s - coin] for coin in coins if coin <= s) for s in range(1, largest + 1))))
    return tuple(table)


def prompt(total: int, coins: Sequence[int]) -> str:
    return f"pay {total} with {' '.join(map(str, coins))} :"
