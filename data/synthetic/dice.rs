//! Chance, and what it makes.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// A source of chance that picks words and numbers.
pub(super) struct Dice(pub(super) StdRng);

impl Dice {
    /// One of several, each as likely.
    pub(super) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.0.random_range(0..choices.len())]
    }

    /// Different ones of several, in random order.
    pub(super) fn pick_many<'a, T: ?Sized>(
        &mut self,
        choices: &[&'a T],
        count: usize,
    ) -> Vec<&'a T> {
        let mut choices = choices.to_vec();
        choices.shuffle(&mut self.0);
        choices.truncate(count);
        choices
    }

    /// A number between two, both included.
    pub(super) fn number(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// So many numbers between two, both included.
    pub(super) fn numbers(&mut self, count: u64, low: u64, high: u64) -> Vec<u64> {
        (0..count).map(|_| self.number(low, high)).collect()
    }

    /// True once in so many times.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.number(1, times) == 1
    }
}

/// A question with its answer, and at times another that goes on from there.
pub(super) struct Exchange {
    pub(super) prompt: String,
    pub(super) answer: String,
    pub(super) follow_up: Option<(String, String)>,
}

impl Exchange {
    pub(super) fn new(prompt: impl Into<String>, answer: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            answer: answer.into(),
            follow_up: None,
        }
    }

    pub(super) fn then(mut self, prompt: impl Into<String>, answer: impl Into<String>) -> Self {
        self.follow_up = Some((prompt.into(), answer.into()));
        self
    }
}
