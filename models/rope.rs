//! Rotary position embedding, half-split layout: dimension `i` turns with `i + d_head / 2`, as Hugging Face checkpoints
//! expect (RoFormer, <https://arxiv.org/abs/2104.09864>).
use burn::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use spectrain_checkpoints::absent::DEFAULT_THETA;
use spectrain_checkpoints::rotary::{BASE, ORIGINAL_POSITIONS, SHARE, TABLES, rename_rule};

use crate::error::Result;
use crate::kernels;
use crate::keys::Keys;
use crate::norm::RmsNorm;

/// Keys of a table that are read elsewhere, or say something of pictures alone.
const BESIDE: [&str; 5] = [
    BASE,
    SHARE,
    ORIGINAL_POSITIONS,
    "mrope_section",
    "mrope_interleaved",
];

/// Base frequency and the scaling of long contexts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How frequencies change beyond the trained context.
    pub scaling: RopeScaling,
}

/// Scaling rules that checkpoints name in `rope_parameters.rope_type`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// How far the context is stretched.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, in between interpolated (Llama 3.1).
    Llama3 {
        /// How far the context is stretched.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
    },
    /// NTK by parts with a correction of the logits' scale (YaRN, <https://arxiv.org/abs/2309.00071>).
    Yarn {
        /// How far the context is stretched.
        factor: f64,
        /// Rotations over the original context above which a dimension is kept.
        #[serde(default = "beta_fast")]
        beta_fast: f64,
        /// Rotations below which it is divided.
        #[serde(default = "beta_slow")]
        beta_slow: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
        /// Factor on cosine and sine; `0.1 ln(factor) + 1` when absent. [`RopeScaling::read`] also takes it for the quotient of
        /// `mscale` and `mscale_all_dim`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// Whether the bounds are rounded outwards to whole dimensions.
        #[serde(default = "truncate")]
        truncate: bool,
    },
}

/// One of the tables of rotary positions that a `config.json` may have.
pub(crate) struct RotaryTable {
    /// Its key.
    pub(crate) key: &'static str,
    /// Its base, where it has one.
    pub(crate) theta: Option<f64>,
    /// Its rule.
    pub(crate) scaling: RopeScaling,
}

/// The [`TABLES`], as far as they are there. An empty one says nothing.
///
/// # Errors
/// One is no table.
pub(crate) fn rotary_tables(keys: &Keys) -> Result<Vec<(&'static str, Map<String, Value>)>> {
    let mut tables = Vec::new();
    for key in TABLES {
        match keys.present(key) {
            None => {}
            Some(Value::Object(table)) if table.is_empty() => {}
            Some(Value::Object(table)) => tables.push((key, table.clone())),
            Some(_) => return Err(keys.problem(key, "a table")),
        }
    }
    Ok(tables)
}

/// The base in a table, where it has one.
///
/// # Errors
/// It is no number.
pub(crate) fn base_of(keys: &Keys, key: &str, table: &Map<String, Value>) -> Result<Option<f64>> {
    let theta = table.get(BASE).filter(|theta| !theta.is_null());
    let number = |theta: &Value| {
        let expected = format!("a number under `{BASE}`");
        theta.as_f64().ok_or_else(|| keys.problem(key, &expected))
    };
    theta.map(number).transpose()
}

impl RopeConfig {
    /// What one or both tables say for heads of `d_head`, with the base `beside` them where they have none.
    ///
    /// # Errors
    /// They say different things, or what makes no sense.
    pub(crate) fn of_tables(
        keys: &Keys,
        tables: Vec<RotaryTable>,
        beside: Option<f64>,
        d_head: usize,
    ) -> Result<Self> {
        if let [first, second] = &tables[..] {
            let two_bases = second.theta.is_some()
                && first.theta.is_some_and(|theta| second.theta != Some(theta));
            if two_bases || first.scaling != second.scaling {
                return Err(keys.problem(second.key, &format!("the same as in `{}`", first.key)));
            }
        }
        let key = tables.first().map_or(BASE, |table| table.key);
        let theta = tables.iter().find_map(|table| table.theta).or(beside);
        let scaling = tables.into_iter().map(|table| table.scaling).next();
        let rope = Self {
            theta: theta.unwrap_or(DEFAULT_THETA),
            scaling: scaling.unwrap_or(RopeScaling::Default),
        };
        rope.check(d_head)
            .map_err(|problem| keys.problem(key, &problem))?;
        Ok(rope)
    }

