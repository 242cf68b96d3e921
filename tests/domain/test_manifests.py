from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.float32 import f32
from inference_cache.domain.manifests import MAX_SET_BYTES, ManifestSet, parse_manifests
from inference_cache.domain.policy import Policy
from inference_cache.domain.policy_set import PolicyRow, PolicySet, Quota, canonical_body, digest
from inference_cache.domain.policy_wire import parse_policy_body
from inference_cache.errors import PolicyError
from tests.domain.policy_cases import BAD_MANIFESTS, cache_policy, cache_tenant

SAMPLES = Path(__file__).resolve().parents[2] / "testdata" / "policies"
DEFAULT_ROW = PolicyRow(minimum_matched_tokens=64, routing_floor_score=f32(0.1), affinity_routing=True)


def parse(*documents: str) -> ManifestSet:
    return parse_manifests({"set.yaml": "---\n".join(documents).encode()})


def named(text: str, namespace: str, name: str) -> str:
    """Return a manifest of :mod:`tests.domain.policy_cases` under another name."""
    kind = "p" if "CachePolicy" in text else "t"
    return text.replace(f"{{name: {kind}, namespace: a}}", f"{{name: {name}, namespace: {namespace}}}")


def problems(*documents: str) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as refused:
        parse(*documents)
    return refused.value.problems


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_a_bad_manifest_is_refused_with_file_document_and_field(case: str) -> None:
    """Whoever wrote it can go to the place; a good document before it does not make the set usable."""
    text, message = BAD_MANIFESTS[case]
    found = problems(cache_policy("eviction: LFU").replace("namespace: a", "namespace: good"), text)
    assert any(one.startswith(f"set.yaml, document 2: {message}") for one in found), found


def test_the_table_of_bad_manifests_is_large_enough() -> None:
    """Guards the table itself: at least 60 kinds of wrong."""
    assert len(BAD_MANIFESTS) >= 60


def test_the_samples_say_every_knob() -> None:
    """The manifests that the documentation shows mean what it says they mean."""
    read = parse_manifests({path.name: path.read_bytes() for path in SAMPLES.glob("*.yaml")})
    assert read.warnings == ()
    assert read.policy_set == PolicySet(
        {
            "team-a": PolicyRow(
                eviction_ttl_ns=5_400_000_000_000,
                minimum_prefix_tokens=128,
                minimum_matched_tokens=256,
                routing_floor_score=2.5,
                lookup_timeout_ms=20,
                affinity_routing=False,
                eviction="lfu",
                enable_chain_matching=True,
                require_chain=True,
                enable_tenant_hot=False,
            ),
            "team-b": DEFAULT_ROW,
        },
        {"team-a": Quota(200_000, "Fairness"), "trial": Quota(1000)},
    )


def test_a_bare_policy_has_the_defaults_of_its_resource() -> None:
    """The resource fills in the floors and affinity, so a row from a manifest acts like no row at all."""
    read = parse(cache_policy())
    assert read.policy_set.policies == {"a": DEFAULT_ROW}
    assert read.policy_set.for_tenant("a", Policy()) == Policy()
    assert read.policy_set.for_tenant("a", Policy(ttl_ms=5)).ttl_ms == 5


def test_an_explicit_0_switches_a_floor_off() -> None:
    """0 is a choice, other than nothing."""
    row = parse(cache_policy("minimumMatchedTokens: 0", 'routingFloorScore: "0"')).policy_set.policies["a"]
    assert row.minimum_matched_tokens == 0
    assert row.routing_floor_score == 0


@pytest.mark.parametrize(
    "line",
    [
        "eviction:",
        "evictionTTL:",
        "minimumPrefixTokens: null",
        "minimumMatchedTokens: ~",
        "routingFloorScore:",
        "lookupTimeoutMs:",
        "affinityRouting:",
        "strategy:",
        "strategy: {requireChain: null}",
    ],
)
def test_null_is_absent(line: str) -> None:
    """Kubernetes prunes a null and then fills in the default."""
    assert parse(cache_policy(line)).policy_set.policies == {"a": DEFAULT_ROW}


