"""Configurations from one name for each setting, so that a test can change any one of them."""

from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.search import SearchConfig, SearchParams

_RENAMED = {
    "min_cohort": "min_search_cohort",
    "clip": "update_clip",
    "resolution_bits": "update_resolution_bits",
}
NESTED = {
    part: {_RENAMED.get(field.name, field.name): field.name for field in fields(type_)}
    for part, type_ in (("search", SearchParams), ("update", UpdateParams))
}
"""For each nested value of a round, what its fields are called here: {our name: its name}."""

NAMES = {field.name for field in fields(RoundConfig) if field.init} - NESTED.keys() | {
    name for names in NESTED.values() for name in names
}
"""Every setting of a round, by the name it has here."""


def round_of(**settings: object) -> RoundConfig:
    """A round of these settings; those of the search and the update may have their defaults."""
    search, update = _part("search", settings), _part("update", settings)
    return RoundConfig(
        search=SearchParams(**search), update=UpdateParams(**update), **_others(settings)
    )


def changed_round(config: RoundConfig, **settings: object) -> RoundConfig:
    """The same round with other settings."""
    search = replace(config.search, **_part("search", settings))
    update = replace(config.update, **_part("update", settings))
    return replace(config, search=search, update=update, **_others(settings))


def search_of(
    theta: Fraction,
    grid: LossGrid,
    max_weight: int,
    cohort_size: int,
    max_queries: int,
    warm_start: int | None = None,
    min_tail: int = 0,
    **settings: object,
) -> SearchConfig:
    """One search, in the order in which tests say what matters to them."""
    search = SearchParams(max_queries, grid, **settings)
    return SearchConfig(theta, search, max_weight, cohort_size, warm_start, min_tail)


def changed_search(config: SearchConfig, **settings: object) -> SearchConfig:
    """The same search with other settings."""
    names = NESTED["search"]
    own = {name: value for name, value in settings.items() if name not in names}
    return replace(config, search=replace(config.search, **_part("search", settings)), **own)


def _part(part: str, settings: Mapping[str, object]) -> dict[str, object]:
    names = NESTED[part]
    return {names[name]: value for name, value in settings.items() if name in names}


def _others(settings: Mapping[str, object]) -> dict[str, object]:
    nested = {name for names in NESTED.values() for name in names}
    return {name: value for name, value in settings.items() if name not in nested}
