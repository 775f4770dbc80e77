//! The proof that hidden states are what a server says they are, made before anything is trained on them. States that are all
//! zero, of another layer, or normed twice train without complaint, and what comes of it accepts nothing.

use std::fmt;

use anyhow::{Result, bail};
use burn::module::Param;
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use serde::{Deserialize, Serialize};
use spectrain_models::weights::host_f32;
use spectrain_models::{PartsConfig, TargetParts};

use super::layers::LayerFit;
use super::server::{Captured, Place};
use super::states::slot;
use crate::runtime::model_files::read_json;

/// The least share of places at which the head must find the token that the served model finds.
const LEAST_AGREEMENT: f64 = 0.9;
/// The most that log-probabilities may differ on average, in nats: what 16 bits and quantised layers leave.
const MOST_DIFFERENCE: f64 = 0.1;
/// Norms of hidden states of one layer, the largest over the median: sinks of attention reach hundreds.
const MOST_SPREAD: f64 = 1e5;

/// What the last state of a server's file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastState {
    /// The output of the last layer: the final norm is still to come.
    BeforeNorm,
    /// It went through the final norm.
    AfterNorm,
}

impl fmt::Display for LastState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::BeforeNorm => "before the final norm",
            Self::AfterNorm => "after the final norm",
        })
    }
}

/// What was found of a server's hidden states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// What the last state is.
    pub last_state: LastState,
    /// Places of texts that were compared.
    pub places: usize,
    /// Share of them at which the head finds the likeliest token of the served model.
    pub agreement: f64,
    /// Mean difference of the log-probability of the text's token, nats.
    pub mean_difference: f64,
    /// Largest difference.
    pub largest_difference: f64,
    /// Median norm of the states of each layer that was asked for, and of the last one.
    pub median_norms: Vec<f64>,
    /// The layers that were compared with what is computed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerFit>,
}

/// Proves that `samples`, each with the served model's own log-probabilities, have the states of the model that `target` is of.
///
/// # Errors
/// They have not; the message says what was found, and what would fit better.
pub fn prove(samples: &[Captured], target: &TargetParts) -> Result<Proof> {
    let device = target.norm.weight.val().device();
    let slots = samples
        .first()
        .map_or(0, |first| first.states.states.shape[1]);
    let mut median_norms = Vec::with_capacity(slots);
    for slot_number in 0..slots {
        let norms = |sample: &Captured| norms(&slot(&sample.states.states, slot_number, &device));
        let norms: Vec<_> = samples.iter().map(norms).enumerate().collect();
        median_norms.push(check_norms(slot_number, &norms)?);
    }
    let (last_state, found) = best(samples, target);
    if found.places == 0 {
        bail!("the server returned no `prompt_logprobs`, so its hidden states cannot be checked");
    }
    if !found.fits() {
        let other = misreadings(target)
            .into_iter()
            .find(|(_, other)| best(samples, other).1.fits());
        let cause = other.map_or(
            "The server runs another model, or the last of the layer ids that it was started with is not that of its last \
             layer",
            |(words, _)| words,
        );
        bail!(
            "the last hidden state is not the target's: by the target's norm and head its likeliest token is that of the \
             served model at {:.0} % of {} places (expected at least {:.0} %), with log-probabilities {:.2} nats apart \
             (expected at most {MOST_DIFFERENCE}){}. {cause}",
            100.0 * found.agreement(),
            found.places,
            100.0 * LEAST_AGREEMENT,
            found.mean(),
            at_fault(samples, target)
        );
    }
    Ok(Proof {
        last_state,
        places: found.places,
        agreement: found.agreement(),
        mean_difference: found.mean(),
        largest_difference: found.largest,
        median_norms,
        layers: Vec::new(),
    })
}

/// Which samples do not fit by themselves, where others do.
fn at_fault(samples: &[Captured], target: &TargetParts) -> String {
    let fits = |sample: &Captured| best(std::slice::from_ref(sample), target).1.fits();
    let apart = samples
        .iter()
        .enumerate()
        .filter(|(_, sample)| !fits(sample));
    let apart: Vec<String> = apart.map(|(number, _)| number.to_string()).collect();
    match (apart.len(), samples.len()) {
        (1.., all) if apart.len() < all => {
            format!(
                ", and of {all} samples these do not fit: {}",
                apart.join(", ")
            )
        }
        _ => String::new(),
    }
}

/// What a norm and a head make of last states that are before or after the norm, whichever goes better with what the served model
/// says.
fn best(samples: &[Captured], target: &TargetParts) -> (LastState, Compared) {
    let device = target.norm.weight.val().device();
    let [before, after] = [LastState::BeforeNorm, LastState::AfterNorm].map(|last_state| {
        let mut compared = Compared::default();
        for sample in samples {
            compared.add(sample, last_state, target, &device);
        }
        (last_state, compared)
    });
    if after.1.mean() < before.1.mean() {
        after
    } else {
        before
    }
}

