"""`make bench`: measures LychD beside raw SAQ on one database and prints figures, ratios and where they should be.

Absolute times belong to the machine; the ratios travel. Results go to `bench/results/*.json` as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PARTS = ("saq", "runs", "rest", "latency", "readers", "memory", "consents", "recovery")


def main() -> int:
    """Run the chosen parts and print the table."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="Runs (and raw jobs) to push through")
    parser.add_argument("--submitters", type=int, default=32)
    parser.add_argument("--slots", type=int, default=32, help="concurrency of the lane and of the raw SAQ worker")
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument(
        "--parked", type=int, default=10_000, help="queued Runs of the memory part, parked Runs of the consents part"
    )
    parser.add_argument("--live", type=int, default=100_000, help="queued and parked Runs of the recovery part")
    parser.add_argument("--ended", type=int, default=1_000_000, help="terminal Runs of the recovery part")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, comma-separated: {', '.join(PARTS)}")
    options = parser.parse_args()
    parts = [part for part in options.only.split(",") if part]
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as data:
        os.environ.update(
            LYCHD_DATA=data,
            LYCHD_APPS="bench",
            LYCHD_LOG_LEVEL="warning",
            LYCHD_SECRET_KEY="bench-" + "x" * 60,
            LYCHD_RUNS_CONCURRENCY=str(options.slots),
            DJANGO_SETTINGS_MODULE="lychd.settings",
        )
        from lychd.postgres import launcher

        cluster = None
        if not os.environ.get("DATABASE_URL"):
            cluster = launcher.ensure(None, throwaway=True, durable=True)
            os.environ["DATABASE_URL"] = cluster.url
        try:
            figures = measure(parts, options)
        finally:
            if cluster is not None:
                cluster.stop()
    show(figures)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps(figures, indent=2))
    sys.stdout.write(f"\nwritten to {path.relative_to(Path.cwd())}\n")
    return 0