@pytest.mark.parametrize(
    ("text", "score"),
    [("0", 0), ("0.0", 0), ("0.1", f32(0.1)), ("5", 5), ("99999999.999999", f32(99999999.999999)), ("10.5", 10.5)],
)
def test_floors_are_decimals_in_quotes(text: str, score: float) -> None:
    """The pattern of the resource, to its edges; the value is the float32 next to it."""
    row = parse(cache_policy(f'routingFloorScore: "{text}"')).policy_set.policies["a"]
    assert row.routing_floor_score == score


@pytest.mark.parametrize(
    ("text", "ttl_ns"), [("30m", 1_800 * 10**9), ("1h30m", 5_400 * 10**9), ("1.5s", 1_500_000_000), ("1ns", 1)]
)
def test_ttls_are_go_durations(text: str, ttl_ns: int) -> None:
    """Resources spell durations as Go does."""
    assert parse(cache_policy(f"evictionTTL: {text}")).policy_set.policies["a"].eviction_ttl_ns == ttl_ns


def test_chains_may_be_required_where_matching_was_not_switched_off() -> None:
    """Absent is on, so only an explicit false contradicts."""
    row = parse(cache_policy("strategy: {requireChain: true}")).policy_set.policies["a"]
    assert row.require_chain
    row = parse(cache_policy("strategy: {requireChain: false, enableChainMatching: false}")).policy_set.policies["a"]
    assert row.enable_chain_matching is False


def test_what_kubernetes_adds_is_tolerated() -> None:
    """The output of `kubectl get -o yaml` is a manifest too; nobody reads its status."""
    text = cache_policy("eviction: LFU").replace(
        "{name: p, namespace: a}",
        "{name: p, namespace: a, labels: {a: b}, annotations: {c: d}, uid: x, generation: 3,"
        " creationTimestamp: 2026-01-01T00:00:00Z, resourceVersion: '5', managedFields: [{}]}",
    )
    assert parse(text + "status: {anything: [1, 2]}\n").policy_set.policies["a"].eviction == "lfu"


def test_a_tenant_is_named_by_its_id_not_by_its_resource() -> None:
    """Quotas are keyed by spec.tenantID; an id that looks like a date is still one."""
    read = parse(cache_tenant("tenantID: 2026-01-31", "quota: {maxIndexEntries: 0}"))
    assert read.policy_set == PolicySet({}, {"2026-01-31": Quota(0)})


def test_a_tenant_without_a_number_has_no_quota() -> None:
    """Only quota.maxIndexEntries makes a quota; absent is unlimited, other than in a pushed body."""
    for spec in (["tenantID: a"], ["tenantID: a", "quota: {}"], ["tenantID: a", "quota: {maxIndexEntries: null}"]):
        assert parse(cache_tenant(*spec)).policy_set == PolicySet()


def test_a_quota_alone_keeps_the_default_knobs() -> None:
    """A tenant with a quota and no policy is judged by the server's defaults."""
    read = parse(cache_tenant("tenantID: a", "quota: {maxIndexEntries: 9}"))
    assert read.policy_set.for_tenant("a", Policy()) == Policy(max_index_entries=9)


def test_crypto_is_accepted_with_a_warning() -> None:
    """Nothing isolates more than fair shares do, and whoever asked for more is told."""
    read = parse(cache_tenant("tenantID: a", "isolationMode: crypto", "quota: {maxIndexEntries: 5}"))
    assert read.policy_set.quotas == {"a": Quota(5, "crypto")}
    assert read.warnings == ("set.yaml, document 1: spec.isolationMode: crypto is not provided and has no effect",)