/// The target with a norm and a head as they would be if this program read its checkpoint wrongly, as it may one of an
/// architecture that it does not know, and what is to be said where one of them fits.
fn misreadings(target: &TargetParts) -> Vec<(&'static str, TargetParts)> {
    let config = target.folder.as_deref().and_then(|folder| {
        let file = folder.join("config.json");
        PartsConfig::read(&read_json(&file).ok()?, &file).ok()
    });
    let (less_one, scale) = config.map_or((false, 1.0), |config| {
        (config.norm_less_one, config.head_scale)
    });
    let mut norm = target.clone();
    let (words, change) = match less_one {
        false => (
            "They fit once 1 is added to the weight of the final norm: the checkpoint holds it less 1, which spectrain \
             does not know of this `model_type`; please report it",
            1.0,
        ),
        true => (
            "They fit once 1 is taken off the weight of the final norm: the checkpoint holds it whole, where spectrain \
             takes it for less 1; please report the `model_type`",
            -1.0,
        ),
    };
    norm.norm.weight = Param::from_tensor(target.norm.weight.val() + change);
    let mut others = vec![(words, norm)];
    if scale != 1.0 {
        let mut head = target.clone();
        let weight = target.lm_head.weight.val();
        head.lm_head.weight = Param::from_tensor(weight / (scale * scale));
        others.push((
            "They fit once the scale of the logits is inverted: the served model multiplies where spectrain divides, or \
             the other way round; please report the `model_type`",
            head,
        ));
    }
    others
}

/// The norm of each row.
pub(crate) fn norms(states: &Tensor<2>) -> Vec<f64> {
    let norms = host_f32(states.clone().square().sum_dim(1).sqrt());
    norms.into_iter().map(f64::from).collect()
}

/// The median of the norms of a slot's states, which must be those of hidden states. Each sample has its number and the norms of its
/// states.
///
/// Norms of one layer are not compared with those of another: in most models they grow by orders of magnitude, and in some they fall
/// from a layer to the next.
pub(crate) fn check_norms(slot: usize, of_samples: &[(usize, Vec<f64>)]) -> Result<f64> {
    for (sample, norms) in of_samples {
        if let Some(found) = norms.iter().find(|norm| !norm.is_finite()) {
            bail!(
                "sample {sample}: hidden states of slot {slot}: expected numbers, found one whose norm is {found}"
            );
        }
        let zero = norms.iter().filter(|norm| **norm == 0.0).count();
        if zero > 0 {
            bail!(
                "sample {sample}: hidden states of slot {slot}: expected numbers other than 0, found {zero} of {} states that are all \
                 0: the server did not fill them",
                norms.len()
            );
        }
    }
    let each = of_samples.iter();
    let each = each.flat_map(|(sample, norms)| norms.iter().map(move |norm| (*norm, sample)));
    let mut all: Vec<(f64, &usize)> = each.collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let median = all.get(all.len() / 2).map_or(0.0, |(norm, _)| *norm);
    if let Some((largest, sample)) = all.last()
        && *largest > MOST_SPREAD * median
    {
        bail!(
            "sample {sample}: hidden states of slot {slot}: expected norms of similar size, found one of {largest:.3e} where the median \
             is {median:.3e}"
        );
    }
    Ok(median)
}

/// What the head makes of last states, beside what the served model says.
#[derive(Default)]
struct Compared {
    places: usize,
    agreeing: usize,
    difference: f64,
    largest: f64,
}

impl Compared {
    fn add(
        &mut self,
        sample: &Captured,
        last_state: LastState,
        target: &TargetParts,
        device: &Device,
    ) {
        let slots = sample.states.states.shape[1];
        let states = slot(&sample.states.states, slots - 1, device);
        let last = match last_state {
            LastState::BeforeNorm => target.norm.forward(states),
            LastState::AfterNorm => states,
        };
        let weight = target.lm_head.weight.val().dtype();
        let logits = target.logits(last.cast(weight));
        let vocab = logits.dims()[1];
        let found = host_f32(log_softmax(logits, 1));
        // The state before a token is what its likelihood comes from.
        let rows = found.chunks(vocab);
        let places = sample.tokens.iter().zip(&sample.likely).skip(1);
        for (row, (&token, likely)) in rows.zip(places) {
            let Some(Place {
                log_probability,
                best,
            }) = *likely
            else {
                continue;
            };
            let own = f64::from(
                row.get(token as usize)
                    .copied()
                    .unwrap_or(f32::NEG_INFINITY),
            );
            let difference = (own - log_probability).abs();
            self.places += 1;
            self.agreeing += usize::from(spectrain_models::argmax(row) == best as usize);
            self.difference += if difference.is_finite() {
                difference
            } else {
                1e3
            };
            self.largest = self.largest.max(difference);
        }
    }

