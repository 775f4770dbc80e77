//! What keys become whose value leaves the choice to the target or the drafter, as `0` and `[]` do.

use std::fmt::Write as _;

use serde_json::{Value, json};
use spectrain_models::TargetSpec;

use crate::families::described::LAYER;
use crate::plan::preflight::Asked;

/// A key of a table, and what its value becomes.
type Becomes = (&'static str, &'static str, Value);

/// What keys become that leave the choice to the target or the drafter.
pub(super) fn resolved(asked: &Asked, target: &TargetSpec) -> Vec<Becomes> {
    let recipe = asked.recipe;
    let drafter = &recipe.json["drafter"];
    let mut found = Vec::new();
    if drafter["captured_layers"] == json!([])
        && let Ok(capture) = recipe.method.capture(target)
    {
        found.push(("drafter", "captured_layers", json!(capture.layers)));
    }
    if drafter["draft_vocab"] == 0
        && let Ok(footprint) = recipe.footprint(target)
    {
        found.push(("drafter", "draft_vocab", json!(footprint.draft_vocab)));
    }
    let given = LAYER.map(|key| drafter[key].as_u64().map(|size| size as usize));
    if let [Some(d_ff), Some(heads), Some(kv_heads)] = given
        && let Ok(sizes) = target.layer_sizes(d_ff, heads, kv_heads)
    {
        let left = LAYER.into_iter().zip(sizes).zip([d_ff, heads, kv_heads]);
        let left = left.filter(|(_, given)| *given == 0);
        found.extend(left.map(|((key, size), _)| ("drafter", key, json!(size))));
    }
    let Some(reach) = asked.reach() else {
        return found;
    };
    if recipe.train.decode_draft_length == 0 {
        found.push(("train", "decode_draft_length", json!(reach.own)));
    }
    let lengths = &recipe.evaluate.draft_lengths;
    if lengths.contains(&0) {
        let each = lengths.iter();
        let each = each.map(|&length| if length == 0 { reach.own } else { length });
        let each: Vec<usize> = each.collect();
        found.push(("evaluate", "draft_lengths", json!(each)));
    }
    found
}

/// A recipe in which each of these keys is followed by what it becomes.
pub(super) fn commented(toml: &str, keys: &[Becomes]) -> String {
    let (mut table, mut text) = ("", String::new());
    for line in toml.trim_end().lines() {
        text += line;
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']');
        }
        let key = line.split_once(" = ").map(|(key, _)| key);
        let becomes = keys
            .iter()
            .find(|(of, name, _)| *of == table && Some(*name) == key);
        // A value of several lines has no place for it behind the first.
        if let Some((_, _, value)) = becomes.filter(|_| !line.ends_with('[')) {
            let value = value.to_string().replace(',', ", ");
            _ = write!(text, "  # {value}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_followed_by_what_they_become() {
        let toml = "a = 0\n[drafter]\nlayers = []\na = 0\n[evaluate]\nlayers = [\n    0,\n]\n";
        let keys = [
            ("drafter", "layers", json!([1, 3, 4])),
            ("drafter", "a", json!(768)),
            ("evaluate", "layers", json!([5])),
        ];
        let expected = "a = 0\n[drafter]\nlayers = []  # [1, 3, 4]\na = 0  # 768\n[evaluate]\nlayers = [\n    0,\n]\n";
        assert_eq!(commented(toml, &keys), expected);
    }
}
