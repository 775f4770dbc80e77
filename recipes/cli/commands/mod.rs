//! The commands beside `recipe`.

pub mod check;
pub mod clean;
pub mod data;
pub mod evaluate;
pub mod export;
pub mod generate;
pub mod import;
pub mod regenerate;
pub mod report;
pub mod schema;

use std::path::Path;

use anyhow::Result;

use crate::cli::TemplateArgument;
use crate::recipe::tables::DataTable;
use crate::stages::evaluate::spread;
use crate::stages::prepare::Text;

/// At most `count` prompts of a file that a user names, spread evenly over it: tokens of the target, rendered with the
/// variables of the template that are given or else the drafter's.
fn prompts_in(
    path: &Path,
    (drafter, target): (&Path, &Path),
    template: &TemplateArgument,
    count: usize,
) -> Result<Vec<Vec<u32>>> {
    let data = DataTable {
        template_variables: template.with_those_of(drafter)?,
        ..DataTable::default()
    };
    let prompts = Text::of(target, &data)?.prompts_of(path)?.tokens;
    Ok(spread(prompts, count))
}