def test_one_policy_a_namespace_the_first_by_name() -> None:
    """Neither the order in a file nor that of the files decides, and the loser is named."""
    files = {
        "1.yaml": named(cache_policy("eviction: LFU"), "a", "zz").encode(),
        "2.yaml": named(cache_policy("lookupTimeoutMs: 5"), "a", "b").encode(),
        "3.yaml": named(cache_policy("lookupTimeoutMs: 6"), "a", "ba").encode(),
    }
    read = parse_manifests(files)
    assert read.policy_set.policies["a"].lookup_timeout_ms == 5
    assert read.warnings == (
        "3.yaml, document 1: CachePolicy a/ba is not in force: a/b comes first for a",
        "1.yaml, document 1: CachePolicy a/zz is not in force: a/b comes first for a",
    )
    assert parse_manifests(dict(reversed(files.items()))) == read


def test_one_quota_a_tenant_the_first_by_namespace_and_name() -> None:
    """The namespace counts before the name; one without a number does not take part."""
    read = parse(
        named(cache_tenant("tenantID: x", "quota: {maxIndexEntries: 1}"), "b", "a"),
        named(cache_tenant("tenantID: x", "quota: {maxIndexEntries: 2}"), "a", "z"),
        named(cache_tenant("tenantID: x"), "a", "a"),
        named(cache_tenant("tenantID: y", "quota: {maxIndexEntries: 3}"), "b", "b"),
    )
    assert read.policy_set.quotas == {"x": Quota(2), "y": Quota(3)}
    assert read.warnings == ("set.yaml, document 1: CacheTenant b/a is not in force: a/z comes first for x",)


def test_one_resource_declared_twice_is_an_error() -> None:
    """In a cluster the later would silently replace the earlier; here nobody knows which is meant."""
    found = problems(cache_policy(), cache_tenant("tenantID: p"), cache_policy("eviction: LFU"))
    assert found == ("set.yaml, document 3: metadata.name: CachePolicy a/p is in set.yaml, document 1 already",)


def test_a_policy_and_a_tenant_may_share_a_name() -> None:
    """Names are a kind's own."""
    assert parse(named(cache_policy(), "a", "x"), named(cache_tenant("tenantID: x"), "a", "x")).policy_set.policies


def test_all_problems_of_all_files_are_told_at_once() -> None:
    """One round of mending is enough, also where a file cannot be read to its end."""
    files = {
        "b.yaml": (cache_policy("evictionTTL: 5") + "---\n" + cache_policy("oops: 1", "eviction: X")).encode(),
        "a.yaml": b"\xff",
        "c.yaml": (cache_tenant() + "---\na: [\n").encode(),
    }
    with pytest.raises(PolicyError) as refused:
        parse_manifests(files)
    assert [one.split(":")[0] + ":" + one.split(":")[1] for one in refused.value.problems] == [
        "a.yaml: not UTF-8 at byte 0",
        "b.yaml, document 1: spec.evictionTTL",
        "b.yaml, document 2: spec.eviction",
        "b.yaml, document 2: spec.oops",
        "b.yaml, document 2: metadata.name",
        "c.yaml, document 1: spec.tenantID",
        "c.yaml, document 2: not YAML",
    ]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n", "null\n", "---\n...\n---\n# nothing\n"])
def test_empty_documents_are_no_documents(text: str) -> None:
    """Editors and templates leave them behind; they still count in the numbers that messages give."""
    assert parse(text) == ManifestSet(PolicySet())


def test_document_numbers_count_empty_ones() -> None:
    """The number is that of the part between separators, as a reader counts."""
    found = problems("---\n", cache_policy("oops: 1"))
    assert found == ("set.yaml, document 2: spec.oops: unknown field",)


def test_no_files_are_the_empty_set() -> None:
    """An empty directory says that every tenant has the defaults."""
    assert parse_manifests({}) == ManifestSet(PolicySet())


def test_json_and_a_byte_order_mark_are_fine() -> None:
    """JSON is YAML, and editors of one system begin files with a mark."""
    text = (
        '\ufeff{"apiVersion": "inferencecache.io/v1alpha1", "kind": "CachePolicy",'
        ' "metadata": {"name": "p", "namespace": "a"}, "spec": {"eviction": "LFU"}}'
    )
    assert parse(text).policy_set.policies["a"].eviction == "lfu"