def measure(parts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All figures of the chosen parts, by name."""
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    connections.close_all()
    from bench import consents, memory, raw, readers, recovery, rest, vessel

    figures: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "python": platform.python_version()}}
    if {"saq", "latency", "consents"} & set(parts):
        figures["saq"] = asyncio.run(raw.measure(options.runs, options.submitters, options.slots))
    if "runs" in parts or "latency" in parts:
        figures["runs"] = asyncio.run(vessel.measure(options.runs, options.submitters))
    if "rest" in parts:
        figures["rest"] = rest.measure(options.runs, options.submitters)
    if "readers" in parts:
        figures["readers"] = readers.measure(options.readers)
    if "memory" in parts:
        figures["memory"] = asyncio.run(memory.measure(options.parked))
    if "consents" in parts:
        figures["consents"] = asyncio.run(consents.measure(options.parked))
    if "recovery" in parts:
        figures["recovery"] = recovery.measure(options.live, options.ended)
    return figures


def show(figures: dict[str, Any]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"LychD on {figures['machine']['cores']} cores, Python {figures['machine']['python']}")
    for name, justify in (("what", "left"), ("figure", "right"), ("to reach", "right"), ("", "left")):
        table.add_column(name, justify=justify)  # pyright: ignore[reportArgumentType]
    for what, figure, target, verdict in rows(figures):
        table.add_row(what, figure, target, {True: "ok", False: "MISSED", None: ""}[verdict])
    Console().print(table)


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str, bool | None]]:
    """One row a figure: what, its value, what it should reach, whether it does."""
    found: list[tuple[str, str, str, bool | None]] = []
    saq, runs = figures.get("saq"), figures.get("runs")
    if saq:
        found.append(("(a) raw SAQ, no-op jobs", f"{saq['jobs_per_second']:.0f}/s", "", None))
        found.append(("    raw SAQ, enqueue to start, p50 / p99", _ms(saq["start"]), "", None))
    if runs:
        found.append(("(b) Runs with three durable nodes", f"{runs['runs_per_second']:.0f}/s", "", None))
        found.append(("    statements a Run in the ledger", f"{runs['statements_per_run']:.2f}", "", None))
    if saq and runs:
        ratio = runs["runs_per_second"] / saq["jobs_per_second"]
        found.append(("    (b) / (a)", f"{ratio:.2f}", ">= 0.60", ratio >= 0.6))
    if rest := figures.get("rest"):
        found.append(("(c) the same over REST", f"{rest['runs_per_second']:.0f}/s", "", None))
        found.append(("    POST /runs, p50 / p99", _ms(rest["post"]), "", None))
    if runs:
        found.append(("(d) submit to done, one at a time, p50 / p99", _ms(runs["latency"]), "", None))
    if saq and runs:
        ratio = runs["latency"]["p50"] / saq["start"]["p50"]
        found.append(("    (d) p50 / raw SAQ start p50", f"{ratio:.2f}", "<= 4.00", ratio <= 4.0))
    if readers := figures.get("readers"):
        found.append(
            (
                f"(e) {readers['readers']} WebSocket readers, {readers['events']} events",
                f"{readers['delivered_per_second']:.0f} messages/s",
                "",
                None,
            )
        )
        found.append(("    resyncs", str(readers["resyncs"]), "", None))
        found.append(("    events lost without a resync", str(readers["lost"]), "0", readers["lost"] == 0))
        grown = readers["silent_reader_mb"]
        found.append(("    memory of a reader that never reads", f"{grown:.1f} MB", "bounded", grown < 16))
    if memory := figures.get("memory"):
        found.append(
            (f"(f) memory of {memory['runs']} queued Runs", f"{memory['mb']:.1f} MB", "", None),
        )
        found.append(("    a queued Run", f"{memory['bytes_per_run']:.0f} bytes", "", None))
    if consents := figures.get("consents"):
        found += _consents(consents, saq)
    if recovery := figures.get("recovery"):
        found += _recovery(recovery)
    return found


def _recovery(found: dict[str, Any]) -> list[tuple[str, str, str, bool | None]]:
    seconds, wrong = found["seconds"], len(found["wrong"]) + found["degraded"]
    bound = 60 * max(1.0, found["live"] / 100_000, found["ended"] / 1_000_000)
    idle, full = found["idle"], found["idle_full"]
    return [
        (
            f"(h) start after a crash: {found['live']} queued or parked, {found['ended']} ended Runs",
            f"{seconds:.1f} s",
            f"< {bound:.0f} s",
            seconds < bound,
        ),
        ("    Runs found and judged", f"{(found['live'] + found['ended']) / seconds:.0f}/s", "", None),
        ("    CPU of the process over that of an empty start", f"{found['cpu_seconds']:.1f} s", "", None),
        ("    memory over that of an empty start", f"{found['mb']:.1f} MB", "< 200 MB", found["mb"] < 200),
        ("    lines of progress in the log", str(found["progress_lines"]), "", None),
        ("    counts that are wrong, Runs not judged", str(wrong), "0", wrong == 0),
        ("    the next start, nothing to repair", f"{found['again_seconds']:.1f} s", "", None),
        ("    idle Vessel, share of a core", f"{idle['vessel']:.2%}", "< 1%", idle["vessel"] < 0.01),
        ("    the same beside all these Runs", f"{full['vessel']:.2%}", "< 1%", full["vessel"] < 0.01),
        (
            "    its database, empty / beside all these Runs",
            f"{idle['database']:.2%} / {full['database']:.2%}",
            "",
            None,
        ),
    ]


def _consents(consents: dict[str, Any], saq: dict[str, Any] | None) -> list[tuple[str, str, str, bool | None]]:
    back, parked, at_once = consents["return"], consents["parked"], consents["at_once"]
    reached = back["p50"] <= 0.03 and back["p99"] <= 0.15
    found: list[tuple[str, str, str, bool | None]] = [
        ("(g) verdict committed to node entered, p50 / p99", _ms(back), "<= 30 / 150 ms", reached),
        ("    the same from a surface without a broker", _ms(consents["return_elsewhere"]), "", None),
    ]
    if saq:
        found.append(("    raw SAQ, enqueue to start, p50 / p99", _ms(saq["start"]), "", None))
    cheap = parked["mb"] < 30 * max(parked["runs"], 10_000) / 10_000
    found += [
        (f"    memory of {parked['runs']} parked Runs", f"{parked['mb']:.1f} MB", "< 30 MB", cheap),
        ("    their tasks and connections", f"{parked['tasks']}, {parked['connections']}", "0, 0", _none(parked)),
        ("    parked", f"{parked['per_second']:.0f}/s", "", None),
        (f"    {at_once['runs']} grants at once: recorded", f"{at_once['granted_seconds']:.1f} s", "", None),
        ("    all done after", f"{at_once['done_seconds']:.1f} s", "", None),
        (
            "    resumed, twice",
            f"{at_once['resumed']}, {at_once['twice']}",
            f"{at_once['runs']}, 0",
            at_once["resumed"] == at_once["runs"] and at_once["twice"] == 0,
        ),
    ]
    return found


def _none(parked: dict[str, Any]) -> bool:
    return parked["tasks"] <= 0 and parked["connections"] <= 0


def _ms(figure: dict[str, float]) -> str:
    return f"{figure['p50'] * 1000:.1f} / {figure['p99'] * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
