"""The demo's result for people: one table a routing, and what follows from them."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inference_cache.cli.output import printable
from inference_cache.sim.demo import Result
from inference_cache.sim.figures import Figures

TROUBLE = ("TIMEOUT", "INDEX_UNAVAILABLE")


def print_result(result: Result) -> None:
    """Print the tables and the conclusions to stdout."""
    console = Console(highlight=False)
    console.print(f"\n{_setting(result)}", markup=False)
    console.print(Columns([_table(one) for one in result.figures], padding=(1, 2)))
    for line in conclusions(result):
        console.print(printable(line), markup=False)


def _table(figures: Figures) -> Table:
    table = Table(title=escape(figures.routing), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows(figures):
        table.add_row(name, value)
    return table


def rows(figures: Figures) -> list[tuple[str, str]]:
    """Return a routing's figures by name, as text with units."""
    return [
        ("token hit rate", f"{figures.token_hit_rate:.1%}"),
        ("ideal", f"{figures.ideal_token_hit_rate:.1%}"),
        ("share of ideal", f"{figures.share_of_ideal:.1%}"),
        ("first token p50", f"{figures.ttft_p50_ms:,.0f} ms"),
        ("first token p99", f"{figures.ttft_p99_ms:,.0f} ms"),
        ("lookup p50", _milliseconds(figures.lookup_p50_ms)),
        ("lookup p99", _milliseconds(figures.lookup_p99_ms)),
    ]


def conclusions(result: Result) -> list[str]:
    """Return what the tables say, in sentences."""
    ours = result.figures[0]
    reasons = ", ".join(f"{name} {count:,}" for name, count in ours.reasons.items())
    trouble = sum(count for name, count in ours.reasons.items() if name in TROUBLE or name.startswith("RPC_"))
    calls = ", ".join(f"{name} {count:,}" for name, count in ours.calls.items())
    gain = (
        f"Through the service {ours.token_hit_rate:.1%} of all prompt tokens were cached: "
        f"{result.gain_over_round_robin:.2f} times as many as with round robin, "
        f"{result.share_of_yardstick:.1%} of a router that sees every cache (yardstick)."
    )
    return [
        gain,
        f"Lookups: {reasons}; {trouble:,} without an answer in time.",
        f"Reports: {ours.blocks_stored:,} blocks stored, {ours.blocks_evicted:,} evicted ({calls}).",
        "Ideal is one cache of the engines' total size. First tokens are in simulated time, lookups in real time.",
    ]


def _setting(result: Result) -> str:
    fleet = result.fleet
    return (
        f"{result.prompts.source}: {result.prompts.part}; {fleet.engines} engines of {fleet.cache_blocks:,} blocks "
        f"({fleet.cache_tokens:,} tokens), {fleet.gateways} gateways"
    )


def _milliseconds(value: float | None) -> str:
    return "no lookups" if value is None else f"{value:.2f} ms"
