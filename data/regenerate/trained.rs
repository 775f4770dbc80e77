//! Whether anything of a dataset is trained on once it is answered anew.

use std::fmt;

use super::turns::trained;
use crate::conversation::Content;
use crate::error::{Error, Result};
use crate::mask::Masking;
use crate::rows::LocatedRow;

/// Fails where nothing of these rows of `data` is trained on, whatever is answered, as messages say of their answers that they are
/// only context. Rows with tools count as answered. The rows behind the first one that is trained on are not read, nor those behind
/// one that cannot be read, which is refused where the rows are answered.
///
/// # Errors
/// [`Error::NothingTrained`].
pub fn check_trained(
    data: impl fmt::Display,
    rows: impl IntoIterator<Item = Result<LocatedRow>>,
    masking: Masking,
) -> Result<()> {
    // Messages have no say in that.
    if masking == Masking::All {
        return Ok(());
    }
    let (mut read, mut context) = (0, 0);
    for row in rows {
        let Ok(LocatedRow { row, copies, .. }) = row else {
            return Ok(());
        };
        if copies == 0 {
            continue;
        }
        read += 1;
        let answers = match row.or_conversation().content {
            Content::Conversation(conversation) => trained(&conversation),
            Content::Tokens(sample) if sample.trained_tokens() > 0 => return Ok(()),
            Content::Tokens(_) => continue,
        };
        let asked = masking.asked(&answers);
        if asked.contains(&true) {
            return Ok(());
        }
        context += asked.len() as u64;
    }
    // Without such answers it is something else that is missing, which the preparation says.
    match context {
        0 => Ok(()),
        answers => Err(Error::NothingTrained {
            data: data.to_string(),
            rows: read,
            answers,
        }),
    }
}
