//! The error of a wrong request, and how errors are told.

/// A request that makes no sense: an option, or a value of the recipe that is wrong by itself or for a target of such sizes, whatever
/// else is on the disk. The program ends with 2, as for an unknown argument.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// An error and its causes. Messages that already have their cause do not have it repeated.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_a_message_has_already_is_not_repeated() {
        let error = anyhow::anyhow!("gone").context("`a`: gone");
        assert_eq!(
            with_causes(&error.context("cannot read")),
            "cannot read: `a`: gone"
        );
        let error = anyhow::anyhow!("gone").context("`a`");
        assert_eq!(with_causes(&error), "`a`: gone");
    }
}
