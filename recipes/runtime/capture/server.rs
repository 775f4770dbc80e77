//! One server, asked for hidden states.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::eagle3::LAYER_IDS;
use spectrain_checkpoints::launch::quote;
use spectrain_checkpoints::printable;
use spectrain_data::regenerate::Failure;
use spectrain_models::Sampling;

use super::class;
use super::file::{Named, Received, SharedFolder};
use super::response::{Likely, Response};
use super::same::Same;
use super::states::{self, HiddenStates};
use crate::runtime::server::client::{Client, lasting, passing, unless_silent};
use crate::runtime::server::key::ApiKey;

/// The keys of a recipe that errors about files name.
pub const NAMED: Named = Named {
    folder: "target.local_folder",
    timeout: "features.timeout",
};
/// The key that says into which folder the server writes.
const FOLDER: &str = "target.server_folder";
/// The command that sends the files of a server to other machines.
const RELAY: &str = "spectrain relay";
/// The folder in a command where the recipe names none.
const USUAL_FOLDER: &str = "/dev/shm/states";

/// What a server is to serve.
#[derive(Debug, Clone, Default)]
pub struct ServedTarget {
    /// A hub id or a folder; nothing where the recipe names none.
    pub model: Option<String>,
    /// The revision of a hub id.
    pub revision: Option<String>,
    /// Its class, as `architectures` of its configuration names it, where that is on this machine.
    pub class: Option<String>,
}

/// How a server is asked, the same for all servers of a target.
#[derive(Debug, Clone)]
pub struct CaptureSettings {
    /// The target, as the command that starts a server names it: a hub id, with its revision, or a folder.
    pub target: ServedTarget,
    /// The model's name; without it, the only one that the server has.
    pub model: Option<String>,
    /// The API key.
    pub key: Option<ApiKey>,
    /// The folder that the server writes into, where this machine has it.
    pub folder: Option<SharedFolder>,
    /// Layers of which the server was told to hand out the outputs, 0-based, ascending. That of the last layer comes after them, or
    /// is the last of them.
    pub layers: Vec<usize>,
    /// Layers that the target has.
    pub target_layers: usize,
    /// Width of a hidden state.
    pub d_model: usize,
    /// The longest a request may take.
    pub timeout: Duration,
}

impl CaptureSettings {
    /// The connection to the server at `url`.
    pub(super) fn client(&self, url: &str) -> Result<Client> {
        Client::new("target.server", url, self.key.clone(), self.timeout)
    }

    /// The layers as the server counts them, one for each slot of its files: vLLM hands out no state twice, and its order is that of
    /// the layers, whatever it was told.
    fn ids(&self) -> Vec<usize> {
        let mut ids: Vec<usize> = self.layers.iter().map(|layer| layer + 1).collect();
        if ids.last() != Some(&self.target_layers) {
            ids.push(self.target_layers);
        }
        ids
    }

    /// What is said behind the command that starts such a server, where the target's class needs it: a line, so that it is said once
    /// of several servers.
    fn remark(&self) -> String {
        let remark = self.target.class.as_deref().and_then(class::remark);
        remark.map_or_else(String::new, |remark| format!("\n{remark}"))
    }

    /// How such a server is started. Each command has a line alone, so that it can be copied.
    fn starting(&self) -> String {
        let (remark, command) = (self.remark(), self.command());
        match &self.folder {
            Some(_) => format!("this command starts a server:\n  {command}{remark}"),
            None => format!(
                "these commands start a server, and beside it what sends its hidden states here (`http://MACHINE:8100`); with \
                 `{FOLDER}` the first one is enough:\n  {command}\n  {RELAY}{remark}"
            ),
        }
    }

    /// The command that starts a server which hands them out, in words of a shell.
    pub fn command(&self) -> String {
        let model = self.target.model.as_deref().unwrap_or("TARGET");
        let named = [
            ("--revision", &self.target.revision),
            ("--served-model-name", &self.model),
        ];
        let named = named
            .into_iter()
            .filter_map(|(option, value)| Some(format!(" {option} {}", quote(value.as_deref()?))));
        let named: String = named.collect();
        let code = self.target.class.as_deref().and_then(class::option);
        let code = code.map_or_else(String::new, |option| format!(" {option}"));
        let folder = self.folder.as_ref().map(|folder| &*folder.on_server);
        let folder = folder.unwrap_or_else(|| Path::new(USUAL_FOLDER));
        let speculative = json!({
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {LAYER_IDS: self.ids()}},
        });
        let transfer = json!({
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": folder},
        });
        format!(
            "vllm serve {}{named}{code} --no-enable-chunked-prefill --no-enable-prefix-caching --speculative-config {} \
             --kv-transfer-config {}",
            quote(model),
            quote(&speculative.to_string()),
            quote(&transfer.to_string())
        )
    }
}

