//! What a drafter makes of the tokens of a text.
use burn::prelude::*;
use burn::tensor::activation::{log_softmax, softmax};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{DraftStep, KnownText, Proposer, Sampling, StopBy, acceptance_bound};

use crate::error::{Error, Result};
use crate::estimate::text::Judges;
use crate::verify::rows::{host_rows, processed};

/// What a drafter makes of the text's token at one step of a draft.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Seen {
    /// Its place among the candidates, 0 for the likeliest; `None` if it is none of them.
    pub(super) rank: Option<usize>,
    /// How many candidates there are.
    pub(super) candidates: usize,
    /// Where drafts are drawn, the probability that the step is accepted, given the text: `min(1, q(y) / p(y))`.
    pub(super) kept: f64,
    /// Where drafts are drawn, the probability that it is accepted whatever the token: `Σ min(p, q)`.
    pub(super) overlap: f64,
    /// Where confidence is asked for, the drafter's probability of its likeliest token.
    pub(super) confidence: f64,
    /// Where confidence or a head is asked for, what the drafter's head guesses of the step, if it has one.
    pub(super) guess: Option<f64>,
    /// Where chains end early, what is compared with the threshold.
    pub(super) score: f64,
}

/// What is asked of a text.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// How the text was drawn.
    pub(super) sampling: &'a Sampling,
    /// Whether drafts are drawn in the same way.
    pub(super) drawn: bool,
    /// Whether the drafter's confidence is wanted.
    pub(super) confidence: bool,
    /// By what chains end early.
    pub(super) by: Option<StopBy>,
}

impl Asked<'_> {
    /// By what distribution a drafter is sure of a step: that of drawn tokens, at temperature 0 its own.
    fn own(&self) -> Sampling {
        if self.sampling.is_greedy() {
            Sampling::at(1.0)
        } else {
            *self.sampling
        }
    }

    fn holds(&self) -> bool {
        self.confidence || self.by == Some(StopBy::Entropy)
    }

    fn guesses(&self) -> bool {
        self.confidence || self.by == Some(StopBy::Head)
    }
}

/// What it makes of each place of a text from the first on, step by step.
pub(super) type Table = Vec<Vec<Seen>>;

