//! The `[regenerate]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
pub use spectrain_data::conversation::TEMPLATE_KEY;
use spectrain_data::regenerate::{ToolRows, Truncated};
use spectrain_models::bounds;

use super::addresses::Addresses;
use crate::recipe::problem::{Problem, some_of, within};

/// Tokens of an answer, at most, where nothing is said: memory for all of them is taken at once.
pub const LONGEST_ANSWER: u32 = 2048;

/// Conversations in progress at a time, where nothing is said.
pub const CONCURRENCY: u16 = 16;

/// Times to repeat a request that failed for a reason that may pass, where nothing is said.
pub const RETRIES: u32 = 6;

/// Seconds until an answer that is not complete counts as failed, where nothing is said.
pub const TIMEOUT: f64 = 600.0;

/// Seconds for which servers that are not there yet are waited for, where nothing is said.
pub const WAIT: u64 = 900;

/// The most seconds of waiting.
pub(super) const LONGEST_WAIT: usize = 1 << 20;

/// Keys of a request's body that nobody sets by hand, because an option, a key or the program does.
pub const OWN_KEYS: [&str; 10] = [
    "messages",
    "model",
    "stream",
    "n",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "tools",
];

/// Keys that are part of the requests to a server.
pub const OF_SERVERS: [&str; 4] = ["model", "api_key_env", "extra", "requests_per_second"];

/// Why only servers answer rows with tools.
pub const NO_PARSER: &str = "every model writes calls of tools in a form of its own, which engines have parsers for and this \
                             program has none";

/// What a stage does where conversations stay without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedRows {
    /// It fails; the next run asks for them again.
    #[default]
    Refuse,
    /// They are left out, counted and listed; where none is answered, it fails all the same.
    Drop,
}

/// The target answers the conversations of `data.train` anew, because a drafter learns to guess the text that it is trained on.
/// Without this table nothing is regenerated; with an empty one this program decodes the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegenerateTable {
    /// The address of a server that runs the target and speaks the OpenAI protocol (SGLang, vLLM, llama.cpp), such as
    /// `"http://localhost:8000"`, or a list of addresses of several such servers. Requests carry `data.template_variables` as
    /// `chat_template_kwargs`, with those of a row's own in their places. Left out: spectrain itself decodes with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Addresses>,
    /// The model's name on the servers. Left out: the only model that each server has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The environment variable that holds the servers' API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Further keys of a request's body, such as `{ top_k = 20, min_p = 0.05 }`. Variables of the chat template belong in
    /// `data.template_variables`.
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
    /// What happens to conversations that stay without an answer, such as those that are too long for the server: `"refuse"` or
    /// `"drop"`. Once the stage is done, another value changes nothing.
    pub failed: FailedRows,
    /// What happens to rows with tools: `"answer"` gives servers the tools and goes on behind a call with what the data has as its
    /// result; `"copy"` leaves these rows as they are. Left out: `"answer"`, without `server` `"copy"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolRows>,
    /// Conversations in progress at a time, at each server where there are several; the answers do not depend on it.
    pub concurrency: u16,
    /// How often a request to a server is repeated that failed for a temporary reason, by another server where there is one.
    pub retries: u32,
    /// The most requests per second, to all servers together. Left out: as many as `concurrency` allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<f64>,
    /// Seconds after which a server's incomplete answer counts as failed.
    pub timeout: f64,
    /// Seconds for which servers that are not there yet (that refuse connections, or answer with status 502, 503 or 504) are
    /// waited for, at the start and later, while none is there: a server that loads a large target takes
    /// minutes. With 0 nobody is waited for.
    pub wait: u64,
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
            failed: FailedRows::Refuse,
            tools: None,
            concurrency: CONCURRENCY,
            retries: RETRIES,
            requests_per_second: None,
            timeout: TIMEOUT,
            wait: WAIT,
        }
    }
}

impl RegenerateTable {
    /// Checks what the types cannot say, beside these variables of the chat template.
    pub fn check(&self, template_variables: &Map<String, Value>) -> Result<(), Problem> {
        self.check_server()?;
        if let Some(key) = self
            .extra
            .keys()
            .find(|key| OWN_KEYS.contains(&key.as_str()))
        {
            let own = OWN_KEYS.join("`, `");
            let message = format!("expected keys other than `{own}`, found `{key}`");
            return Err(Problem::new("extra", message));
        }
        self.check_variables(template_variables)?;
        check_asked(&Asked {
            temperature: self.temperature,
            top_p: self.top_p,
            timeout: self.timeout,
            requests_per_second: self.requests_per_second,
        })?;
        within([
            bounds::up_to("max_tokens", self.max_tokens as usize, bounds::TEXT),
            bounds::up_to("concurrency", self.concurrency.into(), u16::MAX.into()),
            bounds::or_none("retries", self.retries as usize, u32::MAX as usize),
            bounds::or_none("wait", self.wait as usize, LONGEST_WAIT),
        ])
    }

