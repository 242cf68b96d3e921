"""`inference-cache lookup`: ask a running server where a prompt should go."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.cli.client import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    INDEX_AWAY,
    ModelOption,
    ServerOption,
    TenantOption,
    TimeoutOption,
    calling,
)
from inference_cache.cli.output import USAGE, Output, OutputOption, fail, print_json, print_table
from inference_cache.domain.reasons import INDEX_UNAVAILABLE

MAX_TOKEN_ID = 2**32 - 1
EPILOG = """\b
Examples:
  inference-cache lookup --tenant acme --model llama --hash ea06fc71a5ee6e88 --hash ad01835a37dd294c
  inference-cache lookup --tenant acme --model llama --token-ids 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16
  inference-cache lookup --tenant acme --model llama --prefix-hash 7072656669782d61 -o json

Exit status: 0 answered, whatever the reason code; 1 no answer; 2 wrong usage."""


def parse_hex(text: str) -> bytes:
    """Parse one hash written in hexadecimal."""
    digits = text.strip().removeprefix("0x")
    if not re.fullmatch("[0-9a-fA-F]*", digits):
        raise typer.BadParameter(f"{text!r} is not hexadecimal")
    if len(digits) % 2:
        raise typer.BadParameter(f"{text!r} has an odd number of digits; a byte has two")
    return bytes.fromhex(digits)


def parse_hashes(values: list[str]) -> list[bytes]:
    """Parse hashes given one an option, or several with commas between."""
    parts = [part for value in values for part in value.split(",")]
    if not all(part.strip() for part in parts):
        raise typer.BadParameter("a hash is empty")
    return [parse_hex(part) for part in parts]


def parse_token_ids(text: str) -> list[int]:
    """Parse token ids with commas or spaces between."""
    words = text.replace(",", " ").split()
    if any(not word.isascii() or not word.isdigit() or int(word) > MAX_TOKEN_ID for word in words):
        raise typer.BadParameter(f"token ids are whole numbers from 0 to {MAX_TOKEN_ID}")
    return [int(word) for word in words]


def lookup(
    tenant: TenantOption,
    model: ModelOption,
    server: ServerOption = DEFAULT_SERVER,
    scheme: Annotated[str, typer.Option(help="How the hashes were made.")] = "vllm",
    adapter: Annotated[str, typer.Option(help="LoRA adapter; empty is the base model.")] = "",
    hashes: Annotated[
        list[str] | None,
        typer.Option(
            "--hash", "--block-hashes", metavar="HEX", help="Block hashes in prompt order; repeat, or use commas."
        ),
    ] = None,
    block_tokens: Annotated[int, typer.Option(min=0, help="Tokens in each of these blocks.")] = 16,
    prefix_hash: Annotated[str, typer.Option(metavar="HEX", help="One hash of the whole prefix.")] = "",
    prefix_tokens: Annotated[int, typer.Option(min=0, help="Tokens of that prefix.")] = 0,
    token_ids: Annotated[
        str, typer.Option(metavar="ID,ID,...", help="The tokenized prompt; the server makes the hashes.")
    ] = "",
    ttft_ms: Annotated[int, typer.Option(min=0, help="Wanted time to first token, 0 = none.")] = 0,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask where a prompt should go: ranked replicas and a reason code.

    The prompt is given by one of --hash, --prefix-hash and --token-ids. A match of fewer tokens than the tenant's
    minimumMatchedTokens (64 unless a policy says otherwise) counts as a miss.
    """
    chain, prefix, tokens = parse_hashes(hashes or []), parse_hex(prefix_hash), parse_token_ids(token_ids)
    _check_one_prompt({"--hash": chain, "--prefix-hash": prefix, "--token-ids": tokens})
    request = pb.LookupRouteRequest(
        tenant_id=tenant,
        model_id=model,
        hash_scheme=scheme,
        adapter_id=adapter,
        block_hashes=chain,
        block_token_counts=[block_tokens] * len(chain),
        prefix_hash=prefix,
        prefix_token_count=prefix_tokens,
        token_ids=tokens,
        slo=pb.SLO(ttft_ms=ttft_ms) if ttft_ms else None,
    )
    with calling(server) as stub:
        answer = as_dict(stub.LookupRoute(request, timeout=timeout))
    if output is Output.JSON:
        print_json(answer)
    else:
        _print(answer)


def _check_one_prompt(given: dict[str, Any]) -> None:
    """End the command unless exactly one option says what the prompt is: the server would follow only one of them."""
    said = [flag for flag, value in given.items() if value]
    if len(said) > 1:
        fail(f"{' and '.join(said)} at once: one of them says what the prompt is", USAGE)
    if not said:
        fail(f"say what the prompt is, with one of {', '.join(given)}", USAGE)


def as_dict(answer: pb.LookupRouteResponse) -> dict[str, Any]:
    """Return the answer under the wire's names, defaults included."""
    return {
        "reason_code": answer.reason_code,
        "lookup_latency_us": answer.lookup_latency_us,
        "adapter_id": answer.adapter_id,
        "replica_scores": [
            {
                "replica_id": score.replica_id,
                "score": score.score,
                "matched_tokens": score.matched_tokens,
                "estimated_cache_hit_prob": score.estimated_cache_hit_prob,
                "tier": _tier_name(score.tier),
            }
            for score in answer.replica_scores
        ],
    }


def _tier_name(tier: int) -> str:
    known: dict[int, str] = {value: name for name, value in pb.CacheTier.items()}
    return known.get(tier, str(tier))


def _print(answer: dict[str, Any]) -> None:
    rows = [
        (
            score["replica_id"],
            f"{score['score']:.3f}",
            score["matched_tokens"],
            f"{score['estimated_cache_hit_prob']:.3f}",
            score["tier"].removeprefix("CACHE_TIER_"),
        )
        for score in answer["replica_scores"]
    ]
    columns = ("replica", "score", "matched tokens", "hit probability", "tier")
    reason = answer["reason_code"]
    title = f"{reason}: {INDEX_AWAY}" if reason == INDEX_UNAVAILABLE else reason
    print_table(title, columns, rows, f"answered in {answer['lookup_latency_us']} µs by the server")
