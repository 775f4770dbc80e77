//! A drafter judged by texts that its target wrote and by what the target made of them. The target itself is not there, and
//! nothing is decoded.
pub(crate) mod own;
pub(crate) mod own_check;
pub(crate) mod report;
#[cfg(test)]
mod tests;

use spectrain_checkpoints::Mismatch;
use spectrain_models::{Proposer, Sampling};

use self::own::Own;
use self::report::TextsReport;
use crate::draft::{DraftChoice, DraftReport, Reach, drafted};
use crate::error::{Error, Result};
use crate::estimate::text::OwnText;
use crate::estimate::{Estimable, Estimate, estimate};
use crate::evaluate::{Measured, reported};
use crate::groups::{Thinking, groups};
use crate::prompts::{Answer, Prompt, PromptSet};
use crate::report::SettingReport;
use crate::report::ends::EndsReport;
use crate::speculate::Generation;
use crate::verify::{Verifier, VerifierChoice};

/// How a drafter is judged by texts.
#[derive(Debug, Clone)]
pub struct TextSettings {
    /// How the target chose the tokens of the texts.
    pub sampling: Sampling,
    /// What is drafted: chains and static trees.
    pub drafts: Vec<DraftChoice>,
    /// What decides.
    pub verifier: VerifierChoice,
    /// Where the answers end, if that is known: then texts are known by what the target was asked, as in the report of a decoder,
    /// else by their answers, too.
    pub ends: Option<EndsReport>,
    /// The tokens around what the target thinks, where its tokenizer has them.
    pub thinking: Option<Thinking>,
    /// Seed of the intervals.
    pub seed: u64,
}

impl TextSettings {
    /// Checks that a drafter of this reach can be judged so.
    ///
    /// # Errors
    /// There is nothing to draft, or something that only decoding can judge.
    pub fn check(&self, reach: &Reach) -> Result<()> {
        self.ways(reach).map(drop)
    }

    fn ways(&self, reach: &Reach) -> Result<Vec<Way>> {
        for draft in &self.drafts {
            draft.suits(reach)?;
        }
        let choices = drafted(&self.drafts, reach, &self.sampling);
        if choices.is_empty() {
            return Err(not_estimable("none"));
        }
        let ways = choices.iter().map(|choice| Way::new(choice, self));
        ways.collect()
    }
}

/// Texts that were looked at so far, conversation by conversation.
pub struct Texts<'a> {
    proposer: &'a dyn Proposer,
    settings: &'a TextSettings,
    name: String,
    ways: Vec<Way>,
    own: Own,
    /// Whether it is settled that the target wrote them.
    is_checked: bool,
    answers: u64,
    tokens: u64,
    prompts: Vec<Prompt>,
}

/// One way of drafting, and what was found for it.
struct Way {
    verifier: &'static dyn Verifier,
    draft: DraftReport,
    how: Estimable,
    conversations: Vec<Measured>,
    /// What a decoder would have done, where drafts are not drawn.
    answers: Vec<Answer>,
    /// See [`Estimate::overlap`](crate::estimate::Estimate).
    overlap: Option<f64>,
}

impl<'a> Texts<'a> {
    /// None yet, of the dataset `name`.
    ///
    /// # Errors
    /// There is nothing to draft, or something that only decoding can judge.
    pub fn new(name: &str, proposer: &'a dyn Proposer, settings: &'a TextSettings) -> Result<Self> {
        Ok(Self {
            proposer,
            settings,
            name: name.into(),
            ways: settings.ways(&Reach::of(proposer))?,
            own: Own::new(settings.sampling),
            is_checked: false,
            answers: 0,
            tokens: 0,
            prompts: Vec::new(),
        })
    }

    /// Adds a conversation: the tokens that the target was asked, and each of its answers of two tokens or more with all that
    /// stands before it, in their order.
    ///
    /// # Errors
    /// The target did not write the texts, logits are no numbers, or the device failed.
    pub fn add(&mut self, asked: &[u32], answers: &[OwnText]) -> Result<()> {
        let conversation = self.prompts.len();
        self.look(answers, conversation)
            .map_err(|error| error.at(&self.name, conversation))?;
        let known_by = match (&self.settings.ends, answers.last()) {
            (None, Some(whole)) => &whole.tokens[..],
            _ => asked,
        };
        self.prompts.push(known_by.to_vec().into());
        if !self.is_checked && self.own.is_enough() {
            self.own.check()?;
            self.is_checked = true;
        }
        Ok(())
    }

