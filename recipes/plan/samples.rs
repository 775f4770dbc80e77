//! Whether the stage `prepare` gets samples and prompts from the data: found with the first rows, as it finds it with all of them.

use std::cell::Cell;
use std::num::NonZero;
use std::path::Path;

use anyhow::{Context as _, Error, Result, bail};
use spectrain_data::dataset::Dataset;
use spectrain_data::regenerate::check_trained;
use spectrain_data::sources::Sources;

use crate::families::drafter_folder::Unheld;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::DataTable;
use crate::runtime::sizes::folder_of;
use crate::runtime::target::hub_options;
use crate::runtime::text::{RowsOf, Text};
use crate::stages::prepare::{
    EVAL_DATA, HELD_OUT_DATA, TRAIN_DATA, held_out, not_asked, not_prepared,
};

/// Rows that are read in any case.
const LEAST: usize = 100;
/// Rows that are read where none before gave a sample, or a prompt.
const MOST: usize = 10_000;

/// What would stop the stage `prepare`. Nothing is known where the target or the data is not on this machine, or is made by the
/// run.
pub(super) fn failures(recipe: &ResolvedRecipe) -> Vec<Error> {
    let Some(model) = recipe.model() else {
        return Vec::new();
    };
    let Some(folder) = folder_of(model, recipe.target.revision.as_deref()) else {
        return Vec::new();
    };
    let text = match Text::of(&folder, &recipe.data) {
        Ok(text) => text,
        Err(error) if Path::new(model).is_dir() => {
            return vec![error.context("`target.model`")];
        }
        // The run downloads what is missing of it.
        Err(_) => return Vec::new(),
    };
    let here = |sources: Option<Sources>| sources?.here(&hub_options()).ok();
    let train = here(recipe.data.train_sources());
    let train = train.map(|data| data.at_most(recipe.data.max_samples));
    let train = train.map(|data| match recipe.regenerate {
        // What is trained on is still to be answered.
        Some(_) => check_given(&data, &recipe.data).context(TRAIN_DATA),
        None => check_train(&text, &data, recipe),
    });
    let eval = here(recipe.data.eval.clone());
    let eval = eval.map(|data| check_eval(&text, &data));
    let checks = train.into_iter().chain(eval);
    checks.filter_map(Result::err).collect()
}

/// Fails unless there are rows that can be read, and something of them may be trained on once they are answered.
fn check_given(data: &Dataset, table: &DataTable) -> Result<()> {
    let unusable = table.unusable;
    let mut read = 0;
    for row in unusable.without(data.rows()?.take(MOST)).take(LEAST) {
        row?;
        read += 1;
    }
    if read == 0 {
        bail!("{data}: expected rows, found none");
    }
    let read = Cell::new(0);
    let rows = data.rows()?.take_while(|_| {
        read.set(read.get() + 1);
        read.get() <= MOST
    });
    match check_trained(data, unusable.without(rows), table.mask) {
        // Of what was not read something may be.
        Err(_) if read.get() > MOST => Ok(()),
        checked => Ok(checked?),
    }
}

/// Fails where nothing can be trained on, or held out of it and asked where that is wanted, and where a text holds what none may.
fn check_train(text: &Text, data: &Dataset, recipe: &ResolvedRecipe) -> Result<()> {
    let mut unheld = Unheld::new(recipe.method.unheld());
    let is_all = check_samples(text, (data, TRAIN_DATA), &mut |tokens| unheld.count(tokens))?;
    unheld.check().context("the first texts of `data.train`")?;
    if recipe.data.eval.is_some() {
        return Ok(());
    }
    let checked = match is_all {
        true => {
            let held_out = held_out(text, data.rows()?, recipe.data.held_out())?;
            let rows = held_out.held(data.rows()?);
            text.prompts(Box::new(rows)).map(drop)
        }
        // Which of them are held out is not known before all are read.
        false => text.check_prompts(Box::new(data.rows()?), MOST),
    };
    checked.map_err(|error| not_asked(error, HELD_OUT_DATA))
}

/// Fails where nothing can be evaluated with.
fn check_eval(text: &Text, data: &Dataset) -> Result<()> {
    let is_all = check_samples(text, (data, EVAL_DATA), &mut |_| {})?;
    let rows: RowsOf<'_> = Box::new(data.rows()?);
    let checked = match is_all {
        true => text.prompts(rows).map(drop),
        false => text.check_prompts(rows, MOST),
    };
    checked.map_err(|error| not_asked(error, EVAL_DATA))
}

/// Fails where one of the first rows cannot be made samples, or where none of them leaves one; `look` is called with the tokens of
/// each. Whether these were all rows.
fn check_samples(
    text: &Text,
    (data, name): (&Dataset, &str),
    look: &mut dyn FnMut(&[u32]),
) -> Result<bool> {
    let (read, kept) = (Cell::new(0), Cell::new(false));
    let rows = data.rows()?.take_while(|_| {
        let more = read.get() < LEAST || (!kept.get() && read.get() < MOST);
        read.set(read.get() + 1);
        more
    });
    // How many rows are read is counted as they are used up.
    let one = NonZero::<usize>::MIN;
    let made = text.preparation().prepare(rows, one, &mut |sample| {
        kept.set(true);
        look(&sample.tokens);
        Ok(())
    });
    let is_all = read.get() < LEAST;
    match made {
        Ok(_) => Ok(is_all),
        // Of what was not read there may be some.
        Err(spectrain_data::Error::NothingKept { .. }) if read.get() > MOST => Ok(false),
        Err(error) => Err(not_prepared(error.into(), name, &data.to_string())),
    }
}
