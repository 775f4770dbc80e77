//! Samples in the text format of Prometheus (version 0.0.4, and OpenMetrics as far as it is the same).
use std::collections::BTreeMap;

use spectrain_checkpoints::Mismatch;

use crate::error::{Error, Result};

/// A page of samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<Sample>);

/// A number with its name and labels.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Samples {
    /// Reads a page.
    ///
    /// # Errors
    /// A line is neither a comment nor a sample.
    pub fn parse(page: &str) -> Result<Self> {
        let lines = page.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let sample = |(index, line): (usize, &str)| {
            sample(line).ok_or_else(|| Error::Server {
                what: format!("line {} of the metrics", index + 1),
                mismatch: Mismatch::new("`NAME{LABEL=\"VALUE\"} NUMBER`", format!("`{line}`")),
            })
        };
        lines.map(sample).collect::<Result<_>>().map(Self)
    }

    /// Whether there is a sample whose name begins so.
    pub fn has(&self, beginning: &str) -> bool {
        self.0
            .iter()
            .any(|sample| sample.name.starts_with(beginning))
    }

    /// The samples of a name, whatever their labels, added up; `None` where there is none.
    pub fn total(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().filter(|sample| sample.name == name);
        found.map(|sample| sample.value).reduce(|a, b| a + b)
    }

    /// The samples of a name added up for each value of a label that is a number, in ascending order.
    pub fn by_number(&self, name: &str, label: &str) -> Vec<(usize, f64)> {
        let mut found = BTreeMap::new();
        for sample in self.0.iter().filter(|sample| sample.name == name) {
            let of_label = sample.labels.iter().find(|(key, _)| key == label);
            if let Some(number) = of_label.and_then(|(_, value)| value.parse().ok()) {
                *found.entry(number).or_default() += sample.value;
            }
        }
        found.into_iter().collect()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_ends = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(name_ends);
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A time may follow, and in OpenMetrics an exemplar.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    let is_named = !name.is_empty();
    is_named.then(|| Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
        labels.push((name.trim().to_owned(), value));
        rest = after;
    }
}

/// A text up to its closing quotation mark, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP vllm:x_total A \"quoted\" word.
# TYPE vllm:x_total counter
vllm:x_total{engine=\"0\",model_name=\"a \\\"b\\\" \\\\ }, c=\\n\"} 3.0
vllm:x_total{engine=\"1\", model_name=\"d\",} 4 1700000000000
vllm:p_total{position=\"10\",engine=\"0\"} 1
vllm:p_total{position=\"2\",engine=\"0\"} 5
vllm:p_total{position=\"2\",engine=\"1\"} 1e1

plain 2 # {trace=\"x\"} 1
vllm:bucket{le=\"+Inf\"} +Inf
vllm:nothing NaN
";

    #[test]
    fn samples_are_added_up_over_their_labels() {
        let samples = Samples::parse(PAGE).unwrap();
        assert_eq!(samples.total("vllm:x_total"), Some(7.0));
        assert_eq!(samples.total("plain"), Some(2.0));
        assert_eq!(samples.total("vllm:x"), None);
        assert_eq!(samples.total("vllm:bucket"), Some(f64::INFINITY));
        assert!(samples.total("vllm:nothing").unwrap().is_nan());
        let positions = samples.by_number("vllm:p_total", "position");
        assert_eq!(positions, [(2, 15.0), (10, 1.0)]);
        assert!(samples.has("vllm:") && !samples.has("sglang:"));
        let escaped = &samples.0[0].labels[1].1;
        assert_eq!(escaped, "a \"b\" \\ }, c=\n");
    }

    #[test]
    fn what_is_no_sample_is_refused_with_its_line() {
        for line in ["<html>", "a{b=\"c\" 1", "a{b=c} 1", "a x", "a{b=\"c\"}"] {
            let page = format!("ok 1\n{line}\n");
            let error = Samples::parse(&page).unwrap_err().to_string();
            assert!(
                error.starts_with("line 2 of the metrics: expected `NAME{"),
                "{error}"
            );
        }
    }
}
