"""The drawing of a Pattern's graph, from its manifest alone: layers from the start down, for SVG without a script.

Knows no Run. Positions are in pixels; names are measured by their length, since no font is known here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from runs.patterns import Manifest
from runs.patterns.manifest import FINISH, GOTO, ManifestNode

# A graph of more nodes is told as text: nobody reads such a drawing.
MOST_NODES = 120
LONGEST_NAME = 26
GLYPH, PADDING = 8.0, 30.0
NARROWEST, HEIGHT, END = 96.0, 44.0, 26.0
GAP, LAYER, MARGIN, LOOP = 36.0, 62.0, 16.0, 26.0
SWEEPS = 6


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or the end (`node` None); `x` and `y` of its upper left corner."""

    name: str
    shown: str
    x: float
    y: float
    width: float
    height: float
    start: bool
    node: ManifestNode | None

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 1)

    @property
    def name_y(self) -> float:
        return self.y + (self.height / 2 if not self.marks else self.height / 2 - 6)

    @property
    def marks_y(self) -> float:
        return self.y + self.height / 2 + 12

    @property
    def marks(self) -> str:
        """What is special about it, in few words."""
        if self.node is None:
            return ""
        told = ["start"] if self.start else []
        if self.node.replay_safe:
            told.append("replay safe")
        if self.node.timeout is not None:
            told.append(f"≤ {self.node.timeout:g} s")
        return " · ".join(told)


@dataclass(frozen=True, slots=True)
class Way:
    """One way from a node to another; `label` says what it waits for, if it does."""

    source: str
    target: str
    path: str
    kind: str
    label: str
    x: float
    y: float

    @property
    def label_x(self) -> float:
        return round(self.x - self.label_width / 2, 1)

    @property
    def label_y(self) -> float:
        return round(self.y - 10, 1)

    @property
    def label_width(self) -> float:
        return round(len(self.label) * 7.2 + 14, 1)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Everything of one graph, and the same in words."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    ways: tuple[Way, ...]
    words: str


def draw(manifest: Manifest) -> Drawing | None:
    """The drawing; None for a graph that is too large to be one."""
    if len(manifest.nodes) > MOST_NODES:
        return None
    return _Layout(manifest).drawing()


# The end has no name of its own; a node cannot have this one.
_END = "\0"


