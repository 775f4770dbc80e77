//! The commands of a shell script, as far as scripts that start a training need it: variables, quotes and continued lines.

use std::path::Path;

use anyhow::{Result, anyhow};

use super::shell::{LONGEST, Place, Variables};
use super::words::{Entry, Word, entries, is_assignment, plain};

/// The commands of the script in `file`, each as its words, with the script's own variables filled in, and with what commands print
/// that only look at paths, as if the script ran from the working folder. What else a shell can do (conditions, loops, functions,
/// other programs' output) is not done; what is not known stays as it is written.
///
/// # Errors
/// A quote does not end, or variables make a word longer than any that means something.
pub(super) fn commands(script: &str, file: &Path) -> Result<Vec<Vec<String>>> {
    let joined = script.replace("\\\r\n", " ").replace("\\\n", " ");
    let entries = entries(&joined).map_err(|line| anyhow!("a quote does not end: `{line}`"))?;
    let too_long = || anyhow!("a word of more than {LONGEST} bytes");
    let mut variables = Variables::of(file);
    let mut place = Place::here();
    // Where the commands run that are around those in brackets.
    let mut around = Vec::new();
    let mut found = Vec::new();
    for entry in &entries {
        match entry {
            Entry::Open => around.push(place.clone()),
            Entry::Close => place = around.pop().unwrap_or(place),
            Entry::Array(name, words) => {
                let elements = variables.all_filled(words, &place);
                variables.set_array(name, elements.ok_or_else(too_long)?);
            }
            Entry::Command(words) => {
                let (set, words) = assignments(words);
                let words = variables.all_filled(words, &place);
                let words = words.ok_or_else(too_long)?;
                for word in set {
                    let text = variables.assigned(word, &place);
                    if let Some((name, value)) = text.ok_or_else(too_long)?.split_once('=') {
                        variables.set(name, value);
                    }
                }
                if !words.is_empty() && !place.go(&words) {
                    found.push(words);
                }
            }
        }
    }
    Ok(found)
}

/// The words of a command that set variables, and the others.
fn assignments(words: &[Word]) -> (&[Word], &[Word]) {
    let words = match words.first().and_then(|word| plain(word)) {
        Some("export" | "local" | "readonly") => &words[1..],
        _ => words,
    };
    let set = words.iter().take_while(|word| is_assignment(word));
    words.split_at(set.count())
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
        let doubled = "A=('')\n".to_owned() + &"A+=(\"${A[@]}\")\n".repeat(60);
        assert!(commands(&doubled, Path::new("a.sh")).is_err());
    }

    #[test]
    fn words_of_a_command_may_be_kept_in_variables() {
        let script = "OPTS=\"--lr 1e-4\"; OPTS+=' --epochs 7'\nCMD=(python\n  train.py # in bash\n  --out \"a b\")\n\
                      [ -n \"$WANDB\" ] && CMD+=(--wandb)\n\"${CMD[@]}\" $OPTS \"$@\" > log 2>&1 &\nA=1 B=$A; echo $B\n";
        let found = commands(script, Path::new("a.sh")).unwrap();
        let expected = [
            vec!["[", "-n", "$WANDB", "]"],
            vec![
                "python", "train.py", "--out", "a b", "--wandb", "--lr", "1e-4", "--epochs", "7",
            ],
            vec!["echo", "1"],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_in_brackets_leaves_the_folder_as_it_is() {
        let script = "D=$(pwd)\n(cd /; echo $(pwd)); echo \"$(pwd)\" \"$D\"\n)\necho $D";
        let found = commands(script, Path::new("a.sh")).unwrap();
        assert_eq!(found[0], ["echo", "/"]);
        assert_eq!(found[1][1], found[1][2]);
        assert_eq!(found.len(), 3);
    }
}