    /// Says what makes no sense of heads of `d_head`.
    pub fn check(&self, d_head: usize) -> std::result::Result<(), String> {
        let theta = self.theta;
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(format!(
                "`rope_theta`: expected a number above 0, found {theta}"
            ));
        }
        // YaRN looks for the dimension that turns so many times, by the logarithm of the base.
        if matches!(self.scaling, RopeScaling::Yarn { .. }) && theta <= 1.0 {
            return Err(format!(
                "`rope_theta`: expected a number above 1, found {theta}"
            ));
        }
        self.scaling.check()?;
        let factor = self.attention_factor();
        if !(factor > 0.0 && (factor as f32).is_finite()) {
            return Err(format!(
                "`attention_factor`: expected a number above 0, found {factor}"
            ));
        }
        let frequencies = self.inverse_frequencies(d_head);
        if frequencies.iter().all(|frequency| frequency.is_finite()) {
            Ok(())
        } else {
            Err("expected frequencies that 32 bits hold, found larger ones".to_string())
        }
    }
}

impl RopeScaling {
    /// The names of all rules.
    pub const KINDS: [&str; 4] = ["default", "linear", "llama3", "yarn"];

    /// The rule in a table of a checkpoint whose sequences have at most `positions` tokens, and the keys of the table that it does
    /// not read.
    ///
    /// # Errors
    /// The rule is none of [`KINDS`](Self::KINDS), or a number of it is missing; the text says which.
    pub fn read(
        table: &Map<String, Value>,
        positions: usize,
    ) -> std::result::Result<(Self, Vec<String>), String> {
        let mut table = table.clone();
        table.retain(|_, value| !value.is_null());
        rename_rule(&mut table);
        table.entry("rope_type").or_insert_with(|| json!("default"));
        // Some checkpoints leave the original context out and mean the longest one.
        table
            .entry(ORIGINAL_POSITIONS)
            .or_insert_with(|| json!(positions));
        divide_corrections(&mut table)?;
        let scaling = serde_json::from_value::<Self>(Value::Object(table.clone()));
        let scaling = scaling.map_err(|error| error.to_string())?;
        let read = scaling.table();
        let is_unread = |key: &String| read.get(key).is_none() && !BESIDE.contains(&&key[..]);
        let unread = table.into_iter().map(|(key, _)| key).filter(is_unread);
        Ok((scaling, unread.collect()))
    }

    fn table(&self) -> Value {
        let table = serde_json::to_value(self);
        table.unwrap_or_else(|error| unreachable!("every number and name can be written: {error}"))
    }

    /// The table as every engine reads it: SGLang does not know `attention_factor`, but the corrections of which it is the quotient,
    /// and llama.cpp takes positions for a whole number alone.
    pub fn written(&self) -> Value {
        let mut table = self.table();
        if let Some(positions) = table.get_mut(ORIGINAL_POSITIONS)
            && let Some(whole) = positions.as_f64().filter(|number| number.fract() == 0.0)
        {
            *positions = json!(whole as u64);
        }
        if let Self::Yarn {
            factor,
            attention_factor: Some(quotient),
            ..
        } = self
            && *factor > 1.0
        {
            let all = correction(*factor, 1.0);
            table["mscale"] = json!((quotient * all - 1.0) / (0.1 * factor.ln()));
            table["mscale_all_dim"] = json!(1.0);
        }
        table
    }

    /// Says which parameter makes no sense.
    pub fn check(&self) -> std::result::Result<(), String> {
        let above = |name: &str, value: f64, least: f64| {
            if value > least && value.is_finite() {
                Ok(())
            } else {
                Err(format!(
                    "`{name}`: expected a number above {least}, found {value}"
                ))
            }
        };
        match self {
            Self::Default => Ok(()),
            Self::Linear { factor } => above("factor", *factor, 0.0),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                above("factor", *factor, 0.0)?;
                above("low_freq_factor", *low_freq_factor, 0.0)?;
                above("high_freq_factor", *high_freq_factor, *low_freq_factor)?;
                above(ORIGINAL_POSITIONS, *original_max_position_embeddings, 0.0)
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings,
                ..
            } => {
                above("factor", *factor, 0.0)?;
                above("beta_slow", *beta_slow, 0.0)?;
                // Kimi K2 has 1 for both: the ramp between them is then as short as one dimension.
                if !(beta_fast >= beta_slow && beta_fast.is_finite()) {
                    return Err(format!(
                        "`beta_fast`: expected a number of at least {beta_slow}, found {beta_fast}"
                    ));
                }
                above(ORIGINAL_POSITIONS, *original_max_position_embeddings, 0.0)
            }
        }
    }
}

