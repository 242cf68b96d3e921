from __future__ import annotations

import json
import socket

import pytest
from typer.testing import CliRunner, Result

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.cli.commands import build_app
from tests.cli.canned import Canned

runner = CliRunner(env={"COLUMNS": "120"})


def lookup(server: str, *arguments: str) -> Result:
    return runner.invoke(build_app(), ["lookup", "--server", server, "--tenant", "t", "--model", "m", *arguments])


def ask(server: str, *arguments: str) -> Result:
    """Look up some prompt, where it does not matter which."""
    return lookup(server, "--hash", "ea06", *arguments)


def hit() -> pb.LookupRouteResponse:
    scores = [
        pb.ReplicaScore(
            replica_id="[red]pod-1", score=12.5, matched_tokens=32, estimated_cache_hit_prob=0.5, tier=pb.CACHE_TIER_T2
        ),
        pb.ReplicaScore(replica_id="pod-2"),
    ]
    return pb.LookupRouteResponse(reason_code="PREFIX_MATCH", lookup_latency_us=321, replica_scores=scores)


def test_chain_is_asked_with_its_counts(canned: Canned) -> None:
    """Hashes keep their order, however they are given, and each has the tokens that the option says."""
    answer = lookup(
        canned.address,
        *("--hash", "ea06", "--hash", "0xad01,ff"),
        *("--block-tokens", "32", "--scheme", "sglang", "--adapter", "sql", "--ttft-ms", "150"),
    )
    assert answer.exit_code == 0
    assert canned.asked == [
        pb.LookupRouteRequest(
            tenant_id="t",
            model_id="m",
            hash_scheme="sglang",
            adapter_id="sql",
            block_hashes=[b"\xea\x06", b"\xad\x01", b"\xff"],
            block_token_counts=[32, 32, 32],
            slo=pb.SLO(ttft_ms=150),
        )
    ]


def test_prefix_and_tokens_are_asked_as_given(canned: Canned) -> None:
    """An exact hash and token ids go to their own fields, and no objective is sent unasked."""
    lookup(canned.address, "--prefix-hash", "77", "--prefix-tokens", "9")
    lookup(canned.address, "--token-ids", "1, 2 4294967295")
    prefix, tokens = canned.asked
    assert (prefix.hash_scheme, tokens.hash_scheme) == ("vllm", "vllm")
    assert (prefix.prefix_hash, prefix.prefix_token_count, list(prefix.token_ids)) == (b"\x77", 9, [])
    assert (tokens.prefix_hash, list(tokens.token_ids)) == (b"", [1, 2, 2**32 - 1])
    assert not prefix.HasField("slo")


def test_table_shows_ranked_replicas_and_why(canned: Canned) -> None:
    """A person sees the reason, the replicas in order and every figure; ids are shown as they are."""
    canned.route = hit()
    text = ask(canned.address).stdout
    for word in ("PREFIX_MATCH", "[red]pod-1", "12.500", "32", "0.500", "T2", "321 µs"):
        assert word in text
    assert text.index("pod-1") < text.index("pod-2")


def test_an_index_that_is_away_is_told_in_words(canned: Canned) -> None:
    """The answer is one all the same: a gateway goes on without a hint."""
    canned.route = pb.LookupRouteResponse(reason_code="INDEX_UNAVAILABLE")
    answer = ask(canned.address)
    assert answer.exit_code == 0
    assert "its index (Redis) does not" in " ".join(answer.stdout.split())


def test_json_has_the_names_of_the_wire(canned: Canned) -> None:
    """A program gets one object on stdout with every field of the answer."""
    canned.route = hit()
    answer = json.loads(ask(canned.address, "-o", "json").stdout)
    assert answer["reason_code"] == "PREFIX_MATCH"
    assert answer["lookup_latency_us"] == 321
    assert answer["replica_scores"][0] == {
        "replica_id": "[red]pod-1",
        "score": 12.5,
        "matched_tokens": 32,
        "estimated_cache_hit_prob": 0.5,
        "tier": "CACHE_TIER_T2",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--hash", ""],
        ["--hash", "ea06", "--tenant", ""],
        ["--hash", "ea06", "--model", " "],
        ["--hash", "ea06", "--prefix-hash", "77"],
        ["--hash", "ea06", "--token-ids", "1"],
        ["--prefix-hash", "77", "--token-ids", "1"],
        ["--hash", "xyz"],
        ["--prefix-hash", "0"],
        ["--token-ids", "1,-2"],
        ["--token-ids", "4294967296"],
        ["--hash", "ea06", "--output", "xml"],
        ["--hash", "ea06", "--ttft-ms", "-1"],
    ],
)
def test_wrong_usage_is_status_2_and_asks_nobody(canned: Canned, arguments: list[str]) -> None:
    """A mistyped value never reaches a server."""
    answer = lookup(canned.address, *arguments)
    assert answer.exit_code == 2
    assert "Traceback" not in answer.stderr
    assert canned.asked == []


@pytest.mark.parametrize(("digits", "words"), [("123", "odd number of digits"), ("xy", "not hexadecimal")])
def test_bad_hash_is_told_what_is_wrong_with_it(canned: Canned, digits: str, words: str) -> None:
    """Digits that do not make whole bytes are hexadecimal all the same."""
    assert words in " ".join(lookup(canned.address, "--hash", digits).stderr.split())


@pytest.mark.parametrize("server", ["", "http://127.0.0.1:9090", "127.0.0.1", "127.0.0.1:70000", "host:0", ":9090"])
def test_unusable_address_is_status_2_and_shows_a_usable_one(server: str) -> None:
    """A typing error is told at once, not as a server that does not answer."""
    answer = ask(server)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "127.0.0.1:9090" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_targets_of_grpc_are_taken_as_they_are(canned: Canned) -> None:
    """Names with several addresses and Unix sockets are for gRPC to judge."""
    assert ask(f"dns:///{canned.address}").exit_code == 0
    assert ask("unix:/nowhere/at/all").exit_code == 1


def test_a_peers_control_characters_never_reach_the_terminal(canned: Canned) -> None:
    """Whatever a replica calls itself, it is shown, and cannot move the cursor or ring the bell."""
    scores = [pb.ReplicaScore(replica_id="pod\x1b[2J\x07")]
    canned.route = pb.LookupRouteResponse(reason_code="A\x1bB", replica_scores=scores)
    text = ask(canned.address).stdout
    assert r"pod\x1b[2J\x07" in text
    assert "\x1b" not in text
    canned.route.adapter_id = "a\x9b2J\x7f\U000e0001\n"
    text = ask(canned.address, "-o", "json").stdout
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["adapter_id"] == canned.route.adapter_id
    canned.refusal = "no\x1b[2J\x07"
    assert r"no\x1b[2J\x07" in ask(canned.address).stderr


def test_no_server_is_status_1_and_says_what_to_do() -> None:
    """Without a server the command ends in a sentence on stderr."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    answer = ask(address)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "inference-cache serve" in answer.stderr


def test_silent_server_is_status_1_within_the_timeout() -> None:
    """A server that accepts and never answers does not hang the command."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = ask(f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.startswith("error: ")


def test_refusal_is_told_in_the_servers_words(canned: Canned) -> None:
    """What the server says about a refused call is what the person reads."""
    canned.refusal = "not yours"
    answer = ask(canned.address)
    assert answer.exit_code == 1
    assert "PERMISSION_DENIED: not yours" in answer.stderr
