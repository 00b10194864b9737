"""Our own solutions of some problems of real benchmarks, by problem id: known to be right."""

FUNCTIONS = {
    "HumanEval/0": "def has_close_elements(n, t):\n"
    "    return any(abs(a - b) < t for i, a in enumerate(n) for b in n[:i])",
    "HumanEval/2": "def truncate_number(x): return x - int(x)",
    "HumanEval/3": "from itertools import accumulate\n"
    "def below_zero(operations): return any(total < 0 for total in accumulate(operations))",
    "HumanEval/5": "def intersperse(n, d): return [x for item in n for x in (item, d)][:-1]",
    "HumanEval/7": "def filter_by_substring(strings, s): return [x for x in strings if s in x]",
    "HumanEval/8": "import math\ndef sum_product(n): return sum(n), math.prod(n)",
    "HumanEval/9": "def rolling_max(n): return [max(n[:i + 1]) for i in range(len(n))]",
    "HumanEval/11": "def string_xor(a, b): return ''.join(str(int(x != y)) for x, y in zip(a, b))",
    "HumanEval/12": "def longest(strings): return max(strings, key=len, default=None)",
    "HumanEval/13": "import math\ndef greatest_common_divisor(a, b): return math.gcd(a, b)",
    "HumanEval/14": "def all_prefixes(s): return [s[:i] for i in range(1, len(s) + 1)]",
    "HumanEval/16": "def count_distinct_characters(s): return len(set(s.lower()))",
    "HumanEval/22": "def filter_integers(v): return [x for x in v if type(x) is int]",
    "HumanEval/27": "def flip_case(s): return s.swapcase()",
    "HumanEval/30": "def get_positive(l): return [x for x in l if x > 0]",
    "HumanEval/34": "def unique(l): return sorted(set(l))",
    "HumanEval/38": "def decode_cyclic(s): return encode_cyclic(encode_cyclic(s))",
    "HumanEval/41": "def car_race_collision(n): return n * n",
    "HumanEval/48": "def is_palindrome(text): return text == text[::-1]",
    "HumanEval/50": "def decode_shift(s): return ''.join(chr((ord(c) - 97 - 5) % 26 + 97) for c in s)",
    "HumanEval/53": "def add(x: int, y: int) -> int: return x + y",
}

PROGRAMS = {
    "codeforces-test-199": "for _ in range(int(input())): print(sum(map(int, input())))",
    "codeforces-test-0": "for _ in range(int(input())): print(*sorted(map(int, input().split())))",
    "codeforces-test-97": "for _ in range(int(input())): print(3 if int(input()) == 3 else 2)",
    "codeforces-test-96": "for _ in range(int(input())):\n"
    "    a, b = input().split()\n    print(b[0] + a[1:], a[0] + b[1:])",
    "codeforces-test-180": "for _ in range(int(input())): print((int(input()) + 2) // 4)",
    "codeforces-test-303": "for _ in range(int(input())):\n"
    "    n, k = map(int, input().split())\n    steps = 0\n"
    "    while k > 1 and n:\n        steps += n % k\n        n //= k\n"
    "    print(steps + n)",
    "code_contests-test-139": "for _ in range(int(input())):\n"
    "    s = input()\n    half = len(s) // 2\n    print('YES' if s[:half] == s[half:] else 'NO')",
    "code_contests-test-52": "for _ in range(int(input())):\n"
    "    n, k = map(int, input().split())\n"
    "    print(sum(pow(n, i, 10**9 + 7) for i in range(31) if k >> i & 1) % (10**9 + 7))",
    "code_contests-test-113": "for _ in range(int(input())):\n"
    "    (x, p), (y, q) = (map(int, input().split()) for _ in range(2))\n"
    "    low = min(p, q)\n    p, q = p - low, q - low\n"
    "    a, b = x * 10 ** min(p, 9), y * 10 ** min(q, 9)\n"
    "    print('<' if a < b else '>' if a > b else '=')",
}
