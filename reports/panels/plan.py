"""The plan on its devices: pools, tasks and their layouts."""

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from rlplan.plan import Plan
from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.picture import (
    FAINT,
    INK,
    LINE,
    MUTED,
    PAGE_WIDTH,
    POOL_COLOURS,
    SMALL_SIZE,
    FillStyle,
    LegendEntry,
    Picture,
    draw_legend,
    drawing,
    elided,
    legend_height,
    looks,
    new_canvas,
    picture,
    readable_on,
)
from rlplan.reports.tables.plans import layout_table, pool_table
from rlplan.reports.tables.run import score_lines
from rlplan.reports.tables.wording import cluster, counted, pool_words, transition_words

ORDER = 10


def section(subject: Subject) -> Section:
    """Return the drawing of the plan with its pools and layouts."""
    plan = subject.plan
    return Section(
        key="plan",
        title="The plan on its devices",
        short="Plan",
        words=("Every box is a node, every cell a device, every colour a pool.",),
        picture=plan_picture(plan),
        parts=(
            Part(table=pool_table(plan), heading="Pools"),
            Part(table=layout_table(plan), heading="Tasks"),
        ),
        points=(
            transition_words(plan),
            f"Mode: {plan.mode}"
            + (f", samples up to {plan.staleness} updates old." if plan.staleness else "."),
            *(line.strip() for line in score_lines(subject.forecast)),
        ),
    )


UNUSED = "not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """Hold one node, or several that look alike in a row.

    Attributes:
        first: Number of the (first) node in the cluster, from 0.
        count: Nodes that this one stands for.
        gpu: Device of its cells.
        pools: By cell, the pool that has the GPU, or None.
    """

    first: int
    count: int
    gpu: str
    pools: tuple[str | None, ...]

    @property
    def title(self) -> str:
        """Return the node's caption."""
        if self.count == 1:
            return f"node {self.first} · {self.gpu}"
        last = self.first + self.count - 1
        return f"nodes {self.first} to {last} ({self.count} alike) · {self.gpu}"


def drawn_nodes(plan: Plan, most_nodes: int = 16) -> tuple[DrawnNode, ...]:
    """Return the cluster's nodes with the pool of every GPU.

    Pools take the GPUs of their device one pool after another, node by node. In a cluster of more
    than `most_nodes` nodes, neighbours that look alike are drawn once.
    """
    takers = {group.gpu: _takers(plan, group.gpu) for group in plan.job.cluster}
    nodes: list[DrawnNode] = []
    number = 0
    for group in plan.job.cluster:
        for _ in range(group.nodes):
            cells = tuple(next(takers[group.gpu], None) for _ in range(group.gpus_per_node))
            nodes.append(DrawnNode(first=number, count=1, gpu=group.gpu, pools=cells))
            number += 1
    return tuple(nodes if number <= most_nodes else _folded(nodes))


def _takers(plan: Plan, device: str) -> Iterator[str]:
    for pool in plan.pools:
        if pool.device == device:
            yield from (pool.name for _ in range(pool.gpus))


def _folded(nodes: list[DrawnNode]) -> Iterator[DrawnNode]:
    held = nodes[0]
    for node in nodes[1:]:
        if (node.gpu, node.pools) == (held.gpu, held.pools):
            held = DrawnNode(first=held.first, count=held.count + 1, gpu=held.gpu, pools=held.pools)
        else:
            yield held
            held = node
    yield held


_CELL_WIDTH, _CELL_HEIGHT, _CELL_GAP = 38.0, 30.0, 5.0
_PADDING, _CAPTION, _BOX_GAP = 9.0, 17.0, 14.0
_MARGIN = 2.0
_MOST_CELLS_A_ROW = 8
_SMALLEST_BOX = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """Place a node on the canvas, in points from the left top corner."""

    node: DrawnNode
    left: float
    top: float
    width: float
    height: float


