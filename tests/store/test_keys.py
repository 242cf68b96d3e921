"""Names of keys: no two ids meet, nothing in an id leaves its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.models import ModelKey, Partition
from inference_cache.store.keys import Keys, escape

HOSTILE = st.text(alphabet=st.sampled_from("ab{}/:%=~*\x00\n \u00e9."), max_size=8)
IDS = HOSTILE | st.text(max_size=12).map(lambda text: text.encode("utf-8", "ignore").decode())
KEYS = Keys("ic")


@given(IDS, IDS, IDS, IDS)
def test_two_models_never_share_a_tag(tenant: str, model: str, other_tenant: str, other_model: str) -> None:
    """Different pairs of ids have different keys, equal pairs equal ones."""
    one, other = ModelKey(tenant, model), ModelKey(other_tenant, other_model)
    assert (KEYS.totals(one) == KEYS.totals(other)) == (one == other)
    assert (KEYS.tag(one) == KEYS.tag(other)) == (one == other)


@given(IDS, IDS)
def test_the_hash_tag_is_the_whole_pair(tenant: str, model: str) -> None:
    """A Cluster takes what stands between the first braces: the pair of ids and nothing else."""
    key = KEYS.totals(ModelKey(tenant, model)).decode()
    assert key.count("{") == key.count("}") == 1
    inside = key[key.index("{") + 1 : key.index("}")]
    assert inside == KEYS.tag(ModelKey(tenant, model))
    assert inside.count("/") == 1
    assert not set(inside) & set("{}:\x00\n ")


@given(IDS, IDS, IDS, IDS)
def test_two_partitions_never_share_a_name(scheme: str, adapter: str, other_scheme: str, other_adapter: str) -> None:
    """Different (scheme, adapter) pairs have different names, with one separator."""
    one, other = Partition(scheme, adapter), Partition(other_scheme, other_adapter)
    assert (KEYS.partition(one) == KEYS.partition(other)) == (one == other)
    assert KEYS.partition(one).count("/") == 1


@pytest.mark.parametrize("length", [100, 161, 4096])
def test_a_long_id_becomes_a_short_key(length: int) -> None:
    """Ids of any length give keys of bounded length that still tell them apart."""
    one, other = "x" * length, "x" * (length - 1) + "y"
    assert len(escape(one)) <= 160
    assert escape(one) != escape(other)


def test_no_short_id_looks_like_a_digest() -> None:
    """The mark of a digest cannot be written by an id."""
    digest = escape("x" * 4096)
    assert digest.startswith("=")
    assert escape(digest) != digest


def test_every_adapter_is_told_from_all_adapters() -> None:
    """An eviction names one adapter or all of them; an adapter called ``*`` is one of them."""
    assert KEYS.adapter("") == "*"
    assert KEYS.adapter("*") != "*"


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a b", "a/b"])
def test_a_prefix_cannot_move_the_hash_tag(prefix: str) -> None:
    """A key prefix with braces or odd characters is refused."""
    with pytest.raises(ValueError, match="key prefix"):
        Keys(prefix)
