"""What callers ask and report, as plain data: the wire's messages without the wire.

Hashes are kept as they were sent; :mod:`inference_cache.domain.blocks` reduces them to block keys. Sequences may be
any kind, the containers of a decoded message and the columns of :mod:`inference_cache.domain.columns` included;
nothing here changes or keeps them beyond one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class LookupRequest(NamedTuple):
    """One question: which replica holds this prompt?

    A prompt is given in one of four ways, strongest first: a chain (``block_hashes`` with
    ``block_token_counts``), one ``prefix_hash``, ``token_ids``, ``prompt_text``.

    Attributes:
        tenant_id: whose index; with an empty id nothing matches.
        model_id: which model; with an empty id nothing matches.
        hash_scheme: how the hashes were made; with an empty scheme nothing matches.
        adapter_id: the LoRA adapter, ``""`` for the base model.
        prefix_hash: hash of the whole prefix.
        prefix_token_count: tokens of that prefix.
        block_hashes: hashes of the prompt's blocks in order.
        block_token_counts: tokens of each of these blocks.
        token_ids: the tokenized prompt, unsigned 32-bit ids.
        prompt_text: the prompt as text.
        ttft_ms: wanted time to first token in milliseconds; 0 or less = no objective.
    """

    tenant_id: str = ""
    model_id: str = ""
    hash_scheme: str = ""
    adapter_id: str = ""
    prefix_hash: bytes = b""
    prefix_token_count: int = 0
    block_hashes: Sequence[bytes] = ()
    block_token_counts: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    prompt_text: str = ""
    ttft_ms: int = 0


@dataclass(frozen=True, slots=True)
class UpdateEntry:
    """One reported prefix: a chain of blocks, a single hash, or a chain that also carries a single hash.

    Attributes:
        prefix_hash: hash of the whole prefix, ``b""`` when only the chain is meant.
        token_count: tokens of ``prefix_hash``.
        block_hashes: hashes of the prefix' blocks in order.
        block_token_counts: tokens of each of these blocks, not summed.
        tier: the wire's number: 0 = unspecified, 1 to 3, anything else = a tier we do not know.
        adapter_id: adapter of this entry, ``""`` = the update's.
    """

    prefix_hash: bytes = b""
    token_count: int = 0
    block_hashes: Sequence[bytes] = ()
    block_token_counts: Sequence[int] = ()
    tier: int = 0
    adapter_id: str = ""
