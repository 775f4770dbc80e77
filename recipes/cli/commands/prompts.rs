//! Prompts that a user names to measure with.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cli::arguments::TemplateArgument;
use crate::progress::Output;
use crate::recipe::tables::{DataTable, PromptEntry};
use crate::runtime::prompt_sets;
use crate::runtime::text::Text;

/// At most `count` prompts that a user names, spread evenly over them: tokens of the target, rendered with the variables of
/// the template that are given or else the drafter's. Of conversations the first turn.
pub(super) fn prompts_of(
    entry: &PromptEntry,
    (drafter, target): (&Path, &Path),
    template: &TemplateArgument,
    count: usize,
) -> Result<Vec<Vec<u32>>> {
    let data = DataTable {
        template_variables: template.with_those_of(drafter)?,
        ..DataTable::default()
    };
    let text = Text::of(target, &data)?;
    let read = prompt_sets::read(std::slice::from_ref(entry), &text, count)?;
    let output = Output::detect();
    read.of_hub.iter().for_each(|data| output.say(data));
    for warning in read.warnings(data.max_length) {
        output.warn(warning);
    }
    let prompts = read.sets.into_iter().flat_map(|set| set.prompts);
    let tokens: Vec<Vec<u32>> = prompts.map(|prompt| prompt.tokens).collect();
    if tokens.is_empty() {
        bail!("expected prompts of `{entry}` to measure with, found none");
    }
    Ok(tokens)
}
