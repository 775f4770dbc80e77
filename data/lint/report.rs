//! What the linter found, for a person and for a file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::conversation::{CUT_OFF, TEMPLATE_KEY};
use crate::mask::Masking;
use crate::prepare::{Category, beside, parts};
use crate::roles::Roles;
use crate::words::{by_count, counted};

/// How a quantity is distributed over samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The smallest.
    pub min: f64,
    /// 5 % are below.
    pub p05: f64,
    /// Half are below.
    pub median: f64,
    /// 95 % are below.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

impl Quantiles {
    /// The quantiles of some values; zeros where there are none.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
        Self {
            min: at(0.0),
            p05: at(0.05),
            median: at(0.5),
            p95: at(0.95),
            max: at(1.0),
        }
    }
}

/// What was found in one set of rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetReport {
    /// Samples that were made of the rows.
    pub samples: u64,
    /// Rows that could be used, each of which is one prompt where it is evaluated with.
    #[serde(default)]
    pub rows: u64,
    /// Rows that the weight of their source passes over, which are not looked at.
    #[serde(default)]
    pub passed_over: u64,
    /// The roles of the messages, in rows that could be read.
    pub roles: Roles,
    /// Rows that could not be read, rendered or tokenised, with the reason.
    pub refused: Category,
    /// Files that could not be read, or not to their end, with the reason.
    #[serde(default)]
    pub unreadable: Category,
    /// Rows read by their tokens, beside which a conversation stands that is not read.
    #[serde(default)]
    pub beside_tokens: u64,
    /// Answers that the mask asks for and that are only context, as their messages say that they are not trained on.
    #[serde(default)]
    pub context_answers: u64,
    /// Answers that were cut off, with which nothing is wrong.
    #[serde(default)]
    pub cut_off: CutOff,
    /// Rows with variables of their own for the chat template.
    #[serde(default)]
    pub own_variables: u64,
    /// Tokens of all samples, uncut.
    pub tokens: u64,
    /// Of these, how many are trained on.
    pub trained_tokens: u64,
    /// Tokens per sample.
    pub length: Quantiles,
    /// Share of trained tokens per sample.
    pub trained_share: Quantiles,
    /// Samples without a trained token, but those of nothing but [answers that were cut off](CutOff::untrained).
    pub all_zero: Category,
    /// Samples of nothing but trained tokens.
    pub all_one: Category,
    /// Samples beyond the maximum length.
    pub overlong: Category,
    /// Samples equal to an earlier one of the set.
    pub duplicates: Category,
    /// Samples with an answer that holds the token that ends it, or one at which the target stops, before its end.
    pub inner_ends: Category,
    /// Answers trained on behind something else than the prompt that engines render for them, with how the two differ.
    #[serde(default)]
    pub other_prompts: Category,
    /// Samples of conversations that are trained on a token at which the target stops.
    pub ended: u64,
    /// Samples of conversations that are trained on something, but on no token at which the target stops, although an answer was
    /// not cut off.
    pub unending: Category,
    /// Rows with an answer that says nothing.
    pub empty_answers: Category,
    /// Rows in which the assistant speaks before any user.
    pub unasked: Category,
    /// Rows with definitions of tools that the chat template does not show.
    pub hidden_tools: Category,
    /// Rows with reasoning that the chat template does not show.
    pub hidden_reasoning: Category,
    /// Rows with calls of tools that the chat template does not show.
    #[serde(default)]
    pub hidden_calls: Category,
    /// Rows with a variable of their own that the chat template does not read, each with the names of these.
    #[serde(default)]
    pub unread_variables: Category,
}

/// Answers that are trained on and whose messages say that they were [cut off](crate::conversation::CUT_OFF).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// How many. What they say is trained on, and no end of theirs.
    pub answers: u64,
    /// Samples of such answers alone in which nothing is left to train on: the chat template shows something else in the place of what
    /// the answer says, or before it a reasoning that the target did not write.
    pub untrained: u64,
    /// Samples that are trained on no token at which the target stops, as all their answers were cut off.
    pub unending: u64,
}

