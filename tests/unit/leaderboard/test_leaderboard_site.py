"""The built folder: deterministic, self-contained, escaped, and safe to write."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from leaderboard_records import (
    HOSTILE,
    HOSTILE_IMAGE,
    LM,
    Made,
    cell_of,
    finish,
    metric,
    record_of,
    write_results,
)

from latentbench.errors import UserError
from latentbench.store import ResultsFolder
from latentbench_leaderboard import BuildOptions, build_site
from latentbench_leaderboard import _build as build_module
from latentbench_leaderboard.cli import leaderboard

NAMES = ("index", "compare", "curves", "steering", "metrics", "judges", "method", "errata")


class Page(HTMLParser):
    """Elements of a page, and mistakes in its nesting."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of order"

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]

    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.elements if "id" in attrs]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {
        name: Page(data.decode("utf-8")) for name, data in contents(site).items() if name.endswith(".html")
    }


class TestContents:
    def test_the_same_results_give_the_same_bytes(self, site: Path, tmp_path: Path) -> None:
        write_results(tmp_path / "elsewhere")
        build_site(tmp_path / "elsewhere", tmp_path / "site", BuildOptions())
        assert contents(tmp_path / "site") == contents(site)

    def test_pages_that_must_be_there(self, pages: dict[str, Page]) -> None:
        assert {f"{name}.html" for name in NAMES} <= set(pages)
        assert sum(name.startswith("dictionaries/") for name in pages) == 7
        assert sum(name.startswith("latents/") for name in pages) == 7
        assert sum(name.startswith("steering/") for name in pages) == 6  # one steering cell failed

    def test_every_link_leads_to_something(self, site: Path, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            for attrs in (attrs for _, attrs in page.elements if "href" in attrs or "src" in attrs):
                link = attrs.get("href", attrs.get("src", ""))
                target, _, anchor = link.partition("#")
                path = (site / name).parent / target if target else site / name
                assert path.resolve().is_relative_to(site.resolve()), (name, link)
                assert path.is_file(), (name, link)
                if anchor and path.suffix == ".html" and "=" not in anchor:
                    other = pages[path.resolve().relative_to(site.resolve()).as_posix()]
                    assert anchor in other.ids(), (name, link)

    def test_nothing_points_to_the_network(self, site: Path) -> None:
        for name, data in contents(site).items():
            if name.endswith((".html", ".css", ".js")):
                found = set(
                    re.findall(rb"(?:https?:)?//[\w.]+", re.sub(rb"(?m)^\s*//.*$|\s// .*$", b"", data))
                )
                assert not found, (name, found)

    def test_ids_are_unique(self, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            assert len(page.ids()) == len(set(page.ids())), name

    def test_raw_records_are_the_stored_ones(self, site: Path, results: Path) -> None:
        for record in ResultsFolder(results).records():
            assert json.loads((site / "records" / f"{record.key}.json").read_text()) == record.model_dump(
                mode="json"
            )

    def test_first_view_is_light(self, site: Path) -> None:
        scripts = [f"static/{name}.js" for name in ("theme", "shards", "address", "rows", "board")]
        first = ["index.html", "static/site.css", "static/icon.svg", *scripts]
        assert sum((site / name).stat().st_size for name in first) < 200_000
        assert sum(path.stat().st_size for path in (site / "static").glob("*.js")) < 44_000

    def test_marker_names_inputs_without_times_or_paths(self, site: Path, results: Path) -> None:
        marker = json.loads((site / "site.json").read_text())
        assert marker["records"] == len(ResultsFolder(results).records())
        assert marker["files"] == sorted(set(contents(site)) - {"site.json"})
        assert str(results.parent) not in (site / "site.json").read_text()

    def test_unfinished_cells_are_mentioned(self, pages: dict[str, Page]) -> None:
        assert "1 cell of this results folder is not finished" in pages["index.html"].text

    def test_interval_methods_and_policy_are_on_the_method_page(self, pages: dict[str, Page]) -> None:
        text = pages["method.html"].text
        assert "cluster bootstrap, bca" in pages["metrics.html"].text
        assert "Position 0 of every row, and padding, are left out" in text
        assert "64 ± 5 %" in text
        assert "embed (all-MiniLM-L6-v2)" in pages["judges.html"].text
        assert "unpaired: 3 of 3 rows have no items by shared unit here" in text
        assert "unpaired: numbers of this task are no sums over units that rows share" in text

    def test_card_facts(self, pages: dict[str, Page]) -> None:
        (text,) = [page.text for name, page in pages.items() if name.startswith("dictionaries/routesae-")]
        for fact in ("1,200,000", "0.2134", "resid_post.6\N{EN DASH}21", "2,304"):
            assert fact in text


class TestAccessibility:
    def test_structure(self, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            assert len(page.all("h1")) == 1, name
            assert len(page.all("main")) == 1, name
            assert page.all("html") == [{"lang": "en"}], name
            assert not page.open, (name, page.open)

    def test_headings_skip_no_level(self, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
            steps = [b - a for a, b in pairwise(levels)]
            assert max(steps, default=0) <= 1, (name, levels)

    def test_table_heads_have_a_scope(self, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            assert all(attrs.get("scope") for attrs in page.all("th")), name

    def test_charts_have_names(self, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            for attrs in page.all("svg"):
                assert attrs.get("aria-hidden") == "true" or attrs.get("aria-label"), name

    def test_scrolling_regions_take_the_keyboard(self, pages: dict[str, Page]) -> None:
        for page in pages.values():
            for _, attrs in page.elements:
                if "scroll" in attrs.get("class", "").split():
                    assert attrs["tabindex"] == "0"
                    assert attrs["aria-label"]


class TestHostileText:
    def test_no_page_holds_markup_from_data(self, site: Path, pages: dict[str, Page]) -> None:
        for name, page in pages.items():
            assert not page.all("img"), name
            assert all(attrs.get("src", "").endswith(".js") for attrs in page.all("script")), name
            assert not [a for _, attrs in page.elements for a in attrs if a.startswith("on")], name
            raw = (site / name).read_text(encoding="utf-8")
            assert HOSTILE not in raw
            assert HOSTILE_IMAGE not in raw

    def test_the_text_is_still_there_to_read(self, pages: dict[str, Page]) -> None:
        assert HOSTILE in pages["index.html"].text

    def test_shards_hold_no_way_out_of_a_script(self, site: Path) -> None:
        shards = list((site / "data").rglob("*.js"))
        assert shards
        for path in shards:
            text = path.read_text(encoding="ascii")
            assert "<" not in text
            name, _, body = text.removeprefix("latentbench.shard(").removesuffix(");\n").partition(",")
            assert json.loads(name) == path.relative_to(site / "data").with_suffix("").as_posix()
            json.loads(body)

    def test_pages_allow_no_inline_script_and_no_network(self, pages: dict[str, Page]) -> None:
        for page in pages.values():
            (policy,) = [
                m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"
            ]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert not [attrs for _, attrs in page.elements if "style" in attrs]

    def test_titles_and_long_names(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        made = Made("x" * 1_000_000 + HOSTILE, "f" * 1000, ["s" * 1000], 64.0, 0.5)
        cell = cell_of(made, "core", {"note": "y" * 100_000})
        finish(results, record_of(made, cell, [metric("l0", 64.0, 0.1), metric("z" * 100_000, 0.5, 0.1)]), [])
        build_site(tmp_path / "r", tmp_path / "s", BuildOptions(title=HOSTILE))
        for name in ("index.html", "curves.html", "method.html"):
            raw = (tmp_path / "s" / name).read_text(encoding="utf-8")
            assert HOSTILE not in raw
            assert len(raw) < 60_000

    def test_lone_surrogates_in_items_do_not_stop_a_build(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        made = Made("one", "topk", ["resid_post.1"], 64.0, 0.5)
        item = {
            "kind": "generation",
            "id": "1",
            "concept": "half \ud83d a pair",
            "factor": 1.0,
            "split": "test",
            "prompt_id": 0,
            "prompt": "p",
            "text": "\ud83d",
            "baseline_text": "b",
            "success": True,
        }
        finish(results, record_of(made, cell_of(made, "steering", {}), [metric("success", 0.5, 0.1)]), [item])
        build_site(tmp_path / "r", tmp_path / "s", BuildOptions())
        assert "Half ? a pair" in (tmp_path / "s" / "steering.html").read_text(encoding="utf-8")


class TestPublicTexts:
    def test_a_public_build_holds_no_side_texts(self, site: Path, public_site: Path) -> None:
        local = b"".join(contents(site).values())
        public = b"".join(contents(public_site).values())
        assert b"PRIVATE" in local
        assert b"PRIVATE" not in public
        assert b'"w":null' in public

    def test_a_local_build_says_so_on_every_page(self, pages: dict[str, Page], public_site: Path) -> None:
        assert all("have their own terms. It is for looking at" in page.text for page in pages.values())
        assert "It is for looking at" not in (public_site / "index.html").read_text()


class TestTarget:
    def build(self, results: Path, target: Path) -> None:
        build_site(results, target, BuildOptions(local_texts=False))

    def test_a_foreign_folder_is_left_alone(self, results: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(UserError, match="was not made by"):
            self.build(results, tmp_path / "mine")
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_somebody_elses_site_json_is_no_licence(self, results: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "site.json").write_text('{"made_by": "another tool"}')
        with pytest.raises(UserError, match="was not made by"):
            self.build(results, tmp_path / "mine")

    def test_an_older_site_is_replaced_as_a_whole(self, results: Path, tmp_path: Path) -> None:
        target = tmp_path / "site"
        self.build(results, target)
        marker = json.loads((target / "site.json").read_text())
        (target / "old.html").write_text("from an older version")
        (target / "site.json").write_text(json.dumps({**marker, "files": [*marker["files"], "old.html"]}))
        self.build(results, target)
        assert not (target / "old.html").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["site"]

    def test_files_that_no_build_made_are_not_deleted(self, results: Path, tmp_path: Path) -> None:
        self.build(results, tmp_path / "site")
        (tmp_path / "site" / "CNAME").write_text("board.example")
        with pytest.raises(UserError, match="CNAME"):
            self.build(results, tmp_path / "site")
        assert (tmp_path / "site" / "CNAME").exists()

    def test_an_empty_folder_is_taken(self, results: Path, tmp_path: Path) -> None:
        (tmp_path / "site").mkdir()
        self.build(results, tmp_path / "site")
        assert (tmp_path / "site" / "index.html").exists()

    @pytest.mark.parametrize("inside", [".", "runs", "runs/site", ".."])
    def test_target_and_results_may_not_overlap(self, results: Path, inside: str) -> None:
        with pytest.raises(UserError, match="inside of each other"):
            self.build(results, results / inside)

    def test_a_file_and_a_link_are_refused(self, results: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "folder")
        for name in ("file", "link"):
            with pytest.raises(UserError, match="is not a folder"):
                self.build(results, tmp_path / name)

    def test_a_build_that_fails_leaves_the_old_site(
        self, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.build(results, tmp_path / "site")
        before = contents(tmp_path / "site")

        def broken(_subject: object, _runs: object) -> None:
            raise RuntimeError("half way")

        monkeypatch.setattr(build_module, "dictionary_view", broken)
        with pytest.raises(RuntimeError, match="half way"):
            self.build(results, tmp_path / "site")
        assert contents(tmp_path / "site") == before
        assert [path.name for path in tmp_path.iterdir()] == ["site"]


class TestCommand:
    def test_prints_where_the_page_is(self, results: Path, tmp_path: Path) -> None:
        out = tmp_path / "site"
        ran = CliRunner().invoke(leaderboard, ["build", str(results), "--out", str(out)])
        assert ran.exit_code == 0, ran.output
        assert f"Open {out / 'index.html'}" in ran.output
        assert "7 dictionaries, 30 cells (1 failed, 1 unfinished)" in ran.output
        assert "not for publication" in ran.output

    def test_json(self, results: Path, tmp_path: Path) -> None:
        out = tmp_path / "site"
        ran = CliRunner().invoke(
            leaderboard, ["build", str(results), "--out", str(out), "--public", "--json"]
        )
        report = json.loads(ran.output)
        assert report["index"] == str(out / "index.html")
        assert report["files"] == len(contents(out))
        assert report["bytes"] == sum(map(len, contents(out).values()))
        assert report["local_texts"] is False

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda path: None, "there is no folder"),
            (lambda path: path.mkdir(), "is not a results folder"),
            (lambda path: (path / "runs").mkdir(parents=True), "holds no finished cell"),
        ],
    )
    def test_bad_results_are_the_users_error(self, tmp_path: Path, make: object, message: str) -> None:
        assert callable(make)
        make(tmp_path / "results")
        with pytest.raises(UserError, match=message):
            build_site(tmp_path / "results", tmp_path / "site", BuildOptions())
        assert not (tmp_path / "site").exists()

    def test_a_bundle_is_told_from_a_results_folder(self, tmp_path: Path) -> None:
        (tmp_path / "b.zip").write_bytes(b"")
        with pytest.raises(UserError, match=r"latentbench leaderboard add .*b\.zip --to FOLDER"):
            build_site(tmp_path / "b.zip", tmp_path / "site", BuildOptions())

    def test_a_damaged_record_is_named(self, results: Path, tmp_path: Path) -> None:
        write_results(tmp_path / "r", latents=2)
        path = next((tmp_path / "r").rglob("run.json"))
        path.write_text("{")
        with pytest.raises(UserError, match=r"run\.json is not JSON"):
            build_site(tmp_path / "r", tmp_path / "site", BuildOptions())

    @pytest.mark.parametrize(
        ("l0", "tolerance"), [(0.0, 0.05), (64.0, 1.0), (64.0, -0.1), (float("nan"), 0.05)]
    )
    def test_senseless_target_sparsity(self, l0: float, tolerance: float) -> None:
        with pytest.raises(UserError, match="target L0"):
            BuildOptions(target_l0=(l0,), tolerance=tolerance)

    def test_no_torch(self, results: Path, tmp_path: Path) -> None:
        code = (
            "import sys\n"
            "from pathlib import Path\n"
            "from latentbench_leaderboard import BuildOptions, build_site\n"
            "import latentbench_leaderboard.cli\n"
            f"build_site(Path({str(results)!r}), Path({str(tmp_path / 'site')!r}), BuildOptions())\n"
            "heavy = {'torch', 'transformers', 'sae_lens', 'sklearn'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_help_is_light(self) -> None:
        code = (
            "import sys, latentbench_leaderboard.cli\n"
            "assert not {'jinja2', 'numpy', 'pydantic'} & set(sys.modules)"
        )
        ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr


def test_the_model_is_named(pages: dict[str, Page]) -> None:
    assert LM["name"] in pages["index.html"].text