class _Layout:
    """One drawing as it is made: ranks, then order within them, then places."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._vias: dict[tuple[str, str], list[str]] = {}
        for edge in manifest.edges:
            pair = (edge.source, _END if edge.target is None else edge.target)
            kinds = self._vias.setdefault(pair, [])
            if edge.via not in kinds:
                kinds.append(edge.via)
        self._names = [node.name for node in manifest.nodes]
        if any(target == _END for _, target in self._vias):
            self._names.append(_END)
        self._forward = self._without_loops()
        self._rank = self._ranks()
        self._chains = self._long_ways()
        self._layers = self._ordered()
        self._centre = self._places()

    def drawing(self) -> Drawing:
        # The invisible places count: a way that leads around a node must not leave the drawing.
        shift = MARGIN - min((at - self._width(name) / 2 for name, at in self._centre.items()), default=0.0)
        tops = {rank: MARGIN + rank * (HEIGHT + LAYER) for rank in range(len(self._layers))}
        boxes = {name: self._box(name, shift, tops[self._rank[name]]) for name in self._names}
        right = shift + max((at + self._width(name) / 2 for name, at in self._centre.items()), default=0.0)
        loops = [pair for pair in self._vias if pair not in self._forward]
        ways = [self._way(pair, boxes, shift, tops) for pair in self._vias if pair in self._forward]
        ways += [self._loop(pair, boxes, right + LOOP * (number + 1)) for number, pair in enumerate(loops)]
        labels = [way.label_x + way.label_width for way in ways if way.label]
        width = max([right, right + LOOP * len(loops), *labels]) + MARGIN
        height = max((box.y + box.height for box in boxes.values()), default=0.0) + MARGIN
        return Drawing(round(width), round(height), tuple(boxes.values()), tuple(ways), self._manifest.draw())

    def _without_loops(self) -> set[tuple[str, str]]:
        """The ways that lead on: a walk in depth leaves out those back to where it is."""
        found: set[tuple[str, str]] = set()
        done: set[str] = set()
        for first in (self._manifest.start, *self._names):
            if first in done:
                continue
            stack = [(first, iter(self._after(first)))]
            here = {first}
            while stack:
                name, rest = stack[-1]
                target = next(rest, None)
                if target is None:
                    stack.pop()
                    here.discard(name)
                    done.add(name)
                elif target not in here:
                    found.add((name, target))
                    if target not in done:
                        here.add(target)
                        stack.append((target, iter(self._after(target))))
        return found

    def _after(self, name: str) -> list[str]:
        return [target for source, target in self._vias if source == name]

    def _ranks(self) -> dict[str, int]:
        """Each node below all that lead to it."""
        before: dict[str, list[str]] = defaultdict(list)
        waiting: dict[str, int] = dict.fromkeys(self._names, 0)
        for source, target in self._forward:
            before[target].append(source)
            waiting[target] += 1
        rank: dict[str, int] = {}
        ready = [name for name in self._names if not waiting[name]]
        for name in ready:
            rank[name] = max((rank[source] + 1 for source in before[name]), default=0)
            for source, target in self._forward:
                if source == name:
                    waiting[target] -= 1
                    if not waiting[target]:
                        ready.append(target)
        return rank

    def _long_ways(self) -> dict[tuple[str, str], list[str]]:
        """For each way on, the names of the places it passes between: invisible nodes, one a layer."""
        chains: dict[tuple[str, str], list[str]] = {}
        for source, target in sorted(self._forward):
            passed = [f"\1{source}\1{target}\1{rank}" for rank in range(self._rank[source] + 1, self._rank[target])]
            chains[source, target] = passed
            for number, name in enumerate(passed):
                self._rank[name] = self._rank[source] + 1 + number
        return chains

    def _links(self) -> Iterable[tuple[str, str]]:
        for (source, target), passed in self._chains.items():
            road = [source, *passed, target]
            yield from pairwise(road)

    def _ordered(self) -> list[list[str]]:
        """The layers, each in an order in which few ways cross: by the mean place of their neighbours."""
        layers: list[list[str]] = [[] for _ in range(max(self._rank.values(), default=-1) + 1)]
        for name, rank in self._rank.items():
            layers[rank].append(name)
        up: dict[str, list[str]] = defaultdict(list)
        down: dict[str, list[str]] = defaultdict(list)
        for source, target in self._links():
            down[source].append(target)
            up[target].append(source)
        for sweep in range(SWEEPS):
            neighbours = up if sweep % 2 == 0 else down
            for layer in layers if sweep % 2 == 0 else reversed(layers):
                place = {name: number for each in layers for number, name in enumerate(each)}
                layer.sort(
                    key=lambda name, near=neighbours, at=place: (
                        fmean(at[one] for one in near[name]) if near[name] else at[name]
                    )
                )
        return layers

    def _places(self) -> dict[str, float]:
        """The middle of each node: near its neighbours, never over the one beside it."""
        centre: dict[str, float] = {}
        for layer in self._layers:
            at = 0.0
            for name in layer:
                centre[name] = at + self._width(name) / 2
                at += self._width(name) + GAP
            for name in layer:
                centre[name] -= (at - GAP) / 2
        near: dict[str, list[str]] = defaultdict(list)
        for source, target in self._links():
            near[source].append(target)
            near[target].append(source)
        for _ in range(SWEEPS):
            for layer in self._layers:
                wish = [fmean(centre[one] for one in near[name]) if near[name] else centre[name] for name in layer]
                placed: list[float] = []
                for number, name in enumerate(layer):
                    least = wish[number]
                    if number:
                        least = max(least, placed[-1] + self._apart(layer[number - 1], name))
                    placed.append(least)
                drift = fmean(wish) - fmean(placed) if placed else 0.0
                centre |= {name: at + drift for name, at in zip(layer, placed, strict=True)}
        return centre

    def _apart(self, one: str, other: str) -> float:
        return (self._width(one) + self._width(other)) / 2 + GAP

    def _width(self, name: str) -> float:
        if name == _END:
            return 64.0
        if name.startswith("\1"):
            return 8.0
        node = self._manifest.node(name)
        marks = Box(name, "", 0, 0, 0, 0, name == self._manifest.start, node).marks
        return max(NARROWEST, min(len(name), LONGEST_NAME) * GLYPH + PADDING, len(marks) * 6.2 + PADDING)

    def _box(self, name: str, shift: float, top: float) -> Box:
        width = self._width(name)
        x = round(self._centre[name] + shift - width / 2, 1)
        if name == _END:
            return Box("end", "end", x, top + (HEIGHT - END) / 2, width, END, start=False, node=None)
        shown = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
        start = name == self._manifest.start
        return Box(name, shown, x, top, width, HEIGHT, start, self._manifest.node(name))

    def _way(self, pair: tuple[str, str], boxes: dict[str, Box], shift: float, tops: dict[int, float]) -> Way:
        source, target = boxes[pair[0]], boxes[pair[1]]
        points = [(source.middle, source.y + source.height)]
        for name in self._chains[pair]:
            x, top = round(self._centre[name] + shift, 1), tops[self._rank[name]]
            points += [(x, top), (x, top + HEIGHT)]
        points.append((target.middle, target.y - 2))
        path = f"M{points[0][0]} {points[0][1]}"
        for (x1, y1), (x2, y2) in pairwise(points):
            middle = round((y1 + y2) / 2, 1)
            path += f" L{x2} {y2}" if x1 == x2 else f" C{x1} {middle} {x2} {middle} {x2} {y2}"
        (x1, y1), (x2, y2) = points[0], points[1]
        return self._told(pair, path, (x1 + x2) / 2, (y1 + y2) / 2)

    def _loop(self, pair: tuple[str, str], boxes: dict[str, Box], far: float) -> Way:
        """A way back, around everything on the right."""
        source, target = boxes[pair[0]], boxes[pair[1]]
        x1, y1 = source.x + source.width, source.y + source.height / 2 + (8 if source is target else 0)
        x2, y2 = target.x + target.width + 2, target.y + target.height / 2 - (8 if source is target else 0)
        path = f"M{round(x1, 1)} {y1} C{round(far, 1)} {y1} {round(far, 1)} {y2} {round(x2, 1)} {y2}"
        return self._told(pair, path, (x1 + x2 + 6 * far) / 8, (y1 + y2) / 2)

    def _told(self, pair: tuple[str, str], path: str, x: float, y: float) -> Way:
        vias = self._vias[pair]
        waits = [via for via in vias if via not in {GOTO, FINISH}]
        kind = "wait" if waits else "finish" if FINISH in vias else "goto"
        label = f"waits: {', '.join(waits)}" if waits else ""
        target = "end" if pair[1] == _END else pair[1]
        return Way(pair[0], target, path, kind, label, round(x, 1), round(y, 1))
