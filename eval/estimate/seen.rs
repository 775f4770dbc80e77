//! What a drafter makes of the tokens of a text.
use std::ops::{ControlFlow, Range};

use burn::prelude::*;
use burn::tensor::activation::{log_softmax, softmax};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::is_cpu;
use spectrain_models::{
    DraftStep, KnownText, Proposer, Sampling, StopBy, acceptance_bound, in_parallel,
};

use crate::error::{Error, Result};
use crate::estimate::drawable::{Drawable, OfTarget};
use crate::estimate::text::Judges;
use crate::verify::rows::host_rows;

/// What a drafter makes of the text's token at one step of a draft.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Seen {
    /// Where drafts are not drawn or confidence is asked for, its place among the candidates, 0 for the likeliest; `None` if it is
    /// none of them.
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

    fn ranks(&self) -> bool {
        self.confidence || !self.drawn
    }
}

/// What it makes of each place of a text from the first on, step by step.
pub(super) type Table = Vec<Vec<Seen>>;

/// Goes over `text`. `judges` has the target's logits from the first place on, which are read where drafts are drawn. `check` is asked
/// before each part of the logits whether to go on; the drafter makes no others once it fails, and what it fails with is returned.
pub(super) fn see(
    proposer: &dyn Proposer,
    text: &KnownText,
    judges: &Judges,
    asked: &Asked,
    check: &dyn Fn() -> Result<()>,
) -> Result<Table> {
    let places = text.tokens.len() - text.first;
    let mut table: Table = vec![Vec::new(); places];
    let mut failed = None;
    let mut look = Look {
        text,
        judges,
        of_target: OfTarget::default(),
        view: View {
            vocabulary: proposer.vocabulary(),
            asked: *asked,
        },
    };
    proposer.along(text, &mut |steps, logits| {
        let found = match check().and_then(|()| look.at(steps, logits)) {
            Ok(found) => found,
            Err(error) => {
                failed = Some(error);
                return ControlFlow::Break(());
            }
        };
        for (step, seen) in steps.iter().zip(found) {
            let of_place = &mut table[step.place - text.first];
            if of_place.len() <= step.step {
                of_place.resize(step.step + 1, Seen::default());
            }
            of_place[step.step] = seen;
        }
        ControlFlow::Continue(())
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

/// Logits of the drafter that are gone over at a time on the CPU: they stay in a core's cache.
const PART: usize = 1 << 19;

/// What is looked at.
struct Look<'a> {
    text: &'a KnownText<'a>,
    judges: &'a Judges,
    /// Where drafts are drawn of what is restricted.
    of_target: OfTarget,
    view: View<'a>,
}

impl Look<'_> {
    /// `logits` has a row for each of `steps`. On the CPU they are gone over on all threads, some rows at a time; a row's findings hang
    /// on no other row.
    fn at(&mut self, steps: &[DraftStep], logits: Tensor<2>) -> Result<Vec<Seen>> {
        let asked = self.view.asked;
        let row = |at: &DraftStep| at.place + at.step - self.text.first;
        let rows: Vec<usize> = steps.iter().map(row).collect();
        let mut judges = None;
        if asked.drawn && is_restricted(asked.sampling) {
            self.of_target.learn(&rows, self.judges, asked.sampling)?;
        } else if asked.drawn {
            judges = Some(self.judges.logits(&rows));
        }
        let size = match is_cpu(&logits.device()) {
            true => (PART / logits.dims()[1]).max(1),
            false => steps.len().max(1),
        };
        let parts = (0..steps.len()).step_by(size).map(|start| {
            let of = start..steps.len().min(start + size);
            Part {
                tokens: steps[of.clone()].iter().map(|at| self.token(at)).collect(),
                logits: part(&logits, &of),
                judges: judges.as_ref().map(|judges| part(judges, &of)),
                drawable: rows[of]
                    .iter()
                    .filter_map(|&row| self.of_target.get(row))
                    .collect(),
            }
        });
        let view = self.view;
        let found = in_parallel(parts.collect(), |part| view.of(part));
        let found: Result<Vec<Vec<Seen>>> = found.into_iter().collect();
        Ok(found?.concat())
    }

    /// The token that a step would propose.
    fn token(&self, at: &DraftStep) -> u32 {
        self.text.tokens[at.place + 1 + at.step]
    }
}

/// Some steps, with what belongs to each.
struct Part<'a> {
    /// What they would propose.
    tokens: Vec<u32>,
    /// The drafter's logits, `[steps, draft_vocab]`.
    logits: Tensor<2>,
    /// The target's, `[steps, vocab]`; where drafts are drawn of what is not restricted.
    judges: Option<Tensor<2>>,
    /// The target's distributions; where drafts are drawn of what is restricted.
    drawable: Vec<&'a Drawable>,
}

