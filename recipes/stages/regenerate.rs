//! The target's own answers in the place of those of the data.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use spectrain_data::Error;
use spectrain_data::dataset::Dataset;
use spectrain_data::regenerate::{
    ExistingAnswers, RegenerateReport, RegenerateSettings, check_trained,
};

use crate::progress::counted;
use crate::recipe::tables::{FailedRows, RegenerateTable};
use crate::runtime::answerer::decoder::{Decoding, TargetAnswers};
use crate::runtime::answerer::server::{ServerSettings, body};
use crate::runtime::answerer::servers::Servers;
use crate::runtime::answerer::{Answered, Answerer, Pace, check_answered};
use crate::runtime::interruption::{check_interrupted, interrupted};
use crate::runtime::server::key::ApiKey;
use crate::runtime::server::waiting::Waiting;
use crate::stages::context::StageContext;
use crate::stages::prepare::{DROP, TRAIN_DATA, of_row};

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let table = context.recipe.regenerate.as_ref();
    let table = table.context("the recipe has no table `[regenerate]`")?;
    let (data, out) = (context.given_data()?, context.regenerated());
    check_given(context, &data)?;
    let answerer = match &table.server {
        Some(addresses) => {
            let variables = &context.recipe.data.template_variables;
            let each = addresses.each().iter();
            let each = each.map(|url| asked(table, url, variables));
            let waiting = Waiting {
                longest: Duration::from_secs(table.wait),
                key: "regenerate.wait",
                output: context.output,
            };
            let servers =
                Servers::connect(each.collect::<Result<_>>()?, table.concurrency, waiting)?;
            Answerer::Servers(Box::new(servers))
        }
        None => Answerer::Target(Box::new(decoded(context, table)?)),
    };
    let (tools, settings) = answerer.with_tools(table.tools)?;
    let wanted = RegenerateSettings {
        data: &data,
        out: &out,
        settings,
        truncated: table.truncated,
        tools,
        unusable: context.recipe.data.unusable,
    };
    let answered = match Answered::open(&wanted, ExistingAnswers::Continue, context.output) {
        // Whether a server or this program answers, a run goes on; begun answers do not. Nor do answers whose journal is gone.
        Err(error @ (Error::OtherJournal { .. } | Error::ForeignOutput { .. })) => {
            let aside = match error {
                Error::ForeignOutput { .. } => "answers without their journal are moved aside",
                _ => "unfinished answers of other settings are moved aside",
            };
            context.output.warn(format!("regenerate: {aside}"));
            Answered::open(&wanted, ExistingAnswers::SetAside, context.output)?
        }
        Err(error) if error.is_of_row() => bail!(of_row(error, DROP)),
        Err(error @ Error::AlteredJournal { .. }) => bail!(
            "{error}; put this line back to keep the answers, or move the journal away to ask for all anew"
        ),
        Err(error @ Error::Altered { .. }) => bail!(
            "{error}; with the settings that the answers began with this says which line to put back, or move the journal away to ask \
             for all anew"
        ),
        opened => opened?,
    };
    let pace = Pace {
        concurrency: table.concurrency.into(),
        retries: table.retries,
        requests_per_second: table.requests_per_second,
    };
    let report = answerer.run(answered, &pace)?;
    context.output.say(format!("regenerate: {report}"));
    check_failed(context, table, &report)?;
    Ok(json!(report))
}

/// Fails where nothing would be trained on, however it is answered.
fn check_given(context: &StageContext, data: &Dataset) -> Result<()> {
    let table = &context.recipe.data;
    let rows = data.rows()?.take_while(|_| !interrupted());
    let checked = check_trained(data, table.unusable.without(rows), table.mask);
    check_interrupted()?;
    checked.context(TRAIN_DATA)
}

/// Fails where conversations were not answered that are not to be left out.
fn check_failed(
    context: &StageContext,
    table: &RegenerateTable,
    report: &RegenerateReport,
) -> Result<()> {
    let out = context.regenerated();
    let key = "regenerate.failed";
    match (check_answered(report, &out), table.failed) {
        (Ok(()), _) => Ok(()),
        (Err(_), FailedRows::Drop) if report.regenerated > 0 => {
            context.output.warn(format!(
                "regenerate: left out without an answer (`{key}`): {}; `{}.report` names them",
                counted(report.failed.len() as u64, "conversation"),
                out.display()
            ));
            Ok(())
        }
        (Err(error), FailedRows::Drop) => Err(error),
        (Err(error), FailedRows::Refuse) => {
            Err(anyhow!("{error}; `{key} = \"drop\"` goes on without them"))
        }
    }
}

/// What the server at `url` is asked with, where the template has these variables.
fn asked(
    table: &RegenerateTable,
    url: &str,
    template_variables: &Map<String, Value>,
) -> Result<ServerSettings> {
    let key = table.api_key_env.as_deref();
    let key = key.map(|variable| ApiKey::read("regenerate.api_key_env", variable));
    Ok(ServerSettings {
        url: url.to_owned(),
        named_by: ["regenerate.server", "regenerate.model"],
        model: table.model.clone(),
        key: key.transpose()?,
        body: body(
            [table.temperature, table.top_p],
            Some(table.max_tokens),
            table.extra.clone(),
            template_variables,
        ),
        seed: Some(table.seed),
        timeout: Duration::from_secs_f64(table.timeout),
    })
}

/// The target, loaded to be decoded.
fn decoded(context: &StageContext, table: &RegenerateTable) -> Result<TargetAnswers> {
    let data = &context.recipe.data;
    TargetAnswers::open(Decoding {
        folder: &context.target_folder()?,
        name: &context.target_name()?,
        template: data.template.as_deref(),
        variables: data.template_variables.clone(),
        day: Some(context.day()?),
        device: context.device.clone(),
        held: context.target_type,
        sampling: [table.temperature, table.top_p],
        longest: table.max_tokens as usize,
        seed: table.seed,
        together: table.concurrency.into(),
    })
}
