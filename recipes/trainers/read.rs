//! Settings as somebody gave them: a file in YAML or JSON, or the commands of a shell script.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};

use super::command::commands;
use super::known::TRAINERS;
use super::rows::{Program, Trainer};
use super::settings::{Given, PROCESSES};
use super::shell::not_known;

/// Flags of launchers that say how many processes there are on a machine, and how many machines.
const LAUNCHED: [&[&str]; 2] = [&["nproc_per_node", "num_processes"], &["nnodes"]];

/// The settings of a file, and the trainer that they are for.
///
/// # Errors
/// The file cannot be read, or is for no trainer that is known.
pub(super) fn read(text: &str, file: &Path) -> Result<(&'static Trainer, Given)> {
    let name = file.display();
    let extension = file.extension().and_then(|found| found.to_str());
    if matches!(extension, Some("yaml" | "yml" | "json")) {
        let flat = document(text).with_context(|| format!("`{name}`"))?;
        let Some(trainer) = TRAINERS.into_iter().find(|trainer| (trainer.is_of)(&flat)) else {
            bail!("`{name}`: expected settings of {}; found others", known());
        };
        let mut given = Given::default();
        given.add(trainer, flat, "");
        let read = given.add_further(trainer, file);
        read.with_context(|| format!("`{name}`"))?;
        return Ok((trainer, given));
    }
    let commands = commands(text, file).with_context(|| format!("`{name}`"))?;
    let trained = commands.iter().find_map(|words| {
        let found = |trainer: &'static Trainer| {
            let programs = trainer.programs.iter();
            let mut calls =
                programs.filter_map(|program| Some((called(words, program.words)?, program)));
            Some((trainer, calls.next()?))
        };
        TRAINERS
            .into_iter()
            .find_map(found)
            .map(|found| (words, found))
    });
    let Some((words, (trainer, (at, program)))) = trained else {
        bail!(
            "`{name}`: expected a file in YAML or JSON (by its name), or the shell commands that train with {}; found no such command",
            known()
        );
    };
    let given = of_commands(trainer, &commands, (words, at, program), file);
    Ok((trainer, given.with_context(|| format!("`{name}`"))?))
}

/// The settings in commands, of which one trains: its words, where its arguments begin, and its program.
fn of_commands(
    trainer: &Trainer,
    commands: &[Vec<String>],
    (words, at, program): (&[String], usize, &Program),
    script: &Path,
) -> Result<Given> {
    let mut given = Given::default();
    given.add_launcher(&words[..at]);
    for set in program.implies.iter().copied().flatten() {
        given.add_word(trainer, set);
    }
    given.implied = given.settings.keys().cloned().collect();
    for words in commands {
        for &(before, prefix) in trainer.before {
            if let Some(at) = called(words, before) {
                given.called.insert(prefix);
                given.add_flags(trainer, &words[at..], (prefix, &[]), script)?;
            }
        }
    }
    given.add_flags(trainer, &words[at..], ("", program.flags), script)?;
    given.add_further(trainer, script)?;
    Ok(given)
}

/// The trainers by name.
pub(super) fn known() -> String {
    let names = TRAINERS.map(|trainer| format!("{} {}", trainer.name, trainer.version));
    names.join(", ")
}

/// Where the arguments of a program begin that is called by these words.
fn called(words: &[String], program: &[&str]) -> Option<usize> {
    // By any path that ends in it.
    let is_program = |word: &str, expected: &str| {
        let before = word.strip_suffix(expected);
        before.is_some_and(|path| path.is_empty() || path.ends_with('/'))
    };
    let mut windows = words.windows(program.len());
    let at = windows.position(|window| {
        let mut pairs = window.iter().zip(program);
        pairs.all(|(word, expected)| is_program(word, expected))
    });
    Some(at? + program.len())
}

/// A file in YAML, of which JSON is a part, with the names of its tables and keys joined by dots. Keys without a value are left out.
fn document(text: &str) -> Result<Map<String, Value>> {
    let value: Value = serde_saphyr::from_str(text).context("it is not YAML")?;
    let Value::Object(table) = value else {
        bail!("expected a table of settings");
    };
    let mut flat = Map::new();
    flatten("", table, &mut flat);
    Ok(flat)
}

fn flatten(prefix: &str, table: Map<String, Value>, flat: &mut Map<String, Value>) {
    for (key, value) in table {
        let name = if prefix.is_empty() {
            key
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            Value::Object(inner) => flatten(&name, inner, flat),
            Value::Null => {}
            Value::String(text) => _ = flat.insert(name, scalar(&text)),
            other => _ = flat.insert(name, other),
        }
    }
}

