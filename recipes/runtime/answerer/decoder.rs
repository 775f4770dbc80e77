//! Answers of a target that this program decodes.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, bail};
use burn::module::Module as _;
use burn::prelude::Device;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::{ModelFolder, hash};
use spectrain_data::day::Day;
use spectrain_data::mask;
use spectrain_data::regenerate::{Answer, Answers, Failure, Request};
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_eval::{DecodeSettings, Decoder, Desk};
use spectrain_models::{Capture, DraftShape, FrozenType, Sampling, Transformer, load_target};

use crate::runtime::answered;
use crate::runtime::interruption::interrupted;
use crate::runtime::model_files::text_files;
use crate::runtime::target;
use crate::runtime::target::TEMPLATE_VARIABLES;

/// Conversations that a decoder on a CPU continues side by side, at least, where there are several decoders.
const LEAST_TOGETHER: usize = 16;
/// Bytes of the weights of a target that several decoders read at once, at most.
const SMALL: usize = 128 << 20;

/// A target with everything that turns a conversation into an answer.
pub struct TargetAnswers {
    target: Transformer,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    decode: DecodeSettings,
    /// Conversations that are continued side by side.
    together: usize,
    /// Whether it computes on a CPU and is small.
    is_small: bool,
    seed: u64,
    held: FrozenType,
    sha256: String,
    text_sha256: String,
    variables: Map<String, Value>,
}

/// How a target decodes answers.
pub struct Decoding<'a> {
    /// Its folder.
    pub folder: &'a Path,
    /// What messages call it.
    pub name: &'a str,
    /// A file with a chat template in place of its own.
    pub template: Option<&'a Path>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    /// The day that the chat template takes for today, where that is another one.
    pub day: Option<Day>,
    /// Where it is decoded.
    pub device: Device,
    /// Type of its weights.
    pub held: FrozenType,
    /// Temperature and share of probability to sample from; without them, the target's own.
    pub sampling: [Option<f64>; 2],
    /// Tokens of an answer, at most.
    pub longest: usize,
    /// Seed of sampling.
    pub seed: u64,
    /// Conversations that are continued side by side.
    pub together: usize,
}

impl TargetAnswers {
    /// Loads the target.
    pub fn open(wanted: Decoding) -> Result<Self> {
        let Decoding { folder, name, .. } = wanted;
        let (tokenizer, template) = target::text(folder, wanted.template, &wanted.variables)?;
        let Some(template) = template else {
            bail!("the target `{name}` has no chat template, which conversations need");
        };
        let template = match wanted.day {
            Some(day) => template.at(day.begin()),
            None => template,
        };
        let model = ModelFolder::open(folder)?;
        let target = load_target(&model, &wanted.device, wanted.held)?;
        let bytes = 4 * target.num_params();
        let is_small = wanted.device == Device::flex() && bytes <= SMALL;
        let mut text = String::new();
        let given = wanted.template.map(Path::to_owned);
        for file in text_files(folder)?.into_iter().chain(given) {
            text.push_str(&hash::sha256_file(&file)?);
        }
        let own = model.generation_config();
        let decode = DecodeSettings {
            max_new_tokens: wanted.longest,
            draft: DraftShape::Chain { length: 1 },
            sampling: sampling(own, wanted.sampling),
            stop: target::stop_tokens(&model)?,
            shadow: None,
        };
        Ok(Self {
            target,
            tokenizer,
            template,
            decode,
            together: wanted.together,
            is_small,
            seed: wanted.seed,
            held: wanted.held,
            sha256: model.sha256(),
            text_sha256: hash::sha256_bytes(text.as_bytes()),
            variables: wanted.variables,
        })
    }

    /// Everything that the answers depend on.
    pub fn settings(&self) -> Result<Map<String, Value>> {
        let mut settings = json!({
            "target": self.sha256,
            "dtype": self.held.name().to_lowercase(),
            "text": self.text_sha256,
            "sampling": self.decode.sampling,
            "max_tokens": self.decode.max_new_tokens,
            "seed": self.seed,
        });
        if !self.variables.is_empty() {
            settings[TEMPLATE_VARIABLES] = json!(self.variables);
        }
        match settings {
            Value::Object(settings) => Ok(settings),
            other => bail!("expected an object, found {other}"),
        }
    }

