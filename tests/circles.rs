//! No files of a crate import from each other in a circle: whoever reads one can begin where nothing else is needed.
//!
//! A file stands for its module. It imports from the file of the longest module that a path in it names, be that in a `use`
//! or elsewhere, whether the path begins at `crate`, `super` or `self` or with the name of a child. Declaring a module
//! imports nothing, and tests may import what they like.
//!
//! The folders of the program's own crate are rooms, each of which imports from some others alone.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Names of a module and of those around it, the outermost first; none for the crate's root.
type Module = Vec<String>;

/// What each module imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn no_files_of_a_crate_form_a_circle() {
    let mut found = String::new();
    for name in crates() {
        let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(&name));
        let circles = circles(&imports(&files));
        if !circles.is_empty() {
            found += &shown(&name, &files, &circles);
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// What each room of the program's own crate may import from, beside itself.
const ROOMS: [(&str, &[&str]); 11] = [
    ("errors", &[]),
    ("progress", &[]),
    (
        "recipe",
        &["errors", "families", "runs", "runtime", "trainers"],
    ),
    ("trainers", &["recipe", "runtime"]),
    ("runs", &["errors", "progress", "runtime"]),
    ("families", &["recipe", "runtime", "stages"]),
    (
        "runtime",
        &["errors", "families", "progress", "recipe", "runs"],
    ),
    (
        "stages",
        &[
            "errors", "families", "progress", "recipe", "runs", "runtime",
        ],
    ),
    (
        "plan",
        &[
            "errors", "families", "progress", "recipe", "runs", "runtime", "stages",
        ],
    ),
    ("tracking", &["recipe", "runs"]),
    (
        "cli",
        &[
            "errors", "families", "plan", "progress", "recipe", "runs", "runtime", "stages",
            "tracking", "trainers",
        ],
    ),
];

#[test]
fn the_rooms_of_the_program_import_only_from_those_that_they_stand_on() {
    let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes"));
    let rooms = BTreeMap::from(ROOMS);
    let mut used = BTreeSet::new();
    for (module, targets) in imports(&files) {
        let Some(room) = module.first() else { continue };
        let others = targets.iter().filter_map(|target| target.first());
        for other in others.filter(|other| *other != room) {
            let may = rooms.get(room.as_str());
            let may = may.is_some_and(|may| may.contains(&other.as_str()));
            assert!(may, "{} imports from `{other}`", module.join("/"));
            used.insert((room.clone(), other.clone()));
        }
    }
    for (room, may) in ROOMS {
        for other in may {
            let is_used = used.contains(&(room.to_owned(), (*other).to_owned()));
            assert!(is_used, "nothing in `{room}` imports from `{other}`");
        }
    }
}

/// The folders of all crates.
fn crates() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let library = manifest["lib"]["path"].as_str().unwrap();
    let own = library.strip_suffix("/lib.rs").unwrap();
    let names = members.iter().map(|member| member.as_str().unwrap());
    names.chain([own]).map(str::to_owned).collect()
}

/// The sources of a crate by their modules, tests left out.
fn files(root: &Path) -> BTreeMap<Module, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![Module::new()];
    while let Some(folder) = folders.pop() {
        let path = folder
            .iter()
            .fold(root.to_owned(), |path, name| path.join(name));
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let module: Module = folder.iter().cloned().chain([name.clone()]).collect();
            if path.is_dir() && name != "tests" {
                folders.push(module);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let is_root = folder.is_empty() && name == "lib";
                let module = if is_root || name == "mod" {
                    folder.clone()
                } else {
                    module
                };
                // A program is a crate of its own beside the library.
                if name != "tests" && !(folder.is_empty() && name == "main") {
                    files.insert(module, std::fs::read_to_string(&path).unwrap());
                }
            }
        }
    }
    files
}

fn imports(files: &BTreeMap<Module, String>) -> Imports {
    let is_module = |module: &[String]| files.contains_key(module);
    let of_file = |(module, source): (&Module, &String)| {
        let paths = paths(&without_tests(&tokens(source)));
        let targets = paths
            .iter()
            .filter_map(|path| resolved(module, path, &is_module));
        let targets = targets.filter(|target| target != module).collect();
        (module.clone(), targets)
    };
    files.iter().map(of_file).collect()
}

