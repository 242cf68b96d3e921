from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_cache.domain.manifests import MAX_SET_BYTES, parse_manifests
from inference_cache.domain.policy import Policy
from inference_cache.domain.policy_set import CURRENT_VERSION, PolicySet, canonical_body
from inference_cache.domain.policy_wire import MAX_BODY_BYTES, OLDEST_VERSION, parse_policy_body
from inference_cache.errors import PolicyError

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "policies.md").read_text()
SAMPLES = sorted((ROOT / "testdata" / "policies").glob("*.yaml"))
BARE_BODY = b'{"version":7,"policies":[{"namespace":"a"}],"tenants":[{"tenantID":"a"}]}'
HEAD = "apiVersion: inferencecache.io/v1alpha1\nmetadata: {name: a, namespace: a}\n"
BARE_MANIFESTS = f"{HEAD}kind: CachePolicy\n---\n{HEAD}kind: CacheTenant\nspec: {{tenantID: a}}\n".encode()

SHOWN: dict[str, Callable[[Policy], Any]] = {
    "evictionTTL": lambda policy: f"{policy.ttl_ms // 60_000}m",
    "eviction": lambda policy: policy.eviction,
    "minimumPrefixTokens": lambda policy: policy.minimum_prefix_tokens,
    "minimumMatchedTokens": lambda policy: policy.minimum_matched_tokens,
    "routingFloorScore": lambda policy: f"{policy.routing_floor_score:.7g}",
    "lookupTimeoutMs": lambda policy: policy.lookup_timeout_ms,
    "affinityRouting": lambda policy: "on" if policy.affinity_routing else "off",
    "strategy.enableChainMatching": lambda policy: "on" if policy.enable_chain_matching else "off",
    "strategy.requireChain": lambda policy: "on" if policy.require_chain else "off",
    "strategy.enableTenantHot": lambda policy: "on" if policy.enable_tenant_hot else "off",
    "maxIndexEntries": lambda policy: "none" if policy.max_index_entries is None else policy.max_index_entries,
}
"""How the table writes each knob's value."""


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def knob_rows() -> dict[str, list[str]]:
    """Return the cells of each row of the table of knobs, by the body's field."""
    part = TEXT.partition("## Every knob")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row for row in rows}


def leaves(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield from leaves(value, f"{path}{key}.") if isinstance(value, dict) else [f"{path}{key}"]


def test_the_table_names_every_field_of_the_body() -> None:
    """A knob that the code writes and the page does not explain would be found by reading code only."""
    full = json.loads(canonical_body(parse_manifests({SAMPLES[0].name: SAMPLES[0].read_bytes()}).policy_set))
    written = {*leaves(full["policies"][0]), *leaves(full["tenants"][0])}
    assert set(knob_rows()) == written - {"namespace", "tenantID", "isolationMode"} == set(SHOWN)


def test_the_table_names_every_field_of_the_manifests() -> None:
    """The sample says all of them, and the reader of manifests refuses any other."""
    said = {leaf for one in yaml.safe_load_all(SAMPLES[0].read_text()) for leaf in leaves(one["spec"])}
    assert {row[1].strip("`") for row in knob_rows().values()} == said - {"tenantID", "isolationMode"}


@pytest.mark.parametrize("knob", SHOWN)
def test_the_table_has_the_defaults_of_the_code(knob: str) -> None:
    """Without a policy, and for a row that does not mention the knob, by body and by manifest."""
    sets = (PolicySet(), parse_policy_body(BARE_BODY), parse_manifests({"x": BARE_MANIFESTS}).policy_set)
    assert knob_rows()[knob][2:5] == [str(SHOWN[knob](one.for_tenant("a", Policy()))) for one in sets]


def test_the_examples_are_one_set() -> None:
    """The body on the page is taken, and says what the first manifests say."""
    [body] = fenced("json")
    assert parse_policy_body(body.encode()) == parse_manifests({"x": SAMPLES[0].read_bytes()}).policy_set


def test_the_example_moves_every_knob() -> None:
    """An example at its default would not show that the knob works; chains are on where they are required."""
    policy = parse_policy_body(fenced("json")[0].encode()).for_tenant("team-a", Policy())
    same = [knob for knob, shown in SHOWN.items() if shown(policy) == shown(replace(Policy()))]
    assert same == ["strategy.enableChainMatching"]


def test_the_manifests_on_the_page_are_the_files() -> None:
    """Whoever copies from the page gets what the tests read."""
    assert fenced("yaml") == [path.read_text() for path in SAMPLES]


def test_limits_and_versions_on_the_page_are_those_of_the_code() -> None:
    """Numbers in prose age silently."""
    assert f"Versions {OLDEST_VERSION} to {CURRENT_VERSION} are accepted" in TEXT
    assert f"larger than {MAX_BODY_BYTES >> 20} MiB" in TEXT
    assert f"at most {MAX_SET_BYTES >> 20} MiB" in TEXT


def test_messages_on_the_page_are_what_is_said() -> None:
    """The quoted refusals are real ones."""
    body = b'{"version":7,"policies":[{},{},{"strategy":{"requireChain":"yes"}},{"evictionTtl":1}]}'
    manifests = HEAD + "kind: CachePolicy\n---\n" + HEAD + "kind: CacheTenant\n"
    manifests += "spec: {tenantID: a, quota: {maxIndexEntries: -1}}\n"
    with pytest.raises(PolicyError) as refused:
        parse_policy_body(body)
    assert f"\n    {refused.value}\n" in TEXT
    with pytest.raises(PolicyError) as refused:
        parse_manifests({"team-a.yaml": manifests.encode()})
    assert f"\n    {refused.value}\n" in TEXT
