"""What is wrong with a page of ours: what loads, what runs, what a screen reader cannot tell."""

import itertools
import re
import xml.etree.ElementTree as ET

FOREIGN = {"script", "img", "iframe", "object", "embed", "form", "base", "foreignObject", "use"}


def faults(page):
    """What is wrong with a page: what might load or run, and what a screen reader stumbles over."""
    root = parsed(page)
    return [*_loads(root), *_unreadable(root)]


def parsed(page):
    return ET.fromstring(page)  # noqa: S314 - the page is ours


def _loads(root):
    for element in root.iter():
        if element.tag in FOREIGN:
            yield f"element {element.tag}"
        for name, value in element.items():
            if name.startswith("on") or name in ("src", "srcset", "style"):
                yield f"attribute {name}"
            if name.endswith("href") and not value.startswith(("#", "data:,")):
                yield f"link to {value}"
    style = "".join(element.text for element in root.iter("style"))
    yield from re.findall(r"@import|url\(|image-set|expression", style)


def _unreadable(root):
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    if len(set(ids)) < len(ids):
        yield "two elements of one id"
    for element in root.iter():
        target = element.get("aria-labelledby") or (element.get("href") or "")[1:]
        if (element.get("href") or "#")[0] == "#" and target and target not in ids:
            yield f"no element {target}"
        if element.tag == "th" and element.get("scope") not in ("col", "row"):
            yield "header without scope"
        silent = element.get("role") != "img" or not element.get("aria-label")
        if element.tag == "svg" and element.get("aria-hidden") != "true" and silent:
            yield "figure without text"
        if element.tag == "section" and not element.get("aria-labelledby"):
            yield "section without name"
    levels = [int(one.tag[1]) for one in root.iter() if re.fullmatch("h[1-6]", one.tag)]
    if levels[:1] != [1] or any(b > a + 1 for a, b in itertools.pairwise(levels)):
        yield f"headings {levels}"
    if not root.get("lang"):
        yield "no language"
