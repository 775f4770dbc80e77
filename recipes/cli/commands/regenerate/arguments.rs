//! Arguments of `spectrain data regenerate`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use spectrain_data::regenerate::{ToolRows, Truncated};
use spectrain_data::rows::would_read;
use spectrain_data::sources::Origin;

use crate::cli::arguments::{
    DataArgument, LimitArgument, TargetDevice, TemplateArgument, UnusableArgument, check_written,
    word,
};
use crate::errors::Misuse;
use crate::progress::Output;
use crate::recipe::tables::{
    Asked, CONCURRENCY, LONGEST_ANSWER, NO_PARSER, OWN_KEYS, RETRIES, TEMPLATE_KEY, TIMEOUT,
    check_asked, check_template,
};
use crate::runtime::answerer::server::{ServerSettings, body};
use crate::runtime::server::key::ApiKey;
use crate::runtime::server::waiting::Waiting;

/// Arguments of `spectrain data regenerate`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("answerer").required(true).args(["server", "target", "capture"])))]
pub struct RegenerateArguments {
    #[command(flatten)]
    pub(super) data: DataArgument,
    #[command(flatten)]
    pub(super) limit: LimitArgument,
    #[command(flatten)]
    pub(super) unusable: UnusableArgument,
    /// The `.jsonl` file to write; its journal and its report are written beside it
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// A server that speaks the OpenAI protocol (SGLang, vLLM, llama.cpp), such as `http://localhost:8000`; may be repeated for
    /// several servers of one model
    #[arg(long, value_name = "URL")]
    pub(super) server: Vec<String>,
    /// The target, a hub id or a folder, with which spectrain decodes itself in place of a server
    #[arg(long)]
    pub(super) target: Option<String>,
    /// A folder for the hidden states of what is written: the servers of `--recipe` answer and return these states at the same
    /// time; the file of `--out` then holds tokens, one row for each answer
    #[arg(long, value_name = "DIR", requires = "recipe")]
    pub(super) capture: Option<PathBuf>,
    /// The recipe that names the target, its servers and the family whose drafters read the hidden states
    #[arg(long, value_name = "FILE", requires = "capture")]
    pub(super) recipe: Option<PathBuf>,
    /// The model's name on the server; without it, the only model that the server has
    #[arg(long, value_name = "NAME", conflicts_with_all = ["target", "capture"])]
    pub(super) model: Option<String>,
    /// The environment variable that holds the server's API key
    #[arg(long, value_name = "VAR", conflicts_with_all = ["target", "capture"])]
    pub(super) api_key_env: Option<String>,
    /// A further key of the request's body, such as `top_k=20`; may be repeated
    #[arg(long = "extra", value_name = "KEY=JSON", value_parser = extra, conflicts_with_all = ["target", "capture"])]
    pub(super) extra: Vec<(String, Value)>,
    /// Temperature; without it, the server's or the target's own setting
    #[arg(long)]
    pub(super) temperature: Option<f64>,
    /// Sample from the fewest tokens that hold this much probability; without it, the server's or the target's own setting
    #[arg(long)]
    pub(super) top_p: Option<f64>,
    /// The most tokens in an answer; without it, the server's limit, or 2048 with `--target`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_tokens: Option<u32>,
    /// Seed of sampling, from which each turn's own seed is derived
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// What happens to a conversation with an answer that is cut off at the length limit: `keep`, `drop` or `fail`
    #[arg(long, default_value = "keep", value_parser = word::<Truncated>)]
    pub(super) truncated: Truncated,
    /// What happens to rows with tools: `answer`, with what the data has as results of the same calls, or `copy`; without it, servers
    /// answer them, and with `--target` or `--capture` they are copied
    #[arg(long, value_name = "answer|copy", value_parser = word::<ToolRows>)]
    pub(super) tools: Option<ToolRows>,
    /// Conversations in progress at a time, at each server; with `--target`, how many it decodes side by side
    #[arg(long, default_value_t = CONCURRENCY, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) concurrency: u16,
    /// How often to repeat a request that failed for a temporary reason, at another server where there is one
    #[arg(long, default_value_t = RETRIES, conflicts_with = "target")]
    pub(super) retries: u32,
    /// Seconds after which an incomplete answer counts as failed
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = TIMEOUT,
        conflicts_with = "target"
    )]
    pub(super) timeout: f64,
    /// The most requests per second, to all servers together
    #[arg(long, value_name = "N", conflicts_with = "target")]
    pub(super) requests_per_second: Option<f64>,
    /// Seconds for which servers that are not there yet (that refuse connections, or answer with status 502, 503 or 504) are
    /// waited for, at the start and later, while none is there; without it, 900, or with `--capture` the recipe's `features.wait`
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=1 << 20), conflicts_with = "target")]
    pub(super) wait: Option<u64>,
    #[command(flatten)]
    pub(super) template: TemplateArgument,
    #[command(flatten)]
    pub(super) device: TargetDevice,
    /// Move an older output and its journal aside, and with `--capture` what is in DIR, and start anew
    #[arg(long)]
    pub(super) fresh: bool,
    /// Show no progress
    #[arg(long)]
    pub(super) quiet: bool,
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

