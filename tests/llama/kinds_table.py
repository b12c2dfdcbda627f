"""What each architecture's memory takes and how exactly it resumes, as a table: ``python -m tests.llama.kinds_table``.

For the documentation. The largest difference of a logit is given where a run resumed at an inner
cut is compared with one that was never interrupted; with re-seating there is none.
"""

from __future__ import annotations

import logging

import numpy as np

from anchorline.config import ModelConfig
from anchorline.llama.interface import MemoryKind
from anchorline.llama.model import Model, load_model
from tests.llama.chains import ARCHITECTURES, CUTS, DELTA, prefill, restore, resume, row_types, typed_runtime
from tests.support.runtimes import Logits, feed

HEADER = (
    "architecture",
    "kind",
    "rows, f16 (B/token)",
    "rows, q8_0",
    "state, f16 (B)",
    "resumed at its tip",
    "at an inner cut",
    "at an inner cut, re-seated",
)


def main() -> None:
    logging.disable(logging.CRITICAL)
    print("| " + " | ".join(HEADER) + " |")
    print("|" + " --- |" * len(HEADER))
    for architecture in ARCHITECTURES:
        model = load_model(ModelConfig(model=f"test:{architecture}"))
        print("| " + " | ".join(row(architecture, model)) + " |")
        model.close()


def row(architecture: str, model: Model) -> tuple[str, ...]:
    sizes: dict[str, float] = {}
    worst = {"tip": 0.0, "inner": 0.0, "reseated": 0.0}
    for rows in row_types(architecture):
        runtime = typed_runtime(model, rows)
        sizes.setdefault(rows[0], runtime.limits.bytes_per_token)
        kind = runtime.capabilities.kind
        if rows[0] == "f16":
            state_bytes = runtime.capabilities.state_bytes
        pieces = prefill(runtime, CUTS)
        straight = feed(runtime, DELTA, start=CUTS[-1])
        runtime.remove(0, 0)
        restore(runtime, pieces)
        worst["tip"] = max(worst["tip"], difference(straight, feed(runtime, DELTA, start=CUTS[-1])))
        for cut in (1, 2):
            runtime.remove(0, 0)
            worst["inner"] = max(worst["inner"], difference(straight, resume(runtime, pieces, cut=cut, reseat=False)))
        runtime.remove(0, 0)
        seated = prefill(runtime, CUTS, reseat=True)
        cold = feed(runtime, DELTA, start=CUTS[-1])
        for cut in (1, 2, 3):
            runtime.remove(0, 0)
            worst["reseated"] = max(worst["reseated"], difference(cold, resume(runtime, seated, cut=cut)))
        runtime.close()
    return (
        f"`{architecture}`",
        kind,
        "—" if kind is MemoryKind.RECURRENT else f"{sizes['f16']:,.0f}",
        "—" if kind is MemoryKind.RECURRENT else f"{sizes['q8_0']:,.0f}",
        f"{state_bytes:,}" if state_bytes else "—",
        *(f"{value:.0e}" if value else "exact" for value in worst.values()),
    )


def difference(one: Logits, other: Logits) -> float:
    return float(np.abs(one - other).max())


if __name__ == "__main__":
    main()