/// How the target goes on behind a prompt.
#[derive(Debug, Clone)]
pub struct Answering {
    /// Tokens of the answer, at most.
    pub max_new_tokens: usize,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Seed of the draws.
    pub seed: u64,
    /// Tokens that end it.
    pub stop: Vec<u32>,
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Whether it is answered, and how. Else only its states are wanted.
    pub answer: Option<Answering>,
    /// Whether the server says how likely each token of the prompt was.
    pub log_probabilities: bool,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// States of all tokens, but for the last one where it is of an answer.
    pub states: HiddenStates,
    /// Of each place of the prompt what the served model gives to its token, where that was asked for.
    pub likely: Vec<Option<Place>>,
}

/// How likely a token of the prompt was to the served model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// `ln p` of the token.
    pub log_probability: f64,
    /// The likeliest token.
    pub best: u32,
}

/// A server of a target.
pub struct CaptureServer {
    client: Client,
    model: String,
    /// Tokens of a prompt and its answer, at most, where the server tells.
    pub longest: Option<usize>,
    settings: CaptureSettings,
    received: Received,
    same: Same,
}

impl CaptureServer {
    /// Finds the model on the server at `url`.
    ///
    /// # Errors
    /// The address is none, nobody is there, or not this model.
    pub fn connect(url: &str, settings: CaptureSettings) -> Result<Self> {
        let client = settings.client(url)?;
        let model = client.model(settings.model.as_deref()).map_err(|cause| {
            let root = client.root();
            let unknown = || format!("cannot learn the name of the target from `{root}/v1/models`");
            let why = unless_silent(cause, unknown);
            anyhow!("`target.server`: {why:#}; {}", settings.starting())
        })?;
        Ok(Self {
            client,
            model: model.id,
            longest: model.max_model_len,
            settings,
            received: Received::none(NAMED),
            same: Same::default(),
        })
    }

    /// The connection to it.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Its address.
    pub fn url(&self) -> &str {
        self.client.root()
    }

    /// How it is asked.
    pub fn settings(&self) -> &CaptureSettings {
        &self.settings
    }

    /// Notes what it was proven by, and what [`breaks`](Client::breaks) of its connection there were before.
    pub(super) fn remember(&self, by: &[Captured], breaks: u64) {
        let texts = by.iter().map(|captured| &captured.states);
        self.same.begin(texts, breaks);
    }

    /// Whether another server was found in the place of the one that was proven.
    pub(crate) fn is_lost(&self) -> bool {
        self.same.is_lost()
    }

    /// Asks for hidden states.
    ///
    /// # Errors
    /// There are none, or they are not those of the prompt; or another server than the one that was proven hands them out.
    pub fn capture(&self, asked: &Asked) -> std::result::Result<Captured, Failure> {
        let found = self.captured(asked);
        // Looked at behind the answer: it may be the first one of another server.
        if !matches!(found, Err(Failure::Passing { .. })) {
            let again = |tokens: &[u32]| {
                let asked = Asked {
                    tokens: tokens.to_vec(),
                    ..Asked::default()
                };
                self.captured(&asked).map(|captured| captured.states)
            };
            self.same.check(self.client.breaks(), again)?;
        }
        found
    }

