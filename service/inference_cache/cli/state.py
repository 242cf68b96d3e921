"""`inference-cache state`: show what a running server knows of a model."""

from __future__ import annotations

from typing import Any

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.cli.client import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    ModelOption,
    ServerOption,
    TenantOption,
    TimeoutOption,
    calling,
)
from inference_cache.cli.output import Output, OutputOption, plural, print_json, print_table

EPILOG = """\b
Example:
  inference-cache state --tenant acme --model llama

Exit status: 0 answered, 1 no answer, 2 wrong usage."""

_MIB = 2**20


def state(
    tenant: TenantOption,
    model: ModelOption,
    server: ServerOption = DEFAULT_SERVER,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a model's replicas with their statistics, and how many prefixes the index holds.

    Only replicas that sent statistics are listed; the prefixes of the others count all the same.
    """
    with calling(server) as stub:
        request = pb.GetCacheStateRequest(tenant_id=tenant, model_id=model)
        answer = as_dict(stub.GetCacheState(request, timeout=timeout))
    if output is Output.JSON:
        print_json(answer)
    else:
        _print(f"{tenant} / {model}", answer)


def as_dict(answer: pb.GetCacheStateResponse) -> dict[str, Any]:
    """Return the answer under the wire's names, defaults included."""
    return {
        "total_prefixes": answer.summary.total_prefixes,
        "hot_prefixes": answer.summary.hot_prefixes,
        "replicas": [
            {
                "replica_id": row.replica_id,
                "cache_memory_bytes": row.cache_memory_bytes,
                "hit_rate": row.hit_rate,
                "pressure": row.pressure,
                "client_version": row.client_version,
                "t2_hit_tokens": row.t2_hit_tokens,
                "t2_query_tokens": row.t2_query_tokens,
            }
            for row in answer.replicas
        ],
    }


def _print(title: str, answer: dict[str, Any]) -> None:
    rows = [
        (
            row["replica_id"],
            f"{row['hit_rate']:.3f}",
            f"{row['pressure']:.3f}",
            f"{row['cache_memory_bytes'] / _MIB:.1f}",
            f"{row['t2_hit_tokens']}/{row['t2_query_tokens']}",
            row["client_version"],
        )
        for row in answer["replicas"]
    ]
    columns = ("replica", "hit rate", "pressure", "cache MiB", "T2 hit/query tokens", "client")
    caption = f"{plural(answer['total_prefixes'], 'prefix', 'prefixes')} in the index"
    print_table(title, columns, rows, caption if rows else f"{caption}; no replica has sent statistics")
