//! Evaluated prompts that a training has read.
use std::collections::{HashMap, HashSet};
use std::path::Path;

use spectrain_data::tokens::TokenShards;
use spectrain_eval::{KnownPrompts, Prompt};

use crate::cli::progress::Output;

/// How many of these prompts begin a conversation that the run in a folder trained on; none where there are none, or where nobody
/// knows. `output` is told.
pub(crate) fn known_prompts<'a>(
    run: &Path,
    prompts: impl Iterator<Item = &'a Prompt>,
    output: Output,
) -> Option<KnownPrompts> {
    let folder = run.join("prepare").join("train");
    if !TokenShards::is_in(&folder) {
        return None;
    }
    let rows = match TokenShards::open(&folder) {
        Ok(rows) => rows,
        Err(error) => {
            let unknown = "evaluate: which of the prompts the drafter was trained on is not known";
            output.warn(format!("{unknown}: {error}"));
            return None;
        }
    };
    let prompts: Vec<&[u32]> = prompts.map(|prompt| prompt.tokens.as_slice()).collect();
    let begun = begun(&prompts, rows.iter().map(|row| row.tokens));
    let known = prompts.iter().filter(|&prompt| begun.contains(prompt));
    let (known, of) = (known.count() as u64, prompts.len() as u64);
    let found = (known > 0).then_some(KnownPrompts { known, of });
    if let Some(found) = found {
        output.warn(format!("evaluate: {found}"));
    }
    found
}

/// Those of `prompts` with which a row begins.
fn begun<'a>(prompts: &[&'a [u32]], rows: impl Iterator<Item = &'a [u32]>) -> HashSet<&'a [u32]> {
    // A tree of the prompts: from a node, by a token, to the next.
    let mut next: HashMap<(usize, u32), usize> = HashMap::new();
    let mut ends: Vec<Option<&[u32]>> = vec![None];
    for prompt in prompts {
        let node = prompt.iter().fold(0, |node, &token| {
            *next.entry((node, token)).or_insert_with(|| {
                ends.push(None);
                ends.len() - 1
            })
        });
        ends[node] = Some(prompt);
    }
    let mut found = HashSet::new();
    for row in rows {
        let mut node = 0;
        for &token in row {
            let Some(&there) = next.get(&(node, token)) else {
                break;
            };
            node = there;
            found.extend(ends[node]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_known_that_a_row_begins_with() {
        let prompts: [&[u32]; 5] = [&[1, 2], &[1, 2, 3, 4], &[2], &[5, 6], &[1]];
        let rows: [&[u32]; 3] = [&[1, 2, 3, 9], &[5], &[7, 2]];
        let found = begun(&prompts, rows.into_iter());
        assert_eq!(found, HashSet::from([prompts[0], prompts[4]]));
    }
}
