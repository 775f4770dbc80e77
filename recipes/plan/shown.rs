//! What `--plan` shows.

use anyhow::Error;
use serde_json::Value;

use crate::errors::{Misuse, with_causes};

/// What a recipe would do.
pub struct Plan {
    /// The text of `--plan`. What the run is refused for is not in it.
    pub text: String,
    /// The same for programs: bytes, seconds and counts as plain numbers; `null` for what is not known yet.
    pub json: Value,
    /// Everything that would stop the run, as one error.
    pub refusal: Option<Error>,
}

/// The last line of the text of a plan that is refused.
pub(super) const REFUSED: &str = "\nrefused: the error says why\n";

/// Whether that is said in what the run is refused for.
pub(super) fn is_told(why: &str, refused: &[String]) -> bool {
    let mut refused = refused.iter();
    refused.any(|told| told.contains(why) || why.contains(told.as_str()))
}

/// What would stop a run as one error, each thing in a line of its own where there are several. How the program ends, the first
/// decides.
pub(super) fn refusal(refusals: &[Error]) -> Option<Error> {
    let first = refusals.first()?;
    let mut told = "the run would be refused:".to_owned();
    for refused in refusals {
        told += if refusals.len() > 1 { "\n  " } else { " " };
        told += &with_causes(refused);
    }
    Some(match first.is::<Misuse>() {
        true => Misuse(told).into(),
        false => Error::msg(told),
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_a_run_is_refused_for_is_said_once_and_all_of_it() {
        assert!(refusal(&[]).is_none());
        let only = refusal(&[anyhow!("gone").context("`a`")]).unwrap();
        assert_eq!(with_causes(&only), "the run would be refused: `a`: gone");
        let both = [Misuse("one".into()).into(), anyhow!("two")];
        let both = refusal(&both).unwrap();
        assert!(both.is::<Misuse>());
        assert_eq!(
            with_causes(&both),
            "the run would be refused:\n  one\n  two"
        );
    }
}