/// The words and signs of a source, of which `::` is one. Comments and literals are left out.
fn tokens(source: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest).unwrap_or_else(|| {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let length = match word.unwrap_or(rest.len()) {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                length => length,
            };
            if !first.is_whitespace() {
                tokens.push(&rest[..length]);
            }
            length
        });
        rest = &rest[length..];
    }
    tokens
}

/// The length of the comment or literal that a text begins with, if it does.
fn skipped(text: &str) -> Option<usize> {
    let behind = |found: Option<usize>, end: &str| found.map_or(text.len(), |at| at + end.len());
    if text.starts_with("//") {
        return Some(behind(text.find('\n'), "\n"));
    }
    if text.starts_with("/*") {
        return Some(behind(text.find("*/"), "*/"));
    }
    let raw = text
        .strip_prefix("br")
        .or(text.strip_prefix('r'))
        .unwrap_or_default();
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    if raw[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let start = text.len() - raw.len() + hashes + 1;
        return Some(behind(text[start..].find(&end).map(|at| start + at), &end));
    }
    let quote = text.strip_prefix('b').unwrap_or(text).chars().next();
    let mut inside = text
        .char_indices()
        .skip_while(|(_, c)| Some(*c) != quote)
        .skip(1);
    match quote {
        Some('"') => {}
        // A lifetime otherwise.
        Some('\'') if text.contains('\'') && is_character(text) => {}
        _ => return None,
    }
    while let Some((at, character)) = inside.next() {
        match character {
            '\\' => _ = inside.next(),
            end if Some(end) == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// Whether what begins with a quotation mark is a character and no lifetime.
fn is_character(text: &str) -> bool {
    let mut inside = text.trim_start_matches('b').chars().skip(1);
    inside.next() == Some('\\') || inside.next() == Some('\'')
}

/// Without the items behind `#[cfg(test)]`.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let Some(first) = rest.first() {
        let Some(item) = rest.strip_prefix(&["#", "[", "cfg", "(", "test", ")", "]"]) else {
            kept.push(*first);
            rest = &rest[1..];
            continue;
        };
        let mut depth = 0;
        let end = item.iter().position(|token| {
            depth += i32::from(*token == "{") - i32::from(*token == "}");
            depth == 0 && ["}", ";"].contains(token)
        });
        rest = &item[end.map_or(item.len(), |end| end + 1)..];
    }
    kept
}

/// All paths of more than one name, those of a `use` with braces one by one.
fn paths<'t>(tokens: &[&'t str]) -> Vec<Vec<&'t str>> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_use = tokens[at] == "use";
        at += usize::from(is_use);
        // What stands behind `.` or `::` begins no path.
        let goes_on = at > 0 && [".", "::"].contains(&tokens[at - 1]);
        if is_use || (is_name(tokens[at]) && !goes_on) {
            at = path(tokens, at, &[], &mut paths);
        } else {
            at += 1;
        }
    }
    paths.retain(|path| path.len() > 1);
    paths
}

/// Reads the path that begins at a token, and all within its braces, behind `before`. Returns where it ends.
fn path<'t>(
    tokens: &[&'t str],
    mut at: usize,
    before: &[&'t str],
    paths: &mut Vec<Vec<&'t str>>,
) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") if at > 0 && tokens[at - 1] == "::" => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    let end = self::path(tokens, at, &path, paths);
                    // `,`, or `as` with its name.
                    at = end.max(at + 1);
                    while at < tokens.len() && ![",", "}"].contains(&tokens[at]) {
                        at += 1;
                    }
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            Some(name) if is_name(name) => path.push(name),
            _ => break,
        }
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    paths.push(path);
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The longest module that a path in `module` names, if it names one of this crate.
fn resolved(
    module: &Module,
    path: &[&str],
    is_module: &dyn Fn(&[String]) -> bool,
) -> Option<Module> {
    let mut found = module.clone();
    let mut names = path.iter().copied().peekable();
    if names.next_if_eq(&"crate").is_some() {
        found.clear();
    } else {
        let mut relative = false;
        while let Some(name) = names.next_if(|name| ["self", "super"].contains(name)) {
            relative = true;
            if name == "super" {
                found.pop()?;
            }
        }
        let child = |name: &str| is_module(&[&module[..], &[name.to_owned()]].concat());
        if !relative && !child(path[0]) {
            return None;
        }
    }
    for name in names {
        found.push(name.to_owned());
        if !is_module(&found) {
            found.pop();
            break;
        }
    }
    Some(found)
}

