"""Who goes first: decided from sizes, uses, parents and pins alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorline.disk.catalog import Catalog, Entry


def entry(size_bytes: int, used: float = 0.0, parent: str | None = None, *, usable: bool = True) -> Entry:
    return Entry(size_bytes=size_bytes, last_use_seconds=used, file_use_seconds=used, parent=parent, usable=usable)


def catalog_of(**entries: Entry) -> Catalog:
    catalog = Catalog()
    for name, each in entries.items():
        catalog.add(name, each)
    return catalog


Files = dict[str, Entry]


@st.composite
def some_files(draw: st.DrawFn) -> Files:
    """Up to a dozen files, some of them behind others or behind what is not there, some unusable."""
    made: Files = {}
    for number in range(draw(st.integers(0, 12))):
        parent = draw(st.none() | st.integers(-1, number - 1))
        made[f"{number}"] = entry(
            draw(st.integers(1, 9)),
            draw(st.integers(0, 5)),
            None if parent is None else f"{parent}",
            usable=draw(st.integers(0, 5)) > 0,
        )
    return made


def lineage(files: Files, name: str | None) -> set[str]:
    """``name`` and what lies before it, as far as it is there."""
    found: set[str] = set()
    while name is not None and name in files:
        found.add(name)
        name = files[name].parent
    return found


@given(some_files(), st.sets(st.integers(0, 12)), st.integers(0, 60), st.integers(0, 10))
def test_parents_outlive_their_children_and_pins_stay(
    files: Files, pins: set[int], size_bytes: int, spare_bytes: int
) -> None:
    catalog = catalog_of(**files)
    for pin in pins:
        catalog.pin(f"{pin}", True)
    victims = catalog.victims(size_bytes, spare_bytes=spare_bytes)
    assert len(set(victims)) == len(victims)
    stay = {each for pin in pins for each in lineage(files, f"{pin}")}
    assert stay.isdisjoint(victims)
    unusable = set(catalog.unusable())
    for name in files.keys() - unusable - set(victims):
        assert lineage(files, name).isdisjoint(victims), "its root went before it"
    if catalog.size_of(victims) < size_bytes:
        assert files.keys() - set(victims) == stay, "nothing else is left"


def test_no_more_goes_than_is_asked_for_but_for_what_fits_in_the_spare() -> None:
    catalog = catalog_of(a=entry(5, 1), b=entry(5, 2), c=entry(5, 3), d=entry(5, 4))
    assert catalog.victims(6) == ["a", "b"]
    assert catalog.victims(6, spare_bytes=8) == ["a", "b"]
    assert catalog.victims(6, spare_bytes=9) == ["a", "b", "c"]


def test_what_could_not_be_removed_is_not_chosen_again() -> None:
    catalog = catalog_of(a=entry(5, 1), b=entry(5, 2))
    catalog.mark_stuck("a")
    assert catalog.victims(5) == ["b"]
    assert catalog.used_bytes == 10


def test_a_use_is_told_to_the_file_only_once_in_a_while() -> None:
    catalog = catalog_of(a=entry(5, 100), b=entry(5, 100, "a"))
    assert catalog.use("b", 130, lag_seconds=60) == []
    assert catalog.use("b", 161, lag_seconds=60) == ["b", "a"]
    assert catalog.use("b", 200, lag_seconds=60) == []