    fn look(&mut self, answers: &[OwnText], conversation: usize) -> Result<()> {
        for text in answers {
            self.own.add(text)?;
            self.answers += 1;
            self.tokens += (text.tokens.len() - text.first) as u64;
        }
        for way in &mut self.ways {
            way.add(self.proposer, answers, conversation)?;
        }
        Ok(())
    }

    /// What they say: of each way of drafting, and of the texts themselves, whose place is still to be filled in.
    ///
    /// # Errors
    /// There are none, or the target did not write them.
    pub fn finish(self) -> Result<(Vec<SettingReport>, TextsReport)> {
        if self.answers == 0 {
            return Err(Error::Setting {
                key: "features",
                mismatch: Mismatch::new("answers of two tokens and more", "none"),
            });
        }
        self.own.check()?;
        let mut texts = TextsReport {
            temperature: self.settings.sampling.temperature,
            conversations: self.prompts.len() as u64,
            answers: self.answers,
            tokens: self.tokens,
            ..TextsReport::default()
        };
        self.own.tell(&mut texts);
        let set = PromptSet {
            name: self.name,
            prompts: self.prompts,
        };
        let ways = self.ways.into_iter();
        let settings = ways.map(|way| way.report(&set, self.settings)).collect();
        Ok((settings, texts))
    }
}

fn not_estimable(found: impl std::fmt::Display) -> Error {
    Error::Setting {
        key: "drafts",
        mismatch: Mismatch::new("drafts that can be judged without decoding", found),
    }
}

impl Way {
    fn new(choice: &DraftChoice, settings: &TextSettings) -> Result<Self> {
        let sampling = &settings.sampling;
        let verifier = settings.verifier.at(sampling);
        let Some((shape, draft)) = choice.shape().zip(choice.report(sampling)) else {
            return Err(not_estimable("a calibrated tree"));
        };
        let how = Estimable::of(&shape, sampling, verifier);
        Ok(Self {
            how: how.ok_or_else(|| {
                not_estimable(format!("{draft} with the verifier `{}`", verifier.name()))
            })?,
            verifier,
            draft,
            conversations: Vec::new(),
            answers: Vec::new(),
            overlap: None,
        })
    }

    fn add(
        &mut self,
        proposer: &dyn Proposer,
        texts: &[OwnText],
        conversation: usize,
    ) -> Result<()> {
        let mut measured = Measured::default();
        if texts.is_empty() {
            // A prompt without a pass, as a decoder counts it.
            measured.add_expected(&Estimate::default());
        }
        for (turn, text) in texts.iter().enumerate() {
            let found = estimate(proposer, text, &self.how)?;
            measured.add_expected(&found);
            match found.overlap {
                Some(overlap) => *self.overlap.get_or_insert_default() += overlap,
                None => self.answers.push(Answer {
                    conversation,
                    turn,
                    prompt: text.tokens[..text.first].to_vec(),
                    generation: Generation {
                        tokens: text.tokens[text.first..].to_vec(),
                        passes: found.passes,
                        ..Generation::default()
                    },
                }),
            }
        }
        self.conversations.push(measured);
        Ok(())
    }

    fn report(self, set: &PromptSet, settings: &TextSettings) -> SettingReport {
        let setting = (&settings.sampling, self.verifier, self.draft);
        let judged: f64 = self.conversations.iter().map(Measured::judged).sum();
        let measured = [(set, self.conversations)];
        let mut report = reported(setting, &measured, 0.0, settings.seed);
        report.ends.clone_from(&settings.ends);
        report.overall.alpha_analytic = self
            .overlap
            .filter(|_| judged > 0.0)
            .map(|sum| sum / judged);
        // Only passes that are certain have a place.
        if self.overlap.is_none() {
            let sets = std::slice::from_ref(set);
            report.groups = groups(sets, &[self.answers], settings.thinking, settings.seed);
        }
        report
    }
}
