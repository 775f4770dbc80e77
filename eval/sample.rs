//! A piece of decoding to look at: what was drafted and kept, what was rejected, and what the target added.
use std::sync::{Mutex, PoisonError};

use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::Draft;

use crate::error::Result;
use crate::evaluate::Evaluation;
use crate::evaluate::contender::Contender;
use crate::evaluate::settings::EvaluateSettings;
use crate::prompts::PromptSet;
use crate::sample::report::{SamplePass, SampleReport};
use crate::speculate::{DecodeSettings, Decoder};

pub(crate) mod report;

/// Outputs that are kept, and tokens of each.
const OUTPUTS: usize = 2;
const TOKENS: usize = 96;
/// Tokens of the prompt that are shown before them.
const BEFORE: usize = 24;
/// Tokens before a part that decide what it looks like, such as whether a space stands before it.
const CONTEXT: usize = 8;

/// The beginning of an output.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    setting: String,
    dataset: String,
    prompt: usize,
    /// The last tokens before it.
    before: Vec<u32>,
    passes: Vec<Traced>,
}

/// One pass of the target; the first is that over the prompt, which judges no draft.
#[derive(Debug, Clone, Default, PartialEq)]
struct Traced {
    accepted: Vec<u32>,
    rejected: Vec<u32>,
    bonus: Option<u32>,
}

/// Decodes the beginning of the first outputs of an evaluation's first setting once more, which is one of `contender`, and
/// keeps what was drafted. At temperature 0 they are the outputs that were counted.
///
/// # Errors
/// Those of [`Decoder::generate`].
pub fn samples(
    decoder: &Decoder,
    contender: &Contender,
    evaluation: &Evaluation,
    (sets, settings): (&[PromptSet], &EvaluateSettings),
) -> Result<Vec<Sample>> {
    let (Some(setting), Some(shape), Some(outputs)) = (
        evaluation.settings.first(),
        evaluation.shapes.first(),
        evaluation.outputs.first(),
    ) else {
        return Ok(Vec::new());
    };
    let sampling = setting.sampling();
    let decode = DecodeSettings {
        max_new_tokens: settings.max_new_tokens.min(TOKENS),
        draft: shape.clone(),
        sampling,
        stop: settings.stop.clone(),
        shadow: None,
    };
    let (decoder, mut proposer) = (decoder.reading(contender.capture), (contender.sessions)());
    let drafts = Mutex::new(Vec::new());
    let keep = |draft: &Draft| locked(&drafts).push(draft.clone());
    let decoder = decoder.telling(&keep);
    // One of each of several datasets, or some of the only one.
    let of_each = OUTPUTS.div_ceil(sets.len().max(1));
    let places = sets.iter().zip(outputs);
    let places = places.flat_map(|(set, answers)| {
        let answers = answers.iter().filter(|answer| answer.turn == 0);
        answers.take(of_each).map(move |answer| (set, answer))
    });
    let mut found = Vec::new();
    for (set, answer) in places.take(OUTPUTS) {
        let mut rng = StdRng::seed_from_u64(settings.seed);
        let verifier = settings.verifier.at(&sampling);
        let output = decoder.generate(
            proposer.as_mut(),
            verifier,
            &answer.prompt,
            &decode,
            &mut rng,
        );
        let output = output.map_err(|error| error.at(&set.name, answer.conversation))?;
        let drafts = std::mem::take(&mut *locked(&drafts));
        let mut passes = vec![Traced {
            bonus: output.tokens.first().copied(),
            ..Traced::default()
        }];
        let mut rest = output.tokens.get(1..).unwrap_or_default();
        for (pass, draft) in output.passes.iter().zip(&drafts) {
            let (emitted, behind) = rest.split_at(pass.emitted);
            passes.push(Traced::of(draft, emitted));
            rest = behind;
        }
        let start = answer.prompt.len().saturating_sub(BEFORE);
        found.push(Sample {
            setting: setting.heading(),
            dataset: set.name.clone(),
            prompt: answer.conversation,
            before: answer.prompt[start..].to_vec(),
            passes,
        });
    }
    Ok(found)
}