    /// Does `work` in another thread, while others decode what is asked for there.
    pub fn answering<R: Send>(&self, work: impl FnOnce(&dyn Answers) -> R + Send) -> R {
        let decoders = self.decoders();
        let together = self.together.div_ceil(decoders);
        let (desks, orders): (Vec<_>, Vec<_>) = (0..decoders).map(|_| Desk::open()).unzip();
        let desks = desks.into_iter().map(|desk| (desk, AtomicUsize::new(0)));
        let desks = AtDesks {
            of: self,
            desks: desks.collect(),
        };
        thread::scope(|scope| {
            for orders in orders {
                scope.spawn(move || {
                    let capture = Capture::default();
                    let decoder = Decoder::new(&self.target, &capture).unless(&interrupted);
                    decoder.serve(orders, together, &self.decode);
                });
            }
            let worker = scope.spawn(move || work(&desks));
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// How many decode side by side, each with a share of the conversations: steps of a small target are too short for several cores
    /// to share them. A large one's weights would be read once for each.
    fn decoders(&self) -> usize {
        if !self.is_small {
            return 1;
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        cores.min(self.together / LEAST_TOGETHER).max(1)
    }
}

/// Asks the threads that decode.
struct AtDesks<'a> {
    of: &'a TargetAnswers,
    /// Each with how many wait there.
    desks: Vec<(Desk, AtomicUsize)>,
}

impl AtDesks<'_> {
    fn ask(&self, request: &Request) -> Result<Answer> {
        let TargetAnswers {
            template,
            tokenizer,
            decode,
            ..
        } = self.of;
        let text = mask::prompt_to_answer(request.exchange, template)?;
        let prompt = tokenizer.encode(&text)?.ids;
        let shortest = self.desks.iter();
        let shortest = shortest.min_by_key(|(_, waiting)| waiting.load(Ordering::Relaxed));
        let (desk, waiting) = shortest.expect("there is a decoder");
        waiting.fetch_add(1, Ordering::Relaxed);
        let found = desk.ask(prompt, request.seed(self.of.seed));
        waiting.fetch_sub(1, Ordering::Relaxed);
        let tokens = found?.tokens;
        let stopped = tokens.last().is_some_and(|last| decode.stop.contains(last));
        Ok(Answer {
            message: answered::message(&tokens, &decode.stop, tokenizer)?,
            truncated: !stopped,
            written: None,
        })
    }
}

impl Answers for AtDesks<'_> {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        // The same would happen again.
        self.ask(request).map_err(|error| Failure::Lasting {
            reason: format!("{error:#}"),
        })
    }
}

/// How tokens are chosen: as given, else as the target's generation settings say, as engines do.
pub fn sampling(own: Option<&Value>, [temperature, top_p]: [Option<f64>; 2]) -> Sampling {
    let of = |key: &str| own.map_or(&Value::Null, |own| &own[key]);
    let greedy = of("do_sample").as_bool() == Some(false);
    let temperature = temperature
        .or(greedy.then_some(0.0))
        .or(of("temperature").as_f64());
    let top_k = of("top_k").as_u64().unwrap_or_default();
    Sampling {
        temperature: temperature.unwrap_or(1.0),
        top_k: usize::try_from(top_k).unwrap_or_default(),
        top_p: top_p.or(of("top_p").as_f64()).unwrap_or(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_is_as_the_target_says() {
        let own = json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95});
        let found = |own: Option<&Value>, temperature, top_p| {
            let sampling = sampling(own, [temperature, top_p]);
            (sampling.temperature, sampling.top_k, sampling.top_p)
        };
        assert_eq!(found(Some(&own), None, None), (0.6, 20, 0.95));
        assert_eq!(found(Some(&own), Some(0.0), Some(0.5)), (0.0, 20, 0.5));
        assert_eq!(found(Some(&json!({"do_sample": false})), None, None).0, 0.0);
        assert_eq!(found(None, None, None), (1.0, 0, 1.0));
    }
}
