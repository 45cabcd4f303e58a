"""Builds the site of the manual into site/, in English and in Chinese; a broken link or anchor fails the build.

The pages are those of docs/, and README.md is the first one. Pages that exist in docs/zh replace the English ones in
the Chinese site. Links to files outside docs/, which the site does not contain, become plain text.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build/site"
SITE = ROOT / "site"

CHINESE_TITLES = {
    "Start here": "从这里开始",
    "Overview": "概览",
    "Ten minutes": "十分钟上手",
    "Examples": "示例",
    "Concepts": "概念",
    "Objects and words": "对象与术语",
    "Tools": "工具",
    "Running agents": "运行智能体",
    "Operating": "运维",
    "Reference": "参考",
    "Design documents": "设计文档",
    "Comparison": "对比",
    "Dark": "深色",
    "Light": "浅色",
}

LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def copy_pages(target: Path, *, language: str) -> None:
    """Copy the pages of one language to a folder that the site is built from."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("zh"))
    shutil.copy(ROOT / "README.md", target / "index.md")
    if language == "zh":
        shutil.copytree(ROOT / "docs/zh", target, dirs_exist_ok=True)
    for page in target.rglob("*.md"):
        is_readme = page.name == "index.md" and language == "en"
        page.write_text(rewrite_links(page.read_text(encoding="utf-8"), is_readme=is_readme), encoding="utf-8")


def rewrite_links(text: str, *, is_readme: bool) -> str:
    """The text with links that are right in the site: those to files that it does not contain are plain text."""

    def rewrite(match: re.Match[str]) -> str:
        image, label, address, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in address or address.startswith("mailto:"):
            return match[0]
        if is_readme:
            if not address.startswith("docs/"):
                return label
            address = address.removeprefix("docs/")
            if address.startswith("zh/"):  # a page of the other site
                return f'<a href="{address.removesuffix(".md")}.html">{label}</a>'
        return label if address.startswith("../") else f"{image}[{label}]({address}{anchor})"

    return "".join(
        part if is_code else LINK.sub(rewrite, part).replace('src="docs/', 'src="')
        for part, is_code in split_code(text)
    )


def split_code(text: str) -> list[tuple[str, bool]]:
    """The text in parts, each with whether it is a fenced block of code."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return [(part, index % 2 == 1) for index, part in enumerate(parts)]


def chinese_configuration() -> str:
    """The configuration of the Chinese site, which is a folder of the English one."""
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    for english, chinese in CHINESE_TITLES.items():
        text = text.replace(f'"{english}"', f'"{chinese}"')
    changes = {
        '"build/site/en"': '"build/site/zh"',
        'site_dir = "site"': 'site_dir = "site/zh"',
        'language = "en"': 'language = "zh"',
        'link = "index.html"': 'link = "../index.html"',
        'link = "zh/index.html"': 'link = "index.html"',
    }
    for old, new in changes.items():
        if old not in text:
            sys.exit(f"zensical.toml has no {old}, which the Chinese site replaces: update {__file__}")
        text = text.replace(old, new)
    return text


def build(configuration: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(configuration)]
    process = subprocess.run(command, cwd=ROOT, check=False)
    if process.returncode:
        sys.exit("The site has broken links or anchors: see the messages above.")


def main() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    copy_pages(PAGES / "en", language="en")
    copy_pages(PAGES / "zh", language="zh")
    build(ROOT / "zensical.toml")
    chinese = ROOT / "zensical.zh.toml"
    chinese.write_text(chinese_configuration(), encoding="utf-8")
    try:
        build(chinese)
    finally:
        chinese.unlink()
    print(f"The site is in {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