    fn check_server(&self) -> Result<(), Problem> {
        let are_set = [
            self.model.is_some(),
            self.api_key_env.is_some(),
            !self.extra.is_empty(),
            self.requests_per_second.is_some(),
        ];
        let mut of_servers = OF_SERVERS.into_iter().zip(are_set);
        if self.server.is_none() && self.tools == Some(ToolRows::Answer) {
            let message = format!("expected `server` beside `\"answer\"`: {NO_PARSER}");
            return Err(Problem::new("tools", message));
        }
        match (&self.server, of_servers.find(|(_, set)| *set)) {
            (Some(server), _) => some_of("server", server.each()),
            (None, Some((key, _))) => Err(Problem::new(
                key,
                "expected `server` beside it: this key is part of the requests to a server",
            )),
            (None, None) => Ok(()),
        }
    }

    /// Fails where the servers would render another template than the stages that render it here.
    fn check_variables(&self, template_variables: &Map<String, Value>) -> Result<(), Problem> {
        let Some(given) = self.extra.get(TEMPLATE_KEY) else {
            return Ok(());
        };
        let key = format!("extra.{TEMPLATE_KEY}");
        let both = "`data.template_variables`";
        let checked = check_template(given, template_variables, both);
        checked.map_err(|message| Problem::new(&key, message))?;
        let names = given.as_object().into_iter().flat_map(Map::keys);
        let mut unknown = names.filter(|name| !template_variables.contains_key(*name));
        match unknown.next() {
            Some(name) => Err(Problem::new(
                &key,
                format!(
                    "expected the variables of {both}, with which the other stages render the same conversations, found `{name}`, \
                     which is not among them: set it there, and leave `{TEMPLATE_KEY}` out"
                ),
            )),
            None => Ok(()),
        }
    }
}

/// Fails where what a user gives as [`TEMPLATE_KEY`] is no table, or has another value for one of these variables, which the user
/// knows by `named`.
///
/// # Errors
/// What was expected, and what was found.
pub fn check_template(
    given: &Value,
    variables: &Map<String, Value>,
    named: &str,
) -> Result<(), String> {
    let Some(given) = given.as_object() else {
        return Err(format!("expected a table of variables, found {given}"));
    };
    let other = variables.iter().find_map(|(name, value)| {
        let found = given.get(name).filter(|found| *found != value)?;
        Some(format!(
            "expected `{name}` to be {value}, as in {named}, found {found}"
        ))
    });
    other.map_or(Ok(()), Err)
}

/// Numbers by which answers are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// See [`RegenerateTable::temperature`].
    pub temperature: Option<f64>,
    /// See [`RegenerateTable::top_p`].
    pub top_p: Option<f64>,
    /// See [`RegenerateTable::timeout`].
    pub timeout: f64,
    /// See [`RegenerateTable::requests_per_second`].
    pub requests_per_second: Option<f64>,
}

/// Fails on a temperature, a share of probability, seconds of waiting or a rate that make no sense, by the name of the key.
///
/// # Errors
/// One of them does not.
pub fn check_asked(asked: &Asked) -> Result<(), Problem> {
    let numbers = [
        ("temperature", asked.temperature, 0.0..=100.0),
        ("top_p", asked.top_p, f64::MIN_POSITIVE..=1.0),
        ("timeout", Some(asked.timeout), 0.001..=1e9),
        ("requests_per_second", asked.requests_per_second, 1e-6..=1e6),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is said of a table with this `chat_template_kwargs` beside these variables.
    fn refused(given: Value, variables: Value) -> Option<String> {
        let table = RegenerateTable {
            server: Some("http://a".into()),
            extra: Map::from_iter([(TEMPLATE_KEY.to_owned(), given)]),
            ..RegenerateTable::default()
        };
        let checked = table.check(variables.as_object().unwrap());
        checked.err().map(|problem| problem.to_string())
    }

    #[test]
    fn what_servers_render_is_what_the_other_stages_render() {
        let off = json!({"enable_thinking": false});
        assert_eq!(refused(off.clone(), off.clone()), None);
        assert_eq!(refused(json!({}), off.clone()), None);
        let named = "key `extra.chat_template_kwargs`: expected";
        for (given, variables, expected) in [
            (
                json!({"enable_thinking": true}),
                off.clone(),
                "`enable_thinking` to be false, as in `data.template_variables`, found true",
            ),
            (
                off,
                json!({}),
                "the variables of `data.template_variables`, with which the other stages",
            ),
            (json!(3), json!({}), "a table of variables, found 3"),
        ] {
            let told = refused(given, variables).unwrap();
            assert!(told.starts_with(&format!("{named} {expected}")), "{told}");
        }
    }
}
