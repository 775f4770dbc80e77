//! The commands of a shell script, as far as scripts that start a training need it: variables, quotes and continued lines.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// Words that end a command.
const ENDS: [&str; 5] = ["&&", "||", "|", ";", "&"];

/// Bytes of the longest word: variables that stand for others twice would grow without end.
const LONGEST: usize = 1 << 16;

/// The commands of a script, each as its words, with the script's own variables filled in. What else a shell can do (conditions,
/// loops, functions, other programs' output) is not done; a variable that the script does not set stays as it is written.
///
/// # Errors
/// A quote does not end, or variables make a word longer than any that means something.
pub(super) fn commands(script: &str) -> Result<Vec<Vec<String>>> {
    let joined = script.replace("\\\r\n", " ").replace("\\\n", " ");
    let mut variables = BTreeMap::new();
    let mut found = Vec::new();
    for line in joined.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(words) = shlex::split(line) else {
            bail!("a quote does not end: `{line}`");
        };
        for command in words.split(|word| ENDS.contains(&word.as_str())) {
            let words: Vec<String> = command
                .iter()
                .map(|word| filled(word.trim_end_matches(';'), &variables))
                .collect();
            if words.iter().any(|word| word.len() > LONGEST) {
                bail!("a word of more than {LONGEST} bytes");
            }
            let words = match words.first().map(String::as_str) {
                Some("export" | "local" | "readonly") => &words[1..],
                _ => &words[..],
            };
            let set = words.iter().take_while(|word| assignment(word).is_some());
            let set: Vec<(&str, &str)> = set.filter_map(|word| assignment(word)).collect();
            let rest = &words[set.len()..];
            for (name, value) in set {
                variables.insert(name.to_owned(), value.to_owned());
            }
            if !rest.is_empty() {
                found.push(rest.to_vec());
            }
        }
    }
    Ok(found)
}

/// The name and the value of `NAME=VALUE`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    is_name(name).then_some((name, value))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A word with `$NAME`, `${NAME}` and `${NAME:-DEFAULT}` filled in.
fn filled(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        let (name, default, length) = named(after);
        match variables.get(name).map(String::as_str).or(default) {
            Some(value) if length > 0 => {
                text.push_str(&filled(value, &BTreeMap::new()));
                rest = &after[length..];
            }
            _ => {
                text.push('$');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

/// The variable behind a `$`, what stands for it where it is not set, and how long all this is; 0 where there is none.
fn named(after: &str) -> (&str, Option<&str>, usize) {
    let Some(inner) = after.strip_prefix('{') else {
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &after[..end.unwrap_or(after.len())];
        return (name, None, name.len());
    };
    let Some(end) = inner.find('}') else {
        return ("", None, 0);
    };
    let length = end + 2;
    let inner = &inner[..end];
    match inner.split_once(":-").or(inner.split_once('-')) {
        Some((name, default)) => (name, Some(default), length),
        None => (inner, None, length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_a_shell_reads_it() {
        let script = "#!/bin/bash\nset -e\nMODEL=\"Qwen/Qwen3 8B\"\nexport OUT=${1:-./out}/run # where\nN=8; SUM=$((N+1))\n\
                      CUDA_VISIBLE_DEVICES=0 torchrun --nproc $N train.py \\\n  --model \"$MODEL\" \\\n  --out ${OUT} --x '{\"ce\": 0.1}' --y $UNKNOWN && echo done\n";
        let found = commands(script).unwrap();
        let words = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                words("set|-e"),
                words(
                    "torchrun|--nproc|8|train.py|--model|Qwen/Qwen3 8B|--out|./out/run|--x|{\"ce\": 0.1}|--y|$UNKNOWN"
                ),
                words("echo|done"),
            ]
        );
        assert!(commands("a 'b").is_err());
        let doubled = "A=xx\n".to_owned() + &"A=$A$A\n".repeat(60);
        assert!(commands(&doubled).is_err());
    }

    #[test]
    fn a_variable_may_have_a_default_and_what_is_none_stays() {
        let variables = [("A".to_owned(), "x$B".to_owned())].into();
        for (word, expected) in [
            ("$A/$C", "x$B/$C"),
            ("${A}1", "x$B1"),
            ("${C:-d}e", "de"),
            ("${A", "${A"),
            ("5$", "5$"),
            ("$(pwd)", "$(pwd)"),
        ] {
            assert_eq!(filled(word, &variables), expected, "{word}");
        }
    }
}
