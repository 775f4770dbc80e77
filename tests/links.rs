//! The links between pages, which must hold in the sources as well as in the site that is made of them.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page: Markdown at the top and in the folders of the sources.
pub fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let folders = [
        "checkpoints",
        "data",
        "eval",
        "models",
        "recipes",
        "tests",
        "train",
    ];
    collect(root(), &mut pages, &|_| false);
    for folder in folders {
        collect(&root().join(folder), &mut pages, &|_| true);
    }
    assert!(pages.len() >= 10, "{pages:?}");
    pages
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>, enters: &dyn Fn(&Path) -> bool) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && enters(&path) {
            collect(&path, pages, enters);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            pages.push(path);
        }
    }
}

/// The text without what is shown as it is: code, and blocks of it.
fn prose(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("    ") || line.trim_start().starts_with('-'));
    let mut prose = String::new();
    for line in lines {
        for (at, part) in line.split('`').enumerate() {
            prose += if at % 2 == 0 { part } else { "code" };
        }
        prose.push('\n');
    }
    prose
}

/// The targets of the links and pictures of a page.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let after = prose.split("](").skip(1);
    after
        .map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect()
}

/// What forges and mdBook call the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text
        .lines()
        .filter(|line| line.starts_with('#') && line.contains("# "));
    headings
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// The file and the heading that a link on a page names.
fn named(page: &Path, link: &str) -> (PathBuf, Option<String>) {
    let (file, heading) = match link.split_once('#') {
        Some((file, heading)) => (file, Some(heading.to_owned())),
        None => (link, None),
    };
    let file = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap().join(file),
    };
    (file, heading)
}

#[test]
fn every_link_between_pages_names_a_file_and_a_heading_that_are_there() {
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let inside = links(&text)
            .into_iter()
            .filter(|link| !link.contains("://"));
        for link in inside {
            let (file, heading) = named(&page, &link);
            let shown = format!("{}: `{link}`", page.display());
            assert!(file.is_file(), "{shown}: there is no such file");
            if let Some(heading) = heading {
                let anchors = anchors(&std::fs::read_to_string(&file).unwrap());
                assert!(
                    anchors.contains(&heading),
                    "{shown}: there are the headings {anchors:?}"
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links");
}

#[test]
fn a_table_of_contents_names_the_headings_of_its_page_in_their_order() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let listed: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("- [")?.split_once("](#"))
            .map(|(_, rest)| rest.trim_end_matches(')'))
            .collect();
        if listed.is_empty() {
            continue;
        }
        let sections: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with("## "))
            .flat_map(anchors)
            .collect();
        assert_eq!(listed, sections, "{}", page.display());
    }
}

#[test]
fn the_site_has_every_page() {
    let summary = root().join("SUMMARY.md");
    let text = std::fs::read_to_string(&summary).unwrap();
    let chapters: BTreeSet<PathBuf> = links(&text)
        .iter()
        .map(|link| named(&summary, link).0)
        .collect();
    let pages: BTreeSet<PathBuf> = pages()
        .into_iter()
        .filter(|page| *page != summary)
        .collect();
    assert_eq!(chapters, pages);
}
