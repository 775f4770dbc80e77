//! `spectrain data regenerate`: the target's own answers in the place of a dataset's.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use spectrain_data::Error;
use spectrain_data::regenerate::{Answers, Existing, Job, Retry, Truncated, Wanted, Work};
use spectrain_data::rows::would_read;

use crate::cli::commands::data::word;
use crate::cli::progress::Output;
use crate::cli::{DeviceArgument, Misuse, TemplateArgument};
use crate::stages::{self, Interrupted};

pub mod decoder;
mod protocol;
pub mod server;

use decoder::TargetAnswers;
use server::{Server, ServerSettings};

/// The pause before the first further try, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Keys of a request's body that `--extra` cannot set, because an option or the program does.
const OWN_KEYS: [&str; 9] = [
    "messages",
    "model",
    "stream",
    "n",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
];

/// Arguments of `spectrain data regenerate`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("answerer").required(true).args(["server", "target"])))]
pub struct RegenerateArguments {
    /// Conversations: a file, a folder or a pattern such as `data/*.jsonl`
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The `.jsonl` file to write; its journal and its report stand beside it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// A server that speaks the OpenAI protocol (SGLang, vLLM, llama.cpp), such as `http://localhost:8000`
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The target, a hub id or a folder, which this program decodes in place of a server
    #[arg(long)]
    target: Option<String>,
    /// The model's name on the server; without it, the only one that the server has
    #[arg(long, value_name = "NAME", conflicts_with = "target")]
    model: Option<String>,
    /// The environment variable that holds the server's API key
    #[arg(long, value_name = "VAR", conflicts_with = "target")]
    api_key_env: Option<String>,
    /// A further key of the request's body, such as `top_k=20`; may be repeated
    #[arg(long = "extra", value_name = "KEY=JSON", value_parser = extra, conflicts_with = "target")]
    extra: Vec<(String, Value)>,
    /// Temperature; without it, the server's or the target's own setting
    #[arg(long)]
    temperature: Option<f64>,
    /// Share of probability to sample from; without it, the server's or the target's own setting
    #[arg(long)]
    top_p: Option<f64>,
    /// Tokens of an answer, at most; without it, the server's limit, or 2048 with `--target`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Seed of sampling, from which every turn gets its own
    #[arg(long)]
    seed: Option<u64>,
    /// What happens to a conversation with an answer cut off at the longest one: `keep`, `drop` or `fail`
    #[arg(long, default_value = "keep", value_parser = word::<Truncated>)]
    truncated: Truncated,
    /// Conversations in progress at a time
    #[arg(long, default_value_t = 16, conflicts_with = "target", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Times to repeat a request that failed for a reason that may pass
    #[arg(long, default_value_t = 6, conflicts_with = "target")]
    retries: u32,
    /// Seconds until an answer that is not complete counts as failed
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600.0,
        conflicts_with = "target"
    )]
    timeout: f64,
    /// Requests in a second, at most
    #[arg(long, value_name = "N", conflicts_with = "target")]
    requests_per_second: Option<f64>,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: DeviceArgument,
    /// Move an older output and its journal aside and start anew
    #[arg(long)]
    fresh: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
}

fn extra(given: &str) -> Result<(String, Value), String> {
    let (key, value) = given.split_once('=').ok_or("expected KEY=JSON")?;
    if key.is_empty() || OWN_KEYS.contains(&key) {
        let own = OWN_KEYS.join("`, `");
        return Err(format!("expected a key other than `{own}`"));
    }
    let value = serde_json::from_str(value)
        .map_err(|error| format!("expected JSON after `{key}=`: {error}"))?;
    Ok((key.to_owned(), value))
}

/// Runs the command.
pub fn run(arguments: &RegenerateArguments) -> Result<()> {
    arguments.check()?;
    let output = match arguments.quiet {
        true => Output::Quiet,
        false => Output::detect(),
    };
    let (answers, settings) = arguments.open()?;
    let wanted = Wanted {
        data: &arguments.data,
        out: &arguments.out,
        settings,
        truncated: arguments.truncated,
    };
    let existing = match arguments.fresh {
        true => Existing::SetAside,
        false => Existing::Continue,
    };
    let job = Job::open(&wanted, existing).map_err(advised)?;
    let total = job.conversations();
    let mut progress = output.start("regenerate", total);
    if job.finished() > 0 {
        output.say(format!(
            "regenerate: goes on after {} of {total} conversations",
            job.finished()
        ));
        progress.set(job.finished(), "");
    }
    let work = Work {
        // The decoder takes one conversation at a time, with all cores.
        concurrency: arguments
            .target
            .as_ref()
            .map_or(arguments.concurrency.into(), |_| 1),
        retry: Retry {
            retries: arguments.retries,
            first: PAUSES[0],
            longest: PAUSES[1],
        },
        requests_per_second: arguments.requests_per_second,
        interrupted: &stages::interrupted,
    };
    let mut shown = |done, failed| match failed {
        0 => progress.set(done, ""),
        _ => progress.set(done, format!("{failed} failed")),
    };
    let Some(report) = job.run(answers.as_ref(), &work, &mut shown)? else {
        drop(progress);
        return Err(Interrupted::Run.into());
    };
    let out = arguments.out.display();
    progress.finish(format!("`{out}`"));
    println!("{report}");
    match report.failed.len() {
        0 => Ok(()),
        failed => bail!(
            "{failed} of {total} conversations were not regenerated; `{out}.report` names them, `{out}` has the \
             others; the same command tries again"
        ),
    }
}

