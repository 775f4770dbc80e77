//! Scripts that call a trainer: what their shell makes of them before the trainer sees its flags.
use std::path::Path;

use spectrain::trainers::translate;

use crate::translated::{has, lacks, of, tells};
use crate::workspace::Workspace;

#[test]
fn what_a_shell_reads_itself_is_no_value_of_the_last_flag() {
    let mut flags = [
        "--seed 7",
        "--run-name mine",
        "--vllm-endpoint http://a:1/v1",
        "--max-steps=5000",
    ];
    for (before, behind) in [
        ("", " > train.log 2>&1 &"),
        ("nohup ", " &>log&"),
        ("", " 2>&1 | tee log"),
        ("", "|tee log"),
        ("", " >> \"$OUT/a log\"; echo done"),
        ("", " \"$@\""),
        ("", " ${MORE:-} $*"),
        ("(cd x && ", ")"),
        ("{ ", "; } 2> >(tee log)"),
    ] {
        for _ in 0..flags.len() {
            flags.rotate_left(1);
            let flags = flags.join(" ");
            let script = format!(
                "{before}speculators train --verifier-name-or-path Qwen/Qwen3-8B {flags}{behind}\n"
            );
            let found = of("a.sh", &script);
            let set = [
                "seed=7",
                "target.server=[\"http://a:1\"]",
                "train.steps=5000",
            ];
            has(&found, &set);
            lacks(&found, "train.epochs");
            assert_eq!(found.name.as_deref(), Some("mine"), "{script}");
            assert_eq!(found.carried, [5, 5], "{script}: {:?}", found.notes);
        }
    }
}

#[test]
fn settings_may_be_kept_in_variables_of_a_script() {
    let train = "speculators train --verifier-name-or-path Qwen/Qwen3-8B";
    for script in [
        format!("OPTS=\"--lr 1e-4 --epochs 7\"\n{train} $OPTS --run-name \"a b\"\n"),
        format!(
            "OPTS=\"--lr 1e-4\"\nOPTS+=\" --epochs 7\"\nNAME=\"a b\"\n{train} ${{OPTS}} --run-name \"$NAME\"\n"
        ),
        format!(
            "ARGS=(\n  --lr 1e-4\n  --run-name \"a b\" # why\n)\nARGS+=(--epochs 7)\n{train} \"${{ARGS[@]}}\"\n"
        ),
        format!("CMD=({train} --lr 1e-4)\n\"${{CMD[@]}}\" --epochs 7 --run-name 'a b'\n"),
    ] {
        let found = of("a.sh", &script);
        has(&found, &["train.learning_rate=0.0001", "train.epochs=7"]);
        assert_eq!(found.name.as_deref(), Some("a b"), "{script}");
        assert_eq!(found.carried, [4, 4], "{script}: {:?}", found.notes);
    }
    // What a script gets from elsewhere may be settings, too.
    let found = of(
        "a.sh",
        &format!("{train} $MORE\n").replace(" --", " $FLAGS --"),
    );
    tells(&found, &["`$FLAGS`", "does not set the variable $FLAGS"]);
    let folder = tempfile::tempdir().unwrap();
    let file = "model:\n  target_model_path: a/b\ndata:\n  train_data_path: a.jsonl\ntraining:\n  max_steps: 9\n";
    std::fs::write(folder.path().join("a.yaml"), file).unwrap();
    let script = folder.path().join("a.sh");
    let found = translate("specforge train --config a.yaml $MORE\n", &script).unwrap();
    tells(&found, &["`$MORE`", "does not set the variable $MORE"]);
    has(&found, &["train.steps=9"]);
    let text = "specforge train --config a.yaml training.max_steps=null\n";
    let found = translate(text, &script).unwrap();
    lacks(&found, "train.steps");
    has(&found, &["train.epochs=1"]);
    assert_eq!(found.carried, [2, 2], "{:?}", found.notes);
}

