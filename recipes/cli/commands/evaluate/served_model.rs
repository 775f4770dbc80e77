//! A model on a server of vLLM or SGLang: its counters, and its answers as they stream in.

use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use spectrain_checkpoints::launch::Choosing;
use spectrain_data::regenerate::Failure;
use spectrain_eval::ChainTokens;
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
    /// Whether it is SGLang and says that it draws what it drafts above temperature 0, or does not.
    draws: Option<bool>,
    /// Whether it is SGLang and says that its drafts are chains.
    drafts_chains: bool,
    client: Client,
}

/// Which tokens a server drafts above temperature 0: the likeliest or drawn ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chooses {
    /// These, as it says itself.
    Surely(ChainTokens),
    /// These unless options that it does not tell say otherwise.
    Usually(ChainTokens),
}

/// SGLang's description of itself, of which only this is read.
#[derive(Default, Deserialize)]
struct ServerInfo {
    /// Tokens that a step of a draft continues, by the options that are in force: more than one make a tree.
    speculative_eagle_topk: Option<u64>,
    /// Whether drafts are drawn that would be of the likeliest tokens without this.
    speculative_use_rejection_sampling: Option<bool>,
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
            draws: None,
            drafts_chains: false,
            client,
        };
        if let Some(counters) = found.counters()? {
            found.engine = Some(counters.engine);
        }
        if found.engine == Some(Engine::Sglang) {
            // Older versions and some gateways have no such page.
            let page = found.client.get("/server_info").unwrap_or_default();
            let info = serde_json::from_slice::<ServerInfo>(&page).unwrap_or_default();
            // Its counts do not tell: all tokens of a tree are drafted, too, and no more of them accepted than its longest path has.
            found.drafts_chains = info.speculative_eagle_topk == Some(1);
            found.draws = info.speculative_use_rejection_sampling;
        }
        Ok(found)
    }

    /// Which tokens it drafts above temperature 0 with a drafter with which SGLang goes by `choosing`.
    pub(super) fn chooses(&self, choosing: Option<Choosing>) -> Chooses {
        let choosing = choosing.filter(|_| self.engine == Some(Engine::Sglang));
        chooses(choosing, self.draws)
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

/// Which tokens a server drafts that goes by `choosing`, where that is known, and says that its option to draw is on or off. Only some
/// drafters go by that option.
fn chooses(choosing: Option<Choosing>, draws: Option<bool>) -> Chooses {
    use ChainTokens::{Drawn, Likeliest};
    match (choosing, draws) {
        (Some(Choosing::Drawn), _) => Chooses::Surely(Drawn),
        // A variable of its environment has it draft the likeliest, which it does not tell.
        (Some(Choosing::DrawnUnless(_)), _) => Chooses::Usually(Drawn),
        // Neither can be ruled out where it says that it does what it cannot do well with this drafter, or not at all.
        (Some(Choosing::Likeliest), Some(true)) => Chooses::Usually(Likeliest),
        (Some(Choosing::Likeliest), _) => Chooses::Surely(Likeliest),
        (Some(Choosing::LikeliestUnless(_)), Some(true)) => Chooses::Surely(Drawn),
        (Some(Choosing::LikeliestUnless(_)), Some(false)) => Chooses::Surely(Likeliest),
        (None, Some(true)) => Chooses::Usually(Drawn),
        (Some(Choosing::LikeliestUnless(_)), None) | (None, Some(false) | None) => {
            Chooses::Usually(Likeliest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_to_draw_decides_only_where_the_drafter_goes_by_it() {
        use ChainTokens::{Drawn, Likeliest};
        use Chooses::{Surely, Usually};
        for draws in [None, Some(false), Some(true)] {
            let by = |choosing| chooses(Some(choosing), draws);
            assert_eq!(by(Choosing::Drawn), Surely(Drawn));
            assert_eq!(by(Choosing::DrawnUnless("a variable")), Usually(Drawn));
        }
        let likeliest = |draws| chooses(Some(Choosing::Likeliest), draws);
        assert_eq!([None, Some(false)].map(likeliest), [Surely(Likeliest); 2]);
        assert_eq!(likeliest(Some(true)), Usually(Likeliest));
        let unless = Some(Choosing::LikeliestUnless("an option"));
        assert_eq!(chooses(unless, Some(true)), Surely(Drawn));
        assert_eq!(chooses(unless, Some(false)), Surely(Likeliest));
        assert_eq!(chooses(unless, None), Usually(Likeliest));
        assert_eq!(chooses(None, Some(true)), Usually(Drawn));
        for draws in [None, Some(false)] {
            assert_eq!(chooses(None, draws), Usually(Likeliest));
        }
    }
}
