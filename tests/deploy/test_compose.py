from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_cache.cli.commands import build_app
from inference_cache.config import all_settings, read_config
from inference_cache.domain.durations import duration_ns
from inference_cache.metric_table import DEFINITIONS
from inference_cache.store.connection.address import parse_address

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
OVERRIDES = sorted(path.name for path in FOLDER.glob("*redis*.yml"))
ADMIN_PORT = "8081"
OURS = ("server", "engine", "gateway")
TELLS_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


class Loader(yaml.SafeLoader):
    """YAML with Compose's own tags, which say how files are merged."""


Loader.add_constructor("!reset", lambda _loader, _node: None)


def load(path: Path) -> dict[str, Any]:
    return dict(yaml.load(path.read_text(), Loader))  # noqa: S506 - a SafeLoader with one more tag


COMPOSE = load(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def environment(*services: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for service in services for name, value in service.get("environment", {}).items()}


def host_ports(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (host side, container port) of everything a service publishes."""
    for mapping in service.get("ports", []):
        yield tuple(re.sub(r"\$\{\w+:-(\d+)\}", r"\1", mapping).rsplit(":", 1))  # type: ignore[misc]


def options_of(service: str) -> list[str]:
    """Return the flags that a service passes to one of our commands."""
    return [word for word in SERVICES[service]["command"] if str(word).startswith("--")]


def test_servers_can_be_scaled() -> None:
    """No fixed port of the host and no fixed name stands in the way of a second server."""
    server = SERVICES["server"]
    assert list(host_ports(server)) == [("127.0.0.1:", "9090")]  # any free port
    assert "container_name" not in server
    assert "hostname" not in server


def test_operators_endpoint_is_never_published() -> None:
    """The admin port has no authentication, so nobody outside of the containers' network reaches it."""
    assert environment(SERVICES["server"])["INFERENCE_CACHE_SNAPSHOT_BIND_ADDRESS"] == f":{ADMIN_PORT}"
    published = [port for service in SERVICES.values() for _, port in host_ports(service)]
    assert published
    assert ADMIN_PORT not in published
    assert "EXPOSE 9090 8080\n" in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def test_everything_published_is_on_loopback() -> None:
    """`docker compose up` on a laptop opens nothing to its network."""
    for name, service in SERVICES.items():
        for host, _ in host_ports(service):
            assert host.startswith("127.0.0.1:"), name


def test_images_of_others_are_pinned() -> None:
    """A new start brings the versions that were tried; dashboards and the scraper to the very release."""
    others = {name: service["image"] for name, service in SERVICES.items() if name not in OURS}
    assert {"redis", "prometheus", "grafana"} <= others.keys()
    for name, image in others.items():
        assert re.search(r":v?\d+\.\d+\.\d+$" if name in {"prometheus", "grafana"} else r":\d+", image), image
    assert {SERVICES[name]["image"] for name in OURS} == {"inference-cache:${INFERENCE_CACHE_TAG:-local}"}


def test_every_container_is_hardened() -> None:
    """No container writes to its image, gains rights, or has a capability."""
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges=true"], name
        assert not service.get("privileged"), name


def test_settings_are_ones_that_serve_accepts() -> None:
    """A misspelled variable would be ignored in silence; all of them are twins of flags, with usable values."""
    given = environment(SERVICES["server"])
    known = {name for item in all_settings() for name in item.env}
    assert given.keys() - known == set()
    config = read_config({}, given)
    assert config.listen.insecure_disable_auth
    assert parse_address(config.redis.redis_url).hosts == (("redis", 6379),)


def test_a_new_server_is_seen_within_ten_seconds() -> None:
    """Clients connect anew often enough: the age, a tenth more, and the second between two resolutions."""
    listen = read_config({}, environment(SERVICES["server"])).listen
    assert 0 < listen.max_connection_age_ms * 1.1 + 1000 < 10_000
    grace_ms = duration_ns(SERVICES["server"]["stop_grace_period"]) // 1_000_000
    assert grace_ms > read_config({}, {}).process.shutdown_grace_ms


@pytest.mark.parametrize("service", ["engine", "gateway"])
def test_simulated_ones_call_the_servers_by_their_name(service: str) -> None:
    """Both find all servers through DNS, and their flags exist."""
    words = SERVICES[service]["command"]
    assert words[:2] == ["simulate", service]
    assert words[words.index("--server") + 1] == "dns:///server:9090"
    import typer.main  # noqa: PLC0415 - only this test looks inside the command line

    group: Any = typer.main.get_command(build_app())
    known = {name for option in group.commands["simulate"].commands[service].params for name in option.opts}
    assert set(options_of(service)) <= known


@pytest.mark.parametrize("name", ["docker-compose.yml", *OVERRIDES])
def test_redis_keeps_everything_and_evicts_nothing(name: str) -> None:
    """Whatever the variant, Redis has an append-only file, a limit, and refuses at it rather than to forget."""
    path = ROOT / name if name == "docker-compose.yml" else FOLDER / name
    words = load(path)["services"]["redis"].get("command")
    if words is None:
        assert name == "external-redis.yml"
        return
    settings = dict(zip(words[1::2], words[2::2], strict=True))
    assert settings["--appendonly"] == "yes"
    assert settings["--maxmemory-policy"] == "noeviction"
    assert settings["--maxmemory"].startswith("${REDIS_MAXMEMORY:-")
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert "healthcheck" in SERVICES["redis"]


def test_redis_is_for_servers_only() -> None:
    """Redis is on a network without a way out, which nobody but the servers shares."""
    assert COMPOSE["networks"]["store"] == {"internal": True}
    members = {name for name, service in SERVICES.items() if "store" in service.get("networks", [])}
    assert members == {"redis", "server"}
    assert SERVICES["redis"]["networks"] == ["store"]
    assert not list(host_ports(SERVICES["redis"]))


def test_observers_start_only_when_asked_for() -> None:
    """A plain `up` starts what serves; the rest has its profile."""
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert [name for name, profile in profiles.items() if profile is None] == ["redis", "server", "engine", "gateway"]
    assert profiles["prometheus"] == profiles["grafana"] == ["observe"]


@pytest.mark.parametrize("name", OVERRIDES)
def test_overrides_change_known_services_and_say_how_they_are_used(name: str) -> None:
    """Each file has its command line on top, gives the server a URL it accepts, and no secret of its own."""
    override = load(FOLDER / name)
    assert override.keys() == {"services"}
    assert override["services"].keys() <= SERVICES.keys()
    text = (FOLDER / name).read_text()
    assert f"docker compose -f docker-compose.yml -f deploy/compose/{name} up --wait" in text
    url = environment(override["services"]["server"])["INFERENCE_CACHE_REDIS_URL"]
    asked = re.findall(r"\$\{(\w+):\?set \1\}", url)
    assert asked, "what has no default is asked for"
    plain = re.sub(r"\?ssl_ca_certs=\S+", "", re.sub(r"\$\{REDIS_PASSWORD:[^}]*\}", "secret", url))
    if name != "external-redis.yml":
        assert parse_address(plain).password == "secret"  # noqa: S105 - not one
        assert parse_address(plain).hosts == (("redis", 6379),)


def test_own_redis_is_not_waited_for() -> None:
    """With an external Redis the one of the file neither starts nor holds up the servers."""
    override = load(FOLDER / "external-redis.yml")["services"]
    assert override["redis"]["profiles"] == ["own-redis"]
    assert override["server"]["depends_on"] is None


def test_every_server_is_scraped() -> None:
    """The scraper asks the name service for all addresses, at the port of /metrics, as often as servers may come."""
    (job,) = load(FOLDER / "prometheus.yml")["scrape_configs"]
    assert "static_configs" not in job
    (found,) = job["dns_sd_configs"]
    assert (found["names"], found["type"], found["port"]) == (["server"], "A", 8080)
    assert duration_ns(found["refresh_interval"]) <= duration_ns("10s")
    mounted = [volume.split(":")[0] for name in ("prometheus", "grafana") for volume in SERVICES[name]["volumes"]]
    assert [path for path in mounted if path.startswith("./") and not (ROOT / path).exists()] == []


def test_dashboard_shows_metrics_that_exist() -> None:
    """Every series of every panel is one of the server's own, with labels that it has."""
    kinds = {one.full_name: one for one in DEFINITIONS}
    dashboard = json.loads((FOLDER / "grafana" / "dashboards" / "inference-cache.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 10
    for expression in expressions:
        named = set(re.findall(r"\b(?:inferencecache|process)_\w+", expression))
        assert named, expression
        for name in named - TELLS_PROCESS:
            base = kinds[name.removesuffix("_bucket")]
            assert name.endswith("_bucket") == (base.kind == "histogram"), name
            grouped = {word for part in re.findall(r"by \(([^)]*)\)", expression) for word in part.split(", ")}
            chosen = set(re.findall(r"(\w+)=\"", expression))
            assert (grouped | chosen) - {"instance", "le"} <= set(base.labels), expression
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {_source()["uid"]}


def test_grafana_finds_the_dashboard() -> None:
    """What is provisioned, what is mounted and what is shown first are the same file."""
    grafana = SERVICES["grafana"]
    (provider,) = load(FOLDER / "grafana" / "provisioning" / "dashboards" / "inference-cache.yml")["providers"]
    where = provider["options"]["path"]
    assert f"./deploy/compose/grafana/dashboards:{where}:ro" in grafana["volumes"]
    home = environment(grafana)["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{where}/inference-cache.json"
    assert _source()["url"] == "http://prometheus:9090"


def _source() -> dict[str, Any]:
    (source,) = load(FOLDER / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    return dict(source)