/// What YaRN corrects the scale of logits by, of positions stretched by `factor`, times `by`.
fn correction(factor: f64, by: f64) -> f64 {
    if factor > 1.0 {
        0.1 * by * factor.ln() + 1.0
    } else {
        1.0
    }
}

/// Puts the quotient of the two corrections that DeepSeek's tables name in the place of `attention_factor`, as transformers and engines
/// compute it. Where that is given, it counts; where one of the two is absent or 0, neither does, and both stay in the table.
fn divide_corrections(table: &mut Map<String, Value>) -> std::result::Result<(), String> {
    const KEYS: [&str; 2] = ["mscale", "mscale_all_dim"];
    if table["rope_type"] != "yarn" {
        return Ok(());
    }
    let mut by = [0.0; 2];
    for (by, key) in by.iter_mut().zip(KEYS) {
        if let Some(found) = table.get(key) {
            let number = found.as_f64();
            *by = number.ok_or_else(|| format!("`{key}`: expected a number, found `{found}`"))?;
        }
    }
    let Some(factor) = table.get("factor").and_then(Value::as_f64) else {
        return Ok(());
    };
    if by.contains(&0.0) {
        return Ok(());
    }
    let [of_angles, of_all] = by.map(|by| correction(factor, by));
    let quotient = of_angles / of_all;
    if !(quotient > 0.0 && quotient.is_finite()) {
        return Err(format!(
            "`mscale`: expected a correction that over that of `mscale_all_dim` is a number above 0, found {quotient}"
        ));
    }
    for key in KEYS {
        table.remove(key);
    }
    table
        .entry("attention_factor")
        .or_insert_with(|| json!(quotient));
    Ok(())
}

fn beta_fast() -> f64 {
    32.0
}

fn beta_slow() -> f64 {
    1.0
}

fn truncate() -> bool {
    true
}

impl RopeConfig {
    /// Radians per position of each pair of dimensions, `d_head / 2` of them.
    pub fn inverse_frequencies(&self, d_head: usize) -> Vec<f32> {
        let half = d_head / 2;
        let plain = (0..half).map(|i| self.theta.powf(-2.0 * i as f64 / d_head as f64));
        let scaled: Vec<f64> = match &self.scaling {
            RopeScaling::Default => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => plain
                .map(|frequency| {
                    let rotations = original * frequency / std::f64::consts::TAU;
                    let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (kept + (1.0 - kept) / factor)
                })
                .collect(),
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: original,
                truncate,
                ..
            } => {
                // Dimension at which a rotary pair turns `rotations` times over the original context.
                let dimension = |rotations: f64| {
                    d_head as f64 * (original / (rotations * std::f64::consts::TAU)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(*beta_fast), dimension(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                low = low.max(0.0);
                high = high.min(d_head as f64 - 1.0);
                if low == high {
                    high += 0.001;
                }
                plain
                    .enumerate()
                    .map(|(i, frequency)| {
                        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        frequency * ((1.0 - divided) + divided / factor)
                    })
                    .collect()
            }
        };
        scaled
            .into_iter()
            .map(|frequency| frequency as f32)
            .collect()
    }

    /// Factor on cosine and sine.
    fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn {
                attention_factor: Some(given),
                ..
            } => *given,
            RopeScaling::Yarn { factor, .. } => correction(*factor, 1.0),
            _ => 1.0,
        }
    }
}

/// Turns positions into rotations.
#[derive(Debug, Clone)]
pub struct Rope {
    /// `[1, 1, 1, d_head / 2]`
    inverse_frequency: Tensor<4>,
    attention_factor: f64,
}

/// The rotation of every position of a pass, shared by all its layers.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// `[batch or 1, 1, seq, d_head / 2]`
    cos: Tensor<4>,
    /// `[batch or 1, 1, seq, d_head / 2]`
    sin: Tensor<4>,
}

impl Rope {
    /// Rotations for heads of which the first `d_head` dimensions turn: most often all.
    pub fn new(config: &RopeConfig, d_head: usize, device: &Device) -> Self {
        let frequencies = config.inverse_frequencies(d_head);
        Self {
            inverse_frequency: Tensor::<1>::from_floats(frequencies.as_slice(), device).reshape([
                1,
                1,
                1,
                d_head / 2,
            ]),
            attention_factor: config.attention_factor(),
        }
    }