/// A row that something is wrong with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlawedRow<'a> {
    /// `train` or `eval`.
    pub set: &'static str,
    /// What is wrong, by its key in [`SetReport`], or `overlap`.
    pub problem: &'static str,
    /// The file.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub file: &'a str,
    /// The row in it, or the line, from 1; 0 where no place is known.
    pub row: u64,
    /// Why it cannot be used, which of its variables are not read, or how the prompt that engines render differs.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'a str,
}

/// How much of the trained tokens a draft vocabulary of the most frequent ones contains.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Size of the draft vocabulary.
    pub size: usize,
    /// Share of the trained tokens in it.
    pub share: f64,
}

/// A sample to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownSample {
    /// Where it stands.
    pub location: String,
    /// Its text, special tokens included; what is trained on stands between `⟦` and `⟧`.
    pub text: String,
}

/// What is in a dataset and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LintReport {
    /// Which tokens were to be trained on.
    pub masking: Masking,
    /// What is wrong with the variables that the chat template was given.
    #[serde(default)]
    pub template: Vec<String>,
    /// The rows to train on.
    pub train: SetReport,
    /// The rows to evaluate on; no samples where there are none.
    pub eval: SetReport,
    /// Evaluation rows whose prompt is trained on.
    pub overlap: Category,
    /// Coverage of the training set by draft vocabularies.
    pub coverage: Vec<Coverage>,
    /// The first training samples.
    pub shown: Vec<ShownSample>,
}

impl LintReport {
    /// What should be mended before training, worst first; empty where nothing is wrong.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.about_roles();
        problems.extend(self.template.iter().cloned());
        problems.extend(self.flaws().iter().filter_map(Flaw::problem));
        problems
    }

    /// Each row that something is wrong with, once for each flaw: all of them if they were [listed](super::Linter::lists_rows), else
    /// the first few of each kind.
    pub fn rows(&self) -> Vec<FlawedRow<'_>> {
        let flaws = self.flaws().into_iter();
        flaws
            .flat_map(|flaw| {
                let places = flaw.category.known();
                places.map(move |place| FlawedRow::of(flaw.set, flaw.key, place))
            })
            .collect()
    }

    /// What may be wrong with rows and samples, worst first.
    fn flaws(&self) -> Vec<Flaw<'_>> {
        let expected_full = self.masking == Masking::All;
        let mut flaws = Vec::new();
        for (set, report) in [("train", &self.train), ("eval", &self.eval)] {
            let unreadable = ["file cannot be read", "files cannot be read"];
            let unusable = ["row cannot be used", "rows cannot be used"];
            let kinds = [
                ("unreadable", &report.unreadable, unreadable),
                ("refused", &report.refused, unusable),
            ];
            let kinds = kinds.into_iter();
            let kinds = kinds.chain(report.of_samples()).chain(report.of_rows());
            let kinds = kinds.filter(|(key, ..)| !(expected_full && *key == "all_one"));
            flaws.extend(kinds.map(|kind| Flaw::new(set, kind)));
        }
        if self.train.ended == 0 {
            let never = [
                "sample trains on no token at which the target stops, so the drafter does not learn where answers end; the chat \
                 template should write one after each answer",
                "samples train on no token at which the target stops, so the drafter does not learn where answers end; the chat \
                 template should write one after each answer",
            ];
            flaws.push(Flaw::new(
                "train",
                ("unending", &self.train.unending, never),
            ));
        }
        let both = [
            "prompt also occurs in the training data",
            "prompts also occur in the training data",
        ];
        flaws.push(Flaw::new("eval", ("overlap", &self.overlap, both)));
        flaws
    }

    /// The report without what [`PrepareReport`](crate::prepare::PrepareReport) counts of all rows: those that cannot be used or are
    /// passed over, samples that are too long, without anything to train on, or equal to an earlier one, and answers behind something
    /// else than the prompts of engines.
    #[must_use]
    pub fn beside_preparation(mut self) -> Self {
        for set in [&mut self.train, &mut self.eval] {
            set.passed_over = 0;
            for category in [
                &mut set.refused,
                &mut set.overlong,
                &mut set.all_zero,
                &mut set.duplicates,
                &mut set.other_prompts,
            ] {
                *category = Category::default();
            }
        }
        self
    }

    /// That nothing is trained on, that no message of a set is the assistant's where that matters, that a set is passed over, and
    /// which roles are not known.
    fn about_roles(&self) -> Vec<String> {
        let lack = |set: &SetReport| {
            let matters = self.masking != Masking::All || set.roles.has_unknown();
            set.roles.lack().filter(|_| matters)
        };
        let is_nothing = self.train.samples > 0 && self.train.trained_tokens == 0;
        let train = match (is_nothing, lack(&self.train)) {
            (true, cause) => {
                let cause = cause.unwrap_or_else(|| self.train.nothing_trained());
                Some(format!("no token at all is trained on: {cause}"))
            }
            (false, cause) => cause.map(|cause| format!("training data: {cause}")),
        };
        let eval = lack(&self.eval).map(|cause| format!("evaluation data: {cause}"));
        let sets = [
            ("training data", &self.train),
            ("evaluation data", &self.eval),
        ];
        let of_sets = sets.into_iter().flat_map(|(data, set)| {
            let told = [set.all_passed_over(), set.unknown()];
            let told = told.into_iter().flatten();
            told.map(move |told| format!("{data}: {told}"))
        });
        train.into_iter().chain(eval).chain(of_sets).collect()
    }
}

