//! Moments in the notation of `strftime`.

use chrono::format::StrftimeItems;
use chrono::{DateTime, Utc};
use minijinja::{Error as JinjaError, ErrorKind};

/// The longest format.
const LONGEST_FORMAT: usize = 1000;

/// A moment in the notation of `strftime`, in English and UTC.
pub(crate) fn strftime(moment: DateTime<Utc>, format: &str) -> Result<String, JinjaError> {
    let refused = |message: String| JinjaError::new(ErrorKind::InvalidOperation, message);
    if format.len() > LONGEST_FORMAT {
        return Err(refused(format!(
            "stopped: `strftime_now` with a format of more than {LONGEST_FORMAT} bytes"
        )));
    }
    let items = StrftimeItems::new(format).parse();
    let items = items.map_err(|_| {
        refused(format!(
            "`strftime_now` with `{format}`: expected a format of `strftime`, such as `%d %B %Y`"
        ))
    })?;
    Ok(moment.format_with_items(items.iter()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        let at = |seconds: i64, format: &str| {
            strftime(DateTime::from_timestamp(seconds, 0).unwrap(), format)
        };
        let shown = |seconds| at(seconds, "%d %b %Y, %A %H:%M:%S %B %y%%").unwrap();
        assert_eq!(shown(0), "01 Jan 1970, Thursday 00:00:00 January 70%");
        assert_eq!(
            shown(951_782_400),
            "29 Feb 2000, Tuesday 00:00:00 February 00%"
        );
        assert_eq!(
            shown(1_735_689_599),
            "31 Dec 2024, Tuesday 23:59:59 December 24%"
        );
        assert_eq!(
            at(0, "%F %T|%e|%-d|%a").unwrap(),
            "1970-01-01 00:00:00| 1|1|Thu"
        );
        let error = at(0, "%d %Q").unwrap_err().to_string();
        assert!(error.contains("`%d %Q`"), "{error}");
        assert!(at(0, "%").is_err() && at(0, &"%d".repeat(501)).is_err());
    }
}
