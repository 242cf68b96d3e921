"""`inference-cache policy` against a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from inference_cache.cli.commands import build_app
from tests.support.process import Serving, run, serving
from tests.support.servers import free_ports

POLICY = """\
apiVersion: inferencecache.io/v1alpha1
kind: CachePolicy
metadata: {name: p, namespace: %s}
spec: {evictionTTL: %s, eviction: LFU, affinityRouting: Disabled}
"""
TENANT = """\
apiVersion: inferencecache.io/v1alpha1
kind: CacheTenant
metadata: {name: q, namespace: x}
spec: {tenantID: acme, quota: {maxIndexEntries: 5}, isolationMode: %s}
"""
CLEAR = '{"version": 7}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield one server for all tests here; each begins by saying what is in force."""
    with serving(tmp_path_factory.mktemp("policy")) as started:
        yield started


def policy(server: Serving | None, *arguments: str, text: str = "") -> Result:
    """Run a policy command on a server."""
    where = ("--admin", f"http://{server.wait_for('startup')['snapshot_addr']}") if server else ()
    runner = CliRunner(env={"COLUMNS": "160"})
    return runner.invoke(build_app(), ["policy", *arguments, *where], input=text)


@pytest.fixture
def cleared(server: Serving) -> Serving:
    """Return the server without any policies."""
    assert policy(server, "apply", "-", text=CLEAR).exit_code == 0
    return server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory with a policy and a quota."""
    home = tmp_path / "policies"
    home.mkdir()
    (home / "p.yaml").write_text(POLICY % ("acme", "15m"))
    (home / "q.yaml").write_text(TENANT % "Fairness")
    return home


def in_force(server: Serving) -> dict[str, object]:
    """Return what the server shows."""
    found: dict[str, object] = json.loads(policy(server, "get", "-o", "json").stdout)
    return found


def test_applied_manifests_are_in_force(cleared: Serving, home: Path) -> None:
    """Files one by one or their directory: the same set, and a second time nothing changes."""
    first = policy(cleared, "apply", str(home / "p.yaml"), str(home / "q.yaml"))
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.startswith("applied: 1 policy, 1 quota; generation ")
    again = policy(cleared, "apply", str(home))
    assert again.stdout == first.stdout.replace("applied", "unchanged")
    shown = in_force(cleared)
    assert shown["source"] == "cli"
    assert shown["policy"]["policies"][0]["evictionTTL"] == 900 * 10**9  # type: ignore[index]


def test_apply_tells_programs_what_became_of_it(cleared: Serving, home: Path) -> None:
    """As JSON, with the digest by which other tools compare."""
    said = json.loads(policy(cleared, "apply", str(home), "-o", "json").stdout)
    shown = in_force(cleared)
    assert said == {
        "changed": True,
        "policies": 1,
        "tenants": 1,
        "generation": shown["generation"],
        "digest": shown["digest"],
    }


def test_what_get_shows_can_be_applied_again(cleared: Serving, home: Path, tmp_path: Path) -> None:
    """A saved answer is a backup."""
    policy(cleared, "apply", str(home))
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(in_force(cleared)["policy"]))
    policy(cleared, "apply", "-", text=CLEAR)
    assert policy(cleared, "apply", str(saved)).exit_code == 0
    assert policy(cleared, "diff", str(home)).exit_code == 0


def test_get_shows_people_every_knob(cleared: Serving, home: Path) -> None:
    """Who wrote it, and each tenant's values in words."""
    policy(cleared, "apply", str(home))
    shown = policy(cleared, "get").stdout
    for word in ("generation", "by cli on", "acme", "15m", "lfu", "affinity off", "1 policy", "1 quota", "5", "digest"):
        assert word in shown
    assert "None" not in shown