impl SetReport {
    /// An empty one, which will know all places of what is wrong where it `lists` them.
    pub(super) fn new(lists: bool) -> Self {
        let none = || Category::new(lists);
        Self {
            refused: none(),
            unreadable: none(),
            all_zero: none(),
            all_one: none(),
            overlong: none(),
            duplicates: none(),
            inner_ends: none(),
            other_prompts: none(),
            unending: none(),
            empty_answers: none(),
            unasked: none(),
            hidden_tools: none(),
            hidden_reasoning: none(),
            hidden_calls: none(),
            unread_variables: none(),
            ..Self::default()
        }
    }

    /// That nothing is left of it by the weight of its source; nothing where there is a sample.
    fn all_passed_over(&self) -> Option<String> {
        let is_all = self.samples == 0 && self.passed_over > 0;
        is_all.then(|| {
            let rows = counted(self.passed_over, "row");
            format!("no sample is made, as the `weight` of its source passes over {rows}")
        })
    }

    /// Why nothing of it is trained on, although a message is the assistant's.
    fn nothing_trained(&self) -> String {
        let is_cut_off = self.cut_off.untrained == self.samples;
        let cause = if is_cut_off {
            "all answers were cut off (`truncated`), and the chat template shows none as the target wrote it"
        } else {
            "the loss mask is empty"
        };
        cause.to_owned()
    }

    /// What becomes of answers that were cut off, a line for each thing; none where none was.
    fn about_cut_off(&self) -> Vec<String> {
        let CutOff {
            answers,
            untrained,
            unending,
        } = self.cut_off;
        let said = by_count(
            answers,
            [
                "it says is trained on, and no end of it",
                "they say is trained on, and no end of theirs",
            ],
        );
        let shown = by_count(
            untrained,
            ["sample of such an answer", "samples of such answers"],
        );
        let are = by_count(untrained, ["is", "are"]);
        let lines = [
            (
                answers,
                format!("{} cut off (`{CUT_OFF}`): what {said}", counted(answers, "answer")),
            ),
            (
                untrained,
                format!(
                    "{untrained} {shown} with nothing to train on, as the chat template does not show the answer as the target wrote \
                     it, {are} left out"
                ),
            ),
            (
                if self.ended == 0 { unending } else { 0 },
                "no answer with its end is trained on, so a drafter does not learn from these where answers end".to_owned(),
            ),
        ];
        let lines = lines.into_iter().filter(|(count, _)| *count > 0);
        lines.map(|(_, line)| line).collect()
    }

