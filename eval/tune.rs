//! The threshold at which chains best end early, from one pass over texts that the target wrote.
//!
//! Of each threshold the passes over the texts are known without decoding: what is kept, exactly or as it is expected, and as
//! drafted in vain what the drafter would have drafted along the text. The best is that of the greatest speed by the formula
//! that publications use, `tokens / (passes + c · passes of the drafter)`, with `c` measured on the same prompts.
use rand::{SeedableRng, rngs::StdRng};
use spectrain_checkpoints::Mismatch;
use spectrain_models::{DraftShape, Proposer, Sampling, Stop, StopBy};

use crate::cost::Cost;
use crate::draft::{MeasuredOn, TunedReport};
use crate::error::{Error, Result};
use crate::estimate::text::OwnText;
use crate::estimate::{Estimable, Foreseen, foresee};
use crate::speculate::{DecodeSettings, Decoder, Generation};
use crate::verify::VerifierChoice;

/// Thresholds that are tried: 0, 0.01, … below 1.
const THRESHOLDS: u32 = 100;
/// Tokens decoded before anything is measured.
const WARM_UP: usize = 16;

/// What a threshold is tuned for, and on what.
pub(crate) struct Tuning<'a> {
    /// The most tokens in a draft.
    pub(crate) length: usize,
    /// Whence the drafter's hope.
    pub(crate) by: StopBy,
    /// Prompts to answer.
    pub(crate) prompts: &'a [Vec<u32>],
    /// Which those are.
    pub(crate) measured_on: MeasuredOn,
    /// How they are continued. What is said of drafts has no effect.
    pub(crate) decode: DecodeSettings,
    /// Seed of what is drawn.
    pub(crate) seed: u64,
}

/// The rule of the greatest predicted speed; `told` hears how far it is.
///
/// # Errors
/// No answer is longer than a token, or as for [`Decoder::generate`].
pub(crate) fn tune(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    tuning: &Tuning,
    told: &mut dyn FnMut(&str),
) -> Result<(Stop, TunedReport)> {
    let (texts, cost) = measure(decoder, proposer, tuning, told)?;
    let Some(cost) = cost.share_by_time() else {
        return Err(Error::Setting {
            key: "drafts",
            mismatch: Mismatch::new(
                "prompts with answers of several tokens to tune a threshold on",
                "none",
            ),
        });
    };
    let sampling = &tuning.decode.sampling;
    let mut foreseen = Vec::with_capacity(texts.len());
    let check = || decoder.check_interrupted();
    for text in texts {
        let draft = tuning.at(0.0, sampling);
        foreseen.push((foresee(proposer, &text, &draft, &check)?, text));
    }
    let speed = |threshold| {
        let draft = tuning.at(threshold, sampling);
        speed(proposer, &foreseen, &draft, cost)
    };
    let to_the_end = speed(0.0);
    let mut best = (0.0, to_the_end);
    for step in 1..THRESHOLDS {
        let threshold = f64::from(step) / f64::from(THRESHOLDS);
        let found = speed(threshold);
        if found > best.1 {
            best = (threshold, found);
        }
    }
    let (threshold, speed) = best;
    let report = TunedReport {
        prompts: tuning.prompts.len(),
        measured_on: tuning.measured_on,
        cost,
        speed,
        speed_to_the_end: to_the_end,
    };
    let by = tuning.by;
    Ok((Stop { by, threshold }, report))
}

impl Tuning<'_> {
    /// Drafts that end at `threshold`.
    fn at(&self, threshold: f64, sampling: &Sampling) -> Estimable {
        let shape = DraftShape::Confident {
            length: self.length,
            stop: Stop {
                by: self.by,
                threshold,
            },
        };
        match Estimable::of(&shape, sampling, VerifierChoice::Exact.at(sampling)) {
            Some(draft) => draft,
            None => unreachable!("chains are estimated for verifiers that decide in order"),
        }
    }
}

/// Answers to the prompts, and what passes cost: those of the target without a drafter, and the drafter's of whole chains.
fn measure(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    tuning: &Tuning,
    told: &mut dyn FnMut(&str),
) -> Result<(Vec<OwnText>, Cost)> {
    let decode = &tuning.decode;
    let verifier = VerifierChoice::Exact.at(&decode.sampling);
    let whole = DecodeSettings {
        draft: DraftShape::Chain {
            length: tuning.length,
        },
        ..decode.clone()
    };
    let mut rng = StdRng::seed_from_u64(tuning.seed);
    if let Some(prompt) = tuning.prompts.first() {
        let warm = |settings: &DecodeSettings| DecodeSettings {
            max_new_tokens: settings.max_new_tokens.min(WARM_UP),
            ..settings.clone()
        };
        decoder.plain(prompt, &warm(decode), &mut rng)?;
        decoder.generate(proposer, verifier, prompt, &warm(&whole), &mut rng)?;
    }
    let (mut texts, mut cost) = (Vec::new(), Cost::default());
    let all = tuning.prompts.len();
    for (number, prompt) in (1..).zip(tuning.prompts) {
        told(&format!("tuning a threshold: prompt {number} of {all}"));
        let plain = decoder.plain(prompt, decode, &mut rng)?;
        let drafted = decoder.generate(proposer, verifier, prompt, &whole, &mut rng)?;
        let passes = |of: &Generation| of.passes.len() as u64;
        let draft_passes = drafted.passes.iter().map(|pass| pass.draft_passes as u64);
        cost.plain_passes += passes(&plain);
        cost.plain_seconds += plain.seconds().total();
        cost.draft_passes += draft_passes.sum::<u64>();
        cost.draft_seconds += drafted.seconds().draft;
        let (target, tokens) = (decoder.target, &plain.tokens);
        let longest = decode.max_new_tokens;
        texts.extend(OwnText::read(
            target,
            decoder.capture,
            prompt,
            tokens,
            longest,
        ));
    }
    Ok((texts, cost))
}

/// Tokens for the time of a pass of the target.
fn speed(
    proposer: &dyn Proposer,
    texts: &[(Foreseen, OwnText)],
    draft: &Estimable,
    cost: f64,
) -> f64 {
    let (mut tokens, mut time) = (0.0, 0.0);
    for (foreseen, text) in texts {
        let found = foreseen.walk(proposer, text, draft);
        tokens += found.acceptance.emitted;
        time += found.acceptance.passes + cost * found.draft_passes;
    }
    tokens / time
}
