"""chart.py - what a matplotlib figure shows, as data: a model can read it, a page can draw it anew. Used by repl.py.

chart(figure) gives, for figures of one pair of axes,
  {"type": "line" | "scatter" | "bar" | "pie" | "box_and_whisker" | "unknown", "title", "elements": [...]}
and, except for pies, x_label, x_unit, x_ticks, x_tick_labels, x_scale, and the same for y. Elements are
  line, scatter        {"label", "points": [[x, y], ...]}
  bar                  {"label", "group", "value"}
  pie                  {"label", "angle", "radius"}
  box_and_whisker      {"label", "min", "first_quartile", "median", "third_quartile", "max", "outliers"}
Several pairs of axes are {"type": "superchart", "title", "elements": [the charts]}. Dates are ISO text and their scale is
"datetime"; words are "categorical". "truncated": there were more points than POINTS_MAX.
"""
import math
import re

POINTS_MAX = 20000  # of a figure; a model would not read more, and the picture shows them
BOXES = "_panda_boxes"


def watch(axes_module):
    """Called once matplotlib.axes is there: of boxes and whiskers only lines would be left to look at."""
    axes = axes_module.Axes
    draw = axes.bxp

    def bxp(self, bxpstats, *args, **kw):
        found = draw(self, bxpstats, *args, **kw)
        setattr(self, BOXES, [*getattr(self, BOXES, ()), *bxpstats])
        return found

    axes.bxp = bxp


def plain(value):
    """As JSON has it: a number, a text, or None for what is no number."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":
        return str(value)
    if isinstance(value, (str, bytes)):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def named(label):
    """What the user called it; matplotlib's own names begin with a line."""
    label = str(label or "")
    return "" if label.startswith("_") else label


class Axes:
    def __init__(self, axes, room):
        self.axes, self.room, self.truncated = axes, room, False
        self.words = {}

    def points(self, xs, ys):
        pairs = [[plain(x), plain(y)] for x, y in zip(xs[: self.room], ys[: self.room])]
        self.truncated |= len(xs) > self.room
        self.room -= len(pairs)
        for i, name in enumerate("xy"):
            if any(isinstance(p[i], str) for p in pairs):
                raw = (xs, ys)[i]
                dated = hasattr(raw[0], "isoformat") or getattr(getattr(raw[0], "dtype", None), "kind", "") == "M"
                self.words[name] = "datetime" if dated else "categorical"
        return pairs

    def lines(self):
        for line in self.axes.lines:
            xs, ys = list(line.get_xdata(orig=True)), list(line.get_ydata(orig=True))
            if len(xs) and len(xs) == len(ys) and line.get_visible():
                dots = line.get_linestyle() in ("None", "none", " ", "") and line.get_marker() not in ("None", "none", None, "")
                yield dots, {"label": named(line.get_label()), "points": self.points(xs, ys)}

    def dots(self):
        for i, dots in enumerate(self.axes.collections):
            if type(dots).__name__ == "PathCollection" and dots.get_visible():
                at = dots.get_offsets()
                yield {"label": named(dots.get_label()), "points": self.points(list(at[:, 0]), list(at[:, 1]))}

    def bars(self):
        for box in self.axes.containers:
            if type(box).__name__ != "BarContainer":
                continue
            flat = getattr(box, "orientation", None) == "horizontal"
            ticks = self.ticks("y" if flat else "x")
            for bar in box:
                if self.room <= 0:
                    self.truncated = True
                    return
                self.room -= 1
                middle = bar.get_y() + bar.get_height() / 2 if flat else bar.get_x() + bar.get_width() / 2
                yield {"label": self.tick_at(ticks, middle), "group": named(box.get_label()),
                       "value": plain(bar.get_width() if flat else bar.get_height())}

    def tick_at(self, ticks, place):
        """The word under a bar; bars of several groups stand beside it."""
        near = min(ticks, key=lambda t: abs(t[0] - place), default=None)
        if near and abs(near[0] - place) <= 0.5 and near[1] and not re.fullmatch(r"[\d.,\u2212e+-]+", near[1]):
            return near[1]
        return f"{place:g}"

    def ticks(self, name):
        axis = getattr(self.axes, f"{name}axis")
        return [(float(at), label.get_text()) for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels())]

    def slices(self):
        wedges = [p for p in self.axes.patches if type(p).__name__ == "Wedge"]
        texts = [t.get_text() for t in self.axes.texts]
        step = max(len(texts) // len(wedges), 1) if wedges else 1  # with autopct each has two
        for i, wedge in enumerate(wedges):
            label = named(wedge.get_label()) or (texts[i * step] if i * step < len(texts) else "")
            yield {"label": label, "angle": plain(wedge.theta2 - wedge.theta1), "radius": plain(wedge.r)}

    def boxes(self):
        for i, box in enumerate(getattr(self.axes, BOXES, ())):
            yield {"label": str(box.get("label", i + 1)), "min": plain(box["whislo"]), "first_quartile": plain(box["q1"]),
                   "median": plain(box["med"]), "third_quartile": plain(box["q3"]), "max": plain(box["whishi"]),
                   "outliers": [plain(v) for v in box.get("fliers", ())]}

    def found(self):
        """(type, elements)"""
        for type_, elements in ("pie", self.slices()), ("box_and_whisker", self.boxes()), ("bar", self.bars()):
            elements = list(elements)
            if elements:
                return type_, elements
        lines, dots = list(self.lines()), list(self.dots())
        dots += [e for is_dots, e in lines if is_dots]
        lines = [e for is_dots, e in lines if not is_dots]
        if lines:
            return "line", lines + dots
        return ("scatter", dots) if dots else ("unknown", [])

    def data(self):
        type_, elements = self.found()
        data = {"type": type_, "title": self.axes.get_title() or None}
        if type_ != "pie":
            for name in "x", "y":
                label = getattr(self.axes, f"get_{name}label")()
                unit = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", label)
                ticks = self.ticks(name)
                data.update({f"{name}_label": label or None, f"{name}_unit": unit[1] if unit else None,
                             f"{name}_ticks": [plain(at) for at, _ in ticks], f"{name}_tick_labels": [text for _, text in ticks],
                             f"{name}_scale": self.words.get(name) or getattr(self.axes, f"get_{name}scale")()})
        data["elements"] = elements
        if self.truncated:
            data["truncated"] = True
        return data


def chart(figure):
    """None when there is nothing in it. The figure must have been drawn: ticks have no words before."""
    charts, room = [], POINTS_MAX
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>" or not axes.get_visible():
            continue
        one = Axes(axes, room)
        charts.append(one.data())
        room = one.room
    if len(charts) < 2:
        return charts[0] if charts else None
    title = getattr(figure, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() if title else None, "elements": charts}