    /// Which roles are not known, where they are slips of others or nobody seems to ask; where no message is the assistant's,
    /// that is said with all roles.
    fn unknown(&self) -> Option<String> {
        let matters = self.roles.has_slips() || !self.unasked.is_none();
        let is_told = self.roles.lack().is_some();
        self.roles.unknown().filter(|_| matters && !is_told)
    }

    /// What can be wrong with samples, in the words for one and for several.
    fn of_samples(&self) -> [Kind<'_>; 6] {
        [
            (
                "all_zero",
                &self.all_zero,
                [
                    "sample has nothing to train on",
                    "samples have nothing to train on",
                ],
            ),
            (
                "all_one",
                &self.all_one,
                [
                    "sample is trained on from end to end, prompt included",
                    "samples are trained on from end to end, prompt included",
                ],
            ),
            (
                "inner_ends",
                &self.inner_ends,
                [
                    "sample has a token that ends answers in the middle of an answer",
                    "samples have a token that ends answers in the middle of an answer",
                ],
            ),
            (
                "other_prompts",
                &self.other_prompts,
                [
                    "answer is trained on behind something else than the prompt that engines render for it",
                    "answers are trained on behind something else than the prompts that engines render for them",
                ],
            ),
            (
                "duplicates",
                &self.duplicates,
                [
                    "sample repeats an earlier one",
                    "samples repeat an earlier one",
                ],
            ),
            (
                "overlong",
                &self.overlong,
                [
                    "sample is longer than `max_length`",
                    "samples are longer than `max_length`",
                ],
            ),
        ]
    }

    /// What can be wrong with rows, in the words for one and for several.
    fn of_rows(&self) -> [Kind<'_>; 6] {
        [
            (
                "empty_answers",
                &self.empty_answers,
                [
                    "row has an empty answer, of which nothing but its end can be learned",
                    "rows have an empty answer, of which nothing but its end can be learned",
                ],
            ),
            (
                "unasked",
                &self.unasked,
                [
                    "row has an answer of the assistant before any message of the user",
                    "rows have an answer of the assistant before any message of the user",
                ],
            ),
            (
                "hidden_tools",
                &self.hidden_tools,
                [
                    "row defines tools that the chat template does not show",
                    "rows define tools that the chat template does not show",
                ],
            ),
            (
                "hidden_reasoning",
                &self.hidden_reasoning,
                [
                    "row has reasoning (`reasoning_content`, or text before `</think>`) that the chat template does not show",
                    "rows have reasoning (`reasoning_content`, or text before `</think>`) that the chat template does not show",
                ],
            ),
            (
                "hidden_calls",
                &self.hidden_calls,
                [
                    "row has tool calls (`tool_calls`) that the chat template does not show",
                    "rows have tool calls (`tool_calls`) that the chat template does not show",
                ],
            ),
            (
                "unread_variables",
                &self.unread_variables,
                [
                    "row has a variable (`chat_template_kwargs`) that the chat template does not read",
                    "rows have a variable (`chat_template_kwargs`) that the chat template does not read",
                ],
            ),
        ]
    }
}

impl<'a> FlawedRow<'a> {
    /// That at a place of a report.
    fn of(set: &'static str, problem: &'static str, place: &'a str) -> Self {
        let found =
            parts(place).and_then(|(file, row, said)| Some((file, row.parse().ok()?, said)));
        let (file, row, said) = found.unwrap_or(("", 0, place));
        Self {
            set,
            problem,
            file: file.trim_start_matches('`'),
            row,
            reason: said.trim_start_matches([':', ' ']),
        }
    }
}

/// A kind of flaw by its key in the report: what has it, and the words for one and for several.
type Kind<'a> = (&'static str, &'a Category, [&'static str; 2]);

