"""What an operator may tune for the whole server: ranker weights and limits, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AffinityMode = Literal["modulo", "rendezvous"]
"""How a miss picks its stable replica."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Weights and limits of lookups, the same for every tenant.

    Attributes:
        pressure_weight: how much a replica's pressure lowers its score; 0 = not at all.
        tight_slo_ms: objectives above 0 and below this many milliseconds are tight.
        tight_slo_bias: how much a tight objective favours fresh holdings; 0 = not at all.
        hot_min_hit_rate: hit rate from which on a replica counts as warm (inclusive).
        hot_max_age_ms: age from which on statistics no longer tell that a replica is warm; 0 = nobody ever is.
        max_token_ids: token ids a lookup may carry, and a prompt may be tokenized to.
        max_prompt_bytes: UTF-8 bytes of prompt text a lookup may carry.
        block_size: tokens a block, when the server derives the blocks itself; positive.
        affinity: how a miss picks its stable replica.
        liveness_ttl_ms: replicas that were silent for longer are left out of answers; 0 = nobody is.
    """

    pressure_weight: float = 1.0
    tight_slo_ms: int = 200
    tight_slo_bias: float = 1.0
    hot_min_hit_rate: float = 0.1
    hot_max_age_ms: int = 5 * 60 * 1000
    max_token_ids: int = 2**20
    max_prompt_bytes: int = 2**20
    block_size: int = 16
    affinity: AffinityMode = "modulo"
    liveness_ttl_ms: int = 0
