//! What a shell makes of a word before it runs a command: variables, and what commands print that only look at paths, so that a script
//! finds its own folder. Nothing is run.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::words::{
    ARGUMENTS, Entry, Part, SPACES, Word, asked, entries, is_command, named, quoted, word_of,
};

/// Bytes of the longest word: variables that stand for others twice would grow without end.
pub(super) const LONGEST: usize = 1 << 16;

/// Commands within commands, and defaults within defaults, at most.
const DEEPEST: usize = 8;

/// Names by which a script knows its own path.
const OWN_PATH: [&str; 3] = ["0", "BASH_SOURCE", "BASH_SOURCE[0]"];

/// Where a command runs.
#[derive(Clone)]
pub(super) struct Place {
    /// The folder, by its whole path; none behind a `cd` to somewhere unknown.
    folder: Option<PathBuf>,
    /// How many commands and defaults this one is within.
    depth: usize,
}

/// The variables of a script: the elements of each, of which those that are no arrays have one.
pub(super) struct Variables(BTreeMap<String, Vec<String>>);

impl Place {
    /// Where a script runs that is started from here.
    pub(super) fn here() -> Self {
        Self {
            folder: std::env::current_dir().ok(),
            depth: 0,
        }
    }

    fn deeper(&self) -> Option<Self> {
        let depth = self.depth + 1;
        (depth <= DEEPEST).then(|| Self {
            depth,
            ..self.clone()
        })
    }

    /// Goes to the folder of a `cd` or another such command, or to somewhere unknown; says whether the words are one.
    pub(super) fn go(&mut self, words: &[String]) -> bool {
        let words = arguments(words);
        match words[..] {
            ["cd", folder] | ["cd", "-L" | "-P", folder] if unfilled(folder).is_none() => {
                let to = self.within(folder);
                self.folder = to.filter(|folder| folder.is_dir());
            }
            ["cd" | "pushd" | "popd", ..] => self.folder = None,
            _ => return false,
        }
        true
    }

    /// The whole path of what a path from here names.
    fn within(&self, path: &str) -> Option<PathBuf> {
        let mut found = PathBuf::new();
        for part in self.folder.as_ref()?.join(path).components() {
            match part {
                Component::CurDir => {}
                Component::ParentDir => _ = found.pop(),
                part => found.push(part),
            }
        }
        Some(found)
    }

    /// What a command prints here, where it is one of those that only look at paths.
    fn printed(&self, words: &[String]) -> Option<String> {
        let words = arguments(words);
        let path = match words[..] {
            ["pwd"] | ["pwd", "-L" | "-P"] => self.folder.clone()?,
            ["dirname", path] => return Some(dirname(path).to_owned()),
            ["basename", path] => Path::new(path).file_name()?.into(),
            ["realpath", path] | ["realpath" | "readlink", "-e" | "-f" | "-m", path] => {
                self.within(path)?.canonicalize().ok()?
            }
            _ => return None,
        };
        path.to_str().map(str::to_owned)
    }
}

/// Words of a command without `--`.
fn arguments(words: &[String]) -> Vec<&str> {
    let words = words.iter().map(String::as_str);
    words.filter(|word| *word != "--").collect()
}

/// What `dirname` prints.
fn dirname(path: &str) -> &str {
    let name = path.trim_end_matches('/');
    match name.rsplit_once('/') {
        _ if name.is_empty() && !path.is_empty() => "/",
        None => ".",
        Some((before, _)) => match before.trim_end_matches('/') {
            "" => "/",
            before => before,
        },
    }
}

impl Variables {
    /// Those of a script in this file before its first line.
    pub(super) fn of(file: &Path) -> Self {
        let path = file.to_string_lossy();
        let own = OWN_PATH.map(|name| (name.to_owned(), vec![path.to_string()]));
        Self(own.into())
    }

