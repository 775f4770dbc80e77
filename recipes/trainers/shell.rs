//! What a shell makes of a line before it runs a command: quotes, variables, and what commands print that only look at paths, so
//! that a script finds its own folder. Nothing is run.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Words that end a command.
const ENDS: [&str; 5] = ["&&", "||", "|", ";", "&"];

/// Bytes of the longest word: variables that stand for others twice would grow without end.
pub(super) const LONGEST: usize = 1 << 16;

/// Commands within commands, and defaults within defaults, at most.
const DEEPEST: usize = 8;

/// Names by which a script knows its own path.
const OWN_PATH: [&str; 3] = ["0", "BASH_SOURCE", "BASH_SOURCE[0]"];

/// The commands of a line as their words. `${(N}` stands for what the N-th of `outputs` prints.
pub(super) struct Line {
    pub(super) commands: Vec<Vec<String>>,
    /// Commands whose output is a part of a word, as they are written.
    outputs: Vec<String>,
}

/// Where a command runs.
#[derive(Clone)]
pub(super) struct Place {
    /// The folder, by its whole path; none behind a `cd` to somewhere unknown.
    folder: Option<PathBuf>,
    /// How many commands and defaults this one is within.
    depth: usize,
}

/// The variables of a script.
pub(super) struct Variables(BTreeMap<String, String>);

impl Line {
    /// None where a quote does not end.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (text, outputs) = without_outputs(line);
        let words = shlex::split(&text)?;
        let commands = words.split(|word| ENDS.contains(&word.as_str()));
        let commands = commands.map(<[String]>::to_vec);
        Some(Self {
            commands: commands.filter(|words| !words.is_empty()).collect(),
            outputs,
        })
    }
}

/// A line in which words stand for commands whose output is asked for, and these commands. A `;` becomes a word.
fn without_outputs(line: &str) -> (String, Vec<String>) {
    let (mut text, mut outputs) = (String::new(), Vec::new());
    let mut quote = None;
    // Where one does not end, none behind it does.
    let mut all_end = true;
    let mut rest = line;
    while let Some(letter) = rest.chars().next() {
        if matches!(letter, '$' | '`') && quote != Some('\'') && all_end {
            if let Some(length) = asked(rest) {
                text += &format!("${{({}}}", outputs.len());
                outputs.push(rest[..length].to_owned());
                rest = &rest[length..];
                continue;
            }
            all_end = !(rest.starts_with("$(") || letter == '`');
        }
        let mut length = letter.len_utf8();
        match (letter, quote) {
            ('\\', None | Some('"')) => {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
            }
            ('\'' | '"', None) => quote = Some(letter),
            (_, Some(open)) if letter == open => quote = None,
            ('#', None) if text.is_empty() || text.ends_with(char::is_whitespace) => break,
            (';', None) => text.push(' '),
            _ => {}
        }
        text.push_str(&rest[..length]);
        if (letter, quote) == (';', None) {
            text.push(' ');
        }
        rest = &rest[length..];
    }
    (text, outputs)
}

/// How long the command in `$(…)` or in backquotes is with which a text begins; none where it begins with none.
fn asked(text: &str) -> Option<usize> {
    if let Some(inner) = text.strip_prefix('`') {
        return Some(inner.find('`')? + 2);
    }
    // What ends each bracket and quote that is open.
    let mut open = vec![')'];
    let (mut is_escaped, mut before) = (false, ' ');
    for (at, letter) in text.strip_prefix("$(")?.char_indices() {
        let end = *open.last()?;
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if end != '\'' => is_escaped = true,
            _ if letter == end => _ = open.pop(),
            '(' if end == ')' || (end == '"' && before == '$') => open.push(')'),
            '\'' | '"' if end == ')' => open.push(letter),
            _ => {}
        }
        if open.is_empty() {
            return Some("$(".len() + at + 1);
        }
        before = letter;
    }
    None
}

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

