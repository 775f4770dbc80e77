//! Drafts in a few characters, for command lines: the shape, what it cannot do without, and the other keys where they are
//! not left at their defaults, as in `dynamic:60`, `static:eagle-25` and `chain:5,tokens=drawn`.
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};
use spectrain_checkpoints::Mismatch;
use spectrain_data::words::in_words;

use super::DraftChoice;
use crate::error::{Error, Result};

/// The shapes, each with its key that has no default.
const SHAPES: [(&str, &str); 6] = [
    ("chain", "length"),
    ("static", "tree"),
    ("dynamic", "nodes"),
    ("best_first", "nodes"),
    ("confident", "length"),
    ("calibrated", "nodes"),
];

impl FromStr for DraftChoice {
    type Err = Error;

    /// Reads a short form.
    ///
    /// # Errors
    /// There is no such shape or key, or what it must have is missing.
    fn from_str(text: &str) -> Result<Self> {
        let refused = |expected: String| Error::Setting {
            key: "draft",
            mismatch: Mismatch::new(expected, format!("`{text}`")),
        };
        let (name, given) = text.split_once(':').unwrap_or((text, ""));
        let known = SHAPES.into_iter().find(|(shape, _)| *shape == name);
        let Some((shape, key)) = known else {
            return Err(refused(forms()));
        };
        let mut table = Map::new();
        table.insert("shape".into(), shape.into());
        for (at, part) in parts(given).into_iter().enumerate() {
            let pair = match at {
                0 => Some((key, part)),
                _ => part.split_once('='),
            };
            let Some((key, given)) = pair.filter(|(_, given)| !given.is_empty()) else {
                let form = format!(
                    "`{shape}:{}`, followed by any `,KEY=VALUE`",
                    key.to_uppercase()
                );
                return Err(refused(form));
            };
            if table.insert(key.into(), value(given)).is_some() {
                return Err(refused(format!("`{key}` once")));
            }
        }
        let read = serde_json::from_value(Value::Object(table));
        read.map_err(|error| refused(format!("a draft ({})", in_words(&error.to_string()))))
    }
}

impl fmt::Display for DraftChoice {
    /// Writes the short form.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let table = |choice: &Self| serde_json::to_value(choice).map_err(|_| fmt::Error);
        let own = table(self)?;
        let shape = own["shape"].as_str().ok_or(fmt::Error)?;
        let known = SHAPES.iter().find(|(known, _)| *known == shape);
        let (_, key) = known.ok_or(fmt::Error)?;
        let short = format!("{shape}:{}", word(&own[*key]));
        f.write_str(&short)?;
        let usual = table(&short.parse().map_err(|_| fmt::Error)?)?;
        let Value::Object(own) = own else {
            return Err(fmt::Error);
        };
        for (key, value) in own.iter().filter(|(key, value)| usual[*key] != **value) {
            write!(f, ",{key}={}", word(value))?;
        }
        Ok(())
    }
}

/// What there is.
fn forms() -> String {
    let form = |(shape, key): (&str, &str)| format!("`{shape}:{}`", key.to_uppercase());
    format!(
        "one of {}, followed by further keys as in `dynamic:60,depth=8`",
        SHAPES.map(form).join(", ")
    )
}

/// What commas separate, but for those inside of lists.
fn parts(text: &str) -> Vec<&str> {
    let mut open = 0_usize;
    let is_between = |character: char| {
        match character {
            '[' => open += 1,
            ']' => open = open.saturating_sub(1),
            _ => {}
        }
        character == ',' && open == 0
    };
    text.split(is_between).map(str::trim).collect()
}

/// A number or a list, or else a word.
fn value(text: &str) -> Value {
    let read = serde_json::from_str(text).ok();
    let read = read.filter(|value: &Value| value.is_number() || value.is_array());
    read.unwrap_or_else(|| text.into())
}

fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::{Calibration, ChainTokens, Threshold};
    use spectrain_models::{Children, StaticTree, StopBy};

    /// One of each shape, with the key that it cannot do without.
    fn samples() -> Vec<DraftChoice> {
        let mut samples = vec![
            DraftChoice::chain(5),
            DraftChoice::Dynamic {
                depth: 6,
                top_k: 10,
                nodes: 60,
            },
            DraftChoice::BestFirst {
                depth: 6,
                nodes: 32,
            },
            DraftChoice::Confident {
                length: 7,
                by: StopBy::Head,
                threshold: Threshold::At(0.5),
            },
            DraftChoice::Calibrated(Calibration {
                nodes: 25,
                ranks: 10,
                depth: 6,
                prompts: 8,
            }),
        ];
        let trees = StaticTree::NAMES.map(|name| StaticTree::named(name).unwrap());
        samples.extend(trees.map(|tree| DraftChoice::Static {
            tree,
            children: Children::Top,
        }));
        samples
    }

    /// The place of a shape in [`SHAPES`]; a new one has to have one.
    fn place(choice: &DraftChoice) -> usize {
        match choice {
            DraftChoice::Chain { .. } => 0,
            DraftChoice::Static { .. } => 1,
            DraftChoice::Dynamic { .. } => 2,
            DraftChoice::BestFirst { .. } => 3,
            DraftChoice::Confident { .. } => 4,
            DraftChoice::Calibrated(_) => 5,
        }
    }

    #[test]
    fn every_shape_has_a_short_form() {
        let mut seen = [false; SHAPES.len()];
        for choice in samples() {
            let (shape, _) = SHAPES[place(&choice)];
            seen[place(&choice)] = true;
            let short = choice.to_string();
            assert!(short.starts_with(&format!("{shape}:")), "{short}");
            assert!(!short.contains(','), "defaults are left out: {short}");
            assert_eq!(short.parse::<DraftChoice>().unwrap(), choice);
        }
        assert_eq!(seen, [true; SHAPES.len()]);
    }

    #[test]
    fn short_forms_are_those_of_the_documentation() {
        let shorts: Vec<String> = samples().iter().map(ToString::to_string).collect();
        let expected = [
            "chain:5",
            "dynamic:60",
            "best_first:32",
            "confident:7",
            "calibrated:25",
            "static:medusa-63",
            "static:eagle-25",
        ];
        assert_eq!(shorts, expected);
    }

    #[test]
    fn what_is_not_left_at_its_default_is_named() {
        let cases = [
            (
                "chain:5,tokens=drawn",
                DraftChoice::Chain {
                    length: 5,
                    tokens: ChainTokens::Drawn,
                },
            ),
            (
                "dynamic:60,depth=8,top_k=4",
                DraftChoice::Dynamic {
                    depth: 8,
                    top_k: 4,
                    nodes: 60,
                },
            ),
            (
                "confident:7,threshold=0.25",
                DraftChoice::Confident {
                    length: 7,
                    by: StopBy::Head,
                    threshold: Threshold::At(0.25),
                },
            ),
            (
                "confident:7,by=entropy,threshold=tuned",
                DraftChoice::Confident {
                    length: 7,
                    by: StopBy::Entropy,
                    threshold: Threshold::Tuned,
                },
            ),
            (
                "static:[[0],[1],[0,0]],children=without_replacement",
                DraftChoice::Static {
                    tree: StaticTree::new(vec![vec![0], vec![1], vec![0, 0]]).unwrap(),
                    children: Children::WithoutReplacement,
                },
            ),
            (
                "calibrated:25,prompts=16",
                DraftChoice::Calibrated(Calibration {
                    nodes: 25,
                    ranks: 10,
                    depth: 6,
                    prompts: 16,
                }),
            ),
        ];
        for (short, choice) in cases {
            assert_eq!(choice.to_string(), short);
            assert_eq!(short.parse::<DraftChoice>().unwrap(), choice, "{short}");
        }
    }

    #[test]
    fn what_is_no_draft_is_told_with_what_there_is() {
        for (short, parts) in [
            (
                "bush:60",
                &[
                    "one of `chain:LENGTH`, `static:TREE`, `dynamic:NODES`",
                    "found `bush:60`",
                ][..],
            ),
            ("", &["`calibrated:NODES`"]),
            ("dynamic", &["`dynamic:NODES`"]),
            ("dynamic:", &["`dynamic:NODES`"]),
            ("dynamic:60,8", &["`,KEY=VALUE`"]),
            (
                "dynamic:60,width=8",
                &["unknown field `width`", "`depth`, `top_k`, `nodes`"],
            ),
            ("dynamic:60,nodes=8", &["`nodes` once"]),
            ("dynamic:many", &["a whole number"]),
            ("chain:-5", &["a whole number"]),
            ("chain:5,tokens=best", &["`drawn`, `likeliest`"]),
            (
                "static:oak",
                &["`medusa-63`, `eagle-25` or a list of paths"],
            ),
            ("static:[[1]]", &["static:[[1]]"]),
        ] {
            let error = short.parse::<DraftChoice>().unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{short}: no `{part}` in: {error}");
            }
            assert!(!error.contains("usize"), "{error}");
        }
    }
}
