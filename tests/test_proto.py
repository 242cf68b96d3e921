"""The contract: wire numbers written down a second time, comments on everything, stubs that match their source."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from grpc_tools import protoc  # type: ignore[import-untyped]

from inference_cache._pb import inferencecache_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = "inferencecache/v1alpha1/inferencecache.proto"

# message: its fields in wire order as "name type number"; "*" repeated, "%" map of strings. Typed in from the contract
# and never derived from the .proto, so that a renumbered field is a difference here.
FIELDS = {
    "SLO": "ttft_ms int32 1, tbt_ms int32 2",
    "RenderTemplateRequest": "template_ref string 1, variables % 2, tenant_id string 3",
    "RenderTemplateResponse": "rendered_prompt bytes 1, stable_prefix_hash bytes 2, tenant_namespace bytes 3, "
    "reason_code string 4, template_revision string 5",
    "LookupRouteRequest": "model_id string 1, tenant_id string 2, prefix_hash bytes 3, prefix_token_count int32 4, "
    "hash_scheme string 5, slo SLO 6, block_hashes *bytes 7, block_token_counts *int32 8, token_ids *uint32 9, "
    "prompt_text string 10, adapter_id string 11",
    "ReplicaScore": "replica_id string 1, score float 2, matched_tokens int32 3, estimated_cache_hit_prob float 4, "
    "tier CacheTier 5",
    "LookupRouteResponse": "replica_scores *ReplicaScore 1, reason_code string 2, lookup_latency_us int64 3, "
    "token_ids *uint32 4, adapter_id string 5",
    "LookupPDRouteRequest": "model_id string 1, tenant_id string 2, prefix_hash bytes 3, prefix_token_count int32 4, "
    "pd_topology_ref string 5",
    "LookupPDRouteResponse": "prefill_replica_id string 1, decode_replica_id string 2, transport_hint string 3, "
    "reason_code string 4",
    "PrefixEntry": "prefix_hash bytes 1, token_count int32 2, block_hashes *bytes 3, block_token_counts *int32 4, "
    "tier CacheTier 5, adapter_id string 6",
    "ReplicaStats": "replica_id string 1, cache_memory_bytes int64 2, hit_rate float 3, pressure float 4, "
    "client_version string 5, t2_hit_tokens int64 6, t2_query_tokens int64 7",
    "CacheStateUpdate": "replica_id string 1, model_id string 2, tenant_id string 3, hash_scheme string 4, "
    "timestamp_us int64 5, prefixes *PrefixEntry 6, stats ReplicaStats 7, adapter_id string 8",
    "CacheSummary": "total_prefixes int64 1, hot_prefixes int64 2",
    "GetCacheStateRequest": "model_id string 1, tenant_id string 2",
    "GetCacheStateResponse": "replicas *ReplicaStats 1, summary CacheSummary 2",
    "CacheEvent": "type Type 1, replica_id string 2, model_id string 3, tenant_id string 4, prefix_hash bytes 5, "
    "timestamp_us int64 6, adapter_id string 7, prefix_hashes *bytes 8",
    "StreamEventsRequest": "model_id string 1, tenant_id string 2, types *Type 3",
    "StreamMetricsRequest": "names *string 1",
    "Metric": "name string 1, type string 2, labels % 3, value double 4, timestamp_us int64 5",
    "Ack": "accepted bool 1, reason_code string 2",
}
ENUMS = {
    "CacheTier": ["CACHE_TIER_UNSPECIFIED", "CACHE_TIER_T1", "CACHE_TIER_T2", "CACHE_TIER_T3"],
    "Type": ["TYPE_UNSPECIFIED", "PREFIX_ADDED", "PREFIX_EVICTED", "REPLICA_UPDATED", "ALL_CLEARED"],
}
METHODS = {
    "RenderTemplate": "RenderTemplateRequest -> RenderTemplateResponse",
    "LookupRoute": "LookupRouteRequest -> LookupRouteResponse",
    "LookupPDRoute": "LookupPDRouteRequest -> LookupPDRouteResponse",
    "GetCacheState": "GetCacheStateRequest -> GetCacheStateResponse",
    "ReportCacheState": "*CacheStateUpdate -> Ack",
    "PublishEvent": "CacheEvent -> Ack",
    "StreamCacheEvents": "StreamEventsRequest -> *CacheEvent",
    "StreamMetrics": "StreamMetricsRequest -> *Metric",
}
_SCALARS = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in ("string", "bytes", "int32", "int64", "uint32", "float", "double", "bool")
}


def _kind(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return "%"
    named = message or field.enum_type
    return ("*" if field.is_repeated else "") + (named.name if named is not None else _SCALARS[field.type])


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_proto", ROOT / "scripts" / "generate_proto.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def source() -> descriptor_pb2.FileDescriptorProto:
    """The contract as compiled from its text, with its comments."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "contract.pb"
        assert (
            protoc.main(
                ["protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={out}", "--include_source_info", CONTRACT]
            )
            == 0
        )
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def test_messages_have_the_contracts_fields() -> None:
    """Every message has exactly the contract's fields, types and numbers."""
    messages = {
        name: ", ".join(f"{f.name} {_kind(f)} {f.number}" for f in message.fields)
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    assert messages == FIELDS


def test_enums_have_the_contracts_values() -> None:
    """Enum values count up from 0 in the contract's order, and the two enums live where the contract has them."""
    tier = pb.DESCRIPTOR.enum_types_by_name["CacheTier"]
    event = pb.DESCRIPTOR.message_types_by_name["CacheEvent"].enum_types_by_name["Type"]
    for enum in (tier, event):
        assert [(v.name, v.number) for v in enum.values] == [(v, i) for i, v in enumerate(ENUMS[enum.name])]


def test_service_has_the_contracts_methods() -> None:
    """The eight methods stream on the sides that the contract says, under the contract's package and service name."""
    service = pb.DESCRIPTOR.services_by_name["InferenceCache"]
    assert service.full_name == "inferencecache.v1alpha1.InferenceCache"
    methods = {
        m.name: f"{'*' * m.client_streaming}{m.input_type.name} -> {'*' * m.server_streaming}{m.output_type.name}"
        for m in service.methods
    }
    assert methods == METHODS


def test_everything_is_commented(source: descriptor_pb2.FileDescriptorProto) -> None:
    """The contract is its own reference: each message, field, enum, value and method has a comment above it."""
    commented = {tuple(location.path) for location in source.source_code_info.location if location.leading_comments}
    wanted: set[tuple[int, ...]] = {(6, 0)} | {(6, 0, 2, i) for i in range(len(source.service[0].method))}
    for i, message in enumerate(source.message_type):
        wanted |= {(4, i)} | {(4, i, 2, j) for j in range(len(message.field))}
        for j, enum in enumerate(message.enum_type):
            wanted |= {(4, i, 4, j)} | {(4, i, 4, j, 2, k) for k in range(len(enum.value))}
    for i, enum in enumerate(source.enum_type):
        wanted |= {(5, i)} | {(5, i, 2, j) for j in range(len(enum.value))}
    assert len(wanted) > 100
    assert wanted <= commented


def test_fields_and_values_give_an_example(source: descriptor_pb2.FileDescriptorProto) -> None:
    """A field's comment has an example, and a default or that it is always set; an enum value's has an example."""
    for location in source.source_code_info.location:
        path, text = tuple(location.path), location.leading_comments
        if len(path) == 4 and path[0] == 4 and path[2] == 2:
            name = f"{source.message_type[path[1]].name}.{source.message_type[path[1]].field[path[3]].name}"
            assert re.search(r"Example:\s", text), name
            assert re.search(r"\bDefault\b|[Aa]lways", text), name
        elif (len(path) == 4 and path[0] == 5) or (len(path) == 6 and path[2] == 4):
            assert re.search(r"Example:\s", text), text


def test_stubs_are_what_the_contract_generates(tmp_path: Path) -> None:
    """The committed stubs equal freshly generated ones, and a changed file is noticed."""
    script = _script()
    assert script.differences(script.TARGET) == []
    script.generate(tmp_path)
    (tmp_path / "inferencecache_pb2.py").write_text("stale")
    assert script.differences(tmp_path) == ["inferencecache_pb2.py"]