    /// Does what `NAME=VALUE` says, or `NAME+=VALUE`, where a `+` is behind the name.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        let (elements, is_more) = self.elements_to_set(name);
        match elements.first_mut() {
            Some(first) if is_more => first.push_str(value),
            _ => *elements = vec![value.to_owned()],
        }
    }

    /// Does the same of the elements of an array.
    pub(super) fn set_array(&mut self, name: &str, values: Vec<String>) {
        let (elements, is_more) = self.elements_to_set(name);
        if !is_more {
            elements.clear();
        }
        elements.extend(values);
    }

    /// The elements of a variable, and whether others are added to them.
    fn elements_to_set(&mut self, name: &str) -> (&mut Vec<String>, bool) {
        let more = name.strip_suffix('+');
        let elements = self.0.entry(more.unwrap_or(name).to_owned());
        (elements.or_default(), more.is_some())
    }

    /// The words that a word becomes with `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-DEFAULT}` and `$(COMMAND)` filled in, which
    /// outside quotes may be none or several. What is not known stays as it is written. None where they are longer than any
    /// that mean something.
    pub(super) fn filled(&self, word: &[Part], place: &Place) -> Option<Vec<String>> {
        let mut words = Words::default();
        self.fill(word, place, &mut words);
        words.end();
        (words.length <= LONGEST).then_some(words.ended)
    }

    /// The one word that a word becomes where it is assigned to a variable.
    pub(super) fn assigned(&self, word: &[Part], place: &Place) -> Option<String> {
        Some(self.filled(&quoted(word), place)?.join(" "))
    }

    fn fill(&self, word: &[Part], place: &Place, words: &mut Words) {
        for part in word {
            if words.length > LONGEST {
                return;
            }
            if !part.is_asked {
                words.add(&part.text, part);
            } else if is_command(&part.text) {
                match self.output(&part.text, place) {
                    Some(output) => words.add(&output, part),
                    None => words.add_whole(&part.text),
                }
            } else {
                self.fill_variable(part, place, words);
            }
        }
    }

    fn fill_variable(&self, part: &Part, place: &Place, words: &mut Words) {
        let (name, default, _) = named(&part.text[1..]);
        // An array without elements is as one that is not set, and with `:-` so is an empty value.
        let is_unset = |found: &&[String]| match part.text[1..].split_once(name) {
            Some((_, behind)) if behind.starts_with(":-") => found.iter().all(String::is_empty),
            _ => found.is_empty(),
        };
        let elements = self.elements(name);
        let elements = elements.filter(|found| default.is_none() || !is_unset(found));
        let default = default.and_then(|default| Some((word_of(default), place.deeper()?)));
        match (elements, default) {
            (Some(elements), _) => {
                for (at, element) in elements.iter().enumerate() {
                    if at > 0 {
                        words.end();
                    }
                    words.add(element, part);
                }
            }
            (None, Some((default, place))) if part.is_quoted => {
                words.add_whole("");
                self.fill(&quoted(&default), &place, words);
            }
            (None, Some((default, place))) => self.fill(&default, &place, words),
            (None, None) => words.add_whole(&part.text),
        }
    }

    /// What a name stands for; none where it is not known. A script is read as if it was started without arguments.
    fn elements(&self, name: &str) -> Option<&[String]> {
        if name.starts_with(ARGUMENTS) {
            return Some(&[]);
        }
        let array = name.strip_suffix("[@]").or(name.strip_suffix("[*]"));
        let elements = self.0.get(array.unwrap_or(name))?;
        // Without brackets an array is its first element.
        let count = array.map_or(1, |_| elements.len());
        Some(&elements[..count.min(elements.len())])
    }

    /// What commands print, in the folder where they are; none where they do more than look at paths.
    fn output(&self, asked: &str, place: &Place) -> Option<String> {
        let inner = asked.strip_prefix("$(").or(asked.strip_prefix('`'))?;
        let entries = entries(inner.strip_suffix([')', '`'])?).ok()?;
        let mut place = place.deeper()?;
        let mut printed = None;
        for entry in &entries {
            let Entry::Command(words) = entry else {
                return None;
            };
            let words = self.all_filled(words, &place)?;
            if words.iter().any(|word| unfilled(word).is_some()) {
                return None;
            }
            if place.go(&words) {
                // A folder that is not here.
                place.folder.as_ref()?;
            } else if printed.replace(place.printed(&words)?).is_some() {
                return None;
            }
        }
        printed
    }

    /// The words that several become.
    pub(super) fn all_filled(&self, words: &[Word], place: &Place) -> Option<Vec<String>> {
        let filled = words.iter().map(|word| self.filled(word, place));
        Some(filled.collect::<Option<Vec<_>>>()?.concat())
    }
}