/// Sets of modules of which each imports from every other, by whatever ways.
fn circles(imports: &Imports) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for next in imports.get(module).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = imports
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let circle = |from: &&Module| -> BTreeSet<Module> {
        let back = reached[*from]
            .iter()
            .filter(|to| reached[to].contains(*from));
        back.cloned().collect()
    };
    let circles: BTreeSet<BTreeSet<Module>> = reached.keys().map(circle).collect();
    circles
        .into_iter()
        .filter(|circle| !circle.is_empty())
        .collect()
}

/// Each circle's files with what they import from in it.
fn shown(name: &str, files: &BTreeMap<Module, String>, circles: &[BTreeSet<Module>]) -> String {
    let imports = imports(files);
    let shown = |module: &Module| {
        if module.is_empty() {
            "lib".to_owned()
        } else {
            module.join("/")
        }
    };
    let mut text = String::new();
    for circle in circles {
        _ = writeln!(text, "`{name}` has a circle of {} files:", circle.len());
        for module in circle {
            let to: Vec<String> = imports[module].intersection(circle).map(shown).collect();
            _ = writeln!(text, "  {} -> {}", shown(module), to.join(", "));
        }
    }
    text
}

/// A crate of these files.
fn made_of(files: &[(&str, &str)]) -> BTreeMap<Module, String> {
    let module = |name: &str| match name {
        "lib" => Module::new(),
        name => name.split('/').map(str::to_owned).collect(),
    };
    let files = files
        .iter()
        .map(|(name, source)| (module(name), (*source).to_owned()));
    files.collect()
}

/// How the circles of these files are shown.
fn found(files: &[(&str, &str)]) -> String {
    let files = made_of(files);
    shown("made", &files, &circles(&imports(&files)))
}

#[test]
fn a_circle_of_three_files_is_found_with_what_joins_them() {
    let files = [
        (
            "lib",
            "mod one; mod two; mod three; mod four; pub use four::Four;",
        ),
        ("one", "use crate::two::{self, Two};\nstruct One;"),
        ("two", "use std::fmt; use super::{four::Four, three};"),
        (
            "three",
            "fn three() -> crate::one::One { crate::four::Four::new() }",
        ),
        ("four", "pub struct Four;"),
    ];
    let expected =
        "`made` has a circle of 3 files:\n  one -> two\n  three -> one\n  two -> three\n";
    assert_eq!(found(&files), expected);
}

#[test]
fn a_façade_is_no_circle_until_someone_imports_from_it() {
    let lib = (
        "lib",
        "mod one; pub mod two; pub use one::One; pub use two::Two;",
    );
    let two = ("two", "use crate::one::One;");
    assert_eq!(found(&[lib, ("one", "pub struct One;"), two]), "");
    let through = [lib, ("one", "pub struct One;"), ("two", "use crate::One;")];
    assert!(found(&through).contains("  lib -> two\n  two -> lib\n"));
}

#[test]
fn a_parent_and_a_child_that_take_from_each_other_form_a_circle() {
    let child = ("one/child", "use super::One;");
    assert_eq!(found(&[("one", "mod child; pub struct One;"), child]), "");
    for parent in [
        "mod child; pub(crate) use child::Child;",
        "mod child; use self::{child::Child as Other};",
        "mod child; fn one() { child::make() }",
    ] {
        assert!(
            found(&[("one", parent), child]).contains("2 files"),
            "{parent}"
        );
    }
}

#[test]
fn what_comments_literals_and_tests_name_is_not_imported() {
    let one = r##"
        // crate::two
        /// See [`Two`](crate::two::Two).
        /* crate::two */
        const TEXT: &str = "crate::two \" crate::two";
        const RAW: &str = r#"crate::two " crate::two"#;
        const QUOTE: (char, char) = ('"', '\'');
        fn one<'a>(text: &'a str, two: Two) { two.crate_::two; std::two::crate_() }
        #[cfg(test)]
        mod tests { use crate::two::Two; fn inner() { crate::two::two() } }
        #[cfg(test)]
        use crate::two::Two;
    "##;
    assert_eq!(found(&[("one", one), ("two", "use crate::one::one;")]), "");
    let late = format!("{one} fn late() {{ crate::two::two() }}");
    assert!(found(&[("one", &late), ("two", "use crate::one::one;")]).contains("2 files"));
}
