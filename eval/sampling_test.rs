//! Whether sampled output follows the target's distribution.
//!
//! A token drawn from a known distribution has an even place in it: with tokens ordered by probability, the probability of
//! those before it plus a random share of its own is uniform from 0 to 1, whatever the distribution is (the probability
//! integral transform, <https://doi.org/10.1214/aoms/1177729394>). Given all tokens before, that holds for each token of an
//! exact decoder, so every token of every output is a sample of one uniform distribution, and none is too rare to be counted. The
//! distributions are computed anew, from the finished text alone: what speculation left in the caches has no part in them.
//!
//! Any order of the tokens that is settled before one of them is drawn will do. What a second draft has at that place, which
//! decides nothing, stands first: an inexact decoder keeps too much or too little of what the drafter prefers. Then come the
//! others by their probability.
use std::fmt;

use serde::{Deserialize, Serialize};
use spectrain_data::seed::{mix, uniform};
use spectrain_models::{Caches, Capture, LogitRows, Pass, Sampling, Target, chain};

use crate::chi_square::{ChiSquare, LEVEL, detectable_shift};
use crate::error::Result;
use crate::verify::rows::{host_rows, processed};

/// Entropy in nats from which on a token is counted. Where the target is sure, an inexact decoder hides.
const UNSURE: f64 = 0.5;
/// Cells of the places of single tokens.
const CELLS: usize = 20;
/// Rows of logits that are on the host at a time.
const ROWS: usize = 32;

/// What the test found over all tokens that the target was unsure of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingReport {
    /// Tokens counted: those of which the target was unsure.
    #[serde(default)]
    pub tokens: u64,
    /// Whether each of them has an even place in its distribution.
    #[serde(flatten)]
    pub each: ChiSquare,
    /// The same of tuples of tokens together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuples: Option<TupleReport>,
    /// Share of the probability that, moved from all tokens to some of a twentieth of it, the test of single tokens finds at the
    /// level of 0.01 in nine of ten cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable_shift: Option<f64>,
    /// The largest entropy of any token's distribution, in nats.
    #[serde(default)]
    pub largest_entropy: f64,
}

/// The test of tuples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TupleReport {
    /// Tokens of a tuple.
    pub length: usize,
    /// Tuples that do not overlap, each from a token on of which the target was unsure; those that the output's end cuts
    /// short are filled up at random.
    pub count: u64,
    /// The test.
    #[serde(flatten)]
    pub test: ChiSquare,
}

impl SamplingReport {
    /// Tests over different outputs as one. `None` of none.
    pub fn pooled<'a>(reports: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let reports: Vec<&Self> = reports.into_iter().collect();
        let tuples: Vec<TupleReport> = reports.iter().filter_map(|report| report.tuples).collect();
        let largest = reports.iter().map(|report| report.largest_entropy);
        let tokens = reports.iter().map(|report| report.tokens).sum();
        let each = ChiSquare::pooled(reports.iter().map(|report| report.each));
        (!reports.is_empty()).then(|| Self {
            tokens,
            each,
            tuples: (!tuples.is_empty()).then(|| TupleReport {
                length: tuples.iter().map(|tuples| tuples.length).max().unwrap_or(0),
                count: tuples.iter().map(|tuples| tuples.count).sum(),
                test: ChiSquare::pooled(tuples.iter().map(|tuples| tuples.test)),
            }),
            detectable_shift: detectable_shift(tokens, each.dof, CELLS),
            largest_entropy: largest.fold(0.0, f64::max),
        })
    }
}

impl fmt::Display for SamplingReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.each.dof == 0 {
            return write!(
                f,
                "Sampled output: not tested, as the target was nearly sure of every token: no entropy reached {UNSURE} nats, \
                 the largest was {:.2}.",
                self.largest_entropy
            );
        }
        write!(
            f,
            "Sampled output: {} tokens of which the target was unsure were tested against its distribution: χ² = {:.1}, {} \
             degrees of freedom, p = {:.3}",
            self.tokens, self.each.statistic, self.each.dof, self.each.p_value
        )?;
        if let Some(tuples) = self.tuples {
            write!(
                f,
                "; {} tuples of up to {}: p = {:.3}",
                tuples.count, tuples.length, tuples.test.p_value
            )?;
        }
        if let Some(shift) = self.detectable_shift {
            write!(
                f,
                ". A shift of {:.1} % of the probability would be found 9 times in 10",
                100.0 * shift
            )?;
        }
        write!(f, ". A p below {LEVEL} would count as a difference.")
    }
}