    fn fits(&self) -> bool {
        self.agreement() >= LEAST_AGREEMENT && self.mean() <= MOST_DIFFERENCE
    }

    fn agreement(&self) -> f64 {
        self.agreeing as f64 / self.places.max(1) as f64
    }

    fn mean(&self) -> f64 {
        self.difference / self.places.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples;
    use crate::runtime::capture::states::HiddenStates;
    use serde_json::json;
    use spectrain_checkpoints::NamedTensor;

    const TOKENS: usize = 40;

    /// A text with its last states and what a model of this norm and head says of it.
    fn captured(served: &TargetParts) -> Captured {
        let d_model = served.spec.d_model;
        let tokens: Vec<u32> = (0..TOKENS as u32).map(|at| at * 7 % 13).collect();
        let values = (0..TOKENS * d_model).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0);
        let shape = vec![TOKENS, 1, d_model];
        let states = NamedTensor::from_f32("hidden_states", shape, values.collect());
        let rows = slot(&states, 0, &served.norm.weight.val().device());
        let logits = served.logits(served.norm.forward(rows));
        let vocab = logits.dims()[1];
        let found = host_f32(log_softmax(logits, 1));
        let places = found.chunks(vocab).zip(&tokens[1..]).map(|(row, &token)| {
            Some(Place {
                log_probability: f64::from(row[token as usize]),
                best: spectrain_models::argmax(row) as u32,
            })
        });
        Captured {
            likely: std::iter::once(None).chain(places).collect(),
            states: HiddenStates {
                tokens: tokens.clone(),
                states,
            },
            tokens,
        }
    }

    #[test]
    fn a_sample_that_is_at_fault_is_named() {
        let target = samples::target();
        let good = captured(&target);
        let mut bad = good.clone();
        let states = &good.states.states;
        let turned = states.to_f32().unwrap().into_iter().map(|value| -value);
        bad.states.states =
            NamedTensor::from_f32("hidden_states", states.shape.clone(), turned.collect());
        let told = prove(&[good.clone(), bad.clone(), good.clone()], &target);
        let told = told.unwrap_err().to_string();
        assert!(told.contains("of 3 samples these do not fit: 1."), "{told}");
        let told = prove(&[bad.clone(), bad], &target).unwrap_err().to_string();
        assert!(!told.contains("samples"), "{told}");
        for (norms, what) in [
            (vec![1.0, f64::NAN], "expected numbers, found"),
            (vec![0.0, 0.0, 1.0], "2 of 3 states that are all 0"),
            (vec![1.0, 1e9], "norms of similar size"),
        ] {
            let told = check_norms(2, &[(0, vec![1.0, 2.0]), (7, norms)]);
            let told = told.unwrap_err().to_string();
            assert!(
                told.starts_with("sample 7: hidden states of slot 2") && told.contains(what),
                "{told}"
            );
        }
        let fine = [(0, vec![3.0, 1.0]), (1, vec![2.0])];
        assert_eq!(check_norms(0, &fine).unwrap(), 2.0);
    }

    /// What is said of states that `served` makes and `target` is to go with.
    fn refused(served: &TargetParts, target: &TargetParts) -> String {
        prove(&[captured(served)], target).unwrap_err().to_string()
    }

    #[test]
    fn a_norm_and_a_scale_that_were_read_wrongly_are_named() {
        let target = samples::target();
        prove(&[captured(&target)], &target).unwrap();
        let mut more = target.clone();
        more.norm.weight = Param::from_tensor(target.norm.weight.val() + 1.0);
        let error = refused(&more, &target);
        assert!(error.contains("once 1 is added"), "{error}");
        // By the target's configuration, logits were divided by 4.
        let folder = tempfile::tempdir().unwrap();
        let of = target.folder.clone().unwrap().join("config.json");
        let mut config = read_json(&of).unwrap();
        config["logits_scaling"] = json!(4.0);
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let mut divided = target.clone();
        divided.folder = Some(folder.path().to_owned());
        let mut more = target.clone();
        more.lm_head.weight = Param::from_tensor(target.lm_head.weight.val() * 16.0);
        let error = refused(&more, &divided);
        assert!(
            error.contains("the scale of the logits is inverted"),
            "{error}"
        );
        // Another model is none of these.
        let mut other = target.clone();
        other.lm_head.weight = Param::from_tensor(target.lm_head.weight.val() * -1.0);
        let error = refused(&other, &divided);
        assert!(error.contains("another model"), "{error}");
    }
}
