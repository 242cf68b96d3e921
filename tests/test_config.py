from __future__ import annotations

import dataclasses
import re

import pytest

from inference_cache.config import CONCERNS, ServeConfig, all_settings, read_config
from inference_cache.errors import ConfigError
from inference_cache.settings import Address, Setting

SETTINGS = list(all_settings())
WRONG = {
    "--grpc-bind-address": ["9090", "host", "host:", ":65536", ":-1", "::1:9090", "[::1:9090", "[nine]:1", "a:b:1"],
    "--log-level": ["loud", "info,debug"],
    "--log-format": ["xml"],
    "--redis-key-prefix": ["{a}", "a b", "a:b", "x" * 65],
    "--redis-read-from": ["both", "replicas"],
    "--redis-max-replica-lag": ["0", "99ms", "1", "11m"],
    "--lookup-timeout-ms": ["-1", "50ms", "1.5", "9" * 30],
    "--max-lookups-in-flight": ["0", "-1", "many"],
    "--engine-block-size": ["many", "65537"],
    "--affinity": ["random"],
    "--max-token-ids": ["0"],
    "--max-prompt-bytes": ["-5"],
    "--pressure-weight": ["nan", "inf", "-1", "heavy"],
    "--slo-threshold-ms": ["-1"],
    "--slo-bias": ["-0.5"],
    "--tenant-hot-min-hit-rate": ["1.1", "-0.1"],
    "--tenant-hot-max-age": ["5", "-5m", "5 m", "5min"],
    "--default-ttl": ["0", "999ms", "30", "PT30M", "1h-1m", "9000h"],
    "--sweep-period": ["0", "10ms"],
    "--max-entries": ["-1", "1e6"],
    "--replica-liveness-ttl": ["-1s", "7"],
    "--hot-threshold": ["0", "1.5"],
    "--workers": ["0", "-1", "65", "two"],
    "--shutdown-grace": ["forever"],
    "--insecure-disable-auth": ["maybe"],
    "--max-connection-age": ["-1s", "30", "8d", "200h"],
    "--max-connection-age-grace": ["soon", "-1s"],
}


def by_flag(flag: str) -> Setting:
    return next(item for item in SETTINGS if item.flag == flag)


def test_defaults_are_those_of_the_contract() -> None:
    """A server without flags or environment behaves as the contract's tables say."""
    config = read_config({}, {})
    assert config == ServeConfig()
    assert (str(config.listen.grpc_bind_address), str(config.listen.http_bind_address)) == (":9090", ":8080")
    assert config.listen.snapshot_bind_address == Address("127.0.0.1", 8081)
    assert (config.redis.redis_url, config.redis.redis_key_prefix) == ("embedded:", "ic")
    assert (config.lookup.lookup_timeout_ms, config.lookup.engine_block_size, config.lookup.affinity) == (
        50,
        16,
        "modulo",
    )
    assert (config.lookup.max_token_ids, config.lookup.max_prompt_bytes) == (2**20, 2**20)
    assert (config.ranking.tenant_hot_min_hit_rate, config.ranking.tenant_hot_max_age_ms) == (0.1, 300_000)
    assert (config.retention.default_ttl_ms, config.retention.sweep_period_ms) == (1_800_000, 10_000)
    assert (config.retention.max_entries, config.retention.replica_liveness_ttl_ms) == (1_000_000, 0)
    assert config.retention.hot_threshold == 2
    assert (config.process.workers, config.process.shutdown_grace_ms) == (1, 10_000)


def test_flag_wins_over_twin_and_twin_over_default() -> None:
    """The more deliberate place wins."""
    env = {"INFERENCE_CACHE_LOOKUP_TIMEOUT_MS": "70"}
    assert read_config({}, env).lookup.lookup_timeout_ms == 70
    assert read_config({"lookup_timeout_ms": None}, env).lookup.lookup_timeout_ms == 70
    assert read_config({"lookup_timeout_ms": "80"}, env).lookup.lookup_timeout_ms == 80


def test_empty_variable_counts_as_unset() -> None:
    """Compose files pass unset variables on as empty ones; that must not break a start."""
    assert read_config({}, {item.env[0]: "" for item in SETTINGS}) == ServeConfig()


def test_redis_url_has_a_well_known_second_variable() -> None:
    """`REDIS_URL` is honoured, and our own twin wins over it."""
    both = {"REDIS_URL": "redis://b:6379", "INFERENCE_CACHE_REDIS_URL": "redis://a:6379"}
    assert read_config({}, {"REDIS_URL": "redis://b:6379"}).redis.redis_url == "redis://b:6379"
    assert read_config({}, both).redis.redis_url == "redis://a:6379"