/// What a word of a command stands for.
fn scalar(word: &str) -> Value {
    let is_table = word.starts_with(['{', '[']);
    match serde_json::from_str(word) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        Ok(value) if is_table => value,
        // `1e-4` and `.5` are numbers of Python, `1.` too.
        _ => match word.parse::<f64>() {
            Ok(number) if word.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                Value::from(number)
            }
            _ => match word {
                "True" => Value::Bool(true),
                "False" => Value::Bool(false),
                text => thousands(text).map_or_else(|| text.into(), Value::from),
            },
        },
    }
}

/// A number of Python whose thousands stand apart, such as `10_000`. Other digits with `_` between them may be a name.
fn thousands(word: &str) -> Option<u64> {
    let (first, others) = word.split_once('_')?;
    let is_digits = |group: &str| group.chars().all(|c| c.is_ascii_digit());
    let mut others = others.split('_');
    let are_apart = (1..=3).contains(&first.len())
        && is_digits(first)
        && others.all(|group| group.len() == 3 && is_digits(group));
    are_apart.then(|| word.replace('_', "").parse().ok())?
}

impl Given {
    /// Adds settings under the names of `trainer`, with `prefix` before them.
    fn add(&mut self, trainer: &Trainer, flat: Map<String, Value>, prefix: &str) {
        for (name, value) in flat {
            let name = match prefix {
                "" => (trainer.named)(&name).to_owned(),
                prefix => format!("{prefix}{name}"),
            };
            self.set(name, value);
        }
    }

    /// Adds `KEY=VALUE`; with `null` the key has no value, whatever a file says.
    fn add_word(&mut self, trainer: &Trainer, word: &str) {
        if let Some((name, value)) = word.split_once('=') {
            let name = (trainer.named)(name.trim_start_matches('+')).to_owned();
            match value {
                "null" => self.unset(&name),
                value => self.set(name, scalar(value)),
            }
        }
    }

    /// The processes that a launcher before a program starts.
    fn add_launcher(&mut self, words: &[String]) {
        let flags = flags(words);
        let counts = LAUNCHED.map(|names| {
            let mut last = flags.iter().rev();
            let (_, values) = last.find(|(name, _)| names.contains(&name.as_str()))?;
            // The program itself may be the next word.
            values.first().map(|value| scalar(value))
        });
        let counts: Vec<Value> = counts.into_iter().flatten().collect();
        if let Some(unclear) = counts.iter().find(|count| !count.is_u64()) {
            self.settings.insert(PROCESSES.to_owned(), unclear.clone());
        } else if !counts.is_empty() {
            let counts = counts.iter().filter_map(Value::as_u64);
            let product = counts.fold(1, u64::saturating_mul);
            self.settings.insert(PROCESSES.to_owned(), product.into());
        }
    }

    /// Adds what the arguments of a program say: `--flag VALUE`, `--config FILE` and `a.b=VALUE`. `renamed` has the rows of flags that
    /// are called otherwise.
    fn add_flags(
        &mut self,
        trainer: &Trainer,
        words: &[String],
        (prefix, renamed): (&str, &[(&str, &str)]),
        script: &Path,
    ) -> Result<()> {
        let flags = flags(words);
        // What the command says goes before what a file says.
        let files = words.iter().take_while(|word| !word.starts_with('-'));
        let files = files.filter(|word| word.ends_with(".yaml") || word.ends_with(".yml"));
        let files = files.map(|file| (file, "which the command reads".to_owned()));
        let named = flags.iter().filter(|(name, _)| is_config(name));
        let named = named.filter_map(|(name, values)| {
            Some((values.first()?, format!("which `--{name}` names")))
        });
        for (file, why) in files.chain(named) {
            let text = beside(file, script).with_context(|| format!("`{file}`, {why}"))?;
            let flat = document(&text).with_context(|| format!("`{file}`"))?;
            self.add(trainer, flat, prefix);
        }
        for word in words.iter().filter(|word| !word.starts_with('-')) {
            if is_setting(word) {
                self.add_word(trainer, word);
            }
        }
        self.note_loose(words, &flags);
        let rows = trainer.rows.iter().map(|row| row.key);
        // A flag of the training is none of another program's.
        let is_of_others = |key: &&str| {
            let mut others = trainer.before.iter().map(|(_, other)| *other);
            prefix.is_empty() && others.any(|other| key.starts_with(other))
        };
        let known: Vec<&str> = rows.filter(|key| !is_of_others(key)).collect();
        let mut from_flags = BTreeSet::new();
        for (name, values) in flags {
            if is_config(&name) {
                continue;
            }
            let full = |name: &str| {
                let other = renamed.iter().find(|(flag, _)| *flag == name);
                let name = format!("{prefix}{}", other.map_or(name, |(_, row)| row));
                match full_name(&known, &name) {
                    Some(found) => (found, true),
                    None => (name, false),
                }
            };
            let (key, is_known) = full(&name);
            let opposite = name.strip_prefix("no_").map(&full);
            let (key, value) = match (opposite, &values[..]) {
                (Some((key, true)), []) if !is_known => (key, Value::Bool(false)),
                (_, []) => (key, Value::Bool(true)),
                (_, [one]) => (key, scalar(one)),
                (_, several) => (key, several.iter().map(|word| scalar(word)).collect()),
            };
            if trainer.repeated.contains(&key.as_str()) && from_flags.contains(&key) {
                self.append(&key, value);
            } else {
                self.note_other(&key, &value, prefix);
                self.set(key.clone(), value);
            }
            from_flags.insert(key);
        }
        Ok(())
    }