    /// # Shapes
    /// - positions: `[batch or 1, seq]`
    pub fn at(&self, positions: Tensor<2, Int>) -> Rotation {
        let [batch, seq] = positions.dims();
        let frequency = self
            .inverse_frequency
            .clone()
            .to_device(&positions.device());
        let positions = positions.float().cast(burn::tensor::DType::F32);
        let angle = positions.reshape([batch, 1, seq, 1]) * frequency;
        Rotation {
            cos: angle.clone().cos() * self.attention_factor,
            sin: angle.sin() * self.attention_factor,
        }
    }
}

impl Rotation {
    /// Turns the first dimensions of heads, as many as there are rotations for, and leaves the others as they are.
    ///
    /// # Shapes
    /// - x: `[batch, heads, seq, d_head]`
    /// - output: `[batch, heads, seq, d_head]`, in the type of `x`
    pub fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let (d_head, turned) = (x.dims()[3], 2 * self.cos.dims()[3]);
        let turn = |x| kernels::rotate(x, self.cos.clone(), self.sin.clone());
        if turned == d_head {
            return turn(x);
        }
        let kept = x.clone().narrow(3, turned, d_head - turned);
        Tensor::cat(vec![turn(x.narrow(3, 0, turned)), kept], 3)
    }

    /// [`rotate`](Self::rotate) of heads that are normed first, each by itself.
    ///
    /// # Shapes
    /// - x: `[batch, seq, heads, d_head]`
    /// - output: `[batch, heads, seq, d_head]`, in the type of `x`
    pub fn rotate_normed(&self, x: Tensor<4>, norm: &RmsNorm) -> Tensor<4> {
        if 2 * self.cos.dims()[3] == x.dims()[3] {
            let angles = [self.cos.clone(), self.sin.clone()];
            return kernels::norm_and_rotate(x, norm.factors(), angles);
        }
        self.rotate(norm.forward(x).swap_dims(1, 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;

    #[test]
    fn llama3_scaling_keeps_high_and_divides_low_frequencies() {
        let config = RopeConfig {
            theta: 500_000.0,
            scaling: RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192.0,
            },
        };
        let plain = RopeConfig {
            theta: 500_000.0,
            scaling: RopeScaling::Default,
        };
        let (scaled, plain) = (
            config.inverse_frequencies(128),
            plain.inverse_frequencies(128),
        );
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] * 8.0 / plain[63] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn scalings_that_would_turn_the_wrong_way_or_divide_by_nothing_are_told_by_name() {
        let read = |text: &str| {
            let scaling: RopeScaling = serde_json::from_str(text).unwrap();
            scaling.check()
        };
        for (text, key) in [
            (r#"{"rope_type": "linear", "factor": -2.0}"#, "factor"),
            (r#"{"rope_type": "linear", "factor": 0}"#, "factor"),
            (
                r#"{"rope_type": "yarn", "factor": -1, "original_max_position_embeddings": 64}"#,
                "factor",
            ),
            (
                r#"{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                    "original_max_position_embeddings": 64}"#,
                "high_freq_factor",
            ),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(&format!("`{key}`")), "{text}: {problem}");
        }
        assert_eq!(read(r#"{"rope_type": "linear", "factor": 2.0}"#), Ok(()));
    }

    /// The table of Kimi K2.
    fn kimi() -> Value {
        json!({
            "type": "yarn", "factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        })
    }

    /// A table with other values of some keys, those of which are null left out.
    fn read(mut table: Value, more: Value) -> (RopeConfig, Vec<String>) {
        let (Some(into), Value::Object(more)) = (table.as_object_mut(), more) else {
            panic!("no tables")
        };
        into.extend(more);
        let (scaling, unread) = RopeScaling::read(table.as_object().unwrap(), 4096).unwrap();
        let theta = 50_000.0;
        (RopeConfig { theta, scaling }, unread)
    }

    /// Expected are `ROPE_INIT_FUNCTIONS["yarn"]` of `transformers` 5.19, with a `head_dim` of 16.
    #[test]
    fn yarn_whose_bounds_are_one_is_that_of_the_library() {
        let (config, unread) = read(kimi(), json!({}));
        assert_eq!(config.check(16), Ok(()));
        assert!(unread.is_empty(), "{unread:?}");
        let expected = [
            1.0,
            0.258_600_15,
            0.066_874_035,
            0.017_293_634,
            0.004_472_136,
            1.807_023_4e-5,
            4.672_965e-6,
            1.208_429_4e-6,
        ];
        for (found, expected) in config.inverse_frequencies(16).iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
        }
        let (config, _) = read(kimi(), json!({"beta_fast": 0.5}));
        let problem = config.check(16).unwrap_err();
        assert!(
            problem.contains("`beta_fast`: expected a number of at least 1"),
            "{problem}"
        );
    }

    /// Expected is what the same function returns beside the frequencies.
    #[test]
    fn two_corrections_are_divided_unless_their_quotient_is_given() {
        for (more, expected) in [
            (json!({}), 1.0),
            (
                json!({"mscale": 0.7, "mscale_all_dim": null}),
                1.415_888_308_335_967_2,
            ),
            (
                json!({"mscale": 0.7, "mscale_all_dim": 0.0}),
                1.415_888_308_335_967_2,
            ),
            (
                json!({"mscale": 0.7, "mscale_all_dim": 0.5}),
                1.068_858_863_532_88,
            ),
            (
                json!({"mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": 1.25}),
                1.25,
            ),
            // Positions that are not stretched are not corrected.
            (
                json!({"factor": 0.5, "mscale": 0.7, "mscale_all_dim": 0.5}),
                1.0,
            ),
        ] {
            let (config, unread) = read(kimi(), more.clone());
            let found = config.attention_factor();
            assert!((found - expected).abs() < 1e-12, "{more}: {found}");
            // What neither library reads is named.
            let alone = more["mscale_all_dim"] == json!(0.0) || more["mscale_all_dim"].is_null();
            assert_eq!(
                unread.is_empty(),
                !alone || more["mscale"].is_null(),
                "{more}: {unread:?}"
            );
            // What is written is read again, positions are whole, and its corrections have the quotient that SGLang takes.
            let written = config.scaling.written();
            assert!(written[ORIGINAL_POSITIONS].is_u64(), "{written}");
            let again = RopeScaling::read(written.as_object().unwrap(), 4096).unwrap();
            assert_eq!(again, (config.scaling.clone(), Vec::new()));
            if let [Some(of_angles), Some(of_all)] =
                ["mscale", "mscale_all_dim"].map(|key| written[key].as_f64())
            {
                let quotient = correction(64.0, of_angles) / correction(64.0, of_all);
                assert!((quotient - expected).abs() < 1e-12, "{written}");
            }
        }
        let table = json!({"type": "yarn", "factor": 64.0, "mscale": "1", "mscale_all_dim": 1.0});
        let problem = RopeScaling::read(table.as_object().unwrap(), 64).unwrap_err();
        assert!(problem.contains("`mscale`: expected a number"), "{problem}");
        let table = json!({"type": "yarn", "factor": 64.0, "mscale": -9.0, "mscale_all_dim": 1.0});
        let problem = RopeScaling::read(table.as_object().unwrap(), 64).unwrap_err();
        assert!(problem.contains("above 0"), "{problem}");
    }

    #[test]
    fn keys_that_change_nothing_here_are_named() {
        let more = json!({"attn_factor": 0.5, "finetuned": true, "truncate": false, "mrope_section": [2, 1, 1], "rope_theta": 1e6});
        let (_, mut unread) = read(kimi(), more);
        unread.sort();
        assert_eq!(unread, ["attn_factor", "finetuned"]);
        let (plain, unread) = read(json!({"rope_type": "default", "factor": 4.0}), json!({}));
        assert_eq!(
            (plain.scaling, unread),
            (RopeScaling::Default, vec!["factor".to_owned()])
        );
    }

    #[test]
    fn a_quarter_turn_swaps_the_halves() {
        let device = test_device();
        let config = RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        };
        let rope = Rope::new(&config, 2, &device);
        let rotation = rope.at(Tensor::from_ints([[0, 1]], &device));
        let x = Tensor::<4>::from_floats([[[[1.0, 0.0], [1.0, 0.0]]]], &device);
        let turned = crate::weights::host_f32(rotation.rotate(x));
        let expected = [1.0, 0.0, 1f32.cos(), 1f32.sin()];
        for (got, expected) in turned.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{turned:?}");
        }
    }
}
