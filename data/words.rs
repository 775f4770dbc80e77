//! Messages in words of their readers: what parsers say, and how many of a thing there are.

use spectrain_checkpoints::near::did_you_mean;

/// So many of a thing, whose name is that of one.
pub fn counted(count: u64, unit: &str) -> String {
    let end = match count {
        1 => "",
        _ if unit.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {unit}{end}")
}

/// The word for one or for several of a thing, by how many there are.
pub fn by_count(count: u64, [one, several]: [&str; 2]) -> &str {
    if count == 1 { one } else { several }
}

/// What parsers of settings call the types that they expect, and what those are to whoever wrote the settings.
const TYPES: [(&str, &str); 11] = [
    ("usize", "a whole number from 0"),
    ("u64", "a whole number from 0"),
    ("u32", "a whole number from 0"),
    ("u16", "a whole number from 0 to 65535"),
    ("u8", "a whole number from 0 to 255"),
    ("i64", "a whole number"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a sequence", "a list"),
    ("a map", "a table"),
    (
        "any value",
        "a string, a number, a boolean, a list or a table",
    ),
];

/// What parsers call tables that have a name in the language that the parser is written in.
const NAMED: [&str; 2] = ["expected struct ", "expected internally tagged enum "];

/// The message with a table in the place of one that `kind` and a name stand for.
fn unnamed(text: String, kind: &str) -> String {
    let Some((before, after)) = text.split_once(kind) else {
        return text;
    };
    let rest = after.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    format!("{before}expected a table{rest}")
}

/// What parsers say of a name that is none of those they know, before that name.
const UNKNOWN: [&str; 2] = ["unknown field `", "unknown variant `"];

/// A message of a parser, with the types that it expects in words: ``invalid type: string "x", expected usize`` names one of
/// the language that the parser is written in. A name that it does not know is followed by the one that may be meant.
pub fn in_words(message: &str) -> String {
    let mut text = message.to_owned();
    for (name, words) in TYPES {
        let (name, words) = (format!("expected {name}"), format!("expected {words}"));
        text = match text.split_once(&name) {
            // What was given may go on with the same letters.
            Some((before, after)) if !after.starts_with(|c: char| c.is_alphanumeric()) => {
                format!("{before}{words}{after}")
            }
            _ => text,
        };
    }
    let text = NAMED.iter().fold(text, |text, kind| unnamed(text, kind));
    let text = text
        .replace("floating point `", "number `")
        .replace("invalid type: integer `", "invalid type: whole number `");
    asked(text)
}

/// The message with a question at its end, where an unknown name may be a slip of a known one.
fn asked(mut text: String) -> String {
    let after = UNKNOWN
        .iter()
        .find_map(|start| Some(text.find(start)? + start.len()));
    let Some((given, rest)) = after.and_then(|after| text[after..].split_once('`')) else {
        return text;
    };
    // Those known are listed on the line.
    let line = rest.split('\n').next().unwrap_or_default();
    let known = line.split('`').skip(1).step_by(2);
    let question = did_you_mean(given, known);
    let end = text.trim_end().len();
    text.insert_str(end, &question);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_not_called_several() {
        let found = [0, 1, 2].map(|count| counted(count, "sample"));
        assert_eq!(found, ["0 samples", "1 sample", "2 samples"]);
        let found = [1, 2].map(|count| counted(count, "pass"));
        assert_eq!(found, ["1 pass", "2 passes"]);
        let found = [0, 1, 2].map(|count| by_count(count, ["its", "their"]));
        assert_eq!(found, ["their", "its", "their"]);
    }

    #[test]
    fn types_are_named_in_words() {
        for (message, words) in [
            (
                "invalid type: string \"x\", expected usize",
                "invalid type: string \"x\", expected a whole number from 0",
            ),
            (
                "invalid type: integer `5`, expected a sequence",
                "invalid type: whole number `5`, expected a list",
            ),
            (
                "invalid type: floating point `1.5`, expected u64\nin `train.steps`\n",
                "invalid type: number `1.5`, expected a whole number from 0\nin `train.steps`\n",
            ),
            (
                "invalid type: integer `3`, expected struct TargetTable\nin `target`\n",
                "invalid type: whole number `3`, expected a table\nin `target`\n",
            ),
            (
                "invalid type: string \"x\", expected internally tagged enum DraftChoice",
                "invalid type: string \"x\", expected a table",
            ),
            (
                "invalid value: integer `70000`, expected u16",
                "invalid value: integer `70000`, expected a whole number from 0 to 65535",
            ),
            (
                "unknown variant `x`, expected one of `a`, `b`",
                "unknown variant `x`, expected one of `a`, `b`",
            ),
            ("expected u64s", "expected u64s"),
            (
                "unknown field `modle`, expected one of `model`, `dtype`\nin `target`\n",
                "unknown field `modle`, expected one of `model`, `dtype`\nin `target`; did you mean `model`?\n",
            ),
            (
                "unknown variant `strored`, expected `live` or `stored`",
                "unknown variant `strored`, expected `live` or `stored`; did you mean `stored`?",
            ),
        ] {
            assert_eq!(in_words(message), words);
        }
    }
}