/// Collects the places of tokens in their distributions.
#[derive(Debug, Clone)]
pub(crate) struct SamplingTest {
    sampling: Sampling,
    /// The longest draft: tuples are as long.
    draft: usize,
    seed: u64,
    /// For each output, the place and the entropy of each token.
    outputs: Vec<Vec<(f64, f64)>>,
}

impl SamplingTest {
    pub(crate) fn new(sampling: Sampling, draft: usize, seed: u64) -> Self {
        Self {
            sampling,
            draft,
            seed,
            outputs: Vec::new(),
        }
    }

    /// Tokens counted so far.
    pub(crate) fn tokens(&self) -> usize {
        let unsure = |(_, entropy): &&(f64, f64)| *entropy >= UNSURE;
        self.outputs.iter().flatten().filter(unsure).count()
    }

    /// Adds an output that continues `prompt`. Its first token, which depends on no draft, is not counted. For each token
    /// `shadows` may name some that stand first in its order; they must have been settled before it was drawn.
    ///
    /// # Errors
    /// The target's logits are no distribution, or the device fails.
    pub(crate) fn add(
        &mut self,
        target: &dyn Target,
        prompt: &[u32],
        output: &[u32],
        shadows: &[Vec<u32>],
    ) -> Result<()> {
        let text: Vec<u32> = prompt.iter().chain(output).copied().collect();
        let seed = mix(self.seed, self.outputs.len() as u64);
        let mut places = Vec::with_capacity(output.len());
        let sampling = self.sampling;
        each_distribution(target, &text, prompt.len() + 1, &mut |at, logits| {
            let p = processed(logits, at, &sampling)?;
            let chance = uniform(mix(seed, at as u64));
            let first = shadows.get(at - prompt.len());
            let first = first.map_or(&[][..], Vec::as_slice);
            places.push((place(&p, first, text[at], chance), entropy(&p)));
            Ok(())
        })?;
        self.outputs.push(places);
        Ok(())
    }

    /// What was found.
    pub(crate) fn report(&self) -> SamplingReport {
        let mut cells = vec![0; CELLS];
        let all = || self.outputs.iter().flatten();
        for (place, _) in all().filter(|(_, entropy)| *entropy >= UNSURE) {
            cells[cell(*place, CELLS)] += 1;
        }
        let each = ChiSquare::of_even(&cells);
        let tokens = cells.iter().sum();
        SamplingReport {
            tokens,
            each,
            tuples: self.tuples(),
            detectable_shift: detectable_shift(tokens, each.dof, CELLS),
            largest_entropy: all().map(|(_, entropy)| *entropy).fold(0.0, f64::max),
        }
    }

    /// Tuples from unsure tokens on, each token's place in the lower or the upper half, or finer where there are enough.
    fn tuples(&self) -> Option<TupleReport> {
        let length = self.draft;
        let tuples: Vec<Vec<f64>> = (0..)
            .zip(&self.outputs)
            .flat_map(|(number, output)| tuples_of(output, length, mix(!self.seed, number)))
            .collect();
        // Of fewer, some cells would be expected to hold less than five.
        let most = tuples.len() / 5;
        let length = length.min(most.checked_ilog2()? as usize);
        if length < 2 {
            return None;
        }
        let parts = (2..=CELLS)
            .take_while(|parts| parts.checked_pow(length as u32).is_some_and(|n| n <= most))
            .last()?;
        let mut cells = vec![0; parts.pow(length as u32)];
        for tuple in &tuples {
            let at = tuple[..length]
                .iter()
                .fold(0, |at, place| at * parts + cell(*place, parts));
            cells[at] += 1;
        }
        Some(TupleReport {
            length,
            count: tuples.len() as u64,
            test: ChiSquare::of_even(&cells),
        })
    }
}

/// Tuples of an output that do not overlap, each from the first unsure token behind the one before. Where one begins depends
/// on nothing in it, and neither does whether it counts: where an output ends depends on its last tokens, so a tuple that is
/// cut short is not left out but filled up with places drawn from `seed`.
fn tuples_of(output: &[(f64, f64)], length: usize, seed: u64) -> Vec<Vec<f64>> {
    let place = |at: usize| match output.get(at) {
        Some((place, _)) => *place,
        None => uniform(mix(seed, at as u64)),
    };
    let (mut found, mut at) = (Vec::new(), 0);
    while length > 0 && at < output.len() {
        if output[at].1 >= UNSURE {
            found.push((at..at + length).map(place).collect());
            at += length;
        } else {
            at += 1;
        }
    }
    found
}