/// Words that are being filled in.
#[derive(Default)]
struct Words {
    ended: Vec<String>,
    /// The one that what is next belongs to.
    open: Option<String>,
    /// Bytes of all of them, and one for each.
    length: usize,
}

impl Words {
    /// Adds the value of a part, whose spaces end words outside quotes.
    fn add(&mut self, value: &str, part: &Part) {
        if part.is_quoted {
            self.add_whole(value);
            return;
        }
        for (at, word) in value.split(SPACES).enumerate() {
            if at > 0 {
                self.end();
            }
            if !word.is_empty() {
                self.add_whole(word);
            }
        }
    }

    /// Adds to the last word.
    fn add_whole(&mut self, text: &str) {
        self.length += text.len();
        self.open.get_or_insert_default().push_str(text);
    }

    fn end(&mut self) {
        self.length += usize::from(self.open.is_some());
        self.ended.extend(self.open.take());
    }
}

/// Why what a text says is not known, where a script does not explain a part of it.
pub(super) fn not_known(text: &str) -> Option<String> {
    let part = unfilled(text)?;
    Some(if is_command(part) {
        format!("what the command {part} prints is not known, as nothing is run")
    } else {
        format!("the script does not set the variable {part}")
    })
}

/// The first variable or command in a text whose value is not known, as it is written.
fn unfilled(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.find(['$', '`']) {
        rest = &rest[at..];
        let found = asked(rest).map(|length| &rest[..length]);
        let is_known = |part: &str| part.trim_start_matches(['$', '{']).starts_with(ARGUMENTS);
        if let Some(part) = found.filter(|part| !is_known(part)) {
            return Some(part);
        }
        rest = &rest[1..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that those of a command become.
    fn words(text: &str) -> Vec<String> {
        let mut variables = Variables::of(Path::new("SF/examples/run.sh"));
        variables.set("A", "x$B");
        variables.set("EMPTY", "");
        variables.set("FLAGS", " --lr 1e-4");
        variables.set("FLAGS+", "  --seed 7 ");
        let elements = ["--name", "a b", ""].map(str::to_owned);
        variables.set_array("ALL", elements.to_vec());
        variables.set_array("ALL+", vec!["--last".to_owned()]);
        variables.set_array("NONE", Vec::new());
        let entries = entries(text).unwrap();
        let [Entry::Command(words)] = &entries[..] else {
            panic!("no single command: {text}");
        };
        let here = Place {
            folder: Some("/nowhere".into()),
            depth: 0,
        };
        variables.all_filled(words, &here).unwrap()
    }

    fn filled(word: &str) -> String {
        let words = words(word);
        assert_eq!(words.len(), 1, "{words:?}");
        words.concat()
    }

    #[test]
    fn what_is_filled_in_outside_quotes_is_split_at_spaces() {
        let cases: [(&str, &[&str]); 14] = [
            ("$FLAGS x", &["--lr", "1e-4", "--seed", "7", "x"]),
            ("x$FLAGS", &["x", "--lr", "1e-4", "--seed", "7"]),
            ("x${FLAGS}y", &["x", "--lr", "1e-4", "--seed", "7", "y"]),
            ("\"$FLAGS\"", &[" --lr 1e-4  --seed 7 "]),
            ("'$FLAGS'", &["$FLAGS"]),
            ("\\$FLAGS", &["$FLAGS"]),
            (
                "x ${NO:-} ${NO:-a b} \"${NO:-a b}\"",
                &["x", "a", "b", "a b"],
            ),
            ("${NO:-\"a b\"} \"${NO:-}\"", &["a b", ""]),
            ("x ${EMPTY:-y} ${EMPTY-z}", &["x", "y"]),
            // What is not known stays whole.
            ("$(a b)", &["$(a b)"]),
            (
                "\"${ALL[@]}\" $ALL",
                &["--name", "a b", "", "--last", "--name"],
            ),
            ("${ALL[@]}", &["--name", "a", "b", "--last"]),
            ("x \"${NONE[@]}\" ${NONE[@]:-y}", &["x", "y"]),
            // No arguments are known.
            ("x \"$@\" $* \"${@:2}\" ${@:-y} \"z$@\"", &["x", "y", "z"]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn a_variable_may_have_a_default_and_what_is_none_stays() {
        for (word, expected) in [
            ("$A/$C", "x$B/$C"),
            ("${A}1", "x$B1"),
            ("${C:-d}e", "de"),
            ("${C:-${D:-$0}}", "SF/examples/run.sh"),
            ("${A", "${A"),
            ("5$", "5$"),
            ("$10", "$10"),
            ("$((N+1))", "$((N+1))"),
            ("'$(pwd)'", "$(pwd)"),
        ] {
            assert_eq!(filled(word), expected, "{word}");
        }
    }

    #[test]
    fn commands_that_only_look_at_paths_print_what_they_would_print() {
        for (word, expected) in [
            ("$(pwd)/a", "/nowhere/a"),
            ("`dirname $0`", "SF/examples"),
            ("\"$( dirname -- \"${BASH_SOURCE[0]}\" )\"", "SF/examples"),
            ("$(dirname $(dirname \"$0\"))", "SF"),
            ("$(basename \"$0\")", "run.sh"),
            ("$(cd / &> /dev/null && pwd)", "/"),
            ("$(cd /; pwd -P)etc", "/etc"),
            // Not there, so nobody knows.
            ("$(cd /not/here && pwd)", "$(cd /not/here && pwd)"),
            ("$(git rev-parse)/a", "$(git rev-parse)/a"),
            ("$(dirname $NONE)", "$(dirname $NONE)"),
            ("$(dirname a; dirname b)", "$(dirname a; dirname b)"),
        ] {
            assert_eq!(filled(word), expected, "{word}");
        }
        for (path, expected) in [
            ("a", "."),
            ("", "."),
            ("a/b/", "a"),
            ("/a", "/"),
            ("//", "/"),
            ("a//b", "a"),
        ] {
            assert_eq!(dirname(path), expected, "{path}");
        }
    }

    #[test]
    fn what_is_not_known_is_found_in_the_middle_too() {
        for (text, expected) in [
            ("a/$B/c", Some("$B")),
            ("${B}/c", Some("${B}")),
            ("x$(git a \"(\")/c", Some("$(git a \"(\")")),
            ("a`b`", Some("`b`")),
            ("5$", None),
            ("a$$", None),
            ("a$@", None),
            ("a", None),
        ] {
            assert_eq!(unfilled(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_deep_or_does_not_end_is_left() {
        let deep = "$(".repeat(10_000) + "pwd" + &")".repeat(10_000);
        assert!(deep.len() < LONGEST);
        assert_eq!(filled(&deep), deep);
        let open = "${A:-".repeat(1000);
        assert!(filled(&open).starts_with("${A:-"));
        let open = "$(".repeat(10_000);
        assert_eq!(filled(&open), open);
        assert!(entries("a 'b").is_err());
    }
}