def test_get_is_readable_on_a_narrow_terminal(cleared: Serving, tmp_path: Path) -> None:
    """At 80 columns no word is torn, whatever a policy sets."""
    knobs = {"routingFloorScore": 0.25, "lookupTimeoutMs": 40, "affinityRouting": True, "minimumMatchedTokens": 128}
    row = {"namespace": "a-tenant-with-a-long-name", "evictionTTL": 5_400 * 10**9, "minimumPrefixTokens": 64, **knobs}
    (tmp_path / "body.json").write_text(json.dumps({"version": 7, "policies": [row]}))
    policy(cleared, "apply", str(tmp_path / "body.json"))
    runner = CliRunner(env={"COLUMNS": "80"})
    where = f"http://{cleared.wait_for('startup')['snapshot_addr']}"
    lines = runner.invoke(build_app(), ["policy", "get", "--admin", where]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    words = [word.strip(" ,│") for line in lines for word in line.split()]
    for word in (row["namespace"], "1h30m", "64", "128", "0.25", "40ms", "affinity"):
        assert word in words


@pytest.mark.parametrize("body", [b"[]", b"{}", b'"x"'])
def test_json_of_somebody_else_is_one_sentence(body: bytes) -> None:
    """Never a trace."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        answer = policy(None, "get", "--admin", f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "is this the admin port?" in answer.stderr


def test_admin_may_be_named_with_its_path(cleared: Serving) -> None:
    """Whoever copies the whole URL is understood."""
    where = f"http://{cleared.wait_for('startup')['snapshot_addr']}/policy"
    for url in (where, where + "/"):
        assert policy(None, "get", "--admin", url).exit_code == 0


def test_get_from_a_server_that_never_saw_redis_says_so(tmp_path: Path) -> None:
    """Nobody takes the defaults of a server without Redis for what somebody wrote."""
    nowhere = f"redis://127.0.0.1:{free_ports(1)[0]}"
    with serving(tmp_path, "--redis-url", nowhere) as blind:
        blind.wait_for("startup")
        shown = policy(blind, "get").stdout
        assert "never read from Redis (down), the defaults are in force" in shown
        assert "None" not in shown
        assert "nobody" not in shown
        said = json.loads(policy(blind, "get", "-o", "json").stdout)
        assert "never read" in said["problem"]


def test_get_before_anything_was_written_says_so(tmp_path: Path) -> None:
    """A fresh server has the defaults, by nobody."""
    with serving(tmp_path) as fresh:
        assert "generation 0, written by nobody" in policy(fresh, "get").stdout


def test_diff_shows_what_would_change_and_changes_nothing(cleared: Serving, home: Path) -> None:
    """Status 1 and a unified diff from what is in force to the files; 0 and silence once applied."""
    different = policy(cleared, "diff", str(home))
    assert different.exit_code == 1
    assert different.stdout.startswith("--- in force (generation ")
    assert '+      "evictionTTL": 900000000000,' in different.stdout
    assert in_force(cleared)["policy"] == {"version": 7, "policies": [], "tenants": []}
    as_json = policy(cleared, "diff", str(home), "-o", "json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["different"] is True
    policy(cleared, "apply", str(home))
    same = policy(cleared, "diff", str(home))
    assert (same.exit_code, same.stdout) == (0, "")


def test_a_warning_is_no_refusal(cleared: Serving, tmp_path: Path) -> None:
    """What is accepted without effect is told on stderr, so that output can be piped."""
    (tmp_path / "q.yaml").write_text(TENANT % "crypto")
    answer = policy(cleared, "apply", str(tmp_path), "-o", "json")
    assert answer.exit_code == 0
    assert answer.stderr.startswith("warning: ")
    assert json.loads(answer.stdout)["tenants"] == 1


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_unusable_files_are_status_2_with_their_place(cleared: Serving, home: Path, command: str) -> None:
    """Each problem names its file; nothing is applied."""
    (home / "broken.yaml").write_text(POLICY.replace("eviction: LFU", "eviction: FIFO") % ("other", "1h"))
    answer = policy(cleared, command, str(home))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "broken.yaml" in answer.stderr
    assert "eviction" in answer.stderr
    assert in_force(cleared)["policy"] == {"version": 7, "policies": [], "tenants": []}


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_a_missing_file_is_status_2(command: str) -> None:
    """Before any server is asked."""
    answer = policy(None, command, "nowhere.yaml")
    assert answer.exit_code == 2
    assert "nowhere.yaml: No such file or directory" in answer.stderr


def test_nothing_at_all_clears_nothing(cleared: Serving, home: Path, tmp_path: Path) -> None:
    """An empty directory is more likely a slip than a wish; an explicit body is one."""
    policy(cleared, "apply", str(home))
    (tmp_path / "empty").mkdir()
    answer = policy(cleared, "apply", str(tmp_path / "empty"))
    assert answer.exit_code == 2
    assert 'apply the body {"version": 7}' in answer.stderr
    assert len(in_force(cleared)["policy"]["policies"]) == 1  # type: ignore[index]
    policy(cleared, "apply", "-", text=CLEAR)
    assert in_force(cleared)["policy"] == {"version": 7, "policies": [], "tenants": []}


def test_a_body_is_the_only_file(home: Path) -> None:
    """It replaces everything, so a second file would be silently lost."""
    (home / "body.json").write_text(CLEAR)
    answer = policy(None, "apply", str(home))
    assert answer.exit_code == 2
    assert "must be the only file" in answer.stderr


@pytest.mark.parametrize(("command", "status"), [("apply", 1), ("get", 1), ("diff", 2)])
def test_no_server_is_one_sentence(home: Path, command: str, status: int) -> None:
    """Never a trace; diff keeps status 1 for a difference."""
    where = f"http://127.0.0.1:{free_ports(1)[0]}"
    files = [] if command == "get" else [str(home)]
    answer = policy(None, command, *files, "--admin", where)
    assert answer.exit_code == status
    assert "is `inference-cache serve` running?" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_another_port_is_recognised(cleared: Serving) -> None:
    """Whoever names the public port is told."""
    answer = policy(None, "get", "--admin", f"http://{cleared.http}")
    assert answer.exit_code == 1
    assert "is this the admin port?" in answer.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "file:///etc/passwd", "http://"])
def test_admin_must_be_a_url(url: str) -> None:
    """Anything else is a usage error that shows what one looks like."""
    answer = policy(None, "get", "--admin", url)
    assert answer.exit_code == 2
    assert "http://127.0.0.1:8081" in answer.stderr


def test_it_is_a_command_of_the_installed_program(cleared: Serving, home: Path) -> None:
    """As a process of its own, the way a script runs it."""
    where = f"http://{cleared.wait_for('startup')['snapshot_addr']}"
    ended = run("policy", "apply", str(home), "--admin", where)
    assert (ended.returncode, ended.stderr) == (0, "")
