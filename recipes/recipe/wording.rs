//! Messages of the parser, with what would be right in place of what was found.

use spectrain_data::words::in_words;

use crate::recipe::other_names::meant;

/// Numbers from 0 are those of which most keys have the type; of these smaller ones than this are refused as well.
pub(super) const LEAST: [(&str, usize); 10] = [
    ("data.max_length", 4),
    ("data.max_samples", 1),
    ("train.steps", 1),
    ("train.batch_tokens", 1),
    ("train.gradient_accumulation", 1),
    ("train.log_every", 1),
    ("train.validate_every", 1),
    ("train.patience", 1),
    ("train.save_every", 1),
    ("train.keep", 1),
];

/// What the parser says of a key that is none of its table, before the key.
pub(super) const UNKNOWN_KEY: &str = "unknown field `";

/// What it says of a name that is none of those it knows, before that name.
const UNKNOWN: [&str; 2] = [UNKNOWN_KEY, "unknown variant `"];

/// What is expected of the type of most keys.
const FROM_0: &str = "a whole number from 0";

/// How the question begins which of the known names is meant.
pub(super) const QUESTION: &str = "; did you mean ";

/// What is expected where a list is.
const LIST: &str = "expected a list";

/// A message in words; `least` is the least number that the value that it is about can be, where that is not 0.
pub(super) fn worded(message: &str, least: Option<usize>) -> String {
    let text = in_words(message);
    let text = with_list(&text).unwrap_or(text);
    let text = with_own_name(&text).unwrap_or(text);
    match least {
        Some(least) => text.replace(FROM_0, &format!("a whole number from {least}")),
        None => text,
    }
}

/// The message of an unknown name that other programs have, with the name that recipes have, where that is known in its place.
fn with_own_name(text: &str) -> Option<String> {
    let mut cut = UNKNOWN.iter().filter_map(|start| text.split_once(start));
    let mut parts = cut.next()?.1.lines().next()?.split('`');
    let own = meant(parts.next()?, parts.skip(1).step_by(2))?;
    // A name that others have goes before one that is only written alike.
    let text = match text.split_once(QUESTION) {
        Some((before, alike)) => {
            before.to_owned() + alike.split_once('?').map_or("", |(_, rest)| rest)
        }
        None => text.to_owned(),
    };
    Some(format!("{}{QUESTION}`{own}`?", text.trim_end()))
}

/// The message with the list that has what was found as its only entry.
fn with_list(text: &str) -> Option<String> {
    let (before, after) = text.split_once(LIST)?;
    if !(after.is_empty() || after.starts_with('\n')) {
        return None;
    }
    let (_, found) = before.rsplit_once("invalid type: ")?;
    let found = found.strip_suffix(", ")?;
    let entries = match found.strip_prefix("string ") {
        Some(string) => entries(string),
        None => found.split('`').nth(1)?.to_owned(),
    };
    Some(format!("{before}{LIST}, such as `[{entries}]`{after}"))
}

/// The entries of a list that is written as a string, which is in quotes: numbers, or strings between commas.
fn entries(string: &str) -> String {
    let parts: Vec<&str> = string.trim_matches('"').split(',').map(str::trim).collect();
    if parts.iter().all(|part| part.parse::<f64>().is_ok()) {
        return parts.join(", ");
    }
    let quoted: Vec<String> = parts.iter().map(|part| format!("\"{part}\"")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_the_place_of_a_list_is_shown_in_one() {
        for (message, words) in [
            (
                "invalid type: floating point `0.5`, expected a sequence",
                "invalid type: number `0.5`, expected a list, such as `[0.5]`",
            ),
            (
                "invalid type: string \"vllm\", expected a sequence\nin `export.to`\n",
                "invalid type: string \"vllm\", expected a list, such as `[\"vllm\"]`\nin `export.to`\n",
            ),
            (
                "invalid type: string \"1,3,4\", expected a sequence",
                "invalid type: string \"1,3,4\", expected a list, such as `[1, 3, 4]`",
            ),
            (
                "invalid type: string \"vllm,sglang\", expected a sequence",
                "invalid type: string \"vllm,sglang\", expected a list, such as `[\"vllm\", \"sglang\"]`",
            ),
            (
                "invalid type: map, expected a sequence",
                "invalid type: map, expected a list",
            ),
        ] {
            assert_eq!(worded(message, None), words);
        }
    }

    #[test]
    fn numbers_begin_with_the_least_one_that_there_can_be() {
        let message = "invalid value: integer `-4`, expected usize";
        for (least, number) in [(Some(4), 4), (Some(1), 1), (None, 0)] {
            let expected = format!("expected a whole number from {number}");
            assert!(worded(message, least).ends_with(&expected), "{least:?}");
        }
    }

    #[test]
    fn the_least_number_of_a_key_is_taken_and_a_smaller_one_is_refused() {
        let said = |key: &str, value: &str| {
            let text = "recipe = \"eagle3\"\nname = \"a\"\n[target]\nmodel = \"m\"\n[data]\ntrain = \"t\"\n";
            let read = crate::recipe::read::read(text, &[format!("{key}={value}")]);
            read.map_or_else(|error| format!("{error:#}"), |_| String::new())
        };
        for (key, least) in LEAST {
            let wrong = said(key, "1k");
            let expected = format!("a whole number from {least}");
            assert!(wrong.contains(&expected), "{key}: {wrong}");
            assert!(!said(key, &(least - 1).to_string()).is_empty(), "{key}");
        }
        assert_eq!(said("data.max_samples", "1"), "");
    }

    #[test]
    fn a_name_of_other_trainers_is_asked_about() {
        for (message, question) in [
            (
                "unknown field `lr`, expected one of `steps`, `learning_rate`",
                "; did you mean `learning_rate`?",
            ),
            (
                "unknown field `lr`, expected one of `steps`, `learning_rate`\nin `train`\n",
                "; did you mean `learning_rate`?",
            ),
            (
                "unknown field `base_anchor_weight`, expected one of `teacher_weight`, `guess_weight`",
                "; did you mean `guess_weight`?",
            ),
            (
                "unknown variant `trtllm`, expected one of `hf`, `tensorrt-llm`",
                "; did you mean `tensorrt-llm`?",
            ),
        ] {
            let words = worded(message, None);
            assert!(words.ends_with(question), "{words}");
            assert_eq!(words.matches("did you mean").count(), 1, "{words}");
        }
        let unknown = "unknown field `lr`, expected one of `model`, `dtype`";
        assert_eq!(worded(unknown, None), unknown);
    }
}
