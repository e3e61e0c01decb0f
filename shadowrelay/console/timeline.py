"""A message's life as a drawing: a lane for each server, a mark for each event, in order. docs/reference.md "Console".

Between two events lies a space that grows with the logarithm of the time between them: a delivery takes milliseconds, a takeover hours. The
marks have the numbers of the table below the drawing, so that everything in it can be read as text, too.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from shadowrelay.cluster.words import duration

Json = dict[str, Any]

LEFT, TOP, LANE, FOOT = 20, 34, 46, 26
STEP_MIN, STEP_MAX = 30.0, 96.0
SHAPES = {
    "RECEIVE": "accepted", "HAREDIRECT": "copied", "HARECEIVE": "copied", "HADISCARD": "discarded", "SEND": "delivered",
    "SENDEXTERNAL": "delivered", "DEFER": "deferred", "FAIL": "failed", "RESUBMIT": "taken", "HAREDIRECTFAIL": "failed",
    "EXPIRE": "failed", "DSN": "notice", "POISONMESSAGE": "failed", "DUPLICATEDELIVER": "discarded",
}  # fmt: skip
WORDS = {
    "accepted": "accepted", "copied": "copied", "delivered": "delivered", "deferred": "not taken yet", "failed": "failed",
    "discarded": "discarded", "taken": "taken over", "notice": "notice to the sender", "other": "other",
}  # fmt: skip
MARKS_MAX = 60  # the table has all


def drawn(events: Sequence[Json]) -> Json | None:
    """Positions for the template. Shapes: None without events; `marks` in order, at most `MARKS_MAX`."""
    if not events:
        return None
    shown = events[:MARKS_MAX]
    lanes = list(dict.fromkeys(str(row["node"]) for row in shown))
    x, marks, before = LEFT + 20.0, [], None
    for row in shown:
        at = datetime.fromisoformat(row["at"])
        seconds = 0.0 if before is None else max((at - before).total_seconds(), 0.0)
        if before is not None:
            x += min(STEP_MIN + 12 * math.log10(1 + seconds * 1000), STEP_MAX)
        before = at
        shape = SHAPES.get(row["event"], "other")
        if row["event"] == "RESUBMIT" and row["source"] != "REDUNDANCY":
            shape = "other"
        y = TOP + lanes.index(str(row["node"])) * LANE
        gap = "" if seconds < 1 else f"+{duration(seconds)}"
        marks.append(
            {"x": round(x, 1), "y": y, "shape": shape, "number": row["number"], "title": f"{row['node']}: {row['words']}", "gap": gap}
        )
    height = TOP + (len(lanes) - 1) * LANE + FOOT + 22
    used = list(dict.fromkeys(str(mark["shape"]) for mark in marks))
    return {
        "width": round(max(x + 40, 320)), "height": height, "marks": marks, "left": LEFT, "right": round(max(x + 30, 310)),
        "lanes": [{"name": name, "y": TOP + number * LANE} for number, name in enumerate(lanes)],
        "legend": [(shape, WORDS[shape]) for shape in used], "is_cut": len(events) > MARKS_MAX, "foot": height - 8,
        "path": " ".join(f"{mark['x']},{mark['y']}" for mark in marks),
    }  # fmt: skip