    /// Tells of words that are the value of no setting and that nobody knows: they may be settings themselves.
    fn note_loose(&mut self, words: &[String], flags: &[(String, Vec<String>)]) {
        let first = words.iter().take_while(|word| !word.starts_with('-'));
        let first = first.filter(|word| !is_setting(word));
        let behind = flags.iter().filter(|(name, _)| is_config(name));
        let behind = behind.flat_map(|(_, values)| values.iter().skip(1));
        let loose = first.chain(behind);
        let notes = loose.filter_map(|word| Some(format!("`{word}`: {}", not_known(word)?)));
        self.notes.extend(notes);
    }

    /// Adds a value to those that a setting has.
    fn append(&mut self, key: &str, value: Value) {
        let list = |value: Value| match value {
            Value::Array(values) => values,
            one => vec![one],
        };
        let had = self.settings.remove(key).map(list).unwrap_or_default();
        let all: Vec<Value> = had.into_iter().chain(list(value)).collect();
        self.settings.insert(key.to_owned(), all.into());
    }

    /// Tells of a setting that two commands before the training give, each another value.
    fn note_other(&mut self, key: &str, value: &Value, prefix: &str) {
        let had = self.settings.get(key);
        if let Some(had) = had.filter(|had| !prefix.is_empty() && *had != value) {
            self.notes.push(format!(
                "`{key} = {had}`: another command of the script sets it to `{value}`, which the recipe takes"
            ));
        }
    }

    /// Adds the settings of the file that a setting names, if it is here.
    fn add_further(&mut self, trainer: &Trainer, file: &Path) -> Result<()> {
        let Some((key, prefix)) = trainer.further else {
            return Ok(());
        };
        let Some(named) = self.settings.get(key).and_then(Value::as_str) else {
            return Ok(());
        };
        let named = named.to_owned();
        let inside = Path::new(&named).join("config.json");
        let found = beside(&named, file).or_else(|_| beside(&inside.to_string_lossy(), file));
        if let Ok(text) = found {
            let flat = document(&text).with_context(|| format!("`{named}`"))?;
            self.add(trainer, flat, prefix);
        }
        Ok(())
    }
}

/// The setting that a flag means: the one of that name, else the one whose last part it is; of names that stand for several, the one
/// that it begins as.
fn full_name(known: &[&str], flag: &str) -> Option<String> {
    let ends = |key: &&&str| {
        let rest = key.strip_suffix(flag);
        rest.is_some_and(|rest| rest.ends_with('.'))
    };
    let same = known.iter().find(|key| **key == flag);
    if let Some(same) = same.or_else(|| known.iter().find(ends)) {
        return Some((*same).to_owned());
    }
    known.iter().find_map(|key| {
        let (table, last) = key.strip_suffix('*')?.rsplit_once('.')?;
        let begins = !last.is_empty() && flag.starts_with(last);
        begins.then(|| format!("{table}.{flag}"))
    })
}

/// The text of a file, by its path from the working directory or from the folder of `beside`.
fn beside(path: &str, beside: &Path) -> std::io::Result<String> {
    let here = std::fs::read_to_string(path);
    here.or_else(|error| {
        let folder = beside.parent().unwrap_or(Path::new(""));
        std::fs::read_to_string(folder.join(path)).map_err(|_| error)
    })
}