/// A kind of flaw of a set.
struct Flaw<'a> {
    /// `train` or `eval`.
    set: &'static str,
    key: &'static str,
    category: &'a Category,
    words: [&'static str; 2],
}

impl<'a> Flaw<'a> {
    fn new(set: &'static str, (key, category, words): Kind<'a>) -> Self {
        Self {
            set,
            key,
            category,
            words,
        }
    }

    /// What is wrong and where; none where nothing is.
    fn problem(&self) -> Option<String> {
        let Category { count, .. } = self.category;
        if *count == 0 {
            return None;
        }
        let what = by_count(*count, self.words);
        let set = match self.set {
            "train" => "training",
            _ => "evaluation",
        };
        Some(format!("{count} {set} {what}: {}", self.category.places()))
    }
}

impl fmt::Display for SetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.trained_tokens as f64 / self.tokens.max(1) as f64;
        f.write_str(&counted(self.samples, "sample"))?;
        if self.rows != self.samples {
            write!(f, " of {}", counted(self.rows, "row"))?;
        }
        write!(
            f,
            ", {} tokens, {} trained on ({share:.1} %)",
            self.tokens, self.trained_tokens
        )?;
        if self.beside_tokens > 0 {
            write!(f, "\n  {}", beside(self.beside_tokens))?;
        }
        if self.passed_over > 0 {
            let rows = counted(self.passed_over, "row");
            let their = by_count(self.passed_over, ["its", "their"]);
            write!(f, "\n  {rows} passed over by the weight of {their} source")?;
        }
        if self.context_answers > 0 {
            let answers = counted(self.context_answers, "answer");
            let say = by_count(
                self.context_answers,
                ["its message says", "their messages say"],
            );
            write!(f, "\n  {answers} not trained on, as {say}")?;
        }
        for line in self.about_cut_off() {
            write!(f, "\n  {line}")?;
        }
        if self.own_variables > 0 {
            let rows = counted(self.own_variables, "row");
            let their = by_count(self.own_variables, ["its", "their"]);
            write!(
                f,
                "\n  {rows} rendered with `{TEMPLATE_KEY}` of {their} own"
            )?;
        }
        if self.samples == 0 {
            return Ok(());
        }
        let (length, part) = (&self.length, &self.trained_share);
        writeln!(
            f,
            "\n  tokens per sample: min {}, 5 % {}, median {}, 95 % {}, max {}",
            length.min, length.p05, length.median, length.p95, length.max
        )?;
        write!(
            f,
            "  trained share: min {:.3}, 5 % {:.3}, median {:.3}, 95 % {:.3}, max {:.3}",
            part.min, part.p05, part.median, part.p95, part.max
        )
    }
}

impl fmt::Display for LintReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "train: {}", self.train)?;
        let eval = &self.eval;
        let unused = eval.passed_over + eval.refused.count + eval.unreadable.count;
        if eval.samples + unused > 0 {
            writeln!(f, "eval: {eval}")?;
        }
        for coverage in &self.coverage {
            writeln!(
                f,
                "a draft vocabulary of {} tokens covers {:.2} % of those trained on",
                coverage.size,
                100.0 * coverage.share
            )?;
        }
        for sample in &self.shown {
            writeln!(f, "\n{}:\n{}", sample.location, sample.text.trim_end())?;
        }
        let problems = self.problems();
        if problems.is_empty() {
            return write!(f, "\nno problems found");
        }
        write!(f, "\n{}:", counted(problems.len() as u64, "problem"))?;
        problems
            .iter()
            .try_for_each(|problem| write!(f, "\n- {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_read_from_the_sorted_values() {
        let quantiles = Quantiles::of((0..=20).rev().map(f64::from).collect());
        assert_eq!(
            (
                quantiles.min,
                quantiles.p05,
                quantiles.median,
                quantiles.p95,
                quantiles.max
            ),
            (0.0, 1.0, 10.0, 19.0, 20.0)
        );
        assert_eq!(Quantiles::of(Vec::new()), Quantiles::default());
    }
}