/// How steps are looked at.
#[derive(Clone, Copy)]
struct View<'a> {
    vocabulary: &'a DraftVocabulary,
    asked: Asked<'a>,
}

impl View<'_> {
    fn of(&self, part: Part) -> Result<Vec<Seen>> {
        let (logits, device) = (&part.logits, part.logits.device());
        let tokens = part.tokens.iter();
        let known: Vec<_> = tokens.map(|&t| self.vocabulary.to_draft(t)).collect();
        let ids = column(known.iter().map(|id| id.unwrap_or(0)), &device);
        let own = logits.clone().gather(1, ids.clone());
        let candidates = logits.clone().greater_scalar(f32::NEG_INFINITY);
        let mut columns = vec![
            own.clone(),
            if self.asked.ranks() {
                before(logits, own, ids)
            } else {
                own.zeros_like()
            },
            count(candidates),
            // No number where an entry is none, and infinity where one is.
            logits.clone().sum_dim(1),
        ];
        if is_restricted(&self.asked.own()) {
            columns.extend(self.restricted(&part, &known)?);
        } else {
            if self.asked.holds() {
                columns.push(self.held(logits));
            }
            if let Some(judges) = part.judges {
                columns.push(self.chances((&part.tokens, &known), part.logits, judges));
            }
        }
        let width = columns.iter().map(|column| column.dims()[1]).sum::<usize>();
        let host = host_rows(Tensor::cat(columns, 1))?;
        let rows = host.chunks(width).zip(known);
        rows.map(|(row, known)| self.seen(row, known.is_some()))
            .collect()
    }

    /// The probability of the likeliest token and the entropy in nats of each row, `[steps, 2]`; 0 what is not asked for.
    fn held(&self, logits: &Tensor<2>) -> Tensor<2> {
        let log_q = log_softmax(logits.clone() / self.asked.own().temperature, 1);
        let largest = log_q.clone().max_dim(1).exp();
        let entropy = if self.asked.by == Some(StopBy::Entropy) {
            // What is impossible adds nothing.
            -(log_q.clone().exp() * log_q.clamp_min(-1e4)).sum_dim(1)
        } else {
            largest.zeros_like()
        };
        Tensor::cat(vec![largest, entropy], 1)
    }

    /// `min(1, q(y) / p(y))` and `Σ min(p, q)` of each step, `[steps, 2]`.
    fn chances(
        &self,
        (tokens, known): (&[u32], &[Option<u32>]),
        logits: Tensor<2>,
        judges: Tensor<2>,
    ) -> Tensor<2> {
        let (device, by) = (logits.device(), self.asked.sampling.temperature);
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
        Tensor::cat(vec![kept, overlap], 1)
    }

    /// Both, where they are asked for, of distributions that top-k and top-p restrict, on the host: `[steps, 2]` or `[steps, 4]`.
    fn restricted(&self, part: &Part, known: &[Option<u32>]) -> Result<Option<Tensor<2>>> {
        let [rows, width] = part.logits.dims();
        if !self.asked.holds() && !self.asked.drawn {
            return Ok(None);
        }
        let (logits, own) = (host_rows(part.logits.clone())?, self.asked.own());
        let (tokens, drawable) = (&part.tokens[..], &part.drawable[..]);
        let given = logits.chunks(width).enumerate().collect();
        let of_row = |(row, logits): (usize, &[f32])| -> Result<Vec<f32>> {
            let q = Drawable::of(logits, row, &own).map_err(|_| Error::DraftLogits)?;
            let mut found = Vec::with_capacity(4);
            if self.asked.holds() {
                found.extend([q.largest() as f32, q.entropy() as f32]);
            }
            if let Some(p) = drawable.get(row) {
                let of_token = known[row].map_or(0.0, |id| q.at(id));
                found.push(kept(of_token, p.at(tokens[row])) as f32);
                found.push(q.overlap(p, self.vocabulary) as f32);
            }
            Ok(found)
        };
        let found = in_parallel(given, of_row).into_iter();
        let found = found.collect::<Result<Vec<Vec<f32>>>>()?.concat();
        let columns = found.len() / rows;
        let found = Tensor::<1>::from_floats(found.as_slice(), &part.logits.device());
        Ok(Some(found.reshape([rows, columns])))
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
        let is_candidate = self.asked.ranks() && known && own > f32::NEG_INFINITY;
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

/// How many entries of each row come before that of `ids`, `own`: larger ones, and equal ones further to the front. `[steps, 1]`
fn before(logits: &Tensor<2>, own: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<2> {
    let [rows, width] = logits.dims();
    let own = own.expand([rows, width]);
    let index = Tensor::<1, Int>::arange(0..width as i64, &logits.device()).reshape([1, width]);
    let earlier = index.expand([rows, width]).lower(ids.expand([rows, width]));
    let ties = logits.clone().equal(own.clone()).bool_and(earlier);
    count(logits.clone().greater(own).bool_or(ties))
}

/// How many of each row are true. `[steps, 1]`
fn count(of: Tensor<2, Bool>) -> Tensor<2> {
    of.float().sum_dim(1)
}

/// Some rows of a tensor, side by side.
fn part(rows: &Tensor<2>, of: &Range<usize>) -> Tensor<2> {
    if of.len() == rows.dims()[0] {
        return rows.clone();
    }
    rows.clone().narrow(0, of.start, of.len())
}

fn column(ids: impl Iterator<Item = u32>, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = ids.map(i64::from).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), device).reshape([ids.len(), 1])
}