def _placed(nodes: tuple[DrawnNode, ...]) -> tuple[list[_Box], float]:
    """Return the boxes in rows, and the points that all rows need."""
    boxes: list[_Box] = []
    left, top, row_height = _MARGIN, 0.0, 0.0
    for node in nodes:
        columns = min(len(node.pools), _MOST_CELLS_A_ROW)
        rows = -(-len(node.pools) // _MOST_CELLS_A_ROW)
        cells_width = columns * (_CELL_WIDTH + _CELL_GAP) - _CELL_GAP
        width = max(cells_width + 2 * _PADDING, _SMALLEST_BOX)
        height = _CAPTION + rows * (_CELL_HEIGHT + _CELL_GAP) - _CELL_GAP + 2 * _PADDING
        if left > _MARGIN and left + width > PAGE_WIDTH - _MARGIN:
            left, top, row_height = _MARGIN, top + row_height + _BOX_GAP, 0.0
        boxes.append(_Box(node=node, left=left, top=top, width=width, height=height))
        left += width + _BOX_GAP
        row_height = max(row_height, height)
    return boxes, top + row_height


def plan_figure(plan: Plan) -> Figure:
    """Draw the plan on its GPUs."""
    with drawing():
        found = looks((pool.name for pool in plan.pools), POOL_COLOURS)
        nodes = drawn_nodes(plan)
        boxes, boxes_height = _placed(nodes)
        entries = _legend(plan, nodes, found)
        height = boxes_height + 12 + legend_height(entries, PAGE_WIDTH) + 4
        figure, canvas = new_canvas(height)
        for box in boxes:
            _draw_node(canvas, box, height - 2, found)
        draw_legend(canvas, entries, _MARGIN, height - boxes_height - 12, PAGE_WIDTH - 2 * _MARGIN)
    return figure


def plan_picture(plan: Plan) -> Picture:
    """Return the plan drawn on its GPUs."""
    pools = "; ".join(
        f"pool {pool.name}: {pool_words(pool)} for {', '.join(pool.roles)}" for pool in plan.pools
    )
    return picture(
        plan_figure(plan),
        name="plan",
        title="The plan on its devices",
        description=f"{cluster(plan.job)}. {pools}.",
    )


def _legend(
    plan: Plan, nodes: tuple[DrawnNode, ...], found: dict[str, FillStyle]
) -> list[LegendEntry]:
    entries = [
        LegendEntry(pool.name, found[pool.name], f"{pool_words(pool)}: {', '.join(pool.roles)}")
        for pool in plan.pools
    ]
    idle = sum(node.count * node.pools.count(None) for node in nodes)
    if idle:
        entries.append(LegendEntry(UNUSED, FillStyle(FAINT), counted(idle, "device")))
    return entries


def _draw_node(canvas: Axes, box: _Box, height: float, found: dict[str, FillStyle]) -> None:
    bottom = height - box.top - box.height
    canvas.add_patch(
        FancyBboxPatch(
            (box.left + 3, bottom + 3), box.width - 6, box.height - 6,
            boxstyle="round,pad=3,rounding_size=4", facecolor="white", edgecolor=LINE, linewidth=1,
        )
    )  # fmt: skip
    caption = elided(box.node.title, box.width - 2 * _PADDING, SMALL_SIZE)
    top = bottom + box.height
    canvas.text(
        box.left + _PADDING, top - _PADDING - 4, caption, size=SMALL_SIZE, color=MUTED, va="center"
    )
    for index, pool in enumerate(box.node.pools):
        row, column = divmod(index, _MOST_CELLS_A_ROW)
        left = box.left + _PADDING + column * (_CELL_WIDTH + _CELL_GAP)
        cell_top = top - _PADDING - _CAPTION - row * (_CELL_HEIGHT + _CELL_GAP) + 2
        _draw_cell(canvas, left, cell_top - _CELL_HEIGHT, str(index), found[pool] if pool else None)


def _draw_cell(
    canvas: Axes, left: float, bottom: float, label: str, look: FillStyle | None
) -> None:
    colour = look.colour if look else FAINT
    canvas.add_patch(
        Rectangle(
            (left, bottom), _CELL_WIDTH, _CELL_HEIGHT,
            facecolor=colour, edgecolor="white" if look else LINE, linewidth=0.8,
            hatch=look.hatch if look else "", linestyle="-" if look else (0, (2, 2)),
        )
    )  # fmt: skip
    canvas.text(
        left + _CELL_WIDTH / 2, bottom + _CELL_HEIGHT / 2, label,
        size=SMALL_SIZE, ha="center", va="center", color=readable_on(colour) if look else INK,
    )  # fmt: skip
