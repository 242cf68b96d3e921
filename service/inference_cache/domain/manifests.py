"""Policies and quotas as Kubernetes manifests, read as a controller and its admission checks would read them.

A set of files is taken as a whole or not at all, and everything that is wrong with it is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inference_cache.domain.policy_set import PolicySet, canonical_body, digest
from inference_cache.errors import PolicyError


@dataclass(frozen=True, slots=True)
class ManifestSet:
    """What a set of files says.

    Attributes:
        policy_set: its policies and quotas.
        warnings: what was accepted but has no effect, a sentence each.
    """

    policy_set: PolicySet
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The digest of the set's canonical body: it changes when the meaning does, not when a comment does."""
        return digest(canonical_body(self.policy_set))


def parse_manifests(files: Mapping[str, bytes]) -> ManifestSet:
    """Read the manifests of files, given by name.

    Raises:
        PolicyError: something in any of them cannot be used; each problem names file, document and field.
    """
    raise PolicyError(f"{', '.join(sorted(files))}: manifests are not read yet")
