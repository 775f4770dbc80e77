//! Evaluated prompts that a training has read.
use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::Result;
use spectrain_data::tokens::{TokenShards, each_text};
use spectrain_eval::{KnownPrompts, Prompt};

use crate::progress::Output;
use crate::runs::stage_names;
use crate::runtime::interruption::check_interrupted;

/// How many of these prompts begin a conversation that the run in a folder trained on; none where there are none, or where nobody
/// knows. `output` is told.
///
/// # Errors
/// The user asked to stop.
pub(crate) fn known_prompts<'a>(
    run: &Path,
    prompts: impl Iterator<Item = &'a Prompt>,
    output: Output,
) -> Result<Option<KnownPrompts>> {
    let folder = run.join(stage_names::PREPARE).join("train");
    if !TokenShards::is_in(&folder) {
        return Ok(None);
    }
    let prompts: Vec<&[u32]> = prompts.map(|prompt| prompt.tokens.as_slice()).collect();
    let mut begun = Begun::new(&prompts);
    // Training data may be too many to hold.
    let read = each_text(&folder, &mut |row| {
        check_interrupted()?;
        begun.read(row);
        anyhow::Ok(())
    });
    if let Err(error) = read {
        check_interrupted()?;
        let unknown = "evaluate: which of the prompts the drafter was trained on is not known";
        output.warn(format!("{unknown}: {error}"));
        return Ok(None);
    }
    let begun = begun.found;
    let known = prompts.iter().filter(|&prompt| begun.contains(prompt));
    let (known, of) = (known.count() as u64, prompts.len() as u64);
    let found = (known > 0).then_some(KnownPrompts { known, of });
    if let Some(found) = found {
        output.warn(format!("evaluate: {found}"));
    }
    Ok(found)
}

/// Prompts, and those of them with which a row begins.
struct Begun<'a> {
    /// A tree of the prompts: from a node, by a token, to the next.
    next: HashMap<(usize, u32), usize>,
    /// The prompt that ends at each node.
    ends: Vec<Option<&'a [u32]>>,
    found: HashSet<&'a [u32]>,
}

impl<'a> Begun<'a> {
    fn new(prompts: &[&'a [u32]]) -> Self {
        let mut next = HashMap::new();
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
        Self {
            next,
            ends,
            found: HashSet::new(),
        }
    }

    /// Finds what this row begins with.
    fn read(&mut self, row: &[u32]) {
        let mut node = 0;
        for &token in row {
            let Some(&there) = self.next.get(&(node, token)) else {
                break;
            };
            node = there;
            self.found.extend(self.ends[node]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use spectrain_data::conversation::Sample;
    use spectrain_data::tokens::TokenWriter;

    use super::*;

    #[test]
    fn prompts_are_known_that_a_row_begins_with() {
        let prompts: [&[u32]; 5] = [&[1, 2], &[1, 2, 3, 4], &[2], &[5, 6], &[1]];
        let rows: [&[u32]; 3] = [&[1, 2, 3, 9], &[5], &[7, 2]];
        let mut begun = Begun::new(&prompts);
        rows.into_iter().for_each(|row| begun.read(row));
        assert_eq!(begun.found, HashSet::from([prompts[0], prompts[4]]));
    }

    #[test]
    fn what_was_trained_on_is_found_in_every_file_of_it() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join("prepare/train");
        let known = |prompts: &[&[u32]]| {
            let prompts: Vec<Prompt> = prompts.iter().map(|of| Prompt::from(of.to_vec())).collect();
            let found = known_prompts(run.path(), prompts.iter(), Output::Quiet).unwrap();
            found.map(|KnownPrompts { known, of }| [known, of])
        };
        assert_eq!(known(&[&[1, 2]]), None);
        let mut writer = TokenWriter::create(&folder, 3).unwrap();
        for first in [1, 5, 9] {
            let sample = Sample {
                tokens: vec![first, first + 1, first + 2],
                loss_mask: vec![false, true, true],
            };
            writer.push(&sample).unwrap();
        }
        writer.finish(Default::default()).unwrap();
        assert_eq!(known(&[&[1, 2], &[5], &[6], &[9, 10]]), Some([3, 4]));
        assert_eq!(known(&[&[6]]), None);
        // A file that is not there is told, and what is known is not guessed.
        fs::remove_file(folder.join(TokenWriter::shard(1))).unwrap();
        assert_eq!(known(&[&[1, 2]]), None);
    }
}
