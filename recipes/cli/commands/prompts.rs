//! Prompts in a file that a user names.

use std::path::Path;

use anyhow::Result;

use crate::cli::arguments::TemplateArgument;
use crate::recipe::tables::DataTable;
use crate::runtime::prompts::spread;
use crate::runtime::text::Text;

/// At most `count` prompts of a file that a user names, spread evenly over it: tokens of the target, rendered with the
/// variables of the template that are given or else the drafter's.
pub(super) fn prompts_in(
    path: &Path,
    (drafter, target): (&Path, &Path),
    template: &TemplateArgument,
    count: usize,
) -> Result<Vec<Vec<u32>>> {
    let data = DataTable {
        template_variables: template.with_those_of(drafter)?,
        ..DataTable::default()
    };
    let prompts = Text::of(target, &data)?.prompts_of(path)?.prompts;
    let tokens = prompts.into_iter().map(|prompt| prompt.tokens);
    Ok(spread(tokens.collect(), count))
}
