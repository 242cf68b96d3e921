"""Replicas that have fallen silent: what is left of the evidence when they do not count."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

from inference_cache.domain.models import ChainEvidence, ExactEvidence


@overload
def without_silent(evidence: ChainEvidence) -> ChainEvidence: ...
@overload
def without_silent(evidence: ExactEvidence) -> ExactEvidence: ...
def without_silent(evidence: ChainEvidence | ExactEvidence) -> ChainEvidence | ExactEvidence:
    """Return the evidence of the replicas that are not silent: what they hold, and who serves.

    So a silent replica is neither named nor counted among those from which an answer distinguishes.
    """
    if not evidence.silent:
        return evidence
    silent = frozenset(evidence.silent)
    serving = tuple(each for each in evidence.serving if each not in silent)
    if isinstance(evidence, ChainEvidence):
        return replace(
            evidence, serving=serving, runs=tuple(run for run in evidence.runs if run.replica_id not in silent)
        )
    return replace(
        evidence,
        serving=serving,
        holders=tuple(each for each in evidence.holders if each.replica_id not in silent),
        warm=tuple(row for row in evidence.warm if row[0] not in silent),
    )
