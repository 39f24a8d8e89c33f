"""A browser for tests of pages, and what it says of them."""

import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

CONTRASTS = """() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    if (element.tagName === 'text') {
      const at = element.getBBox();
      for (let one = element.previousElementSibling; one; one = one.previousElementSibling) {
        if (one.tagName !== 'rect') continue;
        const box = one.getBBox();
        if (box.x <= at.x && at.x <= box.x + box.width &&
            box.y <= at.y + at.height / 2 && at.y + at.height / 2 <= box.y + box.height) {
          return parse(getComputedStyle(one).fill);
        }
      }
    }
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const poor = [];
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const front = light(parse(element.tagName === 'text' ? style.fill : style.color));
    const back = light(behind(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    texts += 1;
    if (ratio < 4.5) poor.push([ratio, walker.currentNode.data]);
  }
  return [texts, poor];
}"""
"""Counts the texts on a page, and lists those with less contrast than WCAG AA asks for."""

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Visit:
    """A page in a browser, and what it did that a report must not do."""

    def __init__(self, page):
        self.page = page
        self.requests = []
        self.complaints = []
        page.on("request", lambda request: self.requests.append(request))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))


@contextmanager
def started_browser():
    """An installed Chromium; where there is none, the test is skipped."""
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "google-chrome", "chromium-browser")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with (
        library.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=FLAGS) as started,
    ):
        yield started