/// Goes over `text`. `judges` has the target's logits from the first place on, which are read where drafts are drawn.
pub(super) fn see(
    proposer: &dyn Proposer,
    text: &KnownText,
    judges: &Judges,
    asked: &Asked,
) -> Result<Table> {
    let places = text.tokens.len() - text.first;
    let mut table: Table = vec![Vec::new(); places];
    let mut failed = None;
    let look = Look {
        text,
        judges,
        vocabulary: proposer.vocabulary(),
        asked: *asked,
    };
    proposer.along(text, &mut |steps, logits| {
        let found = look.at(steps, logits);
        match found {
            Err(error) => failed = failed.take().or(Some(error)),
            Ok(found) => {
                for (step, seen) in steps.iter().zip(found) {
                    let of_place = &mut table[step.place - text.first];
                    if of_place.len() <= step.step {
                        of_place.resize(step.step + 1, Seen::default());
                    }
                    of_place[step.step] = seen;
                }
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if asked.guesses() {
        proposer.guesses_along(text, &mut |steps, guesses| {
            for (at, guess) in steps.iter().zip(guesses) {
                let step = table[at.place - text.first].get_mut(at.step);
                step.into_iter()
                    .for_each(|step| step.guess = Some(f64::from(guess)));
            }
        });
    }
    if let Some(StopBy::Head) = asked.by {
        for steps in &mut table {
            let mut score = 1.0;
            for step in steps {
                score = StopBy::Head.score(score, step.guess.unwrap_or(1.0));
                step.score = score;
            }
        }
    }
    Ok(table)
}

/// What is looked at.
struct Look<'a> {
    text: &'a KnownText<'a>,
    judges: &'a Judges,
    vocabulary: &'a DraftVocabulary,
    asked: Asked<'a>,
}

impl Look<'_> {
    /// `logits` has a row for each of `steps`.
    fn at(&self, steps: &[DraftStep], logits: Tensor<2>) -> Result<Vec<Seen>> {
        let device = logits.device();
        let tokens: Vec<u32> = steps.iter().map(|at| self.token(at)).collect();
        let known: Vec<_> = tokens
            .iter()
            .map(|&t| self.vocabulary.to_draft(t))
            .collect();
        let ids = column(known.iter().map(|id| id.unwrap_or(0)), &device);
        let own = logits.clone().gather(1, ids.clone());
        let [rows, width] = logits.dims();
        let own_everywhere = own.clone().expand([rows, width]);
        let index = Tensor::<1, Int>::arange(0..width as i64, &device).reshape([1, width]);
        let earlier = index.expand([rows, width]).lower(ids.expand([rows, width]));
        let ties = logits
            .clone()
            .equal(own_everywhere.clone())
            .bool_and(earlier);
        let before = logits.clone().greater(own_everywhere).bool_or(ties);
        let candidates = logits.clone().greater_scalar(f32::NEG_INFINITY);
        let count = |of: Tensor<2, Bool>| of.float().sum_dim(1);
        let mut columns = vec![
            own,
            count(before),
            count(candidates),
            // No number where an entry is none, and infinity where one is.
            logits.clone().sum_dim(1),
        ];
        if self.asked.holds() {
            columns.push(self.held(&logits)?);
        }
        if self.asked.drawn {
            columns.push(self.chances(steps, (&tokens, &known), logits)?);
        }
        let width = columns.iter().map(|column| column.dims()[1]).sum::<usize>();
        let host = host_rows(Tensor::cat(columns, 1))?;
        let rows = host.chunks(width).zip(known);
        rows.map(|(row, known)| self.seen(row, known.is_some()))
            .collect()
    }

    /// The probability of the likeliest token and the entropy in nats of each row, `[steps, 2]`; 0 what is not asked for.
    fn held(&self, logits: &Tensor<2>) -> Result<Tensor<2>> {
        let (own, [rows, width]) = (self.asked.own(), logits.dims());
        if is_restricted(&own) {
            let mut found = Vec::with_capacity(2 * rows);
            for row in host_rows(logits.clone())?.chunks(width) {
                let q = processed(row, 0, &own).map_err(|_| Error::DraftLogits)?;
                let entropy = q.iter().filter(|&&q| q > 0.0).map(|q| -q * q.ln());
                found.push(q.iter().copied().fold(0.0, f64::max) as f32);
                found.push(entropy.sum::<f64>() as f32);
            }
            let found = Tensor::<1>::from_floats(found.as_slice(), &logits.device());
            return Ok(found.reshape([rows, 2]));
        }
        let log_q = log_softmax(logits.clone() / own.temperature, 1);
        let largest = log_q.clone().max_dim(1).exp();
        let entropy = if self.asked.by == Some(StopBy::Entropy) {
            // What is impossible adds nothing.
            -(log_q.clone().exp() * log_q.clamp_min(-1e4)).sum_dim(1)
        } else {
            largest.zeros_like()
        };
        Ok(Tensor::cat(vec![largest, entropy], 1))
    }

    /// The token that a step would propose.
    fn token(&self, at: &DraftStep) -> u32 {
        self.text.tokens[at.place + 1 + at.step]
    }

    /// `min(1, q(y) / p(y))` and `Σ min(p, q)` of each step, `[steps, 2]`.
    fn chances(
        &self,
        steps: &[DraftStep],
        (tokens, known): (&[u32], &[Option<u32>]),
        logits: Tensor<2>,
    ) -> Result<Tensor<2>> {
        let (device, sampling) = (logits.device(), self.asked.sampling);
        let rows = steps.iter().map(|at| at.place + at.step - self.text.first);
        let judges = self.judges.logits(&rows.collect::<Vec<_>>());
        if is_restricted(sampling) {
            return self.restricted(sampling, tokens, logits, judges);
        }
        let by = sampling.temperature;
        let own = column(tokens.iter().copied(), &device);
        let log_p = log_softmax(judges.clone() / by, 1).gather(1, own);
        let p = softmax(judges / by, 1);
        let (q, log_q) = (softmax(logits.clone() / by, 1), log_softmax(logits / by, 1));
        let ids = column(known.iter().map(|id| id.unwrap_or(0)), &device);
        let is_known: Vec<f32> = known.iter().map(|id| f32::from(id.is_some())).collect();
        let is_known = Tensor::<1>::from_floats(is_known.as_slice(), &device);
        let ratio = (log_q.gather(1, ids) - log_p).exp().clamp_max(1.0);
        let kept = ratio * is_known.reshape([tokens.len(), 1]);
        let p = if self.vocabulary.is_full() {
            p
        } else {
            let ids = (0..self.vocabulary.len() as u32).map(|id| self.vocabulary.to_target(id));
            let ids: Vec<i64> = ids.map(i64::from).collect();
            p.select(1, Tensor::from_ints(ids.as_slice(), &device))
        };
        let overlap = p.min_pair(q).sum_dim(1);
        Ok(Tensor::cat(vec![kept, overlap], 1))
    }

    /// The same of distributions that top-k and top-p restrict, on the host.
    fn restricted(
        &self,
        sampling: &Sampling,
        tokens: &[u32],
        logits: Tensor<2>,
        judges: Tensor<2>,
    ) -> Result<Tensor<2>> {
        let device = logits.device();
        let ([rows, width], [_, vocab]) = (logits.dims(), judges.dims());
        let (drafts, judges) = (host_rows(logits)?, host_rows(judges)?);
        let mut found = Vec::with_capacity(2 * rows);
        for (row, &token) in tokens.iter().enumerate() {
            let p = processed(&judges[row * vocab..(row + 1) * vocab], row, sampling)?;
            let draft = &drafts[row * width..(row + 1) * width];
            let q = processed(draft, row, sampling).map_err(|_| Error::DraftLogits)?;
            let to_draft = self.vocabulary.to_draft(token);
            let of_token = to_draft.map_or(0.0, |id| q[id as usize]);
            let shared = q.iter().enumerate().map(|(id, &q)| {
                let token = self.vocabulary.to_target(id as u32);
                q.min(p[token as usize])
            });
            found.push(kept(of_token, p[token as usize]) as f32);
            found.push(shared.sum::<f64>() as f32);
        }
        Ok(Tensor::<1>::from_floats(found.as_slice(), &device).reshape([rows, 2]))
    }

    /// Of a row of findings; `known` says whether the drafter knows the token.
    fn seen(&self, row: &[f32], known: bool) -> Result<Seen> {
        let &[own, before, candidates, sum, ref more @ ..] = row else {
            unreachable!("a row has four columns");
        };
        if sum.is_nan() || sum == f32::INFINITY || candidates == 0.0 {
            return Err(Error::DraftLogits);
        }
        let (held, chances) = more.split_at(if self.asked.holds() { 2 } else { 0 });
        let (kept, overlap) = match chances {
            &[kept, overlap] if kept.is_finite() && overlap.is_finite() => (kept, overlap),
            [] => (0.0, 0.0),
            _ => return Err(Error::Logits { row: 0 }),
        };
        let (confidence, entropy) = match held {
            &[confidence, entropy] => (f64::from(confidence), f64::from(entropy)),
            _ => (0.0, 0.0),
        };
        let is_candidate = known && own > f32::NEG_INFINITY;
        Ok(Seen {
            rank: is_candidate.then_some(before as usize),
            candidates: candidates as usize,
            kept: kept as f64,
            overlap: overlap as f64,
            confidence,
            guess: None,
            score: acceptance_bound(entropy),
        })
    }
}

/// The probability `min(1, q / p)` that a step is accepted, given its token, of which `q` is the drafter's probability and `p` the
/// target's. Of a token that the target can hardly draw, what is drafted at all is accepted: so it is at a `p` of 0, which a token
/// at the edge of what is kept may come to when the target reads its text once more.
fn kept(q: f64, p: f64) -> f64 {
    if q > 0.0 { (q / p).min(1.0) } else { 0.0 }
}

/// Whether not every token can be drawn.
fn is_restricted(sampling: &Sampling) -> bool {
    sampling.top_k > 0 || sampling.top_p < 1.0
}

fn column(ids: impl Iterator<Item = u32>, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = ids.map(i64::from).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), device).reshape([ids.len(), 1])
}
