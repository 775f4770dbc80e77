//! Finds the assistant's turns in a rendered conversation when the template does not mark them.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::patience::Patience;
use crate::template::GenerationPrompt;

mod conversed;
mod steps;

#[cfg(test)]
pub(crate) use conversed::tests;
pub(crate) use conversed::{Conversed, Opening, Turn, ending};

/// Turns up to which each is looked for by itself: going through all in steps renders the whole as often.
const FEW: usize = 4;
/// Bytes that looking for each of many turns by itself may render, about, where they need not be found.
const LARGEST_SEARCH: usize = 1 << 28;
/// How often a search for a turn renders the whole, at most about.
const RENDERINGS: usize = 8;
/// The longest that a search may take.
const LONGEST_SEARCH: Duration = Duration::from_secs(120);

impl Conversed<'_> {
    /// The turns of assistant messages, by their indices in order: from the generation prompt to the end of the turn.
    pub(crate) fn turns(&self, wanted: &[usize]) -> Result<Vec<Turn>> {
        match self.in_steps(wanted) {
            Some(turns) => Ok(turns),
            None => self.one_by_one(wanted)?.into_iter().collect(),
        }
    }

    /// The same, and none where a turn cannot be found. In a text so long, and with so many, that looking for each by itself would take
    /// too long, none is where they are not found in steps.
    pub(crate) fn turns_if_found(&self, wanted: &[usize]) -> Result<Vec<Option<Turn>>> {
        if let Some(turns) = self.in_steps(wanted) {
            return Ok(turns.into_iter().map(Some).collect());
        }
        let rendered = wanted.len().saturating_mul(RENDERINGS * self.text.len());
        if wanted.len() > FEW && rendered > LARGEST_SEARCH {
            return Ok(vec![None; wanted.len()]);
        }
        let turns = self.one_by_one(wanted)?.into_iter();
        Ok(turns.map(Result::ok).collect())
    }

    /// Turns that are many, where they are found in one go.
    fn in_steps(&self, wanted: &[usize]) -> Option<Vec<Turn>> {
        (wanted.len() > FEW).then(|| steps::turns(self, wanted))?
    }

    fn one_by_one(&self, wanted: &[usize]) -> Result<Vec<Result<Turn>>> {
        let patience = Patience::begin();
        let turn = |&index: &usize| -> Result<Result<Turn>> {
            check_time(patience)?;
            Ok(self.turn(index))
        };
        wanted.iter().map(turn).collect()
    }

    /// Whether the conversation up to one of these assistant messages is rendered otherwise than the whole begins, or otherwise for the
    /// target that is to answer there.
    pub(crate) fn is_rewritten(&self, answers: &[usize]) -> Result<bool> {
        let is_of_prompt = |opening: &Opening| matches!(opening, Opening::Rewritten(_));
        // What is found in steps is so because each answer stands in the whole as it stands at the end.
        if let Some(turns) = self.in_steps(answers) {
            return Ok(turns.iter().any(|turn| is_of_prompt(&turn.opening)));
        }
        let patience = Patience::begin();
        for &answer in answers {
            check_time(patience)?;
            let text = (self.render)(self.exchange.first(answer + 1), GenerationPrompt::Without)?;
            let is_as_begun = self.text.starts_with(&text);
            if !is_as_begun || self.start(answer).is_ok_and(|start| is_of_prompt(&start.2)) {
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
            "stopped: finding the assistant's turns takes longer than {} seconds; with `data.turns = \"expand\"` each \
             answer becomes a sample whose turn alone is looked for",
            LONGEST_SEARCH.as_secs()
        ),
    })
}

#[cfg(test)]
mod many {
    use std::cell::Cell;

    use super::*;
    use crate::conversation::Message;

    #[test]
    fn many_turns_that_are_not_found_in_steps_are_not_looked_for_in_a_long_text() {
        let roles = ["user", "assistant"].into_iter().cycle().take(12);
        let messages: Vec<Message> = roles.map(|role| Message::new(role, "a")).collect();
        let wanted: Vec<usize> = (1..12).step_by(2).collect();
        let rendered = |length: usize| {
            let rendered = Cell::new(0);
            let conversed = Conversed {
                exchange: (&messages[..]).into(),
                text: &"a".repeat(length),
                render: &|_, _| {
                    rendered.set(rendered.get() + 1);
                    Ok("b".to_owned())
                },
                special: &[],
            };
            let found = conversed.turns_if_found(&wanted).unwrap();
            assert!(found.len() == 6 && found.iter().all(Option::is_none));
            rendered.get()
        };
        let longest = LARGEST_SEARCH / (6 * RENDERINGS);
        assert!(rendered(100) > 6);
        assert_eq!(rendered(longest + 1), 1);
    }
}
