"""How a line looks, alike on the page and in figures: the colour says the loss or the divergence, the shade a swept
number, the dash the setting. Black is the reference, or GRPO where that is another arm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.scores import labels
from analysis.scores.arm import Arm
from analysis.scores.selection import default_reference

# Okabe and Ito (2008), and violet for TV, whose light blue would be a shade of the blue of JS; markers distinguish
# lines without colour. Strict divergences are cool, weak ones warm.
NEUTRAL = "#767676"  # seen on white and on black
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", NEUTRAL)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
GRPO = "#000000"
DIVERGENCES = {
    **{"tv": ("#7A3E9D", "s"), "hd": ("#009E73", "^"), "js": ("#0072B2", "o")},
    **{"kl": ("#D55E00", "D"), "rkl": ("#CC79A7", "v"), "jf": ("#E69F00", "P")},
}
KNOWN = {
    **DIVERGENCES,
    **{"grpo": (GRPO, "s"), "maxrl": ("#0072B2", "o"), "rloo": ("#E69F00", "^"), "pacs": ("#009E73", "D")},
}
LIGHTEST = 0.5  # share of white in the shade of the smallest number
NUM_DASHES = 4


@dataclass(frozen=True)
class Look:
    """colour: #RRGGBB; dash: index of a dash, 0 for a solid line."""

    colour: str
    marker: str
    dash: int


def numbered(index: int) -> Look:
    """The look of line `index` of lines that are no arms; they repeat after 32 lines."""
    turn, place = divmod(index, len(CYCLE))
    return Look(CYCLE[place], MARKERS[place], turn % NUM_DASHES)


def lighter(colour: str, share: float) -> str:
    """The colour mixed with white: share 0 is the colour itself."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


def looks_of(arms: Sequence[Arm], baseline: str | None = None) -> list[Look]:
    """The look of each arm. The hue of a well-known loss or divergence (KNOWN) is its own, unless an arm before it has
    that: arms of one loss that differ by more than numbers have hues of their own. The darkest of its kind is the
    reference, else the arm without a number, else the largest number.

    baseline: the study's, "" where it names none; None where no arm is the reference, as of lines of several arms.
    """
    hue = _hues([_kind(arm) for arm in arms])
    values: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for arm in arms:
        of_kind = values.setdefault(_kind(arm), [])
        of_kind += [] if _numbers(arm) in of_kind else [_numbers(arm)]
    from_light = {kind: sorted(numbers, key=lambda own: (not own, own)) for kind, numbers in values.items()}
    compared_to = [] if baseline is None else default_reference(arms, baseline).values()
    reference = {(_kind(arm), _numbers(arm)) for arm in compared_to}
    if len(reference) == 1:  # the same in all settings
        ((kind, numbers),) = reference
        from_light[kind].remove(numbers)
        from_light[kind].append(numbers)
    settings = list(dict.fromkeys(arm.setting for arm in arms))
    drawn: list[Look] = []
    for arm in arms:
        kind, numbers = _kind(arm), _numbers(arm)
        plain, in_order = hue[kind], from_light[kind]
        share = (len(in_order) - 1 - in_order.index(numbers)) / max(1, len(in_order) - 1)
        is_black = reference == {(kind, numbers)} and all(name != "grpo" for name, *_ in hue)
        dash = (plain.dash * len(settings) + settings.index(arm.setting)) % NUM_DASHES
        drawn.append(Look(GRPO if is_black else lighter(plain.colour, LIGHTEST * share), plain.marker, dash))
    return drawn


def _kind(arm: Arm) -> tuple[str, ...]:
    """(divergence or loss, and all other words by which the arm differs)."""
    name = arm.divergence or arm.loss
    return (name, *(v for v in arm.knobs.values() if math.isnan(labels.number(v)) and v not in (name, arm.loss)))


def _numbers(arm: Arm) -> tuple[float, ...]:
    return tuple(number for number in map(labels.number, arm.knobs.values()) if not math.isnan(number))


def _hues(kinds: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Look]:
    """By kind its look without a shade: first the known ones take theirs, then all others those that are free."""
    hues: dict[tuple[str, ...], Look] = {}
    for kind in sorted(dict.fromkeys(kinds), key=len):
        known = KNOWN.get(kind[0])
        if known and known[0] not in {look.colour for look in hues.values()}:
            hues[kind] = Look(*known, 0)
    taken = {look.colour for look in hues.values()}
    free = [(colour, marker) for colour, marker in zip(CYCLE, MARKERS, strict=True) if colour not in taken]
    others = [kind for kind in dict.fromkeys(kinds) if kind not in hues]
    for index, kind in enumerate(others):
        turn, place = divmod(index, len(free))
        hues[kind] = Look(*free[place], turn % NUM_DASHES)
    return hues