/// The flags among words, with `_` for `-` in their names, and the words behind each up to the next.
fn flags(words: &[String]) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for word in words {
        let is_number = word.parse::<f64>().is_ok();
        let name = word.strip_prefix('-').filter(|_| !is_number);
        if let Some(name) = name.map(|name| name.trim_start_matches('-')) {
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, vec![value.to_owned()]),
                None => (name, Vec::new()),
            };
            found.push((name.replace('-', "_"), value));
        } else if let Some((_, values)) = found.last_mut()
            && !is_setting(word)
        {
            values.push(word.clone());
        }
    }
    found
}

/// Whether a flag names a file of settings.
fn is_config(name: &str) -> bool {
    matches!(name, "config" | "c")
}

/// Whether a word is `a.b=VALUE`. A value in JSON may hold such a text.
fn is_setting(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    let is_name = |name: &str| !name.contains(|c: char| c.is_whitespace() || "{[\"".contains(c));
    name.is_some_and(|name| name.contains('.') && is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_numbers_truths_lists_and_texts() {
        for (word, expected) in [
            ("8192", json!(8192)),
            ("1e-4", json!(1e-4)),
            (".5", json!(0.5)),
            ("True", json!(true)),
            ("[1, 2]", json!([1, 2])),
            ("10_000", json!(10_000)),
            ("1_000_000", json!(1_000_000)),
            ("20240701_1530", json!("20240701_1530")),
            ("2024_07_01", json!("2024_07_01")),
            ("1_", json!("1_")),
            ("_100", json!("_100")),
            ("bfloat16", json!("bfloat16")),
            ("infinity", json!("infinity")),
            ("\"a\"", json!("\"a\"")),
        ] {
            assert_eq!(scalar(word), expected, "{word}");
        }
    }

    #[test]
    fn a_program_is_called_by_any_path_of_it() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let called = |text: &str, program: &[&str]| called(&words(text), program);
        let script = ["a/b.py"];
        for text in ["python a/b.py --x", "python x/a/b.py --x", "python /a/b.py"] {
            assert_eq!(called(text, &script), Some(2), "{text}");
        }
        for text in ["python b.py", "python xa/b.py", "python a/b.py.old"] {
            assert_eq!(called(text, &script), None, "{text}");
        }
        let two = ["speculators", "train"];
        assert_eq!(called("/bin/speculators train --x", &two), Some(2));
        assert_eq!(called("my-speculators train", &two), None);
    }

    #[test]
    fn a_flag_of_the_training_is_none_of_another_program() {
        let trainer = TRAINERS
            .into_iter()
            .find(|trainer| !trainer.before.is_empty());
        let mut given = Given::default();
        let words = ["--limit", "5", "--seed", "3"].map(str::to_owned);
        let added = given.add_flags(trainer.unwrap(), &words, ("", &[]), Path::new("a.sh"));
        added.unwrap();
        assert!(given.wrote("limit") && given.wrote("seed"));
        assert!(!given.wrote("regenerate.limit"));
    }

    #[test]
    fn tables_are_joined_by_dots_and_keys_without_a_value_are_none() {
        let flat = document("a:\n  b: 1e-4\n  c:\n  d: {}\nlist: [1, 2]\n").unwrap();
        assert_eq!(Value::Object(flat), json!({"a.b": 1e-4, "list": [1, 2]}));
        assert!(document("- 1").is_err());
        assert!(document("a: [").is_err());
    }

    #[test]
    fn flags_have_the_words_behind_them() {
        let words = "-m x --a-b=1 --ids 2 -3 4 --flag k.l=3 --last"
            .split(' ')
            .map(str::to_owned)
            .collect::<Vec<_>>();
        let found = flags(&words);
        let expected = [
            ("m", vec!["x"]),
            ("a_b", vec!["1"]),
            ("ids", vec!["2", "-3", "4"]),
            ("flag", vec![]),
            ("last", vec![]),
        ];
        let expected = expected.map(|(name, values)| {
            let values = values.into_iter().map(str::to_owned).collect::<Vec<_>>();
            (name.to_owned(), values)
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_value_in_json_may_hold_what_a_setting_looks_like() {
        for value in [
            r#"{"temperature": 0.6, "stop": ["a=b"]}"#,
            r#"["1.0", "a=b"]"#,
            "a. b=c",
        ] {
            let words = ["--x", value, "a.b=1"].map(str::to_owned);
            let found = [("x".to_owned(), vec![value.to_owned()])];
            assert_eq!(flags(&words), found, "{value}");
        }
    }
}