def test_anchors_and_merges_work_and_do_not_count_as_twice() -> None:
    """An explicit key beside a merged one is how YAML overrides."""
    text = cache_policy("strategy: &s {requireChain: true}").replace("namespace: a", "namespace: b")
    read = parse_manifests(
        {
            "x": (
                cache_policy("strategy: {<<: &s {requireChain: true, enableTenantHot: false}, enableTenantHot: true}")
                + "---\n"
                + text
            ).encode()
        }
    )
    assert read.policy_set.policies["a"].require_chain
    assert read.policy_set.policies["a"].enable_tenant_hot


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 50_000,
        "- " * 50_000,
        "a: &x [*x]",
        "a: &a [x]\nb: &b [" + "*a," * 1000 + "]\nc: &c [" + "*b," * 1000 + "]\nd: [" + "*c," * 1000 + "]",
        "a: 2026-13-45",
        "a: !!binary x",
        "a: !!bool x",
        "a: !!int ''",
        "a: !!float x",
        "a: !!timestamp x",
        "a: !!timestamp 2026-13-45",
        "a: !!omap x",
        "!!set [a]",
        "a: {<<: 5}",
        "a: \x00",
    ],
)
def test_hostile_yaml_is_refused_quickly(text: str) -> None:
    """Deep nesting, cycles, multiplied aliases and broken scalars end in a message."""
    assert problems(text)[0].startswith("set.yaml, document 1: ")


def test_a_message_about_a_deep_and_long_key_is_short() -> None:
    """Neither the depth nor the length of keys makes a message, or what is kept for one, large."""
    text = "".join("{" + f"{'k' * 900}{level}: " for level in range(200)) + "{b: 1, b: 2}" + "}" * 200
    found = problems(text)
    assert any(one.endswith(".b: twice in one mapping") for one in found)
    assert max(map(len, found)) < 800


def test_a_set_has_a_largest_size() -> None:
    """A directory of gigabytes is not read into the server."""
    with pytest.raises(PolicyError, match=f"manifests: {MAX_SET_BYTES + 2} bytes together, more than {MAX_SET_BYTES}"):
        parse_manifests({"a": b" " * MAX_SET_BYTES, "b": b"  "})


def test_the_digest_is_that_of_the_meaning() -> None:
    """Comments, order and spelled-out defaults change no digest; a knob does."""
    plain = parse(cache_policy())
    spelled = parse(
        "# a comment\n", cache_policy("minimumMatchedTokens: 64", "eviction: LRU", 'routingFloorScore: "0.10"')
    )
    assert plain.digest == spelled.digest == digest(canonical_body(plain.policy_set))
    assert plain.digest != parse(cache_policy("eviction: LFU")).digest


@given(
    st.integers(0, 2**31 - 1),
    st.from_regex(r"\A(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?\Z"),
    st.sampled_from(["Enabled", "Disabled"]),
    st.sampled_from(["LRU", "LFU"]),
)
def test_a_manifest_is_the_body_a_controller_would_push(tokens: int, floor: str, affinity: str, eviction: str) -> None:
    """Both ways into the server end in the same set, so that a move from one to the other changes nothing."""
    lines = [f"minimumMatchedTokens: {tokens}", f'routingFloorScore: "{floor}"', f"affinityRouting: {affinity}"]
    pushed = (
        f'{{"version":7,"policies":[{{"namespace":"a","minimumMatchedTokens":{tokens},"routingFloorScore":{floor},'
        f'"affinityRouting":{str(affinity == "Enabled").lower()},"eviction":"{eviction.lower()}"}}]}}'
    )
    read = parse(cache_policy(*lines, f"eviction: {eviction}"))
    assert read.policy_set == parse_policy_body(pushed.encode()) == parse_policy_body(canonical_body(read.policy_set))


@given(st.text(max_size=80) | st.binary(max_size=80))
def test_any_file_is_taken_or_refused(text: str | bytes) -> None:
    """Whatever lies in the directory, the server goes on with a message."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    for file in (data, cache_policy().encode() + b"  eviction: " + data):
        try:
            parse_manifests({"x": file})
        except PolicyError as refused:
            assert refused.problems  # noqa: PT017 - either outcome is right, a crash is not
