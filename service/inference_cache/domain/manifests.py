"""Policies and quotas as Kubernetes manifests, read as a controller and its admission checks would read them.

A set of files is taken as a whole or not at all, and everything that is wrong with it is told at once. Where several
manifests speak of one namespace or tenant, the one with the smallest (namespace, name) is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

from inference_cache.domain.fields import Fields, Problems, shown
from inference_cache.domain.manifest_kinds import API_VERSION, CACHE_POLICY, CACHE_TENANT, cache_policy, cache_tenant
from inference_cache.domain.policy_set import PolicyRow, PolicySet, Quota, canonical_body, digest
from inference_cache.domain.policy_wire import bounded
from inference_cache.domain.yaml_documents import documents
from inference_cache.errors import PolicyError

Row = TypeVar("Row")

MAX_SET_BYTES = 4 << 20
"""Size of all files of a set together; reading as much takes a second or two."""

_METADATA = (
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
"""What Kubernetes keeps beside a resource's name, so that a set can be what a cluster gave out."""


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


@dataclass(frozen=True, slots=True, order=True)
class _Name:
    """Who a manifest is: the order decides which one is in force."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class _Found:
    """The manifests of a set, by kind and name, while it is read."""

    problems: Problems = field(default_factory=Problems)
    warnings: list[str] = field(default_factory=list)
    places: dict[tuple[str, _Name], str] = field(default_factory=dict)
    policies: dict[_Name, tuple[str, PolicyRow]] = field(default_factory=dict)
    quotas: dict[_Name, tuple[str, Quota]] = field(default_factory=dict)


def parse_manifests(files: Mapping[str, bytes]) -> ManifestSet:
    """Read the manifests of files, given by name.

    Raises:
        PolicyError: something in any of them cannot be used; each problem names file, document and field.
    """
    if (size := sum(map(len, files.values()))) > MAX_SET_BYTES:
        raise PolicyError(f"manifests: {size} bytes together, more than {MAX_SET_BYTES}")
    found = _Found()
    for name, data in sorted(files.items()):
        for place, value in documents(name, data, found.problems):
            _read(place, value, found)
    if found.problems:
        raise PolicyError(*found.problems.sentences())
    policies = _in_force(CACHE_POLICY, found.policies, found)
    quotas = _in_force(CACHE_TENANT, found.quotas, found)
    return ManifestSet(bounded(PolicySet(policies, quotas)), tuple(found.warnings))


def _read(place: str, value: Any, found: _Found) -> None:
    if not isinstance(value, dict):
        found.problems.add("", "expected an object with apiVersion and kind")
        return
    document = Fields(value, "", found.problems)
    known_version = _is_one_of(document, "apiVersion", API_VERSION)
    if not (_is_one_of(document, "kind", CACHE_POLICY, CACHE_TENANT) and known_version):
        return  # the fields of something else are none of ours
    kind = value["kind"]
    name = _name(document.inner("metadata"))
    spec = document.inner("spec")
    document.value("status")
    document.close()
    if kind == CACHE_POLICY:
        found.policies[name] = name.namespace, cache_policy(spec)
    else:
        tenant_id, quota, warnings = cache_tenant(spec)
        found.warnings += [f"{place}: {warning}" for warning in warnings]
        if quota is not None:
            found.quotas[name] = tenant_id, quota
    spec.close()
    if (kind, name) in found.places and name.namespace and name.name:
        found.problems.add("metadata.name", f"{kind} {name} is in {found.places[kind, name]} already")
    found.places[kind, name] = place


def _is_one_of(document: Fields, name: str, *words: str) -> bool:
    if document.value(name) is None:
        document.wrong(name, "required")
        return False
    return document.word(name, words) is not None


def _name(metadata: Fields) -> _Name:
    name = _Name(metadata.required("namespace"), metadata.required("name"))
    for other in _METADATA:
        metadata.value(other)
    metadata.close()
    return name


def _in_force(kind: str, declared: Mapping[_Name, tuple[str, Row]], found: _Found) -> dict[str, Row]:
    """Return the row in force for each namespace or tenant; of the others, warn."""
    rows: dict[str, Row] = {}
    winners: dict[str, _Name] = {}
    for name, (key, row) in sorted(declared.items(), key=itemgetter(0)):
        if key in rows:
            reason = f"{winners[key]} comes first for {shown(key)}"
            found.warnings.append(f"{found.places[kind, name]}: {kind} {name} is not in force: {reason}")
        else:
            rows[key], winners[key] = row, name
    return rows
