"""Policy bodies and manifests that must be refused, with what is said about each."""

from __future__ import annotations

NS = 1_000_000_000


def policy(fields: str, version: int = 7) -> bytes:
    return f'{{"version":{version},"policies":[{{"namespace":"a",{fields}}}]}}'.encode()


def tenant(fields: str) -> bytes:
    return f'{{"version":7,"tenants":[{{"tenantID":"a",{fields}}}]}}'.encode()


VERSIONS = "version: expected a whole number from 3 to 7, "
INT32 = "expected a whole number from -2147483648 to 2147483647, got "
INT64 = "expected a whole number from -9223372036854775808 to 9223372036854775807, got "
FLOAT = "expected a number that fits a float32, got "

BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "body: not JSON at line 1, column 1"),
    "only space": (b"  \n", "body: not JSON at line 2, column 1"),
    "no JSON": (b"not json", "body: not JSON at line 1, column 1"),
    "cut off": (b'{"version":7', "body: not JSON at line 1, column 13"),
    "two values": (b'{"version":7}{}', "body: something behind the value at line 1, column 14"),
    "trailing bytes": (b'{"version":7} x', "body: something behind the value at line 1, column 15"),
    "two commas": (
        b'{"version":7,,}',
        "body: not JSON at line 1, column 14",
    ),
    "comment": (b'{"version":7} // why', "body: something behind the value at line 1, column 15"),
    "byte order mark": (
        b'\xef\xbb\xbf{"version":7}',
        "body: not JSON at line 1, column 1",
    ),
    "UTF-16": ('{"version":7}'.encode("utf-16"), "body: not UTF-8 at byte 0"),
    "bad UTF-8": (policy('"eviction":"?"').replace(b"?", b"\xff"), "body: not UTF-8 at byte 54"),
    "control character": (
        b'{"version":7,"policies":[{"namespace":"a\x01"}]}',
        "body: not JSON at line 1, column 41",
    ),
    "NaN": (policy('"routingFloorScore":NaN'), "body: not JSON: NaN is no number"),
    "Infinity": (policy('"routingFloorScore":-Infinity'), "body: not JSON: -Infinity is no number"),
    "leading zero": (
        policy('"lookupTimeoutMs":01'),
        "body: not JSON at line 1, column 62",
    ),
    "too deep": (b"[" * 100_000 + b"]" * 100_000, "body: nested too deeply"),
    "too large": (b'{"version":7}' + b" " * (1 << 20), "body: larger than 1048576 bytes"),
    "key twice": (b'{"version":7,"version":7}', "body: the key 'version' is twice in one object"),
    "knob twice": (
        policy('"evictionTTL":1,"evictionTTL":2'),
        "body: the key 'evictionTTL' is twice in one object",
    ),
    "null": (b"null", "body: expected an object"),
    "a list": (b"[]", "body: expected an object"),
    "a string": (b'"7"', "body: expected an object"),
    "a number": (b"7", "body: expected an object"),
    "no version": (b"{}", VERSIONS + "missing"),
    "version null": (b'{"version":null}', VERSIONS + "missing"),
    "version 0": (b'{"version":0}', VERSIONS + "got 0"),
    "version 2": (b'{"version":2}', VERSIONS + "got 2"),
    "version 8": (b'{"version":8}', VERSIONS + "got 8"),
    "version 99": (b'{"version":99,"policies":[{"newKnob":1}]}', VERSIONS + "got 99"),
    "version -7": (b'{"version":-7}', VERSIONS + "got -7"),
    "version as text": (b'{"version":"7"}', VERSIONS + "got 7"),
    "version 7.0": (b'{"version":7.0}', VERSIONS + "got 7.0"),
    "version 7e0": (b'{"version":7e0}', VERSIONS + "got 7.0"),
    "version true": (b'{"version":true}', VERSIONS + "got true"),
    "version as object": (b'{"version":{"major":7}}', VERSIONS + "got an object"),
    "Version": (b'{"Version":7}', VERSIONS + "missing"),
    "unknown at the top": (b'{"version":7,"extra":1}', "extra: unknown field"),
    "other case at the top": (b'{"version":7,"Policies":[]}', "Policies: unknown field, did you mean policies?"),
    "policies as object": (b'{"version":7,"policies":{}}', "policies: expected a list, got an object"),
    "policies as text": (b'{"version":7,"policies":"none"}', "policies: expected a list, got none"),
    "tenants as number": (b'{"version":7,"tenants":5}', "tenants: expected a list, got 5"),
    "policy as number": (b'{"version":7,"policies":[{},7]}', "policies[1]: expected an object, got 7"),
    "policy as list": (b'{"version":7,"policies":[[]]}', "policies[0]: expected an object, got a list"),
    "tenant as boolean": (b'{"version":7,"tenants":[false]}', "tenants[0]: expected an object, got false"),
    "namespace as number": (
        b'{"version":7,"policies":[{"namespace":5}]}',
        "policies[0].namespace: expected a string, got 5",
    ),
    "half a surrogate pair": (
        b'{"version":7,"policies":[{"namespace":"a\\ud800"}]}',
        "policies[0].namespace: expected characters, got half of a surrogate pair",
    ),
    "unknown knob": (policy('"minimumTokens":1'), "policies[0].minimumTokens: unknown field"),
    "unknown knob of other letters": (policy('"x y\\n":1'), r"policies[0].'x y\n': unknown field"),
    "knob in another case": (
        policy('"evictionTtl":1'),
        "policies[0].evictionTtl: unknown field, did you mean evictionTTL?",
    ),
    "unknown knob with null": (policy('"extra":null'), "policies[0].extra: unknown field"),
    "unknown knob of a nameless row": (
        b'{"version":7,"policies":[{"extra":1}]}',
        "policies[0].extra: unknown field",
    ),
    "TTL as text": (policy('"evictionTTL":"30m"'), "policies[0].evictionTTL: " + INT64 + "30m"),
    "TTL with a fraction": (policy('"evictionTTL":1.0'), "policies[0].evictionTTL: " + INT64 + "1.0"),
    "TTL with an exponent": (policy('"evictionTTL":1e9'), "policies[0].evictionTTL: " + INT64 + "1000000000.0"),
    "TTL of 2^63": (
        policy('"evictionTTL":9223372036854775808'),
        "policies[0].evictionTTL: " + INT64 + "9223372036854775808",
    ),
    "TTL of 5000 digits": (policy('"evictionTTL":' + "9" * 5000), "policies[0].evictionTTL: " + INT64 + "inf"),
    "prefix tokens of 2^31": (
        policy('"minimumPrefixTokens":2147483648'),
        "policies[0].minimumPrefixTokens: " + INT32 + "2147483648",
    ),
    "matched tokens of -2^31-1": (
        policy('"minimumMatchedTokens":-2147483649'),
        "policies[0].minimumMatchedTokens: " + INT32 + "-2147483649",
    ),
    "matched tokens as boolean": (
        policy('"minimumMatchedTokens":true'),
        "policies[0].minimumMatchedTokens: " + INT32 + "true",
    ),
    "timeout as list": (policy('"lookupTimeoutMs":[5]'), "policies[0].lookupTimeoutMs: " + INT32 + "a list"),
    "floor as text": (policy('"routingFloorScore":"0.1"'), "policies[0].routingFloorScore: " + FLOAT + "'0.1'"),
    "floor as boolean": (policy('"routingFloorScore":false'), "policies[0].routingFloorScore: " + FLOAT + "false"),
    "floor beyond float32": (
        policy('"routingFloorScore":3.4028236e38'),
        "policies[0].routingFloorScore: " + FLOAT + "3.4028236e+38",
    ),
    "floor beyond float64": (policy('"routingFloorScore":1e999'), "policies[0].routingFloorScore: " + FLOAT + "inf"),
    "floor of 5000 digits": (
        policy('"routingFloorScore":-' + "9" * 5000),
        "policies[0].routingFloorScore: " + FLOAT + "-inf",
    ),
    "affinity as word": (
        policy('"affinityRouting":"Enabled"'),
        "policies[0].affinityRouting: expected a boolean, got Enabled",
    ),
    "affinity as number": (policy('"affinityRouting":1'), "policies[0].affinityRouting: expected a boolean, got 1"),
    "eviction as boolean": (policy('"eviction":true'), "policies[0].eviction: expected a string, got true"),
    "strategy as boolean": (policy('"strategy":true'), "policies[0].strategy: expected an object, got true"),
    "strategy as list": (policy('"strategy":[]'), "policies[0].strategy: expected an object, got a list"),
    "switch as text": (
        policy('"strategy":{"requireChain":"yes"}'),
        "policies[0].strategy.requireChain: expected a boolean, got yes",
    ),
    "unknown switch": (
        policy('"strategy":{"enableChains":true}'),
        "policies[0].strategy.enableChains: unknown field",
    ),
    "unknown switch in version 3": (
        policy('"strategy":{"enableTenantHOT":true}', version=3),
        "policies[0].strategy.enableTenantHOT: unknown field, did you mean enableTenantHot?",
    ),
    "tenant id in another case": (
        b'{"version":7,"tenants":[{"tenantId":"x"}]}',
        "tenants[0].tenantId: unknown field, did you mean tenantID?",
    ),
    "tenant id as null object": (
        b'{"version":7,"tenants":[{"tenantID":{}}]}',
        "tenants[0].tenantID: expected a string, got an object",
    ),
    "unknown quota field": (tenant('"quota":1'), "tenants[0].quota: unknown field"),
    "quota as text": (tenant('"maxIndexEntries":"5"'), "tenants[0].maxIndexEntries: " + INT64 + "5"),
    "quota of 2^63": (
        tenant('"maxIndexEntries":9223372036854775808'),
        "tenants[0].maxIndexEntries: " + INT64 + "9223372036854775808",
    ),
    "isolation as number": (tenant('"isolationMode":5'), "tenants[0].isolationMode: expected a string, got 5"),
    "several at once": (
        b'{"version":7,"policies":[{"namespace":1},{"evictionTTL":""}],"x":0}',
        "policies[0].namespace: expected a string, got 1; policies[1].evictionTTL: " + INT64 + "''; x: unknown field",
    ),
}
"""Bodies by what is wrong with them, and the whole message."""