#[test]
fn a_script_finds_its_own_folder() {
    let workspace = Workspace::new();
    let text = workspace.text("train.jsonl");
    for folder in ["examples", "cache", "configs"] {
        std::fs::create_dir_all(workspace.path("SF").join(folder)).unwrap();
    }
    workspace.write("SF/cache/train.jsonl", &text);
    workspace.write("SF/configs/draft.json", r#"{"intermediate_size": 96}"#);
    let warm_up = "\nwarmup_ratio = 0.1\n";
    for (number, own) in [
        "SCRIPT_DIR=$( cd -- \"$( dirname -- \"${BASH_SOURCE[0]}\" )\" &> /dev/null && pwd )\nROOT_DIR=$(dirname $SCRIPT_DIR)",
        "SCRIPT_DIR=`dirname $0`\nROOT_DIR=\"$(dirname \"$SCRIPT_DIR\")\"",
        "ROOT_DIR=$(cd \"$(dirname \"$0\")/..\"; pwd)",
    ]
    .into_iter()
    .enumerate()
    {
        let script = format!(
            "#!/bin/bash\n{own}\nNUM_GPUS=${{1:-4}}\nDATA=${{DATA:-$ROOT_DIR/cache/train.jsonl}}\ntorchrun --nproc_per_node $NUM_GPUS \\\n  \
             $ROOT_DIR/scripts/train_eagle3.py --target-model-path target --train-data-path $DATA \\\n  \
             --draft-model-config $ROOT_DIR/configs/draft.json --max-length 32 --num-epochs 20 --warmup-ratio 0.1 \\\n  \
             --target-model-backend sglang --report-to wandb --wandb-project mine --wandb-key secret\n"
        );
        workspace.write("SF/examples/run.sh", script);
        let line = format!("init --from SF/examples/run.sh --yes --out {number}.toml --name a{number}");
        let found = workspace.run_line(line).succeeded();
        let recipe = workspace.text(&format!("{number}.toml"));
        assert!(recipe.contains("SF/cache/train.jsonl\"\n"), "{recipe}");
        for line in ["\nd_ff = 96\n", "\ngradient_accumulation = 4\n", warm_up] {
            assert!(recipe.contains(line), "no {line}: {recipe}");
        }
        let said = found.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "--devices cuda:0-3 --plan",
            "with a table `[track]`",
            "`model.target_backend = sglang`: spectrain computes the target's hidden states itself",
        ] {
            assert!(said.contains(part), "no {part}: {said}");
        }
        for text in [&said, &recipe] {
            assert!(!text.contains("secret") && !text.contains("that is known"), "{text}");
        }
    }
    // A device that is given is the one that is used.
    let line = "init --from SF/examples/run.sh --yes --out own.toml --device cpu";
    let found = workspace.run_line(line).succeeded();
    assert!(found.stderr.contains("own.toml --device cpu"), "{found:?}");
}

#[test]
fn what_a_script_does_not_say_is_named_where_it_is_missing() {
    let workspace = Workspace::new();
    let script = |data: &str| {
        format!(
            "python train_eagle3.py --target-model-path target --train-data-path {data}/a.jsonl --draft-model-config $SIZES\n"
        )
    };
    workspace.write("a.sh", script("data/$(git rev-parse HEAD)"));
    workspace.run_line("init --from a.sh --yes").misused(&[
        "`--data` is missing",
        "`a.sh`: `data.train_data_path = data/$(git rev-parse HEAD)/a.jsonl`: what the command $(git rev-parse HEAD) prints",
    ]);
    workspace.write("a.sh", script("$DATA"));
    workspace
        .run_line("init --from a.sh --yes")
        .misused(&["the script does not set the variable $DATA"]);
    let script = script("$DATA").replace("$SIZES", "$SIZES --unheard-of 1");
    let found = translate(&script, Path::new("a.sh")).unwrap();
    assert_eq!(found.train, None);
    let first: Vec<bool> = found
        .notes
        .iter()
        .map(|note| note.contains("does not set"))
        .collect();
    // The sizes and the data, before all else.
    assert_eq!(
        first.iter().position(|lacks| !lacks),
        Some(2),
        "{:?}",
        found.notes
    );
}
