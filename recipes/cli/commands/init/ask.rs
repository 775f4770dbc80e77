//! Questions to the user, on standard error, and answers from standard input.

use std::io::{BufRead as _, stdin};

use anyhow::{Context as _, Result};

use crate::errors::Misuse;
use crate::progress::{ask, tell};
use crate::runtime::interruption::asking;

/// How the user is asked.
pub(super) struct Asking {
    /// Nothing is asked: what is not given is the default.
    pub(super) silent: bool,
}

/// What is to be known.
pub(super) struct Question<'a> {
    /// The option that answers it.
    pub(super) flag: &'a str,
    /// What gave the answer in place of that option, as messages name it.
    pub(super) source: Option<&'a str>,
    /// Why what would answer it does not.
    pub(super) lacks: Option<&'a str>,
    /// What that option was given.
    pub(super) given: Option<String>,
    /// The question, in lines for a terminal.
    pub(super) text: &'a str,
    /// The answer where none is given.
    pub(super) default: Option<&'a str>,
}

impl Asking {
    /// The answer to a question that `check` has nothing against. What was given as an option is not asked for again.
    ///
    /// # Errors
    /// What was given as an option is wrong, or there is no answer: standard input has ended, nothing is to be asked, or the user
    /// asked to stop.
    pub(super) fn answer(
        &self,
        question: Question,
        check: &dyn Fn(&str) -> Result<(), String>,
    ) -> Result<String> {
        let Question {
            flag,
            source,
            lacks,
            given,
            text,
            default,
        } = question;
        if let Some(given) = given {
            check(&given).map_err(|error| {
                let source = source.map_or_else(|| format!("`{flag}`"), str::to_owned);
                Misuse(format!("{source}: {error}"))
            })?;
            return Ok(given);
        }
        let missing = || {
            let why = lacks.map_or_else(String::new, |why| format!("; {why}"));
            Misuse(format!(
                "`{flag}` is missing, and there is nobody to ask{why}"
            ))
        };
        if self.silent {
            return Ok(default.ok_or_else(missing)?.to_owned());
        }
        if let Some(why) = lacks {
            tell(why);
        }
        tell(text.trim_end());
        loop {
            let mut line = String::new();
            let read = asking(|| {
                ask(&default.map_or("? ".to_owned(), |default| format!("? [{default}] ")));
                stdin().lock().read_line(&mut line)
            })?;
            if read.context("cannot read the answer")? == 0 {
                // The question has no answer behind it that ended its line.
                tell("");
                return Err(missing().into());
            }
            let answer = match (line.trim(), default) {
                ("", Some(default)) => default,
                (answer, _) => answer,
            };
            match check(answer) {
                Ok(()) => return Ok(answer.to_owned()),
                Err(error) => tell(format!("  {error}")),
            }
        }
    }
}