fn cell(place: f64, cells: usize) -> usize {
    ((place * cells as f64) as usize).min(cells - 1)
}

/// The probability of the tokens before `token`, and the share `chance` of its own. Those of `first` stand before all others,
/// which stand by their probability.
fn place(p: &[f64], first: &[u32], token: u32, chance: f64) -> f64 {
    let own = chance * p[token as usize];
    let of = |tokens: &[u32]| -> f64 { tokens.iter().map(|&token| p[token as usize]).sum() };
    if let Some(at) = first.iter().position(|&other| other == token) {
        return of(&first[..at]) + own;
    }
    let likelier = |other: usize| {
        let (theirs, ours) = (p[other], p[token as usize]);
        theirs > ours || theirs == ours && other < token as usize
    };
    let before = (0..p.len()).filter(|&other| likelier(other) && !first.contains(&(other as u32)));
    of(first) + before.map(|other| p[other]).sum::<f64>() + own
}

/// In nats.
fn entropy(p: &[f64]) -> f64 {
    let terms = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln());
    terms.sum()
}

/// Gives `see` the target's logits before each token of `text` from index `from` on, at least 1.
fn each_distribution(
    target: &dyn Target,
    text: &[u32],
    from: usize,
    see: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
) -> Result<()> {
    if from >= text.len() {
        return Ok(());
    }
    let mut caches = Caches::new(target.spec().layers, text.len());
    let mut run = |tokens: &[u32], logits| {
        let parents = chain(tokens.len());
        let pass = Pass {
            tokens,
            parents: &parents,
            logits,
        };
        target.decode(pass, &mut caches, &Capture::default()).logits
    };
    // Row `i` of a pass is about the token behind its token `i`.
    if from > 1 {
        run(&text[..from - 1], LogitRows::Last);
    }
    let mut at = from;
    for tokens in text[from - 1..text.len() - 1].chunks(ROWS) {
        let logits = run(tokens, LogitRows::All);
        let vocab = logits.dims()[1];
        for row in host_rows(logits)?.chunks(vocab) {
            see(at, row)?;
            at += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use spectrain_models::{Capture, Children, DraftShape, StaticTree};

    use super::*;
    use crate::speculate::{DecodeSettings, Decoder};
    use crate::toy::{Style, ToyDrafter, ToyTarget};
    use crate::verify::VerifierChoice;

    struct Trial {
        style: Style,
        draft: DraftShape,
        sampling: Sampling,
        verifier: VerifierChoice,
        outputs: u64,
    }

    impl Default for Trial {
        fn default() -> Self {
            Self {
                style: Style::Own,
                draft: DraftShape::Chain { length: 3 },
                sampling: Sampling::at(1.0),
                verifier: VerifierChoice::Exact,
                outputs: 60,
            }
        }
    }

    impl Trial {
        fn run(self, seed: u64) -> SamplingReport {
            let target = ToyTarget::default();
            let capture = Capture::default();
            let decoder = Decoder::new(&target, &capture);
            let settings = |shadow| DecodeSettings {
                max_new_tokens: 40,
                draft: self.draft.clone(),
                sampling: self.sampling,
                stop: Vec::new(),
                shadow: Some(mix(seed, shadow)),
            };
            let mut drafter = ToyDrafter::new(self.style);
            let mut test = SamplingTest::new(self.sampling, self.draft.length(), seed);
            let verifier = self.verifier.at(&self.sampling);
            let mut rng = StdRng::seed_from_u64(mix(seed, 1));
            let prompt = [1, 2];
            for number in 0..self.outputs {
                let settings = settings(2 + number);
                let output = decoder
                    .generate(&mut drafter, verifier, &prompt, &settings, &mut rng)
                    .unwrap();
                let shadows = if verifier.decides_in_order() {
                    &output.shadows[..]
                } else {
                    &[]
                };
                test.add(&target, &prompt, &output.tokens, shadows).unwrap();
            }
            test.report()
        }
    }

    fn exact(trial: Trial) {
        let found = trial.run(5);
        let tuples = found.tuples.unwrap();
        assert!(found.tokens > 1500 && tuples.test.dof > 10, "{found:?}");
        assert!(
            found.each.p_value > 0.01 && tuples.test.p_value > 0.01,
            "{found:?}"
        );
    }

    fn inexact(trial: Trial) {
        let found = trial.run(5);
        assert!(found.each.p_value < 1e-6, "{found:?}");
    }

    #[test]
    fn exact_decoders_pass() {
        exact(Trial::default());
        exact(Trial {
            style: Style::Tree,
            ..Trial::default()
        });
        for children in [Children::WithoutReplacement, Children::WithReplacement] {
            exact(Trial {
                draft: DraftShape::Static {
                    tree: StaticTree::named("eagle-25").unwrap(),
                    children,
                },
                ..Trial::default()
            });
        }
        exact(Trial {
            draft: DraftShape::Chain { length: 4 },
            verifier: VerifierChoice::Block,
            ..Trial::default()
        });
        exact(Trial {
            sampling: Sampling {
                temperature: 0.7,
                top_k: 4,
                top_p: 0.9,
            },
            ..Trial::default()
        });
    }

    #[test]
    fn inexact_decoders_are_found_out() {
        inexact(Trial {
            style: Style::Misstated,
            ..Trial::default()
        });
        inexact(Trial {
            draft: DraftShape::Chain { length: 4 },
            verifier: VerifierChoice::TypicalLossy,
            ..Trial::default()
        });
    }

    #[test]
    fn tuples_find_what_single_tokens_hide() {
        // Each place is even by itself, and every second one repeats the one before.
        let mut test = SamplingTest::new(Sampling::at(1.0), 2, 1);
        let place = |at: u64| (uniform(mix(3, at)), 1.0);
        let repeated = (0..1000).flat_map(|at| [place(at), place(at)]).collect();
        test.outputs.push(repeated);
        let found = test.report();
        assert!(found.each.p_value > 0.01, "{found:?}");
        assert!(found.tuples.unwrap().test.p_value < 1e-6, "{found:?}");
    }

    #[test]
    fn outputs_that_end_where_they_please_do_not_mislead_tuples() {
        let mut test = SamplingTest::new(Sampling::at(1.0), 3, 1);
        for output in 0..2000 {
            let mut places = Vec::new();
            for at in 0..40 {
                let place = uniform(mix(output, at));
                places.push((place, 1.0));
                // The likeliest token ends the text.
                if place < 0.3 {
                    break;
                }
            }
            test.outputs.push(places);
        }
        let found = test.report().tuples.unwrap();
        assert!(found.test.p_value > 0.01, "{found:?}");
    }

    #[test]
    fn p_values_of_an_exact_decoder_are_spread_evenly() {
        let below = (0..100)
            .filter(|&seed| {
                let trial = Trial {
                    outputs: 8,
                    ..Trial::default()
                };
                trial.run(seed).each.p_value < 0.2
            })
            .count();
        assert!((8..36).contains(&below), "{below} of 100 below 0.2");
    }

    #[test]
    fn what_the_target_is_sure_of_is_not_tested_and_the_report_says_so() {
        let cold = Trial {
            sampling: Sampling::at(0.001),
            outputs: 2,
            ..Trial::default()
        };
        let found = cold.run(1);
        assert_eq!((found.tokens, found.each.dof), (0, 0));
        let said = found.to_string();
        assert!(said.contains("nearly sure of every token"), "{said}");
        let unsure = Trial::default().run(1).to_string();
        assert!(unsure.contains("9 times in 10"), "{unsure}");
    }

    #[test]
    fn a_token_has_its_share_of_the_probability_behind_likelier_ones() {
        let p = [0.1, 0.4, 0.1, 0.4];
        for (token, low) in [(1, 0.0), (3, 0.4), (0, 0.8), (2, 0.9)] {
            assert!((place(&p, &[], token, 0.0) - low).abs() < 1e-12);
            let half = p[token as usize] / 2.0;
            assert!((place(&p, &[], token, 0.5) - low - half).abs() < 1e-12);
        }
        for (token, low) in [(2, 0.0), (3, 0.1), (1, 0.5), (0, 0.9)] {
            assert!((place(&p, &[2, 3], token, 0.0) - low).abs() < 1e-12);
        }
        assert!((entropy(&[0.5, 0.5, 0.0]) - 2f64.ln()).abs() < 1e-12);
    }
}
