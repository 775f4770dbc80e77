//! The `[regenerate]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use spectrain_data::regenerate::Truncated;
use spectrain_models::bounds;

use crate::recipe::problem::{Problem, within};

/// Tokens of an answer, at most, where nothing is said: memory for all of them is taken at once.
pub const LONGEST_ANSWER: u32 = 2048;

/// Conversations in progress at a time, where nothing is said.
pub const CONCURRENCY: u16 = 16;

/// Times to repeat a request that failed for a reason that may pass, where nothing is said.
pub const RETRIES: u32 = 6;

/// Seconds until an answer that is not complete counts as failed, where nothing is said.
pub const TIMEOUT: f64 = 600.0;

/// Keys of a request's body that nobody sets by hand, because an option, a key or the program does.
pub const OWN_KEYS: [&str; 9] = [
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

/// The target answers the conversations of `data.train` anew, because a drafter learns to guess the text that it is trained on.
/// Without this table nothing is regenerated; with an empty one this program decodes the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegenerateTable {
    /// The address of a server that runs the target and speaks the OpenAI protocol (SGLang, vLLM, llama.cpp), such as
    /// `"http://localhost:8000"`. Left out: spectrain itself decodes with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The model's name on the server. Left out: the only model that the server has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The environment variable that holds the server's API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Further keys of a request's body, such as `{ top_k = 20, chat_template_kwargs = { enable_thinking = false } }`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Sampling temperature. Left out: the server's or the target's own setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Samples from the fewest tokens that hold this much probability. Left out: the server's or the target's own setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The most tokens in an answer.
    pub max_tokens: u32,
    /// Seed of sampling, from which each turn's own seed is derived.
    pub seed: u64,
    /// What happens to a conversation with an answer that is cut off at the length limit: `"keep"`, `"drop"` or `"fail"`.
    pub truncated: Truncated,
    /// Conversations in progress at a time; the answers do not depend on it.
    pub concurrency: u16,
    /// Seconds after which a server's incomplete answer counts as failed.
    pub timeout: f64,
}

impl Default for RegenerateTable {
    fn default() -> Self {
        Self {
            server: None,
            model: None,
            api_key_env: None,
            extra: Map::new(),
            temperature: None,
            top_p: None,
            max_tokens: LONGEST_ANSWER,
            seed: 0,
            truncated: Truncated::Keep,
            concurrency: CONCURRENCY,
            timeout: TIMEOUT,
        }
    }
}

impl RegenerateTable {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        let of_servers = [
            ("model", self.model.is_some()),
            ("api_key_env", self.api_key_env.is_some()),
            ("extra", !self.extra.is_empty()),
        ];
        if let (None, Some((key, _))) = (&self.server, of_servers.iter().find(|(_, set)| *set)) {
            return Err(Problem::new(
                *key,
                "expected `server` beside it: this key is part of the requests to a server",
            ));
        }
        if let Some(key) = self
            .extra
            .keys()
            .find(|key| OWN_KEYS.contains(&key.as_str()))
        {
            let own = OWN_KEYS.join("`, `");
            let message = format!("expected keys other than `{own}`, found `{key}`");
            return Err(Problem::new("extra", message));
        }
        check_asked([self.temperature, self.top_p], self.timeout)?;
        within([
            bounds::up_to("max_tokens", self.max_tokens as usize, bounds::TEXT),
            bounds::up_to("concurrency", self.concurrency.into(), u16::MAX.into()),
        ])
    }
}

/// Fails on a temperature, a share of probability or seconds of waiting that make no sense, by the name of the key.
pub fn check_asked([temperature, top_p]: [Option<f64>; 2], timeout: f64) -> Result<(), Problem> {
    let numbers = [
        ("temperature", temperature, 0.0..=100.0),
        ("top_p", top_p, f64::MIN_POSITIVE..=1.0),
        ("timeout", Some(timeout), 0.001..=1e9),
    ];
    for (key, value, bounds) in numbers {
        let Some(value) = value.filter(|value| !bounds.contains(value)) else {
            continue;
        };
        let (least, most) = bounds.into_inner();
        let least = match key {
            "top_p" => "more than 0".to_owned(),
            _ => format!("at least {least}"),
        };
        let message = format!("expected {least} and at most {most}, found {value}");
        return Err(Problem::new(key, message));
    }
    Ok(())
}
