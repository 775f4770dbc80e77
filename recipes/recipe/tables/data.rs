//! The `[data]` table.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use spectrain_data::day::Day;
use spectrain_data::held_out::LARGEST_SHARE;
use spectrain_data::mask::Masking;
use spectrain_data::prepare::{Overlong, Turns};
use spectrain_data::presets::Preset;
use spectrain_data::sources::{Origin, Sources};
use spectrain_data::template::check_names;
use spectrain_data::unusable::Unusable;
use spectrain_models::bounds::{self, Bounded};

use crate::recipe::problem::{Problem, some_of, within};

/// The largest weight of a source.
const MOST_COPIES: f64 = 1000.0;

/// Share of the prompts that are held out where nothing is said.
const HELD_OUT: f64 = 0.02;

/// Which conversations there are, and how they become tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataTable {
    /// A file (`.jsonl`, `.json`, `.parquet`), a folder, a pattern such as `data/*.jsonl`, a dataset on the hub
    /// (`hf://org/name[@revision][:config/split]`), `{ path = "…", weight = 2 }`, `{ preset = "…", weight = 2 }`, or a list of
    /// these. Required unless `[synthetic]` or `preset` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Sources>,
    /// In place of `train`: the name of a dataset on the hub that `spectrain data presets` lists, such as `"ultrachat"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The most rows of `train` that are read, the first ones over all its files; those held out for the evaluation are among
    /// them. Of several sources each gives the share that it has of all rows, for which they are counted; weights then say how
    /// often these are used. Left out: all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_samples: Option<usize>,
    /// Other conversations to evaluate with, given as in `train` but without weights. Left out: some of `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<Sources>,
    /// Without `eval`: share of the prompts of `train` that is kept for evaluation, at most 0.2. Left out: 0.02.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<f64>,
    /// Length in tokens of the longest sample, and of the rows that samples are packed into; at least 4.
    pub max_length: usize,
    /// What happens to samples longer than `max_length`.
    pub overlong: Overlong,
    /// Which tokens are trained on.
    pub mask: Masking,
    /// A file with a chat template (Jinja) in place of the target's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PathBuf>,
    /// Variables that the chat template reads besides the conversation, such as `{ enable_thinking = false }`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub template_variables: Map<String, Value>,
    /// The day that a chat template which prints the date takes for today, such as `"2026-11-29"`, wherever this run renders. Left
    /// out: the day on which the run began to render.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<Day>,
    /// How many samples a conversation with several answers becomes. `"expand"` needs `mask = "assistant"`.
    pub turns: Turns,
    /// Samples with fewer tokens to train on than this are left out.
    pub min_trained_tokens: usize,
    /// What happens to rows of `train` and `eval` that cannot be read, or that the chat template refuses.
    pub unusable: Unusable,
}

impl Default for DataTable {
    fn default() -> Self {
        Self {
            train: None,
            preset: None,
            max_samples: None,
            eval: None,
            held_out: None,
            max_length: 2048,
            overlong: Overlong::Drop,
            mask: Masking::Assistant,
            template: None,
            template_variables: Map::new(),
            date: None,
            turns: Turns::Auto,
            min_trained_tokens: 1,
            unusable: Unusable::Refuse,
        }
    }
}

impl DataTable {
    /// What is trained on: `train`, or the preset.
    pub fn train_sources(&self) -> Option<Sources> {
        let preset = self
            .preset
            .as_deref()
            .and_then(|name| Preset::find(name).ok());
        let preset = preset.map(|preset| Origin::Preset(preset).into());
        self.train.clone().or(preset)
    }

    /// Share of the prompts that are held out, where there is no `eval`.
    pub fn held_out(&self) -> f64 {
        self.held_out.unwrap_or(HELD_OUT)
    }

    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        self.check_sources()?;
        if self.max_samples == Some(0) {
            let message = "expected at least 1, found 0; left out, all rows are read";
            return Err(Problem::new("max_samples", message));
        }
        let names = self.template_variables.keys().map(String::as_str);
        check_names(names)
            .map_err(|mismatch| Problem::new("template_variables", mismatch.to_string()))?;
        if self.turns == Turns::Expand && self.mask != Masking::Assistant {
            let message = "`expand` trains on each answer, so `mask` has to be `assistant`";
            return Err(Problem::new("turns", message));
        }
        within([
            Bounded {
                key: "max_length",
                value: self.max_length,
                bounds: 4..=bounds::TEXT,
            },
            bounds::up_to("min_trained_tokens", self.min_trained_tokens, bounds::TEXT),
        ])
    }

    fn check_sources(&self) -> Result<(), Problem> {
        if let Some(name) = &self.preset {
            Preset::find(name).map_err(|message| Problem::new("preset", message))?;
            if self.train.is_some() {
                let message = "must be absent beside `train`; to train on both, list both in `train`, the preset as `{ preset = \"…\" }`";
                return Err(Problem::new("preset", message));
            }
        }
        let given = [("train", &self.train), ("eval", &self.eval)];
        for (key, sources) in given {
            let each = sources.iter().flat_map(Sources::each);
            for source in each {
                let origin = &source.origin;
                if !(source.weight > 0.0 && source.weight <= MOST_COPIES) {
                    let weight = source.weight;
                    let message = format!(
                        "expected a weight above 0, at most {MOST_COPIES}, found {weight} for {origin}"
                    );
                    return Err(Problem::new(key, message));
                }
                if key == "eval" && source.weight != 1.0 {
                    let message = format!("expected paths without weights, found one for {origin}");
                    return Err(Problem::new(key, message));
                }
            }
            if let Some(sources) = sources {
                some_of(key, sources.each())?;
            }
        }
        match self.held_out {
            Some(_) if self.eval.is_some() => Err(Problem::new(
                "held_out",
                "must be absent beside `eval`, because then nothing of `train` is held out",
            )),
            Some(share) if !(share > 0.0 && share <= LARGEST_SHARE) => Err(Problem::new(
                "held_out",
                format!("expected a share above 0, at most {LARGEST_SHARE}, found {share}"),
            )),
            _ => Ok(()),
        }
    }
}