/// Words of a command without those that say where its output goes, and without `--`.
fn arguments(words: &[String]) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = |c: char| c.is_ascii_digit() || c == '&';
        match word.trim_start_matches(number).strip_prefix('>') {
            // The file is the next word.
            Some("" | ">") => _ = words.next(),
            Some(_) => {}
            None if word == "--" => {}
            None => kept.push(word.as_str()),
        }
    }
    kept
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
        let own = OWN_PATH.map(|name| (name.to_owned(), path.to_string()));
        Self(own.into())
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// A word of a line with `$NAME`, `${NAME}`, `${NAME:-DEFAULT}` and `$(COMMAND)` filled in. What is not known stays as it is
    /// written.
    pub(super) fn filled(&self, word: &str, line: &Line, place: &Place) -> String {
        if word.len() > LONGEST {
            return word.to_owned();
        }
        let mut text = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            let (name, default, length) = named(after);
            let number = name.strip_prefix('(').and_then(|name| name.parse().ok());
            let asked = number.and_then(|number: usize| line.outputs.get(number));
            let default = || self.filled_default(default?, line, place);
            let value = match (asked, self.0.get(name)) {
                (Some(asked), _) => {
                    let output = self.output(asked, place);
                    Some(output.unwrap_or_else(|| asked.clone()))
                }
                (None, Some(value)) => Some(value.clone()),
                (None, None) => default(),
            };
            match value {
                Some(value) if length > 0 => {
                    text.push_str(&value);
                    rest = &after[length..];
                }
                _ => {
                    text.push('$');
                    rest = after;
                }
            }
            if text.len() > LONGEST {
                return text;
            }
        }
        text.push_str(rest);
        text
    }

    fn filled_default(&self, default: &str, line: &Line, place: &Place) -> Option<String> {
        Some(self.filled(default, line, &place.deeper()?))
    }

    /// What commands print, in the folder where they are; none where they do more than look at paths.
    fn output(&self, asked: &str, place: &Place) -> Option<String> {
        let inner = asked.strip_prefix("$(").or(asked.strip_prefix('`'))?;
        let line = Line::parse(inner.strip_suffix([')', '`'])?)?;
        let mut place = place.deeper()?;
        let mut printed = None;
        for words in &line.commands {
            let words = words.iter().map(|word| self.filled(word, &line, &place));
            let words: Vec<String> = words.collect();
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
}

/// The first variable or command in a text whose value is not known, as it is written.
pub(super) fn unfilled(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.find(['$', '`']) {
        rest = &rest[at..];
        if let Some(length) = asked(rest) {
            return Some(&rest[..length]);
        }
        let after = &rest[1..];
        if rest.starts_with('$') {
            let (name, _, length) = named(after);
            if !name.is_empty() && length > 0 {
                return Some(&rest[..=length]);
            }
        }
        rest = after;
    }
    None
}

/// The variable behind a `$`, what stands for it where it is not set, and how long all this is; 0 where there is none.
fn named(after: &str) -> (&str, Option<&str>, usize) {
    let Some(inner) = after.strip_prefix('{') else {
        let is_number = after.starts_with(|c: char| c.is_ascii_digit());
        let end = after.find(|c: char| is_number || !(c.is_ascii_alphanumeric() || c == '_'));
        let end = if is_number {
            1
        } else {
            end.unwrap_or(after.len())
        };
        return (&after[..end], None, end);
    };
    let mut open = 1;
    let end = inner.find(|c| {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        open == 0
    });
    let Some(end) = end else {
        return ("", None, 0);
    };
    let length = end + 2;
    let inner = &inner[..end];
    match inner.split_once(":-").or(inner.split_once('-')) {
        Some((name, default)) => (name, Some(default), length),
        None => (inner, None, length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(word: &str) -> String {
        let mut variables = Variables::of(Path::new("SF/examples/run.sh"));
        variables.set("A", "x$B");
        let line = Line::parse(word).unwrap();
        let words = line.commands.concat();
        assert_eq!(words.len(), 1, "{words:?}");
        let here = Place {
            folder: Some("/nowhere".into()),
            depth: 0,
        };
        variables.filled(&words[0], &line, &here)
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
        assert!(Line::parse("a 'b").is_none());
    }
}
