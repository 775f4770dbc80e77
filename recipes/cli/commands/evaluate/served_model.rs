//! A model on a server of vLLM or SGLang: its counters, and its answers as they stream in.

use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use spectrain_data::regenerate::Failure;
use spectrain_eval::served::acceptance::DraftCounts;
use spectrain_eval::served::answer::{Answer, Incoming};
use spectrain_eval::served::counters::{Counters, Engine};
use spectrain_eval::served::events::Events;
use spectrain_eval::served::report::Role;
use spectrain_eval::served::samples::Samples;
use spectrain_models::Sampling;

use crate::runtime::interruption::check_interrupted;
use crate::runtime::server::client::{Client, broken_off, reason, unless_silent};
use crate::runtime::server::protocol::Model;

/// Bytes of one event of a stream, at most.
const LONGEST_EVENT: usize = 16 << 20;
/// How long counters may lag behind the answers that they count.
const LAG: Duration = Duration::from_secs(3);
/// The pause between two readings of counters.
const BETWEEN_READINGS: Duration = Duration::from_millis(25);

/// How a prompt is to be continued.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    /// How tokens are chosen.
    pub(super) sampling: Sampling,
    /// Tokens of an answer, at most.
    pub(super) max_new_tokens: usize,
    /// Tokens at which an answer ends; without them it ends at its length alone.
    pub(super) stop: Option<Vec<u32>>,
    /// Prompts are not taken from a cache that was filled under another name.
    pub(super) cache: String,
}

/// A model on a server.
pub(super) struct ServedModel {
    pub(super) role: Role,
    pub(super) model: Model,
    pub(super) engine: Option<Engine>,
    /// Whether it is SGLang and says that its drafts are chains.
    drafts_chains: bool,
    client: Client,
}

/// SGLang's description of itself, of which only this is read.
#[derive(Deserialize)]
struct ServerInfo {
    /// Tokens that a step of a draft continues, by the options that are in force: more than one make a tree.
    speculative_eagle_topk: Option<u64>,
}

impl ServedModel {
    /// The model of this name, else the only one that the server has; `option` names it.
    pub(super) fn find(
        role: Role,
        client: Client,
        name: Option<&str>,
        option: &str,
    ) -> Result<Self> {
        let advice = || {
            let root = client.root();
            format!("cannot choose a model from `{root}/v1/models`; name one with `{option}`")
        };
        let model = client.model(name);
        let model = model.map_err(|cause| unless_silent(cause, advice))?;
        let mut found = Self {
            role,
            engine: match model.owned_by.as_deref() {
                Some("vllm") => Some(Engine::Vllm),
                Some("sglang") => Some(Engine::Sglang),
                _ => None,
            },
            model,
            drafts_chains: false,
            client,
        };
        if let Some(counters) = found.counters()? {
            found.engine = Some(counters.engine);
        }
        found.drafts_chains = found.engine == Some(Engine::Sglang) && found.says_chains();
        Ok(found)
    }

    /// Whether SGLang says that its drafts are chains, which its counts do not tell: all tokens of a tree are drafted, too, and
    /// no more of them accepted than its longest path has.
    fn says_chains(&self) -> bool {
        // Older versions and some gateways have no such page.
        let page = self.client.get("/server_info").unwrap_or_default();
        serde_json::from_slice::<ServerInfo>(&page)
            .is_ok_and(|info| info.speculative_eagle_topk == Some(1))
    }

    /// The server's address.
    pub(super) fn url(&self) -> &str {
        self.client.root()
    }

    /// Where the server's counters stand; none where it has none that are known.
    pub(super) fn counters(&self) -> Result<Option<Counters>> {
        let place = || format!("`{}/metrics`", self.url());
        let page = match self.client.get("/metrics") {
            Ok(page) => page,
            // The server answers, and has no such page.
            Err(Failure::Lasting { .. }) => return Ok(None),
            Err(failure) => return Err(anyhow!(reason(failure)).context(place())),
        };
        let samples = Samples::parse(&String::from_utf8_lossy(&page));
        samples
            .and_then(|found| Counters::of(&found))
            .with_context(place)
    }

    /// Why there is no page of metrics, where there is none.
    pub(super) fn why_no_metrics(&self) -> Option<String> {
        self.client.get("/metrics").err().map(reason)
    }

    /// The same when they have come to rest and count at least so many tokens, or after a while.
    pub(super) fn counters_at_rest(&self, generated: u64) -> Result<Option<Counters>> {
        let late = Instant::now() + LAG;
        let mut last = self.counters()?;
        while let Some(before) = last {
            std::thread::sleep(BETWEEN_READINGS);
            check_interrupted()?;
            let now = self.counters()?;
            let rests = now.as_ref() == Some(&before) && before.generated >= generated;
            if rests || Instant::now() > late {
                return Ok(now);
            }
            last = now;
        }
        Ok(None)
    }

    /// Continues a prompt; `is_over` is asked from time to time whether nobody wants the rest.
    pub(super) fn answer(
        &self,
        prompt: &[u32],
        asking: &Asking,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Answer> {
        let body = self.body(prompt, asking);
        let begin = Instant::now();
        let since = || begin.elapsed().as_secs_f64();
        let stream = self.client.stream("/v1/completions", &body);
        let mut stream = stream.map_err(|failure| anyhow!(reason(failure)))?;
        let (mut events, mut incoming) = (Events::default(), Incoming::default());
        let mut piece = [0; 1 << 14];
        while !incoming.is_done() {
            let length = match stream.read(&mut piece) {
                Ok(length) => length,
                Err(error) => {
                    let why = broken_off(&error);
                    bail!("the answer broke off after {:.3} s: {why}", since());
                }
            };
            let at = since();
            if length == 0 {
                break;
            }
            for event in events.push(&piece[..length]) {
                incoming.take(&event, at)?;
            }
            if events.pending() > LONGEST_EVENT {
                bail!("an event of the answer has more than {LONGEST_EVENT} bytes");
            }
            if is_over() {
                bail!("nobody wants the rest of the answer");
            }
        }
        let seconds = since();
        // The connection can be used again only if nothing is left in it.
        if incoming.is_done() {
            while stream.read(&mut piece).is_ok_and(|length| length > 0) {}
        }
        let mut answer = incoming.end(prompt, seconds)?;
        if self.drafts_chains {
            answer.drafts = answer.drafts.map(DraftCounts::of_chains);
        }
        Ok(answer)
    }

    /// Every key that an engine would otherwise take from the model's own settings is given.
    fn body(&self, prompt: &[u32], asking: &Asking) -> Value {
        let Sampling {
            temperature,
            top_k,
            top_p,
        } = asking.sampling;
        let mut body = json!({
            "model": self.model.id,
            "prompt": prompt,
            "max_tokens": asking.max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": if top_k == 0 { json!(-1) } else { json!(top_k) },
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
            "return_token_ids": true,
            "ignore_eos": asking.stop.is_none(),
        });
        if let Some(stop) = &asking.stop {
            body["stop_token_ids"] = json!(stop);
        }
        if self.engine.is_some() {
            body["cache_salt"] = json!(asking.cache);
        }
        if self.engine == Some(Engine::Sglang) {
            body["return_spec_tokens_details"] = json!(true);
        }
        body
    }
}
