//! What a configuration says of a mixture of experts: sizes, how many a token goes through, and in which layers.
use serde_json::{Value, json};
use spectrain_checkpoints::Mismatch;

use crate::error::{Error, Result};
use crate::keys::Keys;

/// The type of a decoder with such layers.
pub(crate) const KIND: &str = "qwen3_moe";

/// Names of the number of experts: that of published models, and that which transformers 5 writes.
const COUNT: [&str; 2] = ["num_experts", "num_local_experts"];

/// The experts of a layer, and how a token is sent to some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// How many there are.
    pub count: usize,
    /// How many a token goes through.
    pub per_token: usize,
    /// Width inside each of them.
    pub d_ff: usize,
    /// Whether the weights of those that a token goes through are made to sum to 1.
    pub normalised: bool,
}

/// Which layers of a decoder have experts in place of one feed-forward part, and which these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// The experts of each such layer.
    pub experts: ExpertsConfig,
    /// For each layer, whether it has them.
    pub layers: Vec<bool>,
}

impl Routing {
    /// Reads the keys of a decoder of so many layers.
    ///
    /// # Errors
    /// A key is missing, of the wrong kind, or does not go with another one.
    pub(crate) fn read(keys: &Keys, layers: usize) -> Result<Self> {
        let count = count(keys)?;
        let per_token = keys.size("num_experts_per_tok")?;
        if per_token > count {
            return Err(keys.problem("num_experts_per_tok", &format!("at most {count} experts")));
        }
        if keys.flag("mlp_bias", false)? {
            return Err(keys.problem("mlp_bias", "`false`, as experts add no bias"));
        }
        let experts = ExpertsConfig {
            count,
            per_token,
            d_ff: keys.size("moe_intermediate_size")?,
            normalised: keys.flag("norm_topk_prob", false)?,
        };
        let step = keys.size_or("decoder_sparse_step", 1)?;
        let dense = dense_layers(keys, layers)?;
        let routed = |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
        Ok(Self {
            experts,
            layers: (0..layers).map(routed).collect(),
        })
    }

    /// Writes the keys that [`read`](Self::read) reads.
    pub(crate) fn write(&self, config: &mut Value) {
        let dense = self
            .layers
            .iter()
            .enumerate()
            .filter(|(_, routed)| !**routed);
        let dense: Vec<usize> = dense.map(|(layer, _)| layer).collect();
        config[COUNT[0]] = json!(self.experts.count);
        config["num_experts_per_tok"] = json!(self.experts.per_token);
        config["moe_intermediate_size"] = json!(self.experts.d_ff);
        config["norm_topk_prob"] = json!(self.experts.normalised);
        config["decoder_sparse_step"] = json!(1);
        config["mlp_only_layers"] = json!(dense);
    }

    /// The experts of a layer, if it has any.
    pub fn of(&self, layer: usize) -> Option<ExpertsConfig> {
        let routed = self.layers.get(layer).copied().unwrap_or(false);
        routed.then_some(self.experts)
    }

    /// Layers with experts.
    pub fn routed(&self) -> usize {
        self.layers.iter().filter(|&&routed| routed).count()
    }

    /// Parameters of the experts that a token does not go through, over all layers of a decoder of width `d_model`.
    pub fn idle_parameters(&self, d_model: usize) -> u64 {
        let ExpertsConfig {
            count,
            per_token,
            d_ff,
            ..
        } = self.experts;
        let of_one = 3 * d_model as u64 * d_ff as u64;
        (self.routed() * (count - per_token)) as u64 * of_one
    }

    /// The refusal to train a decoder with experts, which `key` of `[drafter]` names.
    pub(crate) fn not_trained(key: &'static str) -> Error {
        Error::Drafter {
            key,
            mismatch: Mismatch::new(
                "a model without experts, as experts are not trained here",
                format!("one of the type `{KIND}`"),
            ),
        }
    }
}

fn count(keys: &Keys) -> Result<usize> {
    let [published, written] = COUNT;
    if keys.present(published).is_none() && keys.present(written).is_some() {
        return keys.count(written);
    }
    let count = keys.count(published)?;
    if keys.present(written).is_some() && keys.count(written)? != count {
        return Err(keys.problem(written, &format!("{count}, as in `{published}`")));
    }
    Ok(count)
}

/// Layers that have one feed-forward part whatever the step says.
fn dense_layers(keys: &Keys, layers: usize) -> Result<Vec<usize>> {
    let key = "mlp_only_layers";
    let Some(value) = keys.present(key) else {
        return Ok(Vec::new());
    };
    let layer = |value: &Value| {
        let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok());
        layer.filter(|&layer| layer < layers)
    };
    let found = value.as_array().map(|all| all.iter().map(layer));
    let found = found.and_then(Iterator::collect::<Option<Vec<usize>>>);
    found.ok_or_else(|| keys.problem(key, &format!("a list of layers below {layers}")))
}