@pytest.mark.parametrize(("flag", "text"), [(flag, text) for flag, texts in WRONG.items() for text in texts])
def test_bad_value_names_flag_and_variable_wherever_it_came_from(flag: str, text: str) -> None:
    """Whoever made the mistake learns which of the two places to look at, and what would be right."""
    item = by_flag(flag)
    for flags, env in (({item.name: text}, {}), ({}, {item.env[0]: text})):
        with pytest.raises(ConfigError) as caught:
            read_config(flags, env)
        assert flag in str(caught.value)
        assert item.env[0] in str(caught.value)
        assert "must" in str(caught.value)


def test_every_validated_setting_has_a_wrong_value_above() -> None:
    """A new setting comes with a test of what it refuses.

    Addresses share a parser; the URL and the directories are judged where they are used, an account may be anything.
    """
    assert {item.flag for item in SETTINGS} - set(WRONG) == {
        "--embedded-dir",
        "--policy-dir",
        "--redis-url",
        "--redis-sentinel-username",
        "--redis-sentinel-password",
        "--http-bind-address",
        "--snapshot-bind-address",
    }


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--default-ttl", "30", "from 1s to 8784h; the value '30' from the command line"),
        ("--sweep-period", "2h", "from 100ms to 1h; the value '2h' from"),
        ("--log-level", "loud", "debug, info, warning, error, warn; the value 'loud' from"),
    ],
)
def test_bad_value_is_repeated_beside_what_would_be_right(flag: str, text: str, words: str) -> None:
    """Bounds are written as the value has to be."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_config({by_flag(flag).name: text}, {})


def test_what_looks_like_a_password_is_not_repeated() -> None:
    """Not even when a URL went to the wrong flag, where it cannot be used."""
    with pytest.raises(ConfigError) as caught:
        read_config({"grpc_bind_address": "redis://user:hunter2@host"}, {})
    assert "hunter2" not in str(caught.value)


def test_password_never_shows() -> None:
    """A printed configuration does not repeat the Redis URL, which may carry a password."""
    assert "hunter2" not in repr(read_config({"redis_url": "redis://user:hunter2@host"}, {}))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("30m", 1_800_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("2500ms", 2500), (" 10s ", 10_000), ("0h1m", 60_000)],
)
def test_durations_are_written_as_in_go(text: str, milliseconds: int) -> None:
    """Operators of the baseline keep their notation."""
    assert read_config({"default_ttl_ms": text}, {}).retention.default_ttl_ms == milliseconds


@pytest.mark.parametrize("text", ["0", "-1", "-16"])
def test_block_size_of_zero_or_less_is_the_default(text: str) -> None:
    """The baseline's rule: nonsense falls back to 16, it does not stop the server."""
    assert read_config({"engine_block_size": text}, {}).lookup.engine_block_size == 16


@pytest.mark.parametrize(("text", "level"), [("WARN", "warning"), (" Debug ", "debug"), ("", "info")])
def test_log_words_are_forgiving(text: str, level: str) -> None:
    """Case and spaces do not matter, `warn` is a synonym and an empty flag the default."""
    assert read_config({"log_level": text}, {}).logs.log_level == level


@pytest.mark.parametrize("address", [":8081", "0.0.0.0:8081", "[::]:8081", "10.0.0.7:8081", "cache.internal:8081"])
def test_admin_port_beyond_loopback_needs_a_deliberate_word(address: str) -> None:
    """Without authentication the operator's endpoints stay on this machine, unless somebody says otherwise."""
    with pytest.raises(ConfigError, match="--insecure-disable-auth"):
        read_config({"snapshot_bind_address": address}, {})
    config = read_config({"snapshot_bind_address": address, "insecure_disable_auth": "true"}, {})
    assert str(config.listen.snapshot_bind_address) == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:8081", "localhost:8081"])
def test_loopback_needs_no_word(address: str) -> None:
    """Every way of writing loopback starts without a further flag."""
    assert str(read_config({"snapshot_bind_address": address}, {}).listen.snapshot_bind_address) == address


def test_flags_and_variables_are_unique_and_explained() -> None:
    """Each setting has one flag, one twin, one sentence."""
    assert len({item.flag for item in SETTINGS}) == len({item.env[0] for item in SETTINGS}) == len(SETTINGS)
    for item in SETTINGS:
        assert item.env[0] == "INFERENCE_CACHE_" + item.flag[2:].replace("-", "_").upper()
        assert item.help.endswith(".")


def test_every_concern_is_read() -> None:
    """A concern that is added to the configuration is also offered to the operator."""
    assert [item.name for item in dataclasses.fields(ServeConfig)] == list(CONCERNS)
