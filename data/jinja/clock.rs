//! Moments in the notation of `strftime`, as far as chat templates use it.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error as JinjaError, ErrorKind};

/// The longest format.
const LONGEST_FORMAT: usize = 1000;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A moment (seconds since 1970, UTC) in the notation of `strftime`.
pub(crate) fn strftime(seconds: u64, format: &str) -> Result<String, JinjaError> {
    if format.len() > LONGEST_FORMAT {
        return Err(JinjaError::new(
            ErrorKind::InvalidOperation,
            format!("stopped: `strftime_now` with a format of more than {LONGEST_FORMAT} bytes"),
        ));
    }
    let days = seconds / 86_400;
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // 1 January 1970 was a Thursday; both indices are below the lengths of their tables.
    let weekday = WEEKDAYS[(days + 4) as usize % 7];
    let month_name = MONTHS[month as usize - 1];
    let mut output = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            output.push(character);
            continue;
        }
        let text = match characters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('H') => format!("{hour:02}"),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            other => {
                return Err(JinjaError::new(
                    ErrorKind::InvalidOperation,
                    format!(
                        "`strftime_now` with `%{}` is not supported: one of `YymdeHMSBbAaFT%` is",
                        other.map_or(String::new(), String::from)
                    ),
                ));
            }
        };
        output.push_str(&text);
    }
    Ok(output)
}

/// Year, month and day of a day counted from 1 January 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        let at = |seconds: u64| strftime(seconds, "%d %b %Y, %A %H:%M:%S %B %y%%").unwrap();
        assert_eq!(at(0), "01 Jan 1970, Thursday 00:00:00 January 70%");
        assert_eq!(
            at(951_782_400),
            "29 Feb 2000, Tuesday 00:00:00 February 00%"
        );
        assert_eq!(
            at(1_735_689_599),
            "31 Dec 2024, Tuesday 23:59:59 December 24%"
        );
        assert!(strftime(0, "%Q").unwrap_err().to_string().contains("`%Q`"));
    }
}