impl RegenerateArguments {
    /// Fails on values that make no sense.
    pub(super) fn check(&self) -> Result<()> {
        let misuse = |message: String| Err(Misuse(message).into());
        if self.out.extension().is_none_or(|ending| ending != "jsonl") {
            return misuse(format!(
                "`--out`: expected a `.jsonl` file, found `{}`",
                self.out.display()
            ));
        }
        self.check_asked()?;
        if self.server.is_empty() && self.tools == Some(ToolRows::Answer) {
            return misuse(format!(
                "`--tools answer`: expected `--server`: {NO_PARSER}"
            ));
        }
        if !self.server.is_empty() && self.device.is_given() {
            let message = "`--device` and `--target-dtype`: expected `--target` in place of `--server`: a server has a \
                           device and a number type of its own";
            return misuse(message.into());
        }
        if self.capture.is_some() && self.device.is_given() {
            let message = "`--device` and `--target-dtype`: expected `--target` in place of `--capture`: servers have \
                           devices and number types of their own";
            return misuse(message.into());
        }
        let sources = self.data.sources()?;
        let mut origins = sources.each().iter().map(|source| &source.origin);
        let is_read = origins.any(|origin| match origin {
            Origin::Path(data) => would_read(data, &self.out),
            Origin::Hub(_) | Origin::Preset(_) => false,
        });
        check_written("--out", &self.out, "--data", is_read)
    }

    /// Fails on what a request cannot have.
    fn check_asked(&self) -> Result<()> {
        let checked = check_asked(&Asked {
            temperature: self.temperature,
            top_p: self.top_p,
            timeout: self.timeout,
            requests_per_second: self.requests_per_second,
        });
        checked.map_err(|problem| problem.of_option())?;
        let variables = self.template.given();
        for (_, given) in self.extra.iter().filter(|(key, _)| key == TEMPLATE_KEY) {
            let checked = check_template(given, &variables, "`--template-variable`");
            checked.map_err(|message| Misuse(format!("`--extra {TEMPLATE_KEY}`: {message}")))?;
        }
        Ok(())
    }

    /// How long servers are waited for; `wait` seconds where nothing is said.
    pub(super) fn waiting(&self, wait: u64, output: Output) -> Waiting {
        Waiting {
            longest: Duration::from_secs(self.wait.unwrap_or(wait)),
            key: "--wait",
            output,
        }
    }

    /// Tokens of an answer, at most, where no server has a limit of its own.
    pub(super) fn longest_answer(&self) -> usize {
        self.max_tokens.unwrap_or(LONGEST_ANSWER) as usize
    }

    /// What a server is asked with.
    pub(super) fn server_settings(&self, url: &str) -> Result<ServerSettings> {
        let key = self.api_key_env.as_deref();
        Ok(ServerSettings {
            url: url.to_owned(),
            named_by: ["--server", "--model"],
            model: self.model.clone(),
            key: key
                .map(|name| ApiKey::read("--api-key-env", name))
                .transpose()?,
            body: body(
                [self.temperature, self.top_p],
                self.max_tokens,
                self.extra.iter().cloned(),
                &self.template.given(),
            ),
            seed: self.seed,
            timeout: Duration::from_secs_f64(self.timeout),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