_HEAD = "apiVersion: inferencecache.io/v1alpha1\n"


def cache_policy(*spec: str) -> str:
    """Return a CachePolicy with these lines in its spec."""
    return f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: a}}\nspec:\n" + "".join(
        f"  {line}\n" for line in spec
    )


def cache_tenant(*spec: str) -> str:
    """Return a CacheTenant with these lines in its spec."""
    return f"{_HEAD}kind: CacheTenant\nmetadata: {{name: t, namespace: a}}\nspec:\n" + "".join(
        f"  {line}\n" for line in spec
    )


DURATION = "spec.evictionTTL: expected a duration above 0 such as 30m or 1h30m, got "
DECIMAL = (
    'spec.routingFloorScore: expected a decimal in quotes such as "0.1", at most 8 digits before the point and 6 '
    "after it, got "
)
NATURAL32 = "expected a whole number from 0 to 2147483647, got "
NATURAL64 = "expected a whole number from 0 to 9223372036854775807, got "
GROUP = "expected one of inferencecache.io/v1alpha1, got "
KINDS = "kind: expected one of CachePolicy, CacheTenant, got "

BAD_MANIFESTS: dict[str, tuple[str, str]] = {
    "no YAML": ("a: [1", "not YAML: line "),
    "a tab": ("a:\n\tb: 1", "not YAML: line 8: "),
    "unknown alias": ("a: *x", "not YAML: line 7: "),
    "a tag": ("a: !!python/object:os.system {}", "not YAML: line 7: "),
    "an unusable number": (cache_policy("minimumPrefixTokens: 0b_"), "not YAML: a scalar that does not fit its tag"),
    "a key that is a list": ("? [a]\n: 1", "not YAML: line 7: "),
    "a scalar": ("hello", "expected an object with apiVersion and kind"),
    "a list": ("- a", "expected an object with apiVersion and kind"),
    "no apiVersion": ("kind: CachePolicy", "apiVersion: required"),
    "other apiVersion": ("apiVersion: v1\nkind: CachePolicy", "apiVersion: " + GROUP + "v1"),
    "newer apiVersion": (
        "apiVersion: inferencecache.io/v1\nkind: CachePolicy",
        "apiVersion: " + GROUP + "'inferencecache.io/v1'",
    ),
    "no kind": (_HEAD, "kind: required"),
    "other kind": (f"{_HEAD}kind: CacheBackend", KINDS + "CacheBackend"),
    "a list of kinds": (f"{_HEAD}kind: List\nitems: []", KINDS + "List"),
    "a kind that is a list": (f"{_HEAD}kind: [CachePolicy]", KINDS + "a list"),
    "somebody else's object": ("apiVersion: v1\nkind: ConfigMap\ndata: {}", KINDS + "ConfigMap"),
    "key twice": (cache_policy("eviction: LRU", 'eviction: "LFU"'), "spec.eviction: twice in one mapping"),
    "key twice, deep": (
        cache_policy("strategy: {requireChain: true, requireChain: true}"),
        "spec.strategy.requireChain: twice in one mapping",
    ),
    "key twice, in a list": ("a: [1, {b: 1, b: 2}]", "a[1].b: twice in one mapping"),
    "no metadata": (f"{_HEAD}kind: CachePolicy", "metadata.namespace: required"),
    "no namespace": (f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p}}", "metadata.namespace: required"),
    "no namespace for a tenant": (f"{_HEAD}kind: CacheTenant\nmetadata: {{name: p}}", "metadata.namespace: required"),
    "empty namespace": (
        f'{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: ""}}',
        "metadata.namespace: must not be empty",
    ),
    "namespace as number": (
        f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: 5}}",
        "metadata.namespace: expected a string, got 5",
    ),
    "namespace as mapping": (
        f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: {{}}}}",
        "metadata.namespace: expected a string, got an object",
    ),
    "no name": (f"{_HEAD}kind: CachePolicy\nmetadata: {{namespace: a}}", "metadata.name: required"),
    "unknown metadata": (
        f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: a, label: {{}}}}",
        "metadata.label: unknown field",
    ),
    "metadata as text": (f"{_HEAD}kind: CachePolicy\nmetadata: p", "metadata: expected an object, got p"),
    "unknown at the top": (cache_policy() + "extra: 1", "extra: unknown field"),
    "spec in another case": (
        f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: a}}\nSpec: {{}}",
        "Spec: unknown field, did you mean spec?",
    ),
    "spec as list": (
        f"{_HEAD}kind: CachePolicy\nmetadata: {{name: p, namespace: a}}\nspec: []",
        "spec: expected an object, got a list",
    ),
    "unknown knob": (cache_policy("evictionTtl: 30m"), "spec.evictionTtl: unknown field, did you mean evictionTTL?"),
    "a quota in a policy": (cache_policy("quota: {}"), "spec.quota: unknown field"),
    "eviction in small letters": (cache_policy("eviction: lfu"), "spec.eviction: expected one of LRU, LFU, got lfu"),
    "empty eviction": (cache_policy('eviction: ""'), "spec.eviction: expected one of LRU, LFU, got ''"),
    "TTL without a unit": (cache_policy("evictionTTL: 30"), DURATION + "30"),
    "TTL as quoted number": (cache_policy('evictionTTL: "30"'), DURATION + "30"),
    "TTL of 0": (cache_policy("evictionTTL: 0s"), DURATION + "0s"),
    "TTL below 0": (cache_policy("evictionTTL: -5m"), DURATION + "'-5m'"),
    "TTL in days": (cache_policy("evictionTTL: 1d"), DURATION + "1d"),
    "TTL with a space": (cache_policy("evictionTTL: 1h 30m"), DURATION + "'1h 30m'"),
    "TTL of centuries": (cache_policy("evictionTTL: 9999999h"), DURATION + "9999999h"),
    "prefix tokens below 0": (cache_policy("minimumPrefixTokens: -1"), "spec.minimumPrefixTokens: " + NATURAL32 + "-1"),
    "matched tokens as text": (
        cache_policy('minimumMatchedTokens: "64"'),
        "spec.minimumMatchedTokens: " + NATURAL32 + "64",
    ),
    "matched tokens of 2^31": (
        cache_policy("minimumMatchedTokens: 2147483648"),
        "spec.minimumMatchedTokens: " + NATURAL32 + "2147483648",
    ),
    "matched tokens with a fraction": (
        cache_policy("minimumMatchedTokens: 64.0"),
        "spec.minimumMatchedTokens: " + NATURAL32 + "64.0",
    ),
    "timeout as boolean": (cache_policy("lookupTimeoutMs: yes"), "spec.lookupTimeoutMs: " + NATURAL32 + "true"),
    "floor without quotes": (cache_policy("routingFloorScore: 0.1"), DECIMAL + "0.1"),
    "floor below 0": (cache_policy('routingFloorScore: "-0.1"'), DECIMAL + "'-0.1'"),
    "floor with a leading zero": (cache_policy('routingFloorScore: "01.5"'), DECIMAL + "'01.5'"),
    "floor of 9 digits": (cache_policy('routingFloorScore: "123456789"'), DECIMAL + "123456789"),
    "floor of 7 decimals": (cache_policy('routingFloorScore: "0.1234567"'), DECIMAL + "'0.1234567'"),
    "floor without decimals": (cache_policy('routingFloorScore: "1."'), DECIMAL + "'1.'"),
    "floor with a newline": (cache_policy(r'routingFloorScore: "0.1\n"'), DECIMAL + r"'0.1\n'"),
    "empty floor": (cache_policy('routingFloorScore: ""'), DECIMAL + "''"),
    "floor as exponent": (cache_policy('routingFloorScore: "1e3"'), DECIMAL + "1e3"),
    "affinity as boolean": (
        cache_policy("affinityRouting: true"),
        "spec.affinityRouting: expected one of Enabled, Disabled, got true",
    ),
    "affinity in small letters": (
        cache_policy("affinityRouting: disabled"),
        "spec.affinityRouting: expected one of Enabled, Disabled, got disabled",
    ),
    "chains required and switched off": (
        cache_policy("strategy: {enableChainMatching: false, requireChain: true}"),
        "spec.strategy.requireChain: needs enableChainMatching, which is false",
    ),
    "switch as quoted word": (
        cache_policy('strategy: {requireChain: "true"}'),
        "spec.strategy.requireChain: expected a boolean, got true",
    ),
    "unknown switch": (cache_policy("strategy: {enableHot: true}"), "spec.strategy.enableHot: unknown field"),
    "strategy as list": (cache_policy("strategy: []"), "spec.strategy: expected an object, got a list"),
    "no tenant id": (cache_tenant("quota: {maxIndexEntries: 5}"), "spec.tenantID: required"),
    "empty tenant id": (cache_tenant('tenantID: ""'), "spec.tenantID: must not be empty"),
    "tenant id as number": (cache_tenant("tenantID: 42"), "spec.tenantID: expected a string, got 42"),
    "reserved tenant": (
        cache_tenant("tenantID: inferencecache.io/probe"),
        "spec.tenantID: inferencecache.io/probe is reserved for the server's self-test",
    ),
    "tenant id in another case": (
        cache_tenant("tenantID: a", "tenantId: a"),
        "spec.tenantId: unknown field, did you mean tenantID?",
    ),
    "isolation in small letters": (
        cache_tenant("tenantID: a", "isolationMode: fairness"),
        "spec.isolationMode: expected one of Fairness, crypto, got fairness",
    ),
    "isolation unknown": (
        cache_tenant("tenantID: a", "isolationMode: Strict"),
        "spec.isolationMode: expected one of Fairness, crypto, got Strict",
    ),
    "quota below 0": (
        cache_tenant("tenantID: a", "quota: {maxIndexEntries: -1}"),
        "spec.quota.maxIndexEntries: " + NATURAL64 + "-1",
    ),
    "quota as text": (
        cache_tenant("tenantID: a", "quota: {maxIndexEntries: 5Ki}"),
        "spec.quota.maxIndexEntries: " + NATURAL64 + "5Ki",
    ),
    "quota of 2^63": (
        cache_tenant("tenantID: a", "quota: {maxIndexEntries: 9223372036854775808}"),
        "spec.quota.maxIndexEntries: " + NATURAL64 + "9223372036854775808",
    ),
    "quota as number": (cache_tenant("tenantID: a", "quota: 5"), "spec.quota: expected an object, got 5"),
    "unknown quota field": (cache_tenant("tenantID: a", "quota: {maxBytes: 5}"), "spec.quota.maxBytes: unknown field"),
    "a knob in a tenant": (cache_tenant("tenantID: a", "eviction: LFU"), "spec.eviction: unknown field"),
}
"""One document each, and how one of its problems begins, behind file and document."""