    fn captured(&self, asked: &Asked) -> std::result::Result<Captured, Failure> {
        let body = self.client.post("/v1/completions", &self.body(asked))?;
        let response: Response = serde_json::from_slice(&body)
            .map_err(|error| passing(format!("the response is no completion: {error}")))?;
        let handed = self.handed(&response).map_err(|error| lasting(&error))?;
        let more = asked
            .answer
            .as_ref()
            .map_or(0, |answer| answer.max_new_tokens);
        let slots = self.settings.ids().len();
        let most = [asked.tokens.len() + more + 1, slots, self.settings.d_model];
        let states = match handed {
            Handed::File(file) => self.received.take(&file, self.settings.timeout, |file| {
                states::read(file, most)
            })?,
            Handed::Relayed(path) => {
                let bytes = self.client.get_up_to(&path, states::most_bytes(most))?;
                states::parse(bytes, Path::new(&path), most)?
            }
        };
        captured(asked, response, states).map_err(|error| lasting(&error))
    }

    fn body(&self, asked: &Asked) -> Value {
        let mut body = json!({
            "model": self.model,
            "prompt": asked.tokens,
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": true,
            "stream": false,
        });
        if let Some(answer) = &asked.answer {
            body["max_tokens"] = json!(answer.max_new_tokens);
            body["temperature"] = json!(answer.sampling.temperature);
            body["top_k"] = json!(if answer.sampling.top_k > 0 {
                answer.sampling.top_k as i64
            } else {
                -1
            });
            body["top_p"] = json!(answer.sampling.top_p);
            body["min_p"] = json!(0.0);
            body["repetition_penalty"] = json!(1.0);
            body["seed"] = json!(answer.seed >> 33);
            body["ignore_eos"] = json!(answer.stop.is_empty());
            body["stop_token_ids"] = json!(answer.stop);
            body["kv_transfer_params"] = json!({"include_output_tokens": true});
        }
        if asked.log_probabilities {
            body["prompt_logprobs"] = json!(1);
        }
        body
    }

    /// Where a response says that its hidden states are.
    fn handed(&self, response: &Response) -> Result<Handed> {
        let handed = response.kv_transfer_params.as_ref();
        if let Some(path) = handed.and_then(|handed| handed.relayed.clone()) {
            return Ok(Handed::Relayed(path));
        }
        let path = handed.and_then(|handed| handed.hidden_states_path.as_deref());
        let Some(path) = path else {
            bail!(
                "`kv_transfer_params.hidden_states_path`: expected a path, found none: the server hands out no hidden \
                 states; this command starts one that does:\n  {}{}",
                self.settings.command(),
                self.settings.remark()
            );
        };
        match &self.settings.folder {
            Some(folder) => folder.file(path, FOLDER).map(Handed::File),
            None => bail!(
                "`{FOLDER}` is missing: the server writes hidden states into files, such as `{}`, and the key says in which folder \
                 of this machine they are; where this machine does not have that folder, run this beside the server, and name \
                 its address in `target.server`:\n  {}",
                printable(path),
                relay(self.client.root(), Path::new(path))
            ),
        }
    }
}

/// Where hidden states are.
enum Handed {
    /// In a file of this machine.
    File(PathBuf),
    /// At a path of the server's address.
    Relayed(String),
}

/// The command that sends the files of the server at `url` to other machines.
fn relay(url: &str, file: &Path) -> String {
    let folder = file.parent().unwrap_or(file).display().to_string();
    format!(
        "{RELAY} --server {} --folder {}",
        quote(url),
        quote(&folder)
    )
}