/// An error with what to do about it.
fn advised(error: Error) -> anyhow::Error {
    match &error {
        Error::OtherJournal { .. } | Error::ForeignOutput { .. } => {
            anyhow::anyhow!("{error}; `--fresh` moves what is there aside and starts anew")
        }
        _ => error.into(),
    }
}

impl RegenerateArguments {
    fn check(&self) -> Result<()> {
        let misuse = |message: String| Err(Misuse(message).into());
        let within = |given: Option<f64>, good: fn(f64) -> bool| given.is_none_or(good);
        if self.out.extension().is_none_or(|ending| ending != "jsonl") {
            return misuse(format!(
                "`--out`: expected a `.jsonl` file, found `{}`",
                self.out.display()
            ));
        }
        if !within(self.temperature, |value| (0.0..=100.0).contains(&value)) {
            return misuse("`--temperature`: expected 0 to 100".into());
        }
        if !within(self.top_p, |value| value > 0.0 && value <= 1.0) {
            return misuse("`--top-p`: expected more than 0 and at most 1".into());
        }
        if !within(Some(self.timeout), |value| (0.001..1e9).contains(&value)) {
            return misuse("`--timeout`: expected seconds, at least 0.001".into());
        }
        let rate = self.requests_per_second;
        if !within(rate, |value| (1e-6..=1e6).contains(&value)) {
            return misuse("`--requests-per-second`: expected 0.000001 to 1000000".into());
        }
        if self.server.is_some() && self.device.device != "cpu" {
            return misuse("`--device`: a server computes where it is; expected `--target`".into());
        }
        if self.server.is_some() && !self.template.template_variables.is_empty() {
            let hint =
                "a server renders the template: expected `--extra chat_template_kwargs=JSON`";
            return misuse(format!("`--template-variable`: {hint}"));
        }
        if would_read(&self.data, &self.out) {
            return misuse(format!(
                "`--out`: expected a file that is not part of `--data`, found `{}`",
                self.out.display()
            ));
        }
        Ok(())
    }

    /// What answers, and everything that the answers depend on.
    fn open(&self) -> Result<(Box<dyn Answers>, Map<String, Value>)> {
        let mut settings = Map::new();
        let answers: Box<dyn Answers> = match (&self.server, &self.target) {
            (Some(url), _) => {
                let server = Server::connect(self.server_settings(url)?)?;
                settings.insert("model".into(), server.model().into());
                settings.extend(server.body().clone());
                settings.insert("seed".into(), json!(self.seed));
                Box::new(server)
            }
            (None, Some(target)) => {
                let answers = TargetAnswers::open(self, target)?;
                settings.extend(answers.settings()?);
                Box::new(answers)
            }
            (None, None) => return Err(Misuse("expected `--server` or `--target`".into()).into()),
        };
        Ok((answers, settings))
    }

    fn server_settings(&self, url: &str) -> Result<ServerSettings> {
        let key = |name: &String| {
            std::env::var(name).with_context(|| format!("`--api-key-env`: the variable `{name}`"))
        };
        let given = [
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("max_tokens", self.max_tokens.map(Value::from)),
        ];
        let given = given.into_iter();
        let mut body: Map<String, Value> = given
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect();
        body.extend(self.extra.iter().cloned());
        Ok(ServerSettings {
            url: url.to_owned(),
            model: self.model.clone(),
            key: self.api_key_env.as_ref().map(key).transpose()?,
            body,
            seed: self.seed,
            timeout: Duration::from_secs_f64(self.timeout),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_keys_are_json_and_not_those_of_options() {
        assert_eq!(extra("top_k=20"), Ok(("top_k".into(), json!(20))));
        assert_eq!(
            extra("chat_template_kwargs={\"enable_thinking\": false}"),
            Ok((
                "chat_template_kwargs".into(),
                json!({"enable_thinking": false})
            ))
        );
        assert!(extra("stop=word").unwrap_err().contains("expected JSON"));
        assert!(extra("seed=1").unwrap_err().contains("other than"));
        assert!(extra("top_k").is_err() && extra("=1").is_err());
    }
}