fn locked<T>(held: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traced {
    /// What a pass that emitted these tokens made of a draft: all but the last of them were drafted.
    fn of(draft: &Draft, emitted: &[u32]) -> Self {
        let (bonus, accepted) = match emitted.split_last() {
            Some((bonus, accepted)) => (Some(*bonus), accepted),
            None => (None, emitted),
        };
        let mut at = None;
        for token in accepted {
            let follow = draft
                .children(at)
                .find(|&node| draft.tokens[node] == *token);
            at = follow.or(at);
        }
        let mut rejected = Vec::new();
        while let Some(node) = draft.children(at).next() {
            rejected.push(draft.tokens[node]);
            at = Some(node);
        }
        // A token that ends the text is the last one though it was drafted.
        if rejected.first().copied() == bonus {
            rejected.clear();
        }
        Self {
            accepted: accepted.to_vec(),
            rejected,
            bonus,
        }
    }
}

impl Sample {
    /// It as text.
    ///
    /// # Errors
    /// Those of `text`, which says what tokens stand for.
    pub fn told<E>(
        &self,
        text: impl Fn(&[u32]) -> std::result::Result<String, E>,
    ) -> std::result::Result<SampleReport, E> {
        let mut so_far = self.before.clone();
        let part = |so_far: &[u32], tokens: &[u32]| {
            let head = &so_far[so_far.len().saturating_sub(CONTEXT)..];
            let (before, whole) = (text(head)?, text(&[head, tokens].concat())?);
            // Where a letter has several tokens, the parts of it are shown one by one.
            match whole.strip_prefix(&before) {
                Some(part) => Ok(part.to_owned()),
                None => text(tokens),
            }
        };
        let mut passes = Vec::new();
        for pass in &self.passes {
            let accepted = part(&so_far, &pass.accepted)?;
            so_far.extend(&pass.accepted);
            let rejected = part(&so_far, &pass.rejected)?;
            let bonus = part(&so_far, pass.bonus.as_slice())?;
            so_far.extend(pass.bonus);
            let tokens = [
                pass.accepted.len(),
                pass.rejected.len(),
                pass.bonus.iter().count(),
            ];
            passes.push(SamplePass {
                accepted,
                rejected,
                bonus,
                tokens,
            });
        }
        Ok(SampleReport {
            setting: self.setting.clone(),
            dataset: self.dataset.clone(),
            prompt: self.prompt as u64,
            before: text(&self.before)?,
            passes,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use spectrain_models::{Capture, Proposal, Proposer, Sampling};

    use super::*;
    use crate::draft::DraftChoice;
    use crate::evaluate::evaluate;
    use crate::evaluate::settings::CalibrationPrompts;
    use crate::toy::{Style, ToyDrafter, ToyTarget};
    use crate::verify::VerifierChoice;

    #[test]
    fn what_was_kept_rejected_and_added_is_told_apart() {
        let chain = Draft::chain(vec![1, 2, 3], Proposal::Deterministic);
        let told = |draft: &Draft, emitted: &[u32]| {
            let traced = Traced::of(draft, emitted);
            (traced.accepted, traced.rejected, traced.bonus)
        };
        assert_eq!(told(&chain, &[1, 7]), (vec![1], vec![2, 3], Some(7)));
        assert_eq!(
            told(&chain, &[1, 2, 3, 7]),
            (vec![1, 2, 3], vec![], Some(7))
        );
        // The text ends with 2, which was drafted.
        assert_eq!(told(&chain, &[1, 2]), (vec![1], vec![], Some(2)));
        let tree = Draft {
            tokens: vec![1, 2, 3, 4, 5],
            parents: vec![None, None, Some(1), Some(1), Some(2)],
            proposal: Proposal::Deterministic,
        };
        assert_eq!(told(&tree, &[2, 9]), (vec![2], vec![3, 5], Some(9)));
    }

    #[test]
    fn the_parts_of_a_sample_make_up_the_output() {
        let target = ToyTarget::default();
        let capture = Capture::default();
        let decoder = Decoder::new(&target, &capture);
        let sets = [PromptSet {
            name: "toy".into(),
            prompts: vec![vec![1].into(), vec![2, 3].into(), vec![4].into()],
        }];
        let settings = EvaluateSettings {
            samplings: vec![Sampling::GREEDY],
            drafts: vec![DraftChoice::chain(3)],
            calibration: CalibrationPrompts::default(),
            batch_size: 1,
            max_new_tokens: 24,
            stop: Vec::new(),
            thinking: None,
            classes: None,
            verifier: VerifierChoice::Exact,
            baseline: false,
            seed: 3,
        };
        let sessions = || -> Box<dyn Proposer> { Box::new(ToyDrafter::new(Style::Own)) };
        let evaluation = evaluate(&decoder, &sessions, &sets, &settings, &mut |_| ()).unwrap();
        let contender = Contender {
            name: None,
            sessions: &sessions,
            capture: &capture,
            drafts: settings.drafts.clone(),
        };
        let found = samples(&decoder, &contender, &evaluation, (&sets, &settings)).unwrap();
        assert_eq!(found.len(), OUTPUTS);
        for (number, sample) in found.iter().enumerate() {
            let text = |tokens: &[u32]| -> std::result::Result<String, Infallible> {
                Ok(tokens.iter().map(ToString::to_string).collect())
            };
            let told = sample.told(text).unwrap();
            let shown: String = (told.passes.iter())
                .map(|pass| format!("{}{}", pass.accepted, pass.bonus))
                .collect();
            let tokens = &evaluation.outputs[0][0][number].generation.tokens;
            assert_eq!(shown, text(tokens).unwrap());
            let sum = |part: usize| {
                told.passes
                    .iter()
                    .map(|pass| pass.tokens[part])
                    .sum::<usize>()
            };
            assert_eq!(sum(0) + sum(2), tokens.len());
            assert!(sum(0) > 0 && sum(1) > 0, "{told:?}");
            assert_eq!(
                (told.setting.as_str(), told.prompt),
                ("T=0, greedy, chain 3", number as u64)
            );
        }
    }
}
