//! A day, which chat templates take for today.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use serde::{Deserialize, Serialize};

use spectrain_checkpoints::{Mismatch, printable};

/// A day of the calendar, in UTC; written as `2026-11-29`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Day(NaiveDate);

impl Day {
    /// That of this moment.
    pub fn today() -> Self {
        Self(DateTime::<Utc>::from(SystemTime::now()).date_naive())
    }

    /// That of a moment in seconds since 1970; none where the calendar does not reach so far.
    pub fn of_seconds(seconds: u64) -> Option<Self> {
        let moment = DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0)?;
        Some(Self(moment.date_naive()))
    }

    /// Its first moment.
    pub fn begin(self) -> SystemTime {
        self.0.and_time(NaiveTime::MIN).and_utc().into()
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Day {
    type Err = Mismatch;

    fn from_str(given: &str) -> Result<Self, Mismatch> {
        let day = given.parse().ok().map(Self);
        // The calendar's own reading is more lenient.
        day.filter(|day| day.to_string() == given).ok_or_else(|| {
            Mismatch::new(
                "a day such as `2026-11-29`",
                format!("`{}`", printable(given)),
            )
        })
    }
}

impl TryFrom<String> for Day {
    type Error = Mismatch;

    fn try_from(given: String) -> Result<Self, Mismatch> {
        given.parse()
    }
}

impl From<Day> for String {
    fn from(day: Day) -> Self {
        day.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_day_is_written_in_one_way() {
        let day: Day = "2024-02-29".parse().unwrap();
        assert_eq!(day.to_string(), "2024-02-29");
        for given in [
            "2023-02-29",
            "2024-2-29",
            " 2024-02-29",
            "24-02-29",
            "29 Feb 2024",
            "",
        ] {
            let told = given.parse::<Day>().unwrap_err().to_string();
            assert!(
                told.contains("a day such as `2026-11-29`") && told.contains(given),
                "{told}"
            );
        }
        assert_eq!(serde_json::to_string(&day).unwrap(), "\"2024-02-29\"");
        assert_eq!(serde_json::from_str::<Day>("\"2024-02-29\"").unwrap(), day);
    }

    #[test]
    fn a_day_begins_at_midnight() {
        let day = Day::of_seconds(1_735_689_599).unwrap();
        assert_eq!(day.to_string(), "2024-12-31");
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_735_603_200);
        assert_eq!(day.begin(), begin);
        assert_eq!(Day::of_seconds(u64::MAX), None);
    }
}
