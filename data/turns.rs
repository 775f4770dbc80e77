//! Finds the assistant's turns in a rendered conversation when the template does not mark them.

use std::ops::Range;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::patience::Patience;
use crate::template::GenerationPrompt;

mod conversed;
mod steps;

pub(crate) use conversed::Conversed;

/// Turns up to which each is looked for by itself: going through all in steps renders the whole as often.
const FEW: usize = 4;
/// The longest that a search may take.
const LONGEST_SEARCH: Duration = Duration::from_secs(120);

impl Conversed<'_> {
    /// The bytes that assistant messages, by their indices in order, were generated as: from the generation prompt to
    /// the end of the turn.
    pub(crate) fn turns(&self, wanted: &[usize]) -> Result<Vec<Range<usize>>> {
        if wanted.len() > FEW
            && let Some(turns) = steps::turns(self, wanted)
        {
            return Ok(turns);
        }
        let patience = Patience::begin();
        let turn = |&index: &usize| {
            check_time(patience)?;
            self.turn(index)
        };
        wanted.iter().map(turn).collect()
    }

    /// Whether the conversation up to one of these assistant messages is rendered otherwise than the whole begins.
    pub(crate) fn is_rewritten(&self, answers: &[usize]) -> Result<bool> {
        // What is found in steps is so because each answer stands in the whole as it stands at the end.
        if answers.len() > FEW && steps::turns(self, answers).is_some() {
            return Ok(false);
        }
        let patience = Patience::begin();
        for &answer in answers {
            check_time(patience)?;
            let text = (self.render)(self.exchange.first(answer + 1), GenerationPrompt::Without)?;
            if !self.text.starts_with(&text) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Fails where a search takes too long.
fn check_time(patience: Patience) -> Result<()> {
    if !patience.exceeds(LONGEST_SEARCH) {
        return Ok(());
    }
    Err(Error::TemplateRender {
        message: format!(
            "stopped: finding the assistant's turns takes longer than {} seconds; a template with \
             `{{% generation %}}` blocks says where they are",
            LONGEST_SEARCH.as_secs()
        ),
    })
}