#[cfg(test)]
mod tests {
    use spectrain_models::device::test_device;
    use spectrain_models::{Capture, Features};

    use super::*;
    use crate::estimate::text::OwnText;
    use crate::toy::ToyTarget;

    #[test]
    fn rows_are_gone_over_in_parts_as_each_alone() {
        // Several parts, of which the last is shorter.
        let (width, rows) = (40_000, 3 * PART / 40_000 + 2);
        let device = test_device();
        let normal = burn::tensor::Distribution::Normal(0.0, 3.0);
        let logits = Tensor::<2>::random([rows, width], normal, &Device::flex());
        let values = host_rows(logits.clone()).unwrap();
        let logits = Tensor::<2>::from_data(logits.into_data(), &device);
        let tokens: Vec<u32> = (0..rows + 2).map(|at| 7 * at as u32).collect();
        let features = Features {
            captured: Tensor::zeros([1, 1, 1], &device),
            last: Tensor::zeros([1, 1, 1], &device),
        };
        let text = KnownText {
            tokens: &tokens,
            features: &features,
            first: 1,
            depth: 1,
            limit: tokens.len(),
        };
        let (target, capture) = (ToyTarget::default(), Capture::default());
        let of_toy = OwnText::read(&target, &capture, &[1, 4], &[1, 2], 4).unwrap();
        let vocabulary = DraftVocabulary::full(width);
        let mut look = Look {
            text: &text,
            judges: &of_toy.judges,
            of_target: OfTarget::default(),
            view: View {
                vocabulary: &vocabulary,
                asked: Asked {
                    sampling: &Sampling::GREEDY,
                    drawn: false,
                    confidence: true,
                    by: Some(StopBy::Entropy),
                },
            },
        };
        let steps: Vec<DraftStep> = (1..=rows)
            .map(|place| DraftStep { place, step: 0 })
            .collect();
        let found = look.at(&steps, logits.clone()).unwrap();
        assert_eq!(found.len(), rows);
        for (row, found) in found.iter().enumerate() {
            let own = logits.clone().narrow(0, row, 1);
            let alone = look.at(&steps[row..=row], own).unwrap();
            assert_eq!((found.rank, found.candidates), (alone[0].rank, width));
            assert!((found.confidence - alone[0].confidence).abs() < 1e-6);
            assert!((found.score - alone[0].score).abs() < 1e-5);
            let of_row = &values[row * width..][..width];
            let token = tokens[row + 2] as usize;
            let own = of_row[token];
            let before = of_row
                .iter()
                .enumerate()
                .filter(|&(at, &value)| value > own || value == own && at < token);
            assert_eq!(found.rank, Some(before.count()), "row {row}");
        }
    }
}
