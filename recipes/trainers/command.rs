//! The commands of a shell script, as far as scripts that start a training need it: variables, quotes and continued lines.

use std::path::Path;

use anyhow::{Result, bail};

use super::shell::{LONGEST, Line, Place, Variables};

/// The commands of the script in `file`, each as its words, with the script's own variables filled in, and with what commands print
/// that only look at paths, as if the script ran from the working folder. What else a shell can do (conditions, loops, functions,
/// other programs' output) is not done; what is not known stays as it is written.
///
/// # Errors
/// A quote does not end, or variables make a word longer than any that means something.
pub(super) fn commands(script: &str, file: &Path) -> Result<Vec<Vec<String>>> {
    let joined = script.replace("\\\r\n", " ").replace("\\\n", " ");
    let mut variables = Variables::of(file);
    let mut place = Place::here();
    let mut found = Vec::new();
    for line in joined.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(line) = Line::parse(line) else {
            bail!("a quote does not end: `{line}`");
        };
        for command in &line.commands {
            let filled = |word: &String| variables.filled(word, &line, &place);
            let words: Vec<String> = command.iter().map(filled).collect();
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
                variables.set(name, value);
            }
            if !rest.is_empty() && !place.go(rest) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_a_shell_reads_it() {
        let script = "#!/bin/bash\nset -e\nMODEL=\"Qwen/Qwen3 8B\"\nexport OUT=${1:-./out}/run # where\nN=8; SUM=$((N+1))\n\
                      CUDA_VISIBLE_DEVICES=0 torchrun --nproc $N train.py \\\n  --model \"$MODEL\" \\\n  --out ${OUT} --x '{\"ce\": 0.1}' --y $UNKNOWN && echo done\n";
        let found = commands(script, Path::new("a.sh")).unwrap();
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
        assert!(commands("a 'b", Path::new("a.sh")).is_err());
        let doubled = "A=xx\n".to_owned() + &"A=$A$A\n".repeat(60);
        assert!(commands(&doubled, Path::new("a.sh")).is_err());
    }
}