/// What came back, where it is what was asked for.
fn captured(asked: &Asked, response: Response, states: HiddenStates) -> Result<Captured> {
    let choice = response.choices.into_iter().next().unwrap_or_default();
    let mut tokens = asked.tokens.clone();
    if asked.answer.is_some() {
        let answer = choice
            .token_ids
            .context("`choices[0].token_ids`: expected a list, found none")?;
        tokens.extend(answer);
    }
    // Servers may leave out or add the state of the last token of an answer.
    let least = tokens.len() - usize::from(asked.answer.is_some());
    let held = &states.tokens;
    if held.len() < least || held.len() > tokens.len() || tokens[..held.len()] != held[..] {
        bail!(
            "`token_ids` of the hidden states: expected the {} tokens that were asked for, found {}{}",
            tokens.len(),
            held.len(),
            if held.len() == tokens.len() {
                " other ones"
            } else {
                ""
            }
        );
    }
    let likely = choice.prompt_logprobs.unwrap_or_default();
    let likely = asked.tokens.iter().zip(likely);
    let place = |(token, place): (&u32, Option<BTreeMap<String, Likely>>)| {
        let place = place?;
        let best = place.iter().find(|(_, likely)| likely.rank == Some(1));
        Some(Place {
            log_probability: place.get(&token.to_string())?.logprob,
            best: best?.0.parse().ok()?,
        })
    };
    Ok(Captured {
        likely: likely.map(place).collect(),
        tokens,
        states,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(target: &str) -> CaptureSettings {
        CaptureSettings {
            target: ServedTarget {
                model: Some(target.into()),
                ..ServedTarget::default()
            },
            model: None,
            key: Some("sk-QzXwVy".into()),
            folder: Some(SharedFolder {
                here: "/states".into(),
                on_server: "/states".into(),
            }),
            layers: vec![1],
            target_layers: 4,
            d_model: 8,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn settings_are_printed_without_the_key() {
        let settings = CaptureSettings {
            model: Some("served".into()),
            ..settings("m")
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("served") && !shown.contains("Qz"), "{shown}");
    }

    #[test]
    fn where_no_server_answers_the_cause_comes_first_and_the_last_line_is_the_command() {
        // Nobody listens at the port of a listener that is gone.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", port.local_addr().unwrap());
        drop(port);
        let error = CaptureServer::connect(&url, settings("my targets/it's"))
            .err()
            .unwrap();
        let told = format!("{error:#}");
        let lines: Vec<&str> = told.lines().collect();
        let [cause, command] = lines[..] else {
            panic!("{told}");
        };
        assert!(
            cause.contains("refused") && cause.ends_with("this command starts a server:"),
            "{told}"
        );
        assert!(
            command.starts_with(r"  vllm serve 'my targets/it'\''s' --no-enable"),
            "{told}"
        );
        assert!(
            command.ends_with("}'") && !command.contains("TARGET"),
            "{told}"
        );
    }

    #[test]
    fn without_a_folder_a_relay_is_started_too() {
        let mut settings = settings("m");
        settings.folder = None;
        let told = settings.starting();
        assert!(told.contains("/dev/shm/states"), "{told}");
        assert!(told.ends_with("\n  spectrain relay"), "{told}");
    }

    #[test]
    fn the_command_names_what_the_recipe_names() {
        let mut settings = settings("org/name");
        settings.target.revision = Some("v1".into());
        settings.model = Some("served".into());
        let command = settings.command();
        let start = "vllm serve org/name --revision v1 --served-model-name served --no-enable";
        assert!(command.starts_with(start), "{command}");
        settings.target = ServedTarget::default();
        assert!(settings.command().starts_with("vllm serve TARGET "));
    }

    #[test]
    fn a_class_whose_states_vllm_withholds_is_told_with_the_option_that_helps() {
        let of_class = |class: &str| {
            let mut settings = settings("m");
            settings.target.class = Some(class.into());
            settings.starting()
        };
        let own = of_class("Qwen3ForCausalLM");
        assert!(own.starts_with("this command starts a server:\n"), "{own}");
        assert!(!own.contains("--model-impl"), "{own}");
        let other = of_class("Glm4MoeForCausalLM");
        assert!(
            other.contains("  vllm serve m --model-impl transformers --no-enable"),
            "{other}"
        );
        let none = of_class("JambaForCausalLM");
        assert!(none.contains("`features.mode = \"imported\"`"), "{none}");
        assert!(!none.contains("--model-impl"), "{none}");
        for (told, class) in [(other, "Glm4MoeForCausalLM"), (none, "JambaForCausalLM")] {
            let lines: Vec<&str> = told.lines().collect();
            let [first, command, remark] = lines[..] else {
                panic!("{told}");
            };
            assert_eq!(first, "this command starts a server:");
            assert!(command.starts_with("  vllm serve m "), "{told}");
            assert!(remark.contains(class), "{told}");
        }
    }

    #[test]
    fn the_output_of_the_last_layer_is_asked_for_once() {
        let mut settings = settings("m");
        for (layers, ids) in [
            (vec![], "[4]"),
            (vec![0, 2], "[1,3,4]"),
            (vec![1, 3], "[2,4]"),
        ] {
            settings.layers = layers;
            let command = settings.command();
            assert!(
                command.contains(&format!("\"{LAYER_IDS}\":{ids}")),
                "{command}"
            );
        }
    }
}
